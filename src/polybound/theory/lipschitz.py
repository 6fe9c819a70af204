"""Upper bounds of the Lipschitz constant: the paper's, row-wise, local over a box, and per input (sensitivity)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isinf, prod
from typing import Literal

import torch
from torch import Tensor

from polybound.errors import PolyboundError, check_choice, check_number
from polybound.models import Affine, DeepNetwork, Dense, Factors, Graph, Identity, PolynomialNetwork, Windowed
from polybound.theory.bound import Bound, number
from polybound.theory.graphs import composed_lipschitz, jacobian_bounds
from polybound.theory.norms import (
    can_write_out,
    each_run,
    exponent,
    factor_norms,
    finite_factors,
    matrix_norm,
    operator_norm,
    rounding_norm,
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

# Interval arithmetic on tensors: a midpoint, a radius, and float64 rounding taken into the radius.


@dataclass(frozen=True)
class Interval:
    """All tensors within `rad` of `mid`, entry by entry; both float64, `rad >= 0`."""

    mid: Tensor
    rad: Tensor

    @staticmethod
    def of_sides(lower: Tensor, upper: Tensor) -> Interval:
        """The interval that contains the box [lower, upper]."""
        mid = (lower + upper) / 2
        return Interval(mid, torch.maximum(upper - mid, mid - lower) * (1 + ULP) + mid.abs() * ULP)

    def magnitude(self) -> Tensor:
        """An upper bound of the absolute value."""
        return (self.mid.abs() + self.rad) * (1 + ULP)

    def wider(self, more: Tensor) -> Interval:
        """The interval with this much added to its radius; `more` is not negative."""
        return Interval(self.mid, (self.rad + more) * (1 + ULP))

    def __mul__(self, other: Interval) -> Interval:
        mid = self.mid * other.mid
        rad = self.rad * other.mid.abs() + (self.mid.abs() + self.rad) * other.rad
        return Interval(mid, (rad + mid.abs() * ULP) * (1 + 4 * ULP))

    def __add__(self, other: Interval) -> Interval:
        mid = self.mid + other.mid
        return Interval(mid, (self.rad + other.rad + mid.abs() * ULP) * (1 + 4 * ULP))

    def through(self, step: Affine, absolute: Affine) -> Interval:
        """The image under an affine map; `absolute` is `step.absolute()`."""
        return self._image(step(self.mid), absolute.linear(self.rad), absolute(self.mid.abs()), step.terms)

    def back(self, step: Affine, absolute: Affine) -> Interval:
        """The image under the transpose of the map's linear part."""
        mid = step.adjoint(self.mid)
        return self._image(mid, absolute.adjoint(self.rad), absolute.adjoint(self.mid.abs()), step.terms)

    @staticmethod
    def _image(mid: Tensor, rad: Tensor, size: Tensor, terms: int) -> Interval:
        # A sum of n products is computed to within n units of roundoff of the sum of their absolute values.
        slack = (terms + 8) * ULP
        return Interval(mid, (rad + size * slack) * (1 + slack))


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
    "local": over a box, the Jacobian at its centre plus how far the Jacobian can move from there; it tends to the
    exact local constant as the box shrinks, and for p = inf over the whole domain it is not above "rowwise".

    Args:
        model: a model, a stack, or canonical factors. A deep network has "paper" by composition, map by map; "rowwise"
            and "local" are the norm of the largest absolute values of its Jacobian's entries, by intervals.
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
    if isinstance(model, DeepNetwork) and (graph := model.graph()).chain() is None:
        return _of_graph(graph, p, method, letter, 1.0 if radius is None else radius, box)
    factors = finite_factors(model)
    how = "in float64" + (
        "" if can_write_out(factors) else ", norms of the large maps bounded by those of their kernels"
    )
    if radius is None:
        assumption = f"||z||_{letter} <= 1 for the lifted input z = [x, 1], all of z free to move"
    else:
        assumption = f"||x||_{letter} <= {radius:g}"
    if method == "local":
        default = 1.0 if radius is None else radius
        lower, upper, single = _sides(factors, box or (-default, default))
        value = each_run(factors, lambda f: _over_boxes(f, lower, upper, p))
        value = value.squeeze(-1) if single else value
        name, title = "Local bound", "local"
        formula = f"||J(centre)||_{letter} + || max |J(x) - J(centre)| ||_{letter}"
        sides = [
            f"{float(side):g}" if not isinstance(side, Tensor) or side.numel() == 1 else word
            for side, word in zip(box or (-default, default), ("lower", "upper"), strict=True)
        ]
        assumption, how = f"x in the box [{', '.join(sides)}]", f"interval arithmetic {how}"
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


def _of_graph(graph: Graph, p: float, method: str, letter: str, radius: float, box: Sides | None) -> Bound:
    """The bounds of a network that is no chain: "paper" by composition, the others by intervals of the Jacobian."""
    graph = graph.double()
    sides = []
    for side in box or (-radius, radius):
        values = torch.as_tensor(side, dtype=torch.float64)
        if values.ndim > 1 or values.numel() not in (1, graph.features):
            raise PolyboundError(f"the sides of a deep network's box are numbers or of shape ({graph.features},)")
        sides.append(values.expand(graph.features).unsqueeze(0))
    lower, upper = sides
    if not bool((lower <= upper).all()):
        raise PolyboundError("the lower side of the box is above the upper one")
    where = f"x in the box [{float(lower.min()):g}, {float(upper.max()):g}]"
    quantity = f"Lipschitz constant, l_{letter}"
    if method == "paper":
        value = composed_lipschitz(graph, lower, upper, p)
        formula = f"||W||_{letter} L of an affine map, |y| L_z + |z| L_y of a product"
        return Bound(value, f"{quantity}, composed", "Composition", formula, (where,), "interval arithmetic in float64")
    value = float(matrix_norm(jacobian_bounds(graph, lower, upper), p))
    formula, how = f"|| max |J(x)| ||_{letter}", "intervals of the Jacobian's entries, backwards, in float64"
    return Bound(value, f"{quantity}, by intervals", "Jacobian intervals", formula, (where,), how)


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


