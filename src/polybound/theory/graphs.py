r"""Lipschitz constants of any polynomial network over a box: by composition, and by intervals of the Jacobian.

**Composition.** With `L_y` a Lipschitz constant of a node in the l_p norm and `|y|` the largest value of its entries,

    L_(W y + b) = ||W||_p L_y,   L_(y + z) = L_y + L_z,   L_(y z) = |y| L_z + |z| L_y,

since `||(y z)(x) - (y z)(x')|| <= |y| ||z(x) - z(x')|| + |z| ||y(x) - y(x')||`.

**Intervals.** Every entry of the Jacobian lies in an interval, found backwards from the outputs: through an affine map
by its adjoint, through a product by the intervals of the other factor. With M the largest absolute values,
`||J(x)||_p <= ||M||_1^(1/p) ||M||_inf^(1-1/p)` for all x of the box; as the box is convex, that bounds all quotients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from polybound.models import Affine, Applied, Bounded, Graph, Intervals, Product, Sum
from polybound.theory.rounding import ULP, outward


def operator_norm(step: Affine, p: float) -> float:
    """An upper bound of `||W||_p`, from the l1 norms of rows and columns; exact for p = 1 and inf but for chains."""
    absolute = step.absolute()
    rows = absolute.linear(step.constant.new_ones(1, step.inputs)).max()
    columns = absolute.adjoint(step.constant.new_ones(1, step.outputs)).max()
    return _between(float(outward(columns, step.terms)), float(outward(rows, step.terms)), p)


def _between(one: float, infinite: float, p: float) -> float:
    """The Riesz-Thorin bound `N_1^(1/p) N_inf^(1-1/p)`."""
    if p in (1.0, torch.inf):
        return one if p == 1.0 else infinite
    return float(one ** (1 / p) * infinite ** (1 - 1 / p) * (1 + 64 * ULP))


@dataclass(frozen=True, eq=False)
class Composed:
    """Where a node's values lie, (1, size), and a Lipschitz constant of it."""

    box: Bounded
    constant: float


class _Composition:
    """The algebra of `Composed` for one p."""

    def __init__(self, p: float) -> None:
        self.p, self.intervals = p, Intervals()

    def affine(self, step: Affine, value: Composed) -> Composed:
        """`||W||_p L`."""
        constant = _up(operator_norm(step, self.p) * value.constant)
        return Composed(self.intervals.affine(step, value.box), constant)

    def sum(self, values: Sequence[Composed]) -> Composed:
        """The sum of the constants."""
        constant = reduce(lambda total, value: _up(total + value.constant), values, 0.0)
        return Composed(self.intervals.sum([value.box for value in values]), constant)

    def product(self, left: Composed, right: Composed) -> Composed:
        """`|y| L_z + |z| L_y`."""
        box = self.intervals.product(left.box, left.box if left is right else right.box)
        sizes = [float(torch.maximum(one.box.lower.abs(), one.box.upper.abs()).max()) for one in (left, right)]
        constant = _up(_up(sizes[0] * right.constant) + _up(sizes[1] * left.constant))
        return Composed(box, constant)


def _up(value: float) -> float:
    return value * (1 + 2 * ULP) + 5e-324


def composed_lipschitz(graph: Graph, lower: Tensor, upper: Tensor, p: float) -> float:
    """The Lipschitz constant over a box by composition, map by map.

    Args:
        graph: in float64.
        lower: the least inputs, (1, features).
        upper: the largest.
        p: exponent of both norms.
    """
    return graph.evaluate(_Composition(p), Composed(Bounded(lower, upper), 1.0)).constant


def jacobian_bounds(graph: Graph, lower: Tensor, upper: Tensor) -> Tensor:
    """The largest absolute values of the Jacobian's entries over a box, (classes, features), rounded up.

    Args:
        graph: in float64.
        lower: the least inputs, (1, features).
        upper: the largest.
    """
    boxes: dict[int, Bounded] = {}
    graph.evaluate(Intervals(), Bounded(lower, upper), watch=boxes.__setitem__)
    algebra = Intervals()
    eye = torch.eye(graph.classes, dtype=torch.float64)
    slopes = {graph.output: Bounded(eye, eye)}

    def add(number: int, found: Bounded) -> None:
        slopes[number] = algebra.sum([slopes[number], found]) if number in slopes else found

    for number in range(len(graph.nodes) - 1, 0, -1):
        node = graph.nodes[number]
        if number not in slopes:
            continue
        found = slopes.pop(number)
        if isinstance(node, Applied):
            add(node.source, _pulled(node.map, found))
        elif isinstance(node, Sum):
            for source in node.sources:
                add(source, found)
        elif isinstance(node, Product):
            add(node.left, algebra.product(found, boxes[node.right]))
            add(node.right, algebra.product(found, boxes[node.left]))
    if 0 not in slopes:
        return torch.zeros(graph.classes, graph.features, dtype=torch.float64)
    largest = torch.maximum(slopes[0].lower.abs(), slopes[0].upper.abs())
    return largest.nan_to_num(torch.inf, torch.inf)


def _pulled(step: Affine, found: Bounded) -> Bounded:
    """Rows of intervals times `W`, rounded outwards as `Intervals.affine` rounds `W x`."""
    info = torch.finfo(torch.float64)
    middle = torch.nan_to_num(found.middle, nan=0.0, posinf=info.max, neginf=info.min)
    radius = torch.maximum(found.upper - middle, middle - found.lower) * (1 + 4 * ULP)
    absolute = step.absolute()
    size = absolute.adjoint(middle.abs() + radius)
    tiny = (step.outputs + 1) * (step.terms + 8) * info.smallest_normal
    grown = absolute.adjoint(torch.ones_like(middle[:1])) + 1.0
    reach = absolute.adjoint(radius) + 2 * (step.terms + 8) * ULP * size + tiny * grown
    reach = reach * (1 + 8 * ULP)
    centre = step.adjoint(middle)
    lower, upper = centre - reach, centre + reach
    # NaN stands for an overflow: nothing is known.
    lower = torch.nextafter(lower, torch.full_like(lower, -torch.inf)).nan_to_num(-torch.inf, torch.inf, -torch.inf)
    upper = torch.nextafter(upper, torch.full_like(upper, torch.inf)).nan_to_num(torch.inf, torch.inf, -torch.inf)
    return Bounded(lower, upper)
