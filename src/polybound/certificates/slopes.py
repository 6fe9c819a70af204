"""Slopes: for each unit of each box a linear form of the u that move; as matrices, or window by window."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Self

import torch
from torch import Tensor

from polybound.certificates.network import Network
from polybound.certificates.regions import Region
from polybound.certificates.single import product_in_single
from polybound.models import Affine, Pool, Windowed, Windows, gathered, scattered, slots_in_pooled

__all__ = ["DenseSlopes", "Slopes", "WindowSlopes", "input_slopes"]


LARGE = 128
"""From this many features on, single precision pays."""


class Slopes(ABC):
    """The linear forms `a_m.u` of all units m, over some boxes; those of one box serve any number of equal ones.

    Attributes:
        units: how many there are.
    """

    units: int

    @abstractmethod
    def times(self, factors: Tensor) -> Self:
        """Each form times a number, (boxes, units)."""

    @abstractmethod
    def plus(self, other: Self, factors: Tensor) -> Self:
        """The forms plus others, each times a number."""

    @abstractmethod
    def through(self, step: Affine) -> Self:
        """The forms after a map between products."""

    @abstractmethod
    def back(self, step: Affine) -> Self:
        """The forms before it, by its transpose."""

    @abstractmethod
    def radius(self, region: Region) -> Tensor:
        """How far each form moves, (boxes, units)."""

    @abstractmethod
    def squares(self) -> Tensor:
        """The sum of the squares of each form's coefficients, (boxes, units)."""

    @abstractmethod
    def rows(self, rows: Tensor) -> Self:
        """Those of some of the boxes; of one box, itself."""

    @abstractmethod
    def written(self) -> Tensor:
        """All coefficients, (boxes, n, units)."""

    @abstractmethod
    def absolute_sum(self, factors: Tensor) -> Tensor:
        """`sum_m factors_m |a_m|`, (boxes, n), for factors (boxes, units)."""

    @classmethod
    @abstractmethod
    def products(cls, left: Sequence[Self], right: Sequence[Self]) -> Tensor:
        """`sum_m a_m b_m'` over all units of all pairs, (boxes, n, n)."""

    @classmethod
    def quick_products(cls, _left: Sequence[Self], _right: Sequence[Self], /) -> Tensor | None:
        """The same in single precision, as `product_in_single` has it; None where that does not pay."""
        return None


@dataclass(frozen=True, eq=False)
class DenseSlopes(Slopes):
    """Slopes as matrices, (boxes, n, units)."""

    matrix: Tensor

    @property
    def units(self) -> int:  # type: ignore[override]
        """Columns."""
        return self.matrix.shape[2]

    def times(self, factors: Tensor) -> DenseSlopes:
        return DenseSlopes(self.matrix * factors.unsqueeze(1))

    def plus(self, other: DenseSlopes, factors: Tensor) -> DenseSlopes:
        return DenseSlopes(torch.addcmul(self.matrix, other.matrix, factors.unsqueeze(1)))

    def through(self, step: Affine) -> DenseSlopes:
        return DenseSlopes(step.linear(self.matrix))

    def back(self, step: Affine) -> DenseSlopes:
        boxes, n, units = self.matrix.shape
        return DenseSlopes(step.adjoint(self.matrix.reshape(-1, units)).reshape(boxes, n, step.inputs))

    def radius(self, region: Region) -> Tensor:
        return region.radius(self.matrix)

    def squares(self) -> Tensor:
        return self.matrix.square().sum(1)

    def rows(self, rows: Tensor) -> DenseSlopes:
        return self if len(self.matrix) == 1 else DenseSlopes(self.matrix[rows])

    def written(self) -> Tensor:
        return self.matrix

    @classmethod
    def products(cls, left: Sequence[DenseSlopes], right: Sequence[DenseSlopes]) -> Tensor:
        a, b = (torch.cat([slopes.matrix for slopes in side], -1) for side in (left, right))
        if len(b) == 1:
            return (a.flatten(0, 1) @ b[0].T).reshape(len(a), a.shape[1], -1)
        return a @ b.transpose(1, 2)

    def absolute_sum(self, factors: Tensor) -> Tensor:
        return (self.matrix.abs() @ factors.unsqueeze(-1)).squeeze(-1)

    @classmethod
    def quick_products(cls, left: Sequence[DenseSlopes], right: Sequence[DenseSlopes], /) -> Tensor | None:
        if left[0].matrix.shape[1] < LARGE:
            return None
        a = torch.cat([slopes.matrix.float() for slopes in left], -1)
        b = a if left is right else torch.cat([slopes.matrix.float() for slopes in right], -1)
        return product_in_single(a, b)


