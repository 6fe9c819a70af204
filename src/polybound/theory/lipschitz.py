r"""Upper bounds of the Lipschitz constant: the paper's, row-wise, local over a box, and per input (sensitivity).

Over a box, any polynomial network has two:

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
from math import inf, isinf
from typing import Literal

import torch
from torch import Tensor

from polybound.errors import PolyboundError, check_choice, check_number
from polybound.models import (
    Affine,
    Applied,
    Bounded,
    DeepNetwork,
    Dense,
    Factors,
    Graph,
    Identity,
    Intervals,
    PolynomialNetwork,
    Product,
    Sum,
    Windowed,
    graph_of,
)
from polybound.theory.bound import Bound, number
from polybound.theory.norms import (
    can_write_out,
    each_run,
    exponent,
    factor_norms,
    finite_factors,
    matrix_norm,
    operator_norm,
    rounding_norm,
    working_factors,
)
from polybound.theory.rounding import (
    ULP,
    UNDERFLOW_UNDER_ROOT,
    Balanced,
    balanced,
    outward,
    product,
    restored,
    times_power_of_two,
)

Sides = tuple[Tensor | float, Tensor | float]

_CHUNK = 2**24
"""Entries of the largest intermediate tensor of the local bound; more boxes are taken in turns."""


def lipschitz(
    model: PolynomialNetwork | Factors,
    p: float | str = inf,
    method: Literal["paper", "rowwise", "local"] = "rowwise",
    *,
    radius: float | None = 1.0,
    box: Sides | None = None,
) -> Bound:
    """An upper bound of the Lipschitz constant of the logits with respect to the input, `l_p -> l_p`.

    "paper": `k ||C||_p prod_i ||U_i||_p`, or with `||A_i||_p ||S_i||_p` for NCP (theorems 2, 4, 7, 9).
    "rowwise": the same sum of k terms, but unit by unit, with norms taken last; never above "paper".
    "local": over a box, by intervals of the Jacobian's entries; it tends to the exact local constant as the box
    shrinks, and for p = inf over the whole domain it is not above "rowwise".

    Args:
        model: a model, a stack, or canonical factors. A deep network has "paper" by composition, map by map, and
            "rowwise" is its "local".
        p: exponent of both norms, any p >= 1. For p other than 1, 2 and inf, operator norms are Riesz-Thorin bounds.
        method: "paper", "rowwise" or "local".
        radius: the bound holds for `||x||_p <= radius`. The theorems ask this, with radius 1, of the lifted input
            `z = [x, 1]`; only for p = inf is that the same. So `||z||_p <= ||(radius, 1)||_p = R` enters as
            `R^(k-1)`. None takes the theorem to the letter: a free z with `||z||_p <= 1`, constants in z included.
        box: for "local": (lower, upper), each a float or a tensor of shape (features,) or (boxes, features); by
            default [-radius, radius].

    >>> import polybound as pb
    >>> model = pb.paper_model("pn-4", seed=0)
    >>> paper, rowwise, local = (float(pb.lipschitz(model, method=m)) for m in ("paper", "rowwise", "local"))
    >>> local <= rowwise <= paper
    True
    """
    p = exponent(p)
    if radius is not None:
        check_number("radius", radius)
    check_choice("method", method, ("paper", "rowwise", "local"))
    if box is not None and method != "local":
        raise PolyboundError(f"a box goes with method='local', not with {method!r}")
    letter = "inf" if isinf(p) else f"{p:g}"
    default = 1.0 if radius is None else radius
    if isinstance(model, DeepNetwork) and (graph := model.graph()).chain() is None:
        return _of_graph(graph.double(), p, method, letter, box or (-default, default))
    factors = finite_factors(model)
    how = "in float64" + (
        "" if can_write_out(factors) else ", norms of the large maps bounded by those of their kernels"
    )
    if radius is None:
        assumption = f"||z||_{letter} <= 1 for the lifted input z = [x, 1], all of z free to move"
    else:
        assumption = f"||x||_{letter} <= {radius:g}"
    if method == "local":
        lower, upper, single = _sides(factors.features, box or (-default, default), factors.s1.device)
        runs = [factors.run(e) for e in range(factors.lead[0])] if factors.lead else [factors]
        values = [_over_boxes(working_factors(run), lower, upper, p) for run in runs]
        value = torch.stack(values) if factors.lead else values[0]
        value = value.squeeze(-1) if single else value
        name, title = "Local bound", "local"
        formula, assumption, how = _JACOBIAN.format(letter), _in_box(lower, upper), f"interval arithmetic {how}"
    elif method == "paper":
        R = _lifted_radius(p, radius)
        value = each_run(factors, lambda f: _theorem(f, p, R))
        ccp = factors.kind == "CCP"
        name, title = f"Theorem {(2 if ccp else 4) if isinf(p) else (7 if ccp else 9)}", "paper"
        norms = f"||U_i||_{letter}" if ccp else f"||A_i||_{letter} ||S_i||_{letter}"
        formula = f"k ||C||_{letter} prod_i {norms}"
        formula += f" R^(k-1), R = ||({radius:g}, 1)||_{letter}" if R != 1.0 else ""
        if p not in (1.0, 2.0, inf):
            how = how.replace("float64", "float64, operator norms by Riesz-Thorin interpolation", 1)
    else:
        value = each_run(factors, lambda f: _unit_by_unit(f, p, radius))
        name, title = "Row-wise bound", "row-wise"
        formula = f"|| |C| sum_i (sizes of the other factors) |V_i| ||_{letter}"
        if isinf(p) and factors.coupled:
            formula = "max_o sum_m |C_om| sum_i ||V_i^m||_1 prod_(j!=i) (||V_j^m||_1 + beta_j)"
    return Bound(number(value), f"Lipschitz constant, l_{letter}, {title}", name, formula, (assumption,), how)


_JACOBIAN = "|| max |J(x)| ||_{}"


def _of_graph(graph: Graph, p: float, method: str, letter: str, box: Sides) -> Bound:
    """The bounds of a network that is no chain: "paper" by composition, the others by intervals of the Jacobian."""
    lower, upper, single = _sides(graph.features, box, torch.device("cpu"))
    where, quantity = _in_box(lower, upper), f"Lipschitz constant, l_{letter}"
    if method == "paper":
        value = composed_lipschitz(graph, lower, upper, p)
        formula = f"||W||_{letter} L of an affine map, |y| L_z + |z| L_y of a product"
        return Bound(value, f"{quantity}, composed", "Composition", formula, (where,), "interval arithmetic in float64")
    values = _jacobian_norm(graph, lower, upper, p)
    how = "intervals of the Jacobian's entries, backwards, in float64"
    found, formula = number(values.squeeze(0) if single else values), _JACOBIAN.format(letter)
    return Bound(found, f"{quantity}, by intervals", "Jacobian intervals", formula, (where,), how)


def _in_box(lower: Tensor, upper: Tensor) -> str:
    return f"x in the box [{float(lower.min()):g}, {float(upper.max()):g}]" if len(lower) else "x in no box"


def _lifted_radius(p: float, radius: float | None) -> float:
    """`||(radius, 1)||_p`, the largest norm of `[x, 1]`."""
    if radius is None:
        return 1.0
    larger, smaller = max(radius, 1.0), min(radius, 1.0)
    # The larger one taken out, lest its power overflows.
    return larger if isinf(p) else larger * (1.0 + (smaller / larger) ** p) ** (1 / p) * (1 + 8 * ULP)


def _theorem(factors: Factors, p: float, R: float) -> Tensor:
    """The product of the norms of all factors, `k` and `R^(k-1)`."""
    norms = list(factor_norms(factors, p).values())
    others = [factors.degree, *[R] * (factors.degree - 1)]
    return product(torch.stack([*norms, *(torch.full_like(norms[0], other) for other in others)]))


def _unit_by_unit(factors: Factors, p: float, radius: float | None) -> Tensor:
    # Only with p strictly between 1 and inf, or with maps too large to write out, can units lose against norms.
    paper = _theorem(factors, p, _lifted_radius(p, radius))
    scaled = balanced(factors.lifted()) if radius is None else balanced(factors, radius)
    q = 1.0 if isinf(p) else (inf if p == 1.0 else p / (p - 1.0))
    dominating, lost = _dominating(scaled, q)
    value = matrix_norm(dominating, p) + rounding_norm(lost, p)
    terms = _terms(factors)
    found = restored(value, scaled.slope, terms)
    if p not in (1.0, inf):
        by_terms = _termwise(scaled.factors, p, *scaled.sizes(q))
        found = torch.minimum(found, restored(by_terms, scaled.slope, terms, UNDERFLOW_UNDER_ROOT))
    return torch.minimum(found, paper)


def _terms(factors: Factors) -> int:
    """How many roundings the product of norms and sizes along one path through the network meets, generously."""
    return sum(2 * step.terms + 16 for step in (*factors.A, *factors.S, factors.C)) + factors.features


def _dominating(scaled: Balanced, q: float) -> tuple[Tensor, Tensor]:
    """`|C| sum_i (prod of the other factors' sizes) |V_i|`, the matrix that dominates every Jacobian.

    And what rounding may have taken from its rows where maps were written out, in l_1 norm: (*lead, classes).
    """
    factors = scaled.factors
    sizes, weights = scaled.sizes(q)
    G = factors.C.matrix().abs() + factors.C.rounding()[0].unsqueeze(-1)
    total, lost = G.new_zeros(*factors.lead, G.shape[-2], factors.features), G.new_zeros(G.shape[:-1])
    for n in reversed(range(factors.degree)):
        reached = G * weights[n].unsqueeze(-2)
        total = total + factors.A[n].absolute().adjoint(reached)
        lost = lost + (reached * factors.A[n].rounding()[0].unsqueeze(-2)).sum(-1)
        if n > 0:
            G = factors.S[n - 1].absolute().adjoint(G * sizes[n].unsqueeze(-2))
    return total, lost


def sensitivity(model: PolynomialNetwork | Factors) -> Tensor:
    """Upper bounds of `|d f_o / d x_j|` over all x in `[-1, 1]^d`: (classes, features), float64.

    It is the matrix whose norm is the row-wise Lipschitz bound. For any norm's unit in which feature j counts as
    `s_j`, the constant is the norm of the matrix with column j divided by s_j:

        |f_o(x) - f_o(x')| <= sum_j sensitivity[o, j] |x_j - x'_j|

    Args:
        model: a single model, or its factors.

    >>> import torch, polybound as pb
    >>> model = pb.CCP(3, 2, 2, degree=2, seed=0, dtype=torch.float64)
    >>> rows = pb.theory.sensitivity(model).sum(1)
    >>> bool(abs(rows.max() / float(pb.lipschitz(model)) - 1) < 1e-9)
    True
    """
    factors = finite_factors(model)
    if factors.lead:
        raise PolyboundError("sensitivities are about one model; take model.run(e) of a stack")
    factors = factors.written_out
    scaled = balanced(factors)
    total, lost = _dominating(scaled, 1.0)
    return restored(total + lost.unsqueeze(-1), scaled.slope, _terms(factors))


def _termwise(factors: Factors, p: float, sizes: list[Tensor], weights: list[Tensor]) -> Tensor:
    """`sum_i ||C diag(..)||_p ||V_i||_p`, the diagonal shared out between both sides in the best of three ways.

    `|D| <= E` for diagonal matrices gives `||C D V|| <= ||C E^s|| ||E^(1-s) V||` for every s in [0, 1], since
    `D = E^s T E^(1-s)` with a contraction T.
    """
    outside = factors.s1.new_ones(factors.lead)
    left: Affine = factors.C.dense()
    pending = factors.s1.new_ones(*factors.lead, left.inputs)
    total = torch.zeros_like(outside)
    for n in reversed(range(factors.degree)):
        diagonal = pending * weights[n]
        splits = [
            _scaled_norm(left, diagonal**s, p, side="right")
            * _scaled_norm(factors.A[n], diagonal ** (1 - s), p, side="left")
            for s in (0.0, 0.5, 1.0)
        ]
        total = total + outside * torch.stack(splits).amin(0)
        pending = pending * sizes[n]
        if n > 0 and not isinstance(factors.S[n - 1], Identity):
            outside = outside * _scaled_norm(left, pending, p, side="right")
            left = factors.S[n - 1]
            pending = factors.s1.new_ones(*factors.lead, left.inputs)
    return total


def _scaled_norm(step: Affine, diagonal: Tensor, p: float, side: Literal["left", "right"]) -> Tensor:
    """`||diag W||_p` or `||W diag||_p`."""
    if isinstance(step, Dense):
        scale = diagonal.unsqueeze(-1) if side == "left" else diagonal.unsqueeze(-2)
        reach = diagonal if side == "left" else diagonal.amax(-1, keepdim=True)
        return matrix_norm(step.weight * scale, p) + rounding_norm(step.rounding()[0] * reach, p)
    if isinstance(step, Windowed) and side == "left":
        return operator_norm(step.times(diagonal), p)
    return operator_norm(step, p) * diagonal.amax(-1)


def _sides(features: int, box: Sides, device: torch.device) -> tuple[Tensor, Tensor, bool]:
    """The sides of all boxes, (boxes, features), in float64, and whether a single box was given."""
    # Not `torch.as_tensor(side).double()`, which would round a float to float32 on the way.
    lower, upper = (torch.as_tensor(side, dtype=torch.float64, device=device).detach() for side in box)
    single = max(lower.ndim, upper.ndim) < 2
    try:
        shape = (lower + upper + lower.new_zeros(1, features)).shape
        lower, upper = lower.expand(shape), upper.expand(shape)
    except RuntimeError:
        shape = torch.Size()
    if len(shape) != 2 or shape[1] != features:
        raise PolyboundError(f"box sides must be floats, ({features},) or (boxes, {features})")
    if not ((lower <= upper) & torch.isfinite(lower) & torch.isfinite(upper)).all():
        raise PolyboundError("a box needs finite sides with lower <= upper")
    return lower, upper, single


def _over_boxes(factors: Factors, lower: Tensor, upper: Tensor, p: float) -> Tensor:
    """The local bounds of one run, (boxes,), of the network scaled so that nothing over- or underflows."""
    scaled = balanced(factors, float(torch.maximum(lower.abs(), upper.abs()).max()) if len(lower) else 1.0)
    lower, upper = (times_power_of_two(side, scaled.slope - scaled.output) for side in (lower, upper))
    # Maps apart from each other keep what was rounded when they were written out.
    return restored(_jacobian_norm(graph_of(scaled.factors, fused=False), lower, upper, p), scaled.slope, 0)


def _jacobian_norm(graph: Graph, lower: Tensor, upper: Tensor, p: float) -> Tensor:
    """Upper bounds of `||J(x)||_p` over boxes, (boxes,): of the largest entries, or of their middles and radii."""
    values = []
    step = max(1, _CHUNK // (graph.classes * max(graph.sizes)))
    for low, high in zip(torch.split(lower, step), torch.split(upper, step), strict=True):
        J = jacobian_bounds(graph, low, high)
        value = matrix_norm(J.size, p)
        if p not in (1.0, inf):
            radius = torch.maximum(J.upper - J.middle, J.middle - J.lower) * (1 + 4 * ULP)
            value = torch.minimum(value, outward(matrix_norm(J.middle, p) + matrix_norm(radius, p), 1))
        values.append(value)
    return torch.cat(values)


# Any network over a box: by composition, and by intervals of the Jacobian.


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

    def add(at: int, found: Bounded) -> None:
        slopes[at] = algebra.sum([slopes[at], found]) if at in slopes else found

    def times(found: Bounded, other: int) -> Bounded:
        box = boxes[other]
        return algebra.product(found, Bounded(box.lower.unsqueeze(1), box.upper.unsqueeze(1)))

    for at in range(len(graph.nodes) - 1, 0, -1):
        node = graph.nodes[at]
        if at not in slopes:
            continue
        found = slopes.pop(at)
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
