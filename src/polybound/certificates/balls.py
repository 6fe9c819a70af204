"""Balls of the l_2 norm around inputs, cut to the domain, and the least values of linear forms over them.

`x' = x + r * u` with `||u||_2 <= 1` is an ellipsoid with a radius for each feature, a ball if all are the same. Inputs
and radii are float64 numbers as they are asked: nothing is rounded in that. The domain cuts u to `[low, high]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polybound.certificates.boxes import Sides
from polybound.certificates.inputs import Boxes
from polybound.certificates.regions import length
from polybound.theory import ULP

__all__ = ["Balls", "Limits", "least_linear", "nearest"]

Limits = Sides
"""What the domain leaves of each u_d: low <= 0 and high >= 0, rounded outwards, within [-1, 1]."""


@dataclass(frozen=True, eq=False)
class Balls:
    """A ball for each image.

    Attributes:
        x: the inputs, (images, features).
        r: the radii, (images, features).
        low: the least u_d that the domain leaves, rounded down, (images, features).
        high: the largest, rounded up.
    """

    x: Tensor
    r: Tensor
    low: Tensor
    high: Tensor

    @staticmethod
    def within(boxes: Boxes, domain: Sides | None) -> Balls:
        """The balls in boxes that were made from radii and a domain."""
        eps = boxes.eps
        if eps is None:
            raise AssertionError("balls have radii")
        x, r = boxes.x, (eps if eps.ndim == 2 else eps.unsqueeze(1).expand_as(boxes.x))
        if domain is None:
            return Balls(x, r, -torch.ones_like(x), torch.ones_like(x))
        low, high = (_limit(side - x, r) for side in domain)
        return Balls(x, r, low, high)

    def part(self, some: slice) -> Balls:
        """Those of some images."""
        return Balls(self.x[some], self.r[some], self.low[some], self.high[some])

    def limits(self, images: Tensor) -> Limits:
        """The limits of some images, (images, features) each."""
        return self.low[images], self.high[images]

    def unit(self, images: Tensor, x: Tensor) -> Tensor:
        """Points as u, up to rounding; 0 in the coordinates that do not move."""
        r = self.r[images]
        return torch.where(r > 0, (x - self.x[images]) / r.clamp_min(5e-324), 0.0)

    def point(self, images: Tensor, u: Tensor) -> Tensor:
        """`x + r * u`, up to rounding."""
        return self.x[images] + self.r[images] * u

    def holds(self, image: int, x: Tensor) -> bool:
        """Whether a point, (features,), provably lies in the ball."""
        r, away = self.r[image], (x - self.x[image]).abs()
        if bool((away[r == 0] > 0).any()):
            return False
        part = away[r > 0] / r[r > 0]
        # Each is rounded twice, or underflows; `length` rounds up.
        return float(length(part * (1 + 4 * ULP) + 2.0**-1000)) <= 1.0

    def outside(self, images: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Which boxes, (N, features) each, provably have no point in their image's ball."""
        x, r = self.x[images], self.r[images]
        away = torch.maximum(lower - x, x - upper).clamp_min(0.0)
        part = torch.where(r > 0, away / r.clamp_min(5e-324), 0.0).clamp_max(2.0)
        return part.square().sum(-1) * (1 - (x.shape[-1] + 32) * ULP) > 1.0


def _limit(away: Tensor, r: Tensor) -> Tensor:
    """`away / r`, rounded away from 0 and cut to [-1, 1]; 0 where nothing moves."""
    part = away / r.clamp_min(5e-324) * (1 + 8 * ULP) + 2.0**-1000 * away.sign()
    return torch.where(r > 0, part.clamp(-1.0, 1.0), 0.0)


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
    u, lam = _farthest(p, low, high)
    first = lam * u
    over = [_over_limits(p, low, high), length(first) + _over_limits(p + first, low, high)]
    total = torch.stack([length(p), *over])
    off = (p.abs() + first.abs()).sum(-1) * ((p.shape[-1] + 16) * ULP) + 2.0**-900
    return torch.nan_to_num(total.amin(0) + off, nan=torch.inf), u


def _farthest(p: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The u of `least_linear` and its lam, (..., 1). Proves nothing."""
    scale = p.abs().amax(-1, keepdim=True).clamp_min(2.0**-900)
    p = p / scale
    lam = p.norm(dim=-1, keepdim=True).clamp_min(2.0**-500)
    for _ in range(_STEPS):
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


_STEPS = 10


def _over_limits(p: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.maximum(-p * low, -p * high).sum(-1)


def nearest(z: Tensor, limits: Limits) -> Tensor:
    """The point of the unit ball within limits that is nearest to z, up to rounding."""
    inside = torch.maximum(torch.minimum(z, limits[1]), limits[0])
    size = inside.norm(dim=-1, keepdim=True)
    return inside if bool((size <= 1.0).all()) else torch.where(size <= 1.0, inside, _farthest(-z, *limits)[0])
