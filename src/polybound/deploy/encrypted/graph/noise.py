"""Ranges of all values, and the error of a logit: what the choice of primes and scales rests on.

The scheme's random errors are independent in every slot where they arise. To first order a logit's error is the sum of
them, weighted by its derivative there, at a given image. With scales `S_v` of values and `s_f` of forms, variances are

- rescaling: `(1 + 2 N / 3) N / 12 / S_v^2` in every slot of a value, for each of its baby steps (which are made
  before, so that they are precise); a fresh encryption for the input;
- weights: rounded when they are encoded, `N / 12 / (s_f / S_v)^2` times the square of the slot that each meets;
- key switches of the input's baby steps, at its scale, weighted by the squares of a row's entries;
- key switches of giant steps and of sums over partial results, `1 / s_f^2`;
- a value that is a term itself comes to the form's scale by a whole number: it is off by up to `S_v / 2 s_f` of it;
- what masks a reply, a fresh zero and numbers in the other slots: rounded at the scale of the logits.

Half of a variance is that of the real part, which alone counts. So an error's variance is a sum over these of a
coefficient, which depends on network and image alone, times powers of scales. The estimate is seven standard
deviations, of the worst image and logit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from polybound.deploy.encrypted.graph.circuit import Circuit, Part, Transfer, baby_tree, giants_of
from polybound.deploy.encrypted.graph.entries import Array, transposed
from polybound.deploy.encrypted.graph.stages import Form, Stages
from polybound.deploy.encrypted.noise import fresh_variance, peaks, rounding_variance, switch_variance
from polybound.models import Bounded, Chain, Intervals

# How large values become.


@dataclass(frozen=True, eq=False)
class Ranges:
    """The largest absolute value of every value and form.

    Attributes:
        values: by their numbers.
        forms: for every value, and for the output at the end, of each of its forms.
        basis: what is known of them, in words.
        proven: whether they hold for every image of the domain.
    """

    values: tuple[float, ...]
    forms: tuple[tuple[float, ...], ...]
    basis: str
    proven: bool


def proven_ranges(stages: Stages, domain: tuple[float, float]) -> Ranges:
    """Bounds for every image whose entries lie in the domain, by interval arithmetic, rounded outwards."""
    algebra, values, forms = Intervals(), list[Bounded](), list[tuple[float, ...]]()

    def largest(value: Bounded) -> float:
        return float(torch.maximum(value.lower.abs(), value.upper.abs()).max())

    def of(form: Form) -> Bounded:
        parts = [
            algebra.affine(Chain(term.maps), values[term.value]) if term.maps else values[term.value]
            for term in form.terms
        ]
        constant = torch.from_numpy(form.constant).unsqueeze(0)
        return algebra.sum([*parts, Bounded(constant, constant)])

    for value in stages.values:
        if not value.products:
            ends = torch.ones(1, stages.graph.features, dtype=torch.float64)
            values.append(Bounded(ends * domain[0], ends * domain[1]))
            forms.append(())
            continue
        known = {id(form): of(form) for form in value.forms}
        products = [algebra.product(known[id(left)], known[id(right)]) for left, right in value.products]
        values.append(algebra.sum([*products, known[id(value.rest)]]))
        forms.append(tuple(largest(known[id(form)]) for form in value.forms))
    forms.append((largest(of(stages.output)),))
    return Ranges(tuple(map(largest, values)), tuple(forms), "proven over the domain", True)


def checked_ranges(stages: Stages, images: Array, margin: float, source: str) -> Ranges:
    """What these images reach, times a margin: no proof for others."""
    reached: dict[int, float] = {}
    values, logits = stages.run(images, lambda form, y: reached.__setitem__(id(form), float(np.abs(y).max())))
    of_values = tuple(margin * float(np.abs(value).max()) for value in values)
    of_forms = [tuple(margin * reached[id(form)] for form in v.forms) if v.products else () for v in stages.values]
    basis = f"checked on {len(images)} {source}, with a margin of {margin:g}"
    return Ranges(of_values, (*of_forms, (margin * float(np.abs(logits).max()),)), basis, False)


# How large errors become.


@dataclass(frozen=True, eq=False)
class Source:
    """One kind of error at one place, `variance * power`, with coefficients (images, classes).

    Attributes:
        kind: "round", "fresh", "weights", "baby", "giant" or "factor".
        value: number of the value whose scale counts.
        number: of the value, or the output, that is being computed.
        form: the place of the form whose scale counts, None if none does.
        coefficient: (images, classes).
    """

    kind: str
    value: int
    number: int
    form: int | None
    coefficient: Array


def sources_of(circuit: Circuit, images: Array) -> list[Source]:
    """All errors of the logits at these images (images, features)."""
    stages, count = circuit.stages, len(circuit.stages.values)
    known: dict[int, Array] = {}
    values, logits = stages.run(images, lambda form, y: known.__setitem__(id(form), y))
    height = peaks(circuit.slots)
    slopes: list[Array | None] = [None] * count
    found: list[Source] = []

    def back(number: int, form: Form, place: int, slope: Array) -> None:
        """The errors of a form with these derivatives (images, classes, size), and what its values get of them."""
        for term in form.terms:
            moved = slope
            if not term.maps and stages.values[term.value].products:
                found.append(Source("round", term.value, number, place, (slope**2).sum(-1)))
            if not term.maps:
                met = np.abs(slope * values[term.value][:, None]).sum(-1)
                found.append(Source("factor", term.value, number, place, met**2))
            if term.maps:
                moved = transposed(term.maps, torch.from_numpy(slope.reshape(-1, slope.shape[-1]))).numpy()
                moved = moved.reshape(*slope.shape[:2], -1)
            before = slopes[term.value]
            slopes[term.value] = moved if before is None else before + moved
        layout = circuit.layouts[number]
        squares = slope**2
        at = layout.address % layout.period
        for transfer in circuit.transfers[number]:
            for part in (part for part in transfer.parts if part.form == place):
                weights, switches, turns = _errors(circuit, transfer, part, values[transfer.source])
                written = layout.address // layout.period
                for n, (giants, entry) in enumerate(zip(turns, weights.T, strict=True)):
                    inside = squares[..., written == n]
                    total = inside.sum(-1)
                    found.append(Source("weights", transfer.source, number, place, total * entry[:, None]))
                    peaked = inside @ height[at[written == n]]
                    found.append(Source("giant", transfer.source, number, place, giants * peaked))
                assert part.matrix is not None  # noqa: S101
                rows = np.zeros(layout.count * layout.period)
                matrix = part.matrix()
                np.add.at(rows, matrix.write * layout.period + matrix.row, matrix.weight**2)
                kind, baby = "baby", switches * (squares @ (rows[layout.address] * height[at]))
                if stages.values[transfer.source].products:
                    kind, baby = "round", squares @ rows[layout.address]
                found.append(Source(kind, transfer.source, number, place, baby))

    eye = np.eye(logits.shape[1])
    back(count, stages.output, 0, np.tile(eye, (len(images), 1, 1)))
    for number in range(count - 1, -1, -1):
        slope, value = slopes[number], stages.values[number]
        if slope is None:
            continue
        if not value.products:
            found.append(Source("fresh", number, number, None, (slope**2).sum(-1)))
        for place, form in enumerate(value.forms) if value.products else ():
            total = slope if form is value.rest else None
            for left, right in value.products:
                for one, other in ((left, right), (right, left)):
                    if one is form:
                        part_ = slope * known[id(other)][:, None]
                        total = part_ if total is None else total + part_
            if total is not None:
                back(number, form, place, total)
    return found


def _errors(circuit: Circuit, transfer: Transfer, part: Part, value: Array) -> tuple[Array, float, list[float]]:
    """What one matrix adds, as (weights, switches, giants).

    weights: (images, written), the mean squares that rounded weights meet, summed over diagonals; switches: of its
    baby steps and sums over bits, at most; giants: those of each ciphertext that is written.
    """
    slots, turned = circuit.layouts[transfer.source].place(value, circuit.slots), 0.0
    read = [slots[:, n] for n in range(slots.shape[1])]
    for fold in transfer.folds:
        if fold.apart:
            read = [read[n] + read[n | fold.apart] for n in range(len(read)) if not n & fold.apart]
        else:
            read = [one + np.roll(one, -fold.step, -1) for one in read]
        turned = 2 * turned + bool(fold.step)
    mean = np.stack([(one**2).mean(-1) for one in read], -1)
    depth = {0: 0}
    for steps in transfer.babies.values():
        for before, step in baby_tree(steps):
            depth[step] = depth[before] + 1
    reach = part.reach
    partial = max(1, reach.source.period // reach.target.period)
    weights = np.zeros((len(value), reach.target.count))
    for write, one in zip(reach.write, reach.read, strict=True):
        weights[:, write] += mean[:, one] * partial
    giants = [0.0] * reach.target.count
    for write, found in giants_of(part, transfer).items():
        giants[write] = float(len(found) * partial + partial)
    return weights, turned + max(depth.values()), giants


@cache
def variance(ring: int, kind: str, primes: tuple[int, ...], special: int) -> float:
    """The variance of a slot, of an error of this kind.

    Args:
        ring: dimension N.
        kind: of a `Source`.
        primes: the sizes of the data primes in bits.
        special: of the special prime.
    """
    if kind == "factor":
        return 0.25
    if kind == "round":
        return rounding_variance(ring) / 2
    if kind == "fresh":
        return fresh_variance(ring) / 2
    if kind == "weights":
        return ring / 24
    return switch_variance(ring, primes, special) / 2