def _sides(factors: Factors, box: Sides) -> tuple[Tensor, Tensor, bool]:
    """The sides of all boxes, (boxes, features), in float64, and whether a single box was given."""
    # Not `torch.as_tensor(side).double()`, which would round a float to float32 on the way.
    lower, upper = (
        (side.detach().double() if isinstance(side, Tensor) else torch.tensor(side, dtype=torch.float64)).to(
            factors.s1.device
        )
        for side in box
    )
    single = max(lower.ndim, upper.ndim) < 2
    try:
        shape = (lower + upper + lower.new_zeros(1, factors.features)).shape
        lower, upper = lower.expand(shape), upper.expand(shape)
    except RuntimeError:
        shape = torch.Size()
    if len(shape) != 2 or shape[1] != factors.features:
        raise PolyboundError(f"box sides must be floats, ({factors.features},) or (boxes, {factors.features})")
    if not ((lower <= upper) & torch.isfinite(lower) & torch.isfinite(upper)).all():
        raise PolyboundError("a box needs finite sides with lower <= upper")
    return lower, upper, single


def _over_boxes(factors: Factors, lower: Tensor, upper: Tensor, p: float) -> Tensor:
    scaled = balanced(factors, float(torch.maximum(lower.abs(), upper.abs()).max()) if len(lower) else 1.0)
    inside = scaled.slope - scaled.output
    lower, upper = (times_power_of_two(side, inside.flatten()[:1].squeeze(0)) for side in (lower, upper))
    factors = scaled.factors
    absolute = [a.absolute() for a in factors.A], [s.absolute() for s in factors.S]
    per_box = factors.C.outputs * max(factors.features, *(a.outputs for a in factors.A)) * prod(factors.lead)
    step = max(1, _CHUNK // per_box)
    values = [
        _local_norm(factors, absolute, Interval.of_sides(lower[i : i + step], upper[i : i + step]), p)
        for i in range(0, len(lower), step)
    ]
    return restored(torch.cat(values, dim=-1), scaled.slope, 0)


def _local_norm(factors: Factors, absolute: tuple[list[Affine], list[Affine]], x: Interval, p: float) -> Tensor:
    """The norm bound of each box: (*lead, boxes)."""
    maps, between = absolute
    # Forward: intervals of A_n(x) and of S_n(y_(n-1)).
    off = [a.rounding() for a in factors.A]
    values = [x.through(a, b).wider((o[0] + o[1]).unsqueeze(-2)) for a, b, o in zip(factors.A, maps, off, strict=True)]
    exact = factors.s1.unsqueeze(-2)
    inner = [Interval(exact, torch.zeros_like(exact))]
    for n, (s, b) in enumerate(zip(factors.S, between, strict=True)):
        inner.append((values[n] * inner[n]).through(s, b))
    # Backward, class by class: J = sum_n (C D_k S_k ... D_(n+1) S_(n+1)) diag(S_n y_(n-1)) A_n.
    C = factors.C.matrix().unsqueeze(-3)
    G = Interval(C, torch.zeros_like(C)).wider(factors.C.rounding()[0].unsqueeze(-1).unsqueeze(-3))
    J: Interval | None = None
    lost = C.new_zeros(())  # what writing the maps out took from the rows of J, in l_1 norm
    for n in reversed(range(factors.degree)):
        reached = G * _over_classes(inner[n])
        lost = lost + (reached.magnitude() * off[n][0].unsqueeze(-2).unsqueeze(-2)).sum(-1)
        part = _flat_back(reached, factors.A[n], maps[n])
        J = part if J is None else J + part
        if n > 0:
            G = _flat_back(G * _over_classes(values[n]), factors.S[n - 1], between[n - 1])
    assert J is not None  # noqa: S101 - the degree is at least 1
    value = matrix_norm(J.magnitude(), p)
    if p not in (1.0, inf):
        value = torch.minimum(value, matrix_norm(J.mid, p) + matrix_norm(J.rad, p))
    value = outward(value + rounding_norm(lost, p), G.mid.shape[-1])
    return value.expand(*factors.lead, len(x.mid))  # of degree 1, all boxes share one Jacobian


def _over_classes(x: Interval) -> Interval:
    return Interval(x.mid.unsqueeze(-2), x.rad.unsqueeze(-2))


def _flat_back(G: Interval, step: Affine, absolute: Affine) -> Interval:
    """`back` for G of shape (*lead, boxes, classes, units), boxes and classes taken as one batch."""
    boxes, classes = G.mid.shape[-3:-1]
    flat = Interval(G.mid.flatten(-3, -2), G.rad.flatten(-3, -2)).back(step, absolute)
    shape = (*flat.mid.shape[:-2], boxes, classes, flat.mid.shape[-1])
    return Interval(flat.mid.reshape(shape), flat.rad.reshape(shape))
