r"""Lower bounds of linear forms of a graph's output over boxes: by intervals, and backwards through planes.

For a form `w . f(x)` one walks from the output to the input and keeps a linear form of the values still to come, whose
sum is below it on the whole box. Affine maps are pulled back by their adjoint. A product `a b` with coefficient g lies
above a plane: with ends `a in [l, u]`, `b in [m, v]`, McCormick's two planes below (g >= 0)

    l b + m a - l m,    u b + v a - u v,

and two above it (g < 0), and every mixture of two of them. A square has its tangents below, and its chord above.
At the input the form is least at a corner. The mixtures are what `optimised` chooses, by gradient steps.

Rounding: with Y bounding every value and `M = |W| Y + |b|`, an affine map pulled back in floating point is off by at
most `gamma |g| . M` in what follows, whatever follows, since the exact pull-back of the rounded form is still a bound;
the same holds for every plane and every sum of forms. These shares are added up on the way and taken off at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polybound.certificates.bounds.balls import least_linear
from polybound.models import Applied, Bounded, Graph, Input, Intervals, Product, Sum

Ball = tuple[Tensor, Tensor, tuple[Tensor, Tensor]]
"""An l_2 ball a row, `x + r u` with `|u|_2 <= 1` and limits of u: what is least at the input is least over it."""

_U = 2.0**-52
"""Twice the unit roundoff, which covers the rounding of the error terms themselves."""

_LEAST = 2.0**-1060


@dataclass(frozen=True, eq=False)
class GraphBoxes:
    """Where all values of a graph lie for inputs in boxes, by outward rounded intervals.

    Attributes:
        graph: in float64.
        values: of every node, (images, size) each.
        sizes: `|W| Y + |b|` of every affine map, Y the largest absolute values of its source; None elsewhere.
    """

    graph: Graph
    values: tuple[Bounded, ...]
    sizes: tuple[Tensor | None, ...]

    @classmethod
    def over(cls, graph: Graph, lower: Tensor, upper: Tensor) -> GraphBoxes:
        """The boxes of all nodes for inputs between `lower` and `upper`, (images, features) float64 each."""
        values: dict[int, Bounded] = {}
        graph.evaluate(Intervals(), Bounded(lower, upper), watch=values.__setitem__)
        return cls.of_values(graph, values)

    @classmethod
    def of_values(cls, graph: Graph, values: Mapping[int, Bounded]) -> GraphBoxes:
        """The boxes whose ends are known, by node."""
        sizes: list[Tensor | None] = []
        for node in graph.nodes:
            size = node.map.absolute()(largest(values[node.source])) if isinstance(node, Applied) else None
            sizes.append(size)
        return cls(graph, tuple(values[number] for number in range(len(graph.nodes))), tuple(sizes))

    def of(self, images: Tensor) -> GraphBoxes:
        """Those of some images, by number; one image may be taken several times."""
        values = tuple(Bounded(value.lower[images], value.upper[images]) for value in self.values)
        return GraphBoxes(self.graph, values, tuple(None if size is None else size[images] for size in self.sizes))


def largest(value: Bounded) -> Tensor:
    """The largest absolute values."""
    return torch.maximum(value.lower.abs(), value.upper.abs())


class Forms:
    """Linear forms of the values that are still to come, one a row, and what is known to be lost."""

    def __init__(self, boxes: GraphBoxes, output: Tensor) -> None:
        self.boxes, self.at = boxes, dict[int, Tensor]()
        self.constant = output.new_zeros(len(output))
        self.lost = output.new_zeros(len(output))
        self.add(boxes.graph.output, output)

    def add(self, number: int, form: Tensor) -> None:
        """Another form of a node's value; what its entries and the sum were rounded by is lost."""
        size = largest(self.boxes.values[number])
        with torch.no_grad():
            self.lost = self.lost + 4 * _U * _inner(form.abs(), size) + _LEAST * size.sum(-1)
        self.at[number] = self.at[number] + form if number in self.at else form

    def shift(self, form: Tensor, constant: Tensor) -> None:
        """Another constant, `form . constant`."""
        self.constant = self.constant + _inner(form, constant)
        with torch.no_grad():
            self.lost = self.lost + (form.shape[-1] + 8) * _U * _inner(form.abs(), constant.abs())

    def least(self, number: int, ball: Ball | None = None) -> Tensor:
        """The least value where all that is left is a form of one node, over its box; of the input, or over a ball."""
        form, box = self.at[number], self.boxes.values[number]
        middle = box.middle
        radius = torch.maximum(box.upper - middle, middle - box.lower)
        value = self.constant + _inner(form, middle) - _inner(form.abs(), radius)
        with torch.no_grad():
            size = self.constant.abs() + _inner(form.abs(), middle.abs() + radius)
            lost = self.lost * (1 + 2.0**-20) + (form.shape[-1] + 16) * _U * size + _LEAST
        if ball is not None:
            x, r, limits = ball
            away, _ = least_linear(form * r, limits)
            value = torch.maximum(value, self.constant + _inner(form, x) - away)
            lost = lost + (form.shape[-1] + 16) * _U * (_inner(form.abs(), x.abs() + r) + away.abs())
        # NaN stands for an overflow: nothing is known.
        return (value - lost).nan_to_num(-torch.inf, torch.inf, -torch.inf)

    def lowest(self, ball: Ball | None = None) -> Tensor:
        """The inputs, (rows, features), at which what is left is least."""
        form, box = self.at[0], self.boxes.values[0]
        if ball is None:
            return torch.where(form > 0, box.lower, box.upper)
        x, r, limits = ball
        return x + r * least_linear(form * r, limits)[1] * (1 - 2.0**-30)


