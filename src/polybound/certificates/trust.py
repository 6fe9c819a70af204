"""Lower bounds of a polynomial over an l_2 ball within the domain: first order, and the trust-region problem."""

from __future__ import annotations

import torch
from torch import Tensor

from polybound.certificates.balls import Limits, least_linear, nearest
from polybound.certificates.bounds import rounded_down
from polybound.certificates.expansion import First
from polybound.certificates.network import Network
from polybound.certificates.quadratic import spectral_shift
from polybound.certificates.second import Second
from polybound.theory import ULP

__all__ = ["lower_in_ball", "trust_region"]


def lower_in_ball(net: Network, first: First, slack: Tensor, limits: Limits) -> tuple[Tensor, Tensor]:
    """`g0 - max(-G.u) - R` over the ball within limits, rounded down, (balls, forms), and where the maximum is."""
    away, u = least_linear(first.G, (limits[0].unsqueeze(1), limits[1].unsqueeze(1)))
    return rounded_down(first.g0, away + first.R, slack, net), u


def trust_region(
    net: Network, second: Second, H: Tensor, R: Tensor, slack: Tensor, limits: Limits
) -> tuple[Tensor, Tensor, Tensor]:
    r"""A lower bound of `g0 + G.u + u'Hu/2 - R` over the unit ball within limits, (balls,), and its v and lam.

    If `M = H + lam I` is positive semidefinite for a lam >= 0, then for all u with `||u||_2 <= 1` and every v

        G.u + u'Hu/2 >= -lam/2 + G.u + u'Mu/2 >= -lam/2 - v'Mv/2 + (G + Mv).u,

    and `least_linear` bounds the last term over the ball within limits. The least such lam is the best one: a larger
    one gains `||u||^2 / 2` and costs 1/2. With the minimiser of the convex problem for v this is the dual of the
    trust-region problem, which by the S-lemma loses nothing where the limits cut nothing off. Neither lam nor v need be
    believed: that M lacks no more than `lack` is proven, and any v will do.
    """
    n = H.shape[-1]
    shift = spectral_shift(H, torch.ones_like(second.G))
    # Where H is positive semidefinite by itself, so it is with a shift of 0 in the place of a negative one.
    lam, lack = shift.mu[:, :1].clamp_min(0.0), shift.lack
    v = _minimiser(second.G, H, lam, limits)
    Mv = _times(H, v) + lam * v
    away, _ = least_linear(second.G + Mv, limits)
    # |M| |v| <= |M| 1 bounds what the products with v round off; v has entries and length of at most 1, nearly.
    sizes = H.abs().sum((-1, -2)) + n * lam.squeeze(-1) + second.G.abs().sum(-1) + R
    off = sizes * (4 * (n + 8 + net.roundings) * ULP) + 3 * lack
    total = lam.squeeze(-1) / 2 + (v * Mv).sum(-1) / 2 + away + R
    return rounded_down(second.g0, torch.nan_to_num(total, nan=torch.inf), slack + off, net), v, lam.squeeze(-1)


def _minimiser(G: Tensor, H: Tensor, lam: Tensor, limits: Limits) -> Tensor:
    """Accelerated projected steps on `G.u + u'(H + lam I)u/2` over the unit ball within limits. Proves nothing."""
    size = _largest(H, lam)
    v = look = least_linear(G, limits)[1]
    t = 1.0
    for _ in range(_STEPS):
        slope = G + _times(H, look) + lam * look
        new = nearest(look - slope / size, limits)
        faster = (1 + (1 + 4 * t * t) ** 0.5) / 2
        # Where the last step went against the slope's descent, the momentum is dropped.
        keep = ((slope * (new - v)).sum(-1, keepdim=True) <= 0).to(G.dtype)
        look = new + keep * ((t - 1) / faster) * (new - v)
        v, t = new, faster
    return nearest(v, limits)


_STEPS = 60


def _largest(H: Tensor, lam: Tensor) -> Tensor:
    """About the largest eigenvalue of `H + lam I`, (balls, 1), by some steps of the power method."""
    v = torch.randn(H.shape[:-1], generator=torch.Generator().manual_seed(0), dtype=H.dtype)
    size = torch.zeros_like(lam)
    for _ in range(12):
        v = v / v.norm(dim=-1, keepdim=True).clamp_min(2.0**-500)
        v = _times(H, v) + lam * v
        size = v.norm(dim=-1, keepdim=True)
    return (1.2 * size).clamp_min(2.0**-500)


def _times(H: Tensor, v: Tensor) -> Tensor:
    return (H @ v.unsqueeze(-1)).squeeze(-1)
