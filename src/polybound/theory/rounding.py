"""Rounding outwards: a bound computed in float64 must not be below the bound of the real numbers."""

from __future__ import annotations

from torch import Tensor

__all__ = ["ULP", "outward"]

ULP: float = 2.0**-52
"""Twice the unit roundoff of float64; the factor 2 also covers the rounding of the error terms themselves."""


def outward(value: Tensor, terms: int) -> Tensor:
    """A float64 value, raised by more than the rounding of a sum of `terms` non-negative products."""
    return value * (1.0 + (terms + 16) * ULP)