def _inner(form: Tensor, value: Tensor) -> Tensor:
    return (form * value).sum(-1)


def pull(forms: Forms, number: int, planes: Tensor | float) -> None:
    """Replace the form of one node by forms of its sources."""
    graph, boxes = forms.boxes.graph, forms.boxes
    node, form = graph.nodes[number], forms.at.pop(number)
    if isinstance(node, Applied):
        size = boxes.sizes[number]
        with torch.no_grad():
            share = (node.map.terms + 8) * _U
            forms.lost = forms.lost + share * _inner(form.abs(), size)  # type: ignore[arg-type]
        forms.shift(form, node.map.constant)
        forms.add(node.source, node.map.adjoint(form))
    elif isinstance(node, Sum):
        for source in node.sources:
            forms.add(source, form)
    elif isinstance(node, Product):
        left, right = boxes.values[node.left], boxes.values[node.right]
        positive = form >= 0
        if node.left == node.right:
            point = left.upper + planes * (left.lower - left.upper)
            slope = torch.where(positive, 2 * point, left.lower + left.upper)
            forms.shift(form, torch.where(positive, -point.square(), -left.lower * left.upper))
            forms.add(node.left, form * slope)
        else:
            # A plane touches the product at two edges that meet in a corner: (l, m) or (u, v); above (l, v) or (u, m).
            near = torch.where(positive, right.lower, right.upper)
            far = torch.where(positive, right.upper, right.lower)
            of_right = left.upper + planes * (left.lower - left.upper)
            of_left = far + planes * (near - far)
            forms.shift(form, -(left.upper * far + planes * (left.lower * near - left.upper * far)))
            forms.add(node.right, form * of_right)
            forms.add(node.left, form * of_left)
        with torch.no_grad():
            size = largest(left) * largest(right)
            forms.lost = forms.lost + 32 * _U * _inner(form.abs(), size)


def interval_bounds(boxes: GraphBoxes, forms: Tensor) -> Tensor:
    """Lower bounds of `forms . f` (rows, classes) by intervals; the last map is merged with the form."""
    found = Forms(boxes, forms)
    output = boxes.graph.output
    node = boxes.graph.nodes[output]
    if isinstance(node, Applied):
        pull(found, output, 0.0)
        output = node.source
    return found.least(output)


