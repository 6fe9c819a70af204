"""Interval arithmetic on tensors: a midpoint, a radius, and float64 rounding taken into the radius."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polybound.models import Affine
from polybound.theory.rounding import ULP

__all__ = ["Interval"]


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
