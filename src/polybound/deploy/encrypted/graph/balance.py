"""The same network with values of one size: what the scheme adds is as large in every slot.

A value is divided by its usual size, channel by channel, and the sides of a product are made equally large; both is
taken up by the maps around them. Errors of rounded weights, which are multiplied by the other side, become smaller by
the square root of the ratio of the sides.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from polybound.deploy.encrypted.graph.circuit import groups_of
from polybound.deploy.encrypted.graph.entries import Array
from polybound.deploy.encrypted.graph.stages import Form, Stages, Term, Value
from polybound.models import Scale


def balanced(stages: Stages, images: Array) -> Stages:
    """The same stages, scaled by the usual sizes of all values and forms at these images."""
    sizes: dict[int, Array] = {}
    shapes = {id(form): value.shape for value in stages.values for form in value.forms}
    shapes[id(stages.output)] = ()
    values, _ = stages.run(images, lambda form, y: sizes.__setitem__(id(form), _size(y, shapes[id(form)])))
    groups = groups_of(stages)
    # Values that are sides of products themselves stay as they are, and so do those whose sides serve twice.
    fixed = {groups[0], groups[-1]}
    for number, value in enumerate(stages.values):
        sides = [form for pair in value.products for form in {id(form): form for form in pair}.values()]
        if len({id(form) for form in (*sides, value.rest)}) < len(sides) + 1:
            fixed.add(groups[number])
        fixed |= {groups[term.value] for form in sides for term in form.terms if not term.maps}
    of_group = {group: np.ones(1) for group in fixed}
    for number, value in enumerate(stages.values):
        if groups[number] not in fixed:
            found = _size(values[number], value.shape)
            known = of_group.get(groups[number])
            of_group[groups[number]] = found if known is None else np.maximum(known, found)

    def moved(form: Form, weight: Array) -> Form:
        """The form of the scaled values, times a weight; values themselves are scaled already."""
        after = (Scale(_tensor(weight, len(form.constant))),) if (weight != 1).any() else ()
        terms = []
        for term in form.terms:
            before = [Scale(_tensor(of_group[groups[term.value]], part.inputs)) for part in term.maps[:1]]
            terms.append(Term(term.value, (*before, *term.maps, *after) if term.maps else ()))
        return Form(tuple(terms), form.constant * weight, form.number)

    changed: list[Value] = []
    for number, value in enumerate(stages.values):
        size = of_group[groups[number]] * np.ones(len(values[number][0]))
        pairs = []
        for left, right in value.products:
            if left is right:
                side = moved(left, size**-0.5)
                pairs.append((side, side))
            elif groups[number] in fixed or any(not term.maps for form in (left, right) for term in form.terms):
                pairs.append((moved(left, 1 / size), moved(right, np.ones(1))))
            else:
                ratio = np.sqrt(sizes[id(right)] * size / sizes[id(left)])
                pairs.append((moved(left, ratio / size), moved(right, 1 / ratio)))
        changed.append(replace(value, products=tuple(pairs), rest=moved(value.rest, 1 / size)))
    return replace(stages, values=tuple(changed), output=moved(stages.output, np.ones(1)))


def _tensor(size: Array, count: int) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(size * np.ones(count)))


def _size(y: Array, shape: tuple[int, ...]) -> Array:
    """The root mean square of every channel, in every entry; never less than a thousandth of the largest."""
    if len(shape) > 1:
        channels = y.reshape(len(y), shape[0], -1)
        size = np.sqrt((channels**2).mean((0, 2))).repeat(channels.shape[2])
    else:
        size = np.full(y.shape[1], np.sqrt((y**2).mean()))
    return np.asarray(np.maximum(size, 1e-3 * size.max(initial=0.0) + 1e-30))
