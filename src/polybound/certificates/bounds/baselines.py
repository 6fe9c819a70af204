"""Bounds to compare with: a global Lipschitz constant, intervals, zonotopes and linear relaxations of the products.

Each returns proven lower bounds of the margins `w.y_k + constant` over boxes `x = c + r * u`, (boxes, rivals), less
`PreparedNetwork.slack` and what the last subtraction rounds. They form the same sums of products as the expansion
does, of terms that are never larger than those of the network in absolute values, so that the same slack covers them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor

from polybound.certificates.bounds.slopes import length
from polybound.certificates.forms import Forms
from polybound.certificates.input_sets import Balls, Boxes, centre
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.search.proof_state import Ledger
from polybound.theory import ULP, lipschitz

__all__ = ["crown_bound", "interval_bound", "lipschitz_bound", "lipschitz_in_ball", "relax", "zonotope_bound"]


def _down(net: PreparedNetwork, value: Tensor, size: Tensor, slack: Tensor) -> Tensor:
    return torch.nan_to_num(value - slack - size * (4 * net.roundings * ULP), nan=-torch.inf)


def lipschitz_bound(net: PreparedNetwork, c: Tensor, r: Tensor, w: Tensor, constant: Tensor, slack: Tensor) -> Tensor:
    """The margin at the centre less twice the Lipschitz constant (l_inf, row-wise) times the largest radius."""
    reach = float((c.abs() + r).max()) * (1 + 4 * ULP)
    value = lipschitz(net.factors, method="rowwise", radius=reach).value
    y = _forward(net, c)[-1]
    margin = (w * y.unsqueeze(1)).sum(-1) + constant
    away = 2 * torch.as_tensor(value, dtype=torch.float64) * r.amax(-1, keepdim=True)
    return _down(net, margin - away, margin.abs() + away, slack)


def lipschitz_in_ball(
    net: PreparedNetwork, x: Tensor, r: Tensor, far: Tensor, w: Tensor, constant: Tensor, slack: Tensor
) -> Tensor:
    """The margin at x less sqrt(2) times the Lipschitz constant (l_2, row-wise) times the largest radius.

    Args:
        net: the network.
        x: centres (balls, features).
        r: radii (balls, features).
        far: upper bounds of the l_2 norms of the balls' points, (balls,).
        w: (balls, rivals, units).
        constant: (balls, rivals).
        slack: as `PreparedNetwork` gives it.
    """
    value = lipschitz(net.factors, 2, method="rowwise", radius=float(far.max())).value
    margin = (w * _forward(net, x)[-1].unsqueeze(1)).sum(-1) + constant
    away = sqrt(2) * torch.as_tensor(value, dtype=torch.float64) * r.amax(-1, keepdim=True)
    return _down(net, margin - away, margin.abs() + away, slack)


def _forward(net: PreparedNetwork, x: Tensor) -> list[Tensor]:
    """The products y_1, ..., y_k."""
    products = [net.A[0](x) * net.s1]
    for n in range(1, net.degree):
        products.append(net.A[n](x) * net.between(products[-1], n))
    return products


def _intervals(
    net: PreparedNetwork, c: Tensor, r: Tensor
) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """Interval bounds of the factors and of what they are multiplied by, each as (centre, radius)."""
    h = [(A(c), absolute.linear(r)) for A, absolute in zip(net.A, net.absolute_A, strict=True)]
    s1 = net.s1.expand(len(c), -1)
    q = [(s1, torch.zeros_like(s1))]
    for n in range(1, net.degree):
        mid, rad = _times(h[n - 1], q[n - 1])
        q.append((net.between(mid, n), net.spread(rad, n)))
    return h, q


def _times(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The exact range of a product of intervals."""
    ends = torch.stack([(a[0] + s * a[1]) * (b[0] + t * b[1]) for s in (-1, 1) for t in (-1, 1)])
    low, high = ends.amin(0), ends.amax(0)
    return (low + high) / 2, (high - low) / 2


