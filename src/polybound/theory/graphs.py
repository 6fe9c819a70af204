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
from polybound.theory.norms import operator_norm
from polybound.theory.rounding import ULP


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
        """`||W||_p L`, by the norms of rows and columns: `||W||_p <= ||W||_1^(1/p) ||W||_inf^(1-1/p)`."""
        share = 1 / self.p
        one, infinite = (float(operator_norm(step, q)) if w else 1.0 for q, w in ((1.0, share), (torch.inf, 1 - share)))
        norm = one**share * infinite ** (1 - share) * (1 + 64 * ULP)
        return Composed(self.intervals.affine(step, value.box), _up(norm * value.constant))

    def sum(self, values: Sequence[Composed]) -> Composed:
        """The sum of the constants."""
        constant = reduce(lambda total, value: _up(total + value.constant), values, 0.0)
        return Composed(self.intervals.sum([value.box for value in values]), constant)

    def product(self, left: Composed, right: Composed) -> Composed:
        """`|y| L_z + |z| L_y`."""
        box = self.intervals.product(left.box, left.box if left is right else right.box)
        sizes = [float(one.box.size.max()) for one in (left, right)]
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


def jacobian_bounds(graph: Graph, lower: Tensor, upper: Tensor) -> Bounded:
    """Where the Jacobian's entries lie over boxes, (boxes, classes, features), rounded outwards.

    Args:
        graph: in float64.
        lower: the least inputs, (boxes, features).
        upper: the largest.
    """
    boxes: dict[int, Bounded] = {}
    algebra = Intervals()
    graph.evaluate(algebra, Bounded(lower, upper), watch=boxes.__setitem__)
    eye = torch.eye(graph.classes, dtype=torch.float64).to(lower).expand(len(lower), -1, -1)
    slopes = {graph.output: Bounded(eye, eye)}

    def add(number: int, found: Bounded) -> None:
        slopes[number] = algebra.sum([slopes[number], found]) if number in slopes else found

    def times(found: Bounded, other: int) -> Bounded:
        box = boxes[other]
        return algebra.product(found, Bounded(box.lower.unsqueeze(1), box.upper.unsqueeze(1)))

    for number in range(len(graph.nodes) - 1, 0, -1):
        node = graph.nodes[number]
        if number not in slopes:
            continue
        found = slopes.pop(number)
        if isinstance(node, Applied):
            add(node.source, algebra.back(node.map, found))
        elif isinstance(node, Sum):
            for source in node.sources:
                add(source, found)
        elif isinstance(node, Product):
            add(node.left, times(found, node.right))
            add(node.right, times(found, node.left))
    zero = eye.new_zeros(len(lower), graph.classes, graph.features)
    return slopes.get(0, Bounded(zero, zero))