@dataclass(frozen=True, eq=False)
class WindowSlopes(Slopes):
    """Slopes of convolutional networks: those of a place's channels are zero outside of its window.

    Attributes:
        weight: (boxes, places, patch, channels).
        grid: places in each direction.
        windows: place p has the window `p // ratio` of these.
        ratio: how many places, in each direction, share a window.
        active: the pixels that move.
    """

    weight: Tensor
    grid: tuple[int, ...]
    windows: Windows
    ratio: int
    active: Tensor

    @staticmethod
    def of(step: Windowed, r: Tensor, active: Tensor) -> WindowSlopes:
        """Those of a map of the input, scaled by radii, (boxes, features)."""
        return WindowSlopes(
            step.weight * step.windows.seen(r).unsqueeze(-1), step.windows.grid, step.windows, 1, active
        )

    @property
    def units(self) -> int:  # type: ignore[override]
        """Channels times places."""
        return self.weight.shape[1] * self.weight.shape[3]

    def times(self, factors: Tensor) -> WindowSlopes:
        return replace(self, weight=self.weight * self._by_place(factors))

    def plus(self, other: WindowSlopes, factors: Tensor) -> WindowSlopes:
        if self.ratio == other.ratio:
            return replace(self, weight=torch.addcmul(self.weight, other.weight, other._by_place(factors)))
        # One of them sees the larger windows of a later factor.
        wide, narrow = (self, other.times(factors)) if self.ratio > 1 else (other.times(factors), self)
        total = wide._spatial().clone()
        places, few = slice(None), narrow._spatial()
        for bits in product(range(wide.ratio), repeat=len(self.grid)):
            at = [slice(b, wide.ratio * n, wide.ratio) for b, n in zip(bits, wide.windows.grid, strict=True)]
            slots = slots_in_pooled(bits, narrow.windows)
            total[(places, *at, places, *slots)] += few[(places, *at)]
        return replace(wide, weight=total.reshape(wide.weight.shape))

    def through(self, step: Affine) -> WindowSlopes:
        if self.ratio > 1 or not isinstance(step, Pool):
            raise AssertionError("only slopes in windows of their own are pooled")
        pooled = self.windows.pooled()
        boxes, channels = len(self.weight), self.weight.shape[-1]
        total = self.weight.new_zeros(boxes, *pooled.grid, self.windows.shape[0], *pooled.size, channels)
        data, every = self._spatial(), slice(None)
        for bits in product((0, 1), repeat=len(self.grid)):
            at = [slice(b, 2 * n, 2) for b, n in zip(bits, pooled.grid, strict=True)]
            total[(every,) * (2 + len(bits)) + slots_in_pooled(bits, self.windows)] += data[(every, *at)]
        weight = (total / 2 ** len(self.grid)).reshape(boxes, pooled.places, pooled.patch, channels)
        return WindowSlopes(weight, pooled.grid, pooled, 1, self.active)

    def back(self, step: Affine) -> WindowSlopes:
        if not isinstance(step, Pool):
            raise AssertionError("windows have poolings in between")
        grid = step.shape[1:]
        data = self.weight.reshape(len(self.weight), *self.grid, *self.weight.shape[2:]) / 2 ** len(grid)
        for d, n in enumerate(grid, 1):
            data = data.repeat_interleave(2, dim=d)
            if n % 2:
                rest = data.new_zeros(*data.shape[:d], 1, *data.shape[d + 1 :])
                data = torch.cat([data, rest], d)
        weight = data.reshape(len(data), prod(grid), *self.weight.shape[2:])
        return replace(self, weight=weight, grid=grid, ratio=2 * self.ratio)

    def radius(self, region: Region) -> Tensor:
        return self._by_unit(region.radius(self.weight.flatten(0, 1)))

    def squares(self) -> Tensor:
        return self._by_unit(self.weight.square().sum(2))

    def rows(self, rows: Tensor) -> WindowSlopes:
        return self if len(self.weight) == 1 else replace(self, weight=self.weight[rows])

    def written(self) -> Tensor:
        if self.ratio > 1:
            raise AssertionError("only slopes in windows of their own are written out")
        boxes, places, _, channels = self.weight.shape
        full = self.weight.new_zeros(boxes, places, self.windows.features + 1, channels)
        full.scatter_(2, self.windows.index.unsqueeze(-1).expand_as(self.weight), self.weight)
        return full[:, :, self.active].permute(0, 2, 3, 1).flatten(2)

    @classmethod
    def products(cls, left: Sequence[WindowSlopes], right: Sequence[WindowSlopes]) -> Tensor:
        pairs = sorted(zip(left, right, strict=True), key=lambda pair: pair[0].windows.stride)
        windows, total = pairs[0][0].windows, pairs[0][0].weight.new_zeros(())
        for a, b in pairs:
            while windows.stride < a.windows.stride:
                windows, total = windows.pooled(), gathered(total, windows)
            total = total + a.weight @ b.weight.transpose(2, 3)
        return scattered(total, windows, pairs[0][0].active)

    def absolute_sum(self, factors: Tensor) -> Tensor:
        seen = (self.weight.abs() * self._by_place(factors)).sum(-1).flatten(1)
        total = seen.new_zeros(len(seen), self.windows.features + 1)
        return total.index_add_(1, self.windows.index.flatten(), seen)[:, self.active]

    def _by_place(self, units: Tensor) -> Tensor:
        """(boxes, units) as (boxes, places, 1, channels)."""
        return units.reshape(len(units), self.weight.shape[3], self.weight.shape[1]).transpose(1, 2).unsqueeze(2)

    def _by_unit(self, values: Tensor) -> Tensor:
        """(boxes, places, channels), or boxes and places in one, as (boxes, units)."""
        return values.reshape(len(self.weight), self.weight.shape[1], self.weight.shape[3]).transpose(1, 2).flatten(1)

    def _spatial(self) -> Tensor:
        """(boxes, *grid, image channels, *window, channels)."""
        shape = (*self.grid, self.windows.shape[0], *self.windows.size, self.weight.shape[-1])
        return self.weight.reshape(len(self.weight), *shape)


def input_slopes(net: Network, r: Tensor, active: Tensor) -> list[Slopes]:
    """Those of the maps of the input, scaled by radii (boxes, features), in the features that move."""
    radius = r[:, active].unsqueeze(-1)
    return [
        WindowSlopes.of(a, r, active) if isinstance(a, Windowed) else DenseSlopes(a.weight.T[active] * radius)
        for a in net.A
    ]
