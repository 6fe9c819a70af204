"""Lower bounds over an l_2 ball within the domain: of linear forms, to first order, and the trust-region problem."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from polybound.certificates.bounds.first_order import First
from polybound.certificates.bounds.quadratic import spectral_shift
from polybound.certificates.bounds.second_order import Second, rounded_down
from polybound.certificates.bounds.slopes import length
from polybound.certificates.input_sets import Limits
from polybound.certificates.network import PreparedNetwork
from polybound.theory import ULP


def lower_in_ball(net: PreparedNetwork, first: First, slack: Tensor, limits: Limits) -> tuple[Tensor, Tensor]:
    """`g0 - max(-G.u) - R` over the ball within limits, rounded down, (balls, forms), and where the maximum is."""
    away, u = least_linear(first.G, (limits[0].unsqueeze(1), limits[1].unsqueeze(1)))
    return rounded_down(first.g0, away + first.R, slack, net), u


def least_linear(p: Tensor, limits: Limits) -> tuple[Tensor, Tensor]:
    r"""The largest `-p.u` over the unit ball within limits, rounded up, and the u where it (nearly) is.

    For every split `p = p1 + p2`, p1.u is least over the ball and p2.u over the limits:

        -p.u <= ||p1||_2 + sum_d max(-p2_d low_d, -p2_d high_d).

    With `u = clamp(-p / lam)` of length 1 and `p1 = -lam u` this is exact. The coordinates at their limits grow in
    number as lam falls, so that some steps find it; whatever they find proves a bound.

    Args:
        p: (..., n).
        limits: low and high, of shapes that broadcast to p's.

    >>> import torch
    >>> p, one = torch.tensor([3.0, 4.0], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    >>> [round(float(least_linear(p, limits)[0]), 9) for limits in ((-one, one), (0 * one, one), (-one / 10, one))]
    [5.0, 0.0, 0.7]
    """
    low, high = limits
    u, lam = farthest(p, low, high)
    first = lam * u
    over = [_over_limits(p, low, high), length(first) + _over_limits(p + first, low, high)]
    total = torch.stack([length(p), *over])
    off = (p.abs() + first.abs()).sum(-1) * ((p.shape[-1] + 16) * ULP) + 2.0**-900
    return torch.nan_to_num(total.amin(0) + off, nan=torch.inf), u


def farthest(p: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The u of `least_linear` and its lam, (..., 1). Proves nothing."""
    scale = p.abs().amax(-1, keepdim=True).clamp_min(2.0**-900)
    p = p / scale
    lam = p.norm(dim=-1, keepdim=True).clamp_min(2.0**-500)
    for _ in range(10):
        u = -p / lam
        inside = torch.maximum(torch.minimum(u, high), low)
        free = inside == u
        left = (1.0 - torch.where(free, 0.0, inside).square().sum(-1, keepdim=True)).clamp_min(1e-12)
        less = torch.minimum(lam, torch.where(free, p, 0.0).norm(dim=-1, keepdim=True) / left.sqrt())
        less = less.clamp_min(2.0**-500)
        if torch.equal(less, lam):
            break
        lam = less
    return torch.maximum(torch.minimum(-p / lam, high), low), lam * scale


def _over_limits(p: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.maximum(-p * low, -p * high).sum(-1)


def nearest(z: Tensor, limits: Limits) -> Tensor:
    """The point of the unit ball within limits that is nearest to z, up to rounding."""
    inside = torch.maximum(torch.minimum(z, limits[1]), limits[0])
    size = inside.norm(dim=-1, keepdim=True)
    return inside if bool((size <= 1.0).all()) else torch.where(size <= 1.0, inside, farthest(-z, *limits)[0])


@dataclass(frozen=True, eq=False)
class Quadratic:
    """`g0 + G.u + u'Hu/2 + bend ||u||^2 / 2 - R`, one row a ball, with a shift that makes it convex.

    Attributes:
        g0: (balls,).
        G: (balls, n).
        H: (balls, n, n).
        R: (balls,).
        bend: not negative, (balls,).
        lam: not negative, (balls,): H + (bend + lam) I is positive semidefinite but for `deficit`.
        deficit: (balls,), as `psd_deficit` gives it.
        off: what rounding asks for, (balls,).
    """

    g0: Tensor
    G: Tensor
    H: Tensor
    R: Tensor
    bend: Tensor
    lam: Tensor
    deficit: Tensor
    off: Tensor

    @staticmethod
    def of(second: Second, H: Tensor, R: Tensor, slack: Tensor) -> Quadratic:
        """An expansion, with the least shift, nearly: a larger one gains `||u||^2 / 2` and costs 1/2."""
        mu, deficit, _ = spectral_shift(H, torch.ones_like(second.G))
        # Where H is positive semidefinite by itself, so it is with a shift of 0 in the place of a negative one.
        lam = mu[:, 0].clamp_min(0.0)
        return Quadratic(second.g0, second.G, H, R, torch.zeros_like(lam), lam, deficit, slack)

    def tilted(self, slope: Tensor) -> Quadratic:
        """The problem plus `slope.u`, with what rounding the sum loses."""
        off = self.off + (self.G.abs() + slope.abs()).sum(-1) * (4 * ULP)
        return replace(self, G=self.G + slope, off=off)

    def rows(self, rows: Tensor) -> Quadratic:
        """Some of the balls."""
        return Quadratic(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def lower(self, net: PreparedNetwork, limits: Limits) -> tuple[Tensor, Tensor]:
        """The lower bound of `trust_region`, (balls,), and its v."""
        n = self.H.shape[-1]
        shift = (self.lam + self.bend).unsqueeze(-1)
        v = _minimiser(self.G, self.H, shift, limits)
        Mv = _times(self.H, v) + shift * v
        away, _ = least_linear(self.G + Mv, limits)
        # |M| |v| <= |M| 1 bounds what the products with v round off; v has entries and length of at most 1, nearly.
        sizes = self.H.abs().sum((-1, -2)) + n * shift.squeeze(-1) + self.G.abs().sum(-1) + self.R
        off = self.off + sizes * (4 * (n + 8 + net.roundings) * ULP) + 3 * self.deficit
        total = torch.nan_to_num(self.lam / 2 + (v * Mv).sum(-1) / 2 + away + self.R, nan=torch.inf)
        return rounded_down(self.g0, total, off, net), v


def trust_region(
    net: PreparedNetwork, second: Second, H: Tensor, R: Tensor, slack: Tensor, limits: Limits
) -> tuple[Tensor, Tensor, Quadratic]:
    r"""A lower bound of `g0 + G.u + u'Hu/2 - R` over the unit ball within limits, (balls,), its v and its problem.

    If `M = H + lam I` is positive semidefinite for a lam >= 0, then for all u with `||u||_2 <= 1` and every v

        G.u + u'Hu/2 >= -lam/2 + G.u + u'Mu/2 >= -lam/2 - v'Mv/2 + (G + Mv).u,

    and `least_linear` bounds the last term over the ball within limits. With the minimiser of the convex problem for v
    this is the dual of the trust-region problem, which by the S-lemma loses nothing where the limits cut nothing off.
    Neither lam nor v need be believed: that M lacks no more than `deficit` is proven, and any v will do.
    """
    problem = Quadratic.of(second, H, R, slack)
    bound, v = problem.lower(net, limits)
    return bound, v, problem


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
