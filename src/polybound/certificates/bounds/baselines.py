"""Bounds to compare with: a global Lipschitz constant, intervals and linear relaxations of the products.

Each returns proven lower bounds of the margins `w.y_k + constant` over boxes `x = c + r * u`, (boxes, rivals), less
`PreparedNetwork.slack` and what the last subtraction rounds. They form the same sums of products as the expansion
does, of terms that are never larger than those of the network in absolute values, so that the same slack covers them.
"""

from __future__ import annotations

import time
from math import inf, sqrt

import torch
from torch import Tensor

from polybound.certificates.bounds.slopes import length
from polybound.certificates.input_sets import Balls, centre
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.search.boxes import Progress
from polybound.certificates.search.proof_state import ProofState
from polybound.theory import ULP, lipschitz


def _down(net: PreparedNetwork, value: Tensor, size: Tensor, slack: Tensor) -> Tensor:
    return torch.nan_to_num(value - slack - size * (4 * net.roundings * ULP), nan=-torch.inf)


def lipschitz_bound(
    net: PreparedNetwork, x: Tensor, r: Tensor, far: Tensor, w: Tensor, constant: Tensor, slack: Tensor, norm: str
) -> Tensor:
    """The margin at x less the Lipschitz constant (row-wise) of a margin times the largest radius.

    Args:
        net: the network.
        x: centres, (sets, features).
        r: radii, (sets, features).
        far: upper bounds of the norms of the sets' points.
        w: (sets, rivals, units).
        constant: (sets, rivals).
        slack: as `PreparedNetwork` gives it.
        norm: of the sets, "inf" or "2".
    """
    value = lipschitz(net.factors, inf if norm == "inf" else 2, method="rowwise", radius=float(far.max())).value
    margin = (w * net.last_product(x).unsqueeze(1)).sum(-1) + constant
    # A margin is a difference of two outputs.
    away = (2 if norm == "inf" else sqrt(2)) * torch.as_tensor(value, dtype=torch.float64) * r.amax(-1, keepdim=True)
    return _down(net, margin - away, margin.abs() + away, slack)


def _intervals(
    net: PreparedNetwork, c: Tensor, r: Tensor
) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """Interval bounds of the factors and of what they are multiplied by, each as (centre, radius)."""
    h = [(A(c), absolute.linear(r)) for A, absolute in zip(net.A, net.absolute_A, strict=True)]
    s1 = net.s1.expand(len(c), -1)
    q = [(s1, torch.zeros_like(s1))]
    for n in range(1, net.degree):
        mid, rad = _times(h[n - 1], q[n - 1])
        q.append((net.between(mid, n), net.radius_between(rad, n)))
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


def crown_bound(net: PreparedNetwork, c: Tensor, r: Tensor, w: Tensor, constant: Tensor, slack: Tensor) -> Tensor:
    """Linear relaxation backwards: `a b >= a* b + b* a - a* b*` for each product, at a corner of its ranges.

    Of the two corners that give a plane below (both lower ends, both upper ends) and their mean, the one that serves a
    rival best is taken. The ranges in between come from the same relaxation, unit by unit.
    """
    h, q = _intervals(net, c, r)
    products = list(net.absolute.partial_products(c.abs() + r))
    for n in range(2, net.degree):
        # Tighter ranges of what factor n is multiplied by, from the relaxation of all that lies before it.
        step = net.S[n - 1]
        rows = step.matrix()
        ends = []
        for sign in (1.0, -1.0):
            found = _backwards(net, c, r, h, q, sign * rows.expand(len(c), -1, -1), n - 1)
            # The sum of the absolute values of all terms; a plane has three terms where the product has one.
            size = net.absolute_S[n - 1](products[n - 1])
            off = size * (4 * 3.0**n * net.roundings * ULP)
            ends.append(sign * (found + sign * step.constant - off))
        low, high = torch.maximum(ends[0], q[n][0] - q[n][1]), torch.minimum(ends[1], q[n][0] + q[n][1])
        q[n] = ((low + high) / 2, ((high - low) / 2).clamp_min(0.0))
    value = _backwards(net, c, r, h, q, w.expand(len(c), -1, -1), net.degree - 1) + constant
    return _down(net, value, value.abs(), slack * 3.0**net.degree)


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
                value = value + (on_b * net.S[n - 1].constant).sum(-1)
                lam = net.back(on_b, n)
        total = value + (slope * c.unsqueeze(1)).sum(-1) - (slope.abs() * r.unsqueeze(1)).sum(-1)
        best = torch.maximum(best, total)
    return best


def relax(state: ProofState, method: str, on_progress: Progress | None = None) -> None:
    """Bound all forms by one of the baselines, without a search, and enter the bounds as those of first order.

    Over balls, that is the Lipschitz constant.
    """
    forms, inputs, net = state.forms, state.inputs, state.forms.net
    # A linear relaxation sends a row for each unit back through the network.
    chunk = max(1, min(32, 2**24 // max(A.outputs for A in net.A) ** 2))
    for start in range(0, len(inputs), chunk):
        begun = time.perf_counter()
        images = torch.arange(start, min(start + chunk, len(inputs)))
        x, (lower, upper) = inputs.x[images], (side[images] for side in inputs.outer)
        corner = torch.maximum(lower.abs(), upper.abs())
        block = forms.of_images(images, net.slack(corner))
        c, r = centre(lower, upper)
        about = block.w, block.constant, block.slack
        if method == "lipschitz" and isinstance(inputs, Balls):
            bound = lipschitz_bound(net, x, inputs.r[images], length(corner), *about, "2")
        elif method == "lipschitz":
            bound = lipschitz_bound(net, c, r, (c.abs() + r) * (1 + 4 * ULP), *about, "inf")
        else:
            bound = (crown_bound if method == "crown" else interval_bound)(net, c, r, *about)
        state.see_inputs(images, x, forms.values(images, net(x)), block.slack)
        state.first(images, torch.where(block.asked, bound, torch.inf))
        state.charge(method, images, begun)
        if on_progress is not None:
            on_progress(int(images[-1]) + 1, len(inputs), "")