def interval_bound(net: PreparedNetwork, c: Tensor, r: Tensor, w: Tensor, constant: Tensor, slack: Tensor) -> Tensor:
    """Interval propagation, with the two last rows merged into one."""
    h, q = _intervals(net, c, r)
    mid, rad = _times(h[-1], q[-1])
    margin = (w * mid.unsqueeze(1)).sum(-1) + constant
    away = (w.abs() * rad.unsqueeze(1)).sum(-1)
    return _down(net, margin - away, margin.abs() + away, slack)


def zonotope_bound(net: PreparedNetwork, c: Tensor, r: Tensor, w: Tensor, constant: Tensor, slack: Tensor) -> Tensor:
    """Affine forms of the input; what a product adds of second order is an interval of its own for each unit."""
    h, _ = _intervals(net, c, r)
    scale = r.unsqueeze(-1)
    mid = net.s1.expand(len(c), -1)
    slope = c.new_zeros(len(c), net.features, len(net.s1))
    error = torch.zeros_like(mid)
    for n in range(net.degree):
        if n > 0:
            step = net.S[n - 1]
            mid, error = net.between(mid, n), net.spread(error, n)
            slope = slope if step is None else step.linear(slope)
        at, rho = h[n]
        moved = slope.abs().sum(1)
        error = error * (at.abs() + rho) + rho * moved
        slope = slope * at.unsqueeze(1) + (net.At[n] * scale) * mid.unsqueeze(1)
        mid = mid * at
    margin = (w * mid.unsqueeze(1)).sum(-1) + constant
    away = (w @ slope.transpose(1, 2)).abs().sum(-1) + (w.abs() * error.unsqueeze(1)).sum(-1)
    return _down(net, margin - away, margin.abs() + away, slack)


def crown_bound(net: PreparedNetwork, c: Tensor, r: Tensor, w: Tensor, constant: Tensor, slack: Tensor) -> Tensor:
    """Linear relaxation backwards: `a b >= a* b + b* a - a* b*` for each product, at a corner of its ranges.

    Of the two corners that give a plane below (both lower ends, both upper ends) and their mean, the one that serves a
    rival best is taken. The ranges in between come from the same relaxation, unit by unit.
    """
    h, q = _intervals(net, c, r)
    sizes = _sizes(net, c.abs() + r)
    for n in range(2, net.degree):
        # Tighter ranges of what factor n is multiplied by, from the relaxation of all that lies before it.
        step = net.S[n - 1]
        units = q[n][0].shape[1]
        rows = torch.eye(units, dtype=c.dtype) if step is None else step.matrix()
        offset = torch.zeros(units, dtype=c.dtype) if step is None else step.constant
        ends = []
        for sign in (1.0, -1.0):
            found = _backwards(net, c, r, h, q, sign * rows.expand(len(c), -1, -1), n - 1)
            # A plane has three terms where the product has one.
            off = sizes[n] * (4 * 3.0**n * net.roundings * ULP)
            ends.append(sign * (found + sign * offset - off))
        low, high = torch.maximum(ends[0], q[n][0] - q[n][1]), torch.minimum(ends[1], q[n][0] + q[n][1])
        q[n] = ((low + high) / 2, ((high - low) / 2).clamp_min(0.0))
    value = _backwards(net, c, r, h, q, w.expand(len(c), -1, -1), net.degree - 1) + constant
    return _down(net, value, value.abs(), slack * 3.0**net.degree)


def _sizes(net: PreparedNetwork, x: Tensor) -> list[Tensor]:
    """For each factor, the size of what it is multiplied by: the sum of the absolute values of its terms."""
    sizes = [net.s1.abs().expand(len(x), -1)]
    for n, product in enumerate(net.absolute.partial_products(x), 1):
        if n < net.degree:
            step = net.absolute_S[n - 1]
            sizes.append(product if step is None else step(product))
    return sizes