def backward_bounds(
    boxes: GraphBoxes, forms: Tensor, planes: Sequence[Tensor] | float = 0.5, ball: Ball | None = None
) -> Tensor:
    """Lower bounds of `forms . f`, rows as in `boxes`, by planes through all products: see `through_planes`."""
    return through_planes(boxes, forms, planes).least(0, ball)


def through_planes(boxes: GraphBoxes, forms: Tensor, planes: Sequence[Tensor] | float) -> Forms:
    """Forms of the input that lie below `forms . f`, by planes through all products.

    Args:
        boxes: of all nodes, one row a form.
        forms: (rows, classes).
        planes: for each product, from the last to the first, how much of the plane through the lower corner is taken,
            from 0 to 1, (rows, size); or one number for all.
    """
    found, used = Forms(boxes, forms), 0
    for number in range(len(boxes.graph.nodes) - 1, -1, -1):
        if number not in found.at or isinstance(boxes.graph.nodes[number], Input):
            continue
        mixture: Tensor | float = planes if isinstance(planes, float) else 0.5
        if isinstance(boxes.graph.nodes[number], Product) and not isinstance(planes, float):
            mixture, used = planes[used], used + 1
        pull(found, number, mixture)
    if 0 not in found.at:  # the output does not depend on the input
        found.add(0, forms.new_zeros(len(forms), boxes.graph.features))
    return found


def nearest_planes(boxes: GraphBoxes) -> list[Tensor]:
    """For each product, from the last to the first, the plane through the corner whose ends are nearer to zero."""
    chosen = []
    for node in reversed(boxes.graph.nodes):
        if isinstance(node, Product):
            left, right = boxes.values[node.left], boxes.values[node.right]
            below = left.lower.abs() + right.lower.abs() <= left.upper.abs() + right.upper.abs()
            chosen.append(below.double())
    return chosen


def optimised_bounds(
    boxes: GraphBoxes, forms: Tensor, steps: int = 5, ball: Ball | None = None
) -> tuple[Tensor, list[Tensor]]:
    """The best of `backward_bounds` over some gradient steps on the mixtures of planes, and of three fixed choices.

    With it the mixtures that gave it, as `backward_bounds` takes them.
    """
    fixed = nearest_planes(boxes)
    chosen = [torch.full_like(one, 0.5) for one in fixed]
    best = backward_bounds(boxes, forms, 0.5, ball)

    def keep(bound: Tensor, planes: Sequence[Tensor]) -> None:
        nonlocal best, chosen
        better = (bound > best).unsqueeze(1)
        chosen = [torch.where(better, new.detach(), old) for new, old in zip(planes, chosen, strict=True)]
        best = torch.maximum(best, bound.detach())

    keep(backward_bounds(boxes, forms, fixed, ball), fixed)
    planes = [0.25 + 0.5 * one for one in fixed]
    for step in range(steps if planes else 0):
        planes = [one.detach().requires_grad_() for one in planes]
        with torch.enable_grad():
            bound = backward_bounds(boxes, forms, planes, ball)
            finite = torch.isfinite(bound)
            slopes: Sequence[Tensor | None] = ()
            if finite.any():
                slopes = torch.autograd.grad(bound[finite].sum(), planes, allow_unused=True)
        keep(bound, planes)
        if not slopes:
            break
        rate = 0.5 / (1 + step)
        moved = []
        for one, slope in zip(planes, slopes, strict=True):
            if slope is None:
                moved.append(one.detach())
                continue
            largest = slope.abs().mean(-1, keepdim=True) + 1e-300
            moved.append((one.detach() + rate * (slope / largest).clamp(-1, 1)).clamp(0, 1))
        planes = moved
    keep(backward_bounds(boxes, forms, planes, ball), planes)
    return best, chosen
