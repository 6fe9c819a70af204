"""Boxes in float64 that contain what they should: around inputs, cut to the domain; their centres and radii."""

from __future__ import annotations

import torch
from torch import Tensor

from polybound.errors import PolyboundError

__all__ = ["Domain", "Sides", "box_around", "centre"]

_DOWN, _UP = torch.tensor(-torch.inf, dtype=torch.float64), torch.tensor(torch.inf, dtype=torch.float64)


Sides = tuple[Tensor, Tensor]

Domain = tuple[float | Tensor, float | Tensor]
"""The smallest and the largest value of an entry: a number for all, or a tensor of the shape of one input."""


def box_around(x: Tensor, eps: Tensor, domain: Domain | None) -> tuple[Sides, Sides]:
    """The box `[x - eps, x + eps]` cut to the domain, its sides rounded outwards, and the same rounded inwards.

    Args:
        x: (batch, features), float64.
        eps: (batch, features), (batch, 1) or (), float64, not negative.
        domain: the smallest and largest value of an entry, numbers or (features,); None for no limits.
    """
    lower, upper = x - eps, x + eps
    # Where nothing was rounded (eps = 0, or all bits fit) nothing is moved.
    below, above = _excess(x, -eps, lower), _excess(x, eps, upper)
    outer = (
        torch.where(below < 0, torch.nextafter(lower, _DOWN), lower),
        torch.where(above > 0, torch.nextafter(upper, _UP), upper),
    )
    inner = (
        torch.where(below > 0, torch.nextafter(lower, _UP), lower),
        torch.where(above < 0, torch.nextafter(upper, _DOWN), upper),
    )
    if domain is not None:
        least, most = (torch.as_tensor(side, dtype=torch.float64) for side in domain)
        if not ((x >= least) & (x <= most)).all():
            raise PolyboundError(f"the inputs leave the domain {_shown(least, most)}; pass the domain of your data")
        outer, inner = ((torch.maximum(low, least), torch.minimum(high, most)) for low, high in (outer, inner))
    return outer, inner


def _shown(least: Tensor, most: Tensor) -> str:
    return f"[{float(least):g}, {float(most):g}]" if least.numel() == most.numel() == 1 else "of their features"


def _excess(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """`a + b - total` exactly, for `total = fl(a + b)` (Knuth's two-sum)."""
    part = total - a
    return (a - (total - part)) + (b - part)


def centre(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Centres and radii with `[lower, upper]` inside of `[c - r, c + r]`; r is zero where both sides are equal."""
    c = lower + (upper - lower) / 2
    r = torch.maximum(upper - c, c - lower)
    # Both differences are rounded once; the next number up is above the true radius.
    return c, torch.where(upper > lower, torch.nextafter(r, _UP), torch.zeros_like(r))