def _backwards(
    net: PreparedNetwork,
    c: Tensor,
    r: Tensor,
    h: list[tuple[Tensor, Tensor]],
    q: list[tuple[Tensor, Tensor]],
    rows: Tensor,
    last: int,
) -> Tensor:
    """Lower bounds of `rows . y_last`, rows (boxes, many, units): the best of three relaxations."""
    best = rows.new_full(rows.shape[:2], -torch.inf)
    for corner in (0.0, -1.0, 1.0):
        lam = rows
        slope = rows.new_zeros(*rows.shape[:2], net.features)
        value = rows.new_zeros(rows.shape[:2])
        for n in reversed(range(last + 1)):
            (a, ra), (b, rb) = h[n], q[n]
            a, ra, b, rb = (t.unsqueeze(1) for t in (a, ra, b, rb))
            # a b = a* b + b* a - a* b* + (a - a*)(b - b*): at the corner a* = a + s ra, b* = b + s' rb. The last term
            # is never negative with s = s' (for lam > 0), never positive with s' = -s (for lam < 0), at either end.
            if corner == 0.0:
                at_a, at_b, lost = a, b, lam.abs() * ra * rb
            else:
                sign = torch.where(lam >= 0, corner, -corner)
                at_a, at_b, lost = a + corner * ra, b + sign * rb, torch.zeros_like(lam)
            on_a = lam * at_b
            value = value - (lam * at_a * at_b).sum(-1) + (on_a * net.b[n]).sum(-1)
            value = value - lost.sum(-1)
            slope = slope + net.A[n].adjoint(on_a)
            on_b = lam * at_a
            if n == 0:
                value = value + (on_b * net.s1).sum(-1)
            else:
                step = net.S[n - 1]
                if step is not None:
                    value = value + (on_b * step.constant).sum(-1)
                lam = net.back(on_b, n)
        total = value + (slope * c.unsqueeze(1)).sum(-1) - (slope.abs() * r.unsqueeze(1)).sum(-1)
        best = torch.maximum(best, total)
    return best


# Claims bounded by the baselines: one relaxation of the whole box, no search.


_RELAXATIONS = {
    "crown": crown_bound,
    "zonotope": zonotope_bound,
    "interval": interval_bound,
    "lipschitz": lipschitz_bound,
}
_CHUNK = 32
_ENTRIES = 2**24  # of the rows that a linear relaxation sends back through the network, one for each unit


def relax(
    forms: Forms,
    boxes: Boxes,
    ledger: Ledger,
    method: str,
    on_progress: Callable[[int], None] | None = None,
    balls: Balls | None = None,
) -> None:
    """Bound all forms by one of the baselines, and enter the bounds as those of first order.

    Over balls, if there are any, by the Lipschitz constant.
    """
    net = forms.net
    units = max(A.outputs for A in net.A)
    chunk = max(1, min(_CHUNK, _ENTRIES // units**2))
    for start in range(0, len(boxes.x), chunk):
        begun = time.perf_counter()
        images = torch.arange(start, min(start + chunk, len(boxes.x)))
        x, lower, upper = (t[images] for t in (boxes.x, *boxes.outer))
        block = forms.block(images, net.slack(torch.maximum(lower.abs(), upper.abs())))
        if balls is None:
            bound = _RELAXATIONS[method](net, *centre(lower, upper), block.w, block.constant, block.slack)
        else:
            far = length(torch.maximum(lower.abs(), upper.abs()))
            bound = lipschitz_in_ball(net, x, balls.r[images], far, block.w, block.constant, block.slack)
        ledger.see_inputs(images, x, forms.values(images, net(x)), block.slack)
        ledger.first(images, torch.where(block.asked, bound, torch.inf))
        ledger.charge(method, images, begun)
        if on_progress is not None:
            on_progress(int(images[-1]) + 1)
