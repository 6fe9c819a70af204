"""Slopes: for each unit of each box a linear form of the u that move; over boxes and balls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from polybound.certificates.network import PreparedNetwork
from polybound.models import Affine, Identity, Pool, Windowed, Windows, gathered, scattered, slots_in_pooled
from polybound.theory import ULP

# The regions of u in `x = c + r * u`, the cube and the unit ball, and how far linear forms of u move there.


class Cube:
    """u in [-1, 1]^n."""

    def reach(self, net: PreparedNetwork, r: Tensor) -> list[Tensor]:
        """How far each unit of each factor, `A_n (r * u)`, moves: (boxes, units) each, for radii (boxes, features)."""
        return [A.linear(r) for A in net.absolute_A]

    def norms(self, net: PreparedNetwork, r: Tensor) -> list[Tensor]:
        """The l_2 norms of `A_n (r * u)`: (boxes,) each."""
        # What underflows among the squares of r is multiplied by mu.
        return [(r.square() @ mu + (mu.sum() + 1.0) * 2.0**-1000).sqrt() for mu in net.stretch]

    def radius(self, slope: Tensor) -> Tensor:
        """How far linear forms of u move, one for each unit: (boxes, units), for slopes (boxes, n, units)."""
        radius: Tensor = torch.linalg.vector_norm(slope, 1, dim=1)
        return radius

    def stretched(self, slope: Tensor) -> Tensor:
        """The l_2 norm of all these forms: (boxes,)."""
        return _largest(slope, slope.shape[1])


class UnitBall:
    r"""`||u||_2 <= 1`.

    A linear form `a.u` moves by `||a||_2`, and `||A (r * u)||_2` is at most the spectral norm of A times the largest
    radius. Rounded up, sums of squares scaled by their largest entries so that none underflows.
    """

    def reach(self, net: PreparedNetwork, r: Tensor) -> list[Tensor]:
        reach = []
        for A in net.absolute_A:
            if isinstance(A, Windowed):
                each = [length(A.weight * seen.unsqueeze(-1), dim=1) for seen in A.windows.seen(r)]
                reach.append(torch.stack(each).transpose(1, 2).flatten(1))
            else:
                reach.append(_lengths(r, A.weight.T))
        return reach

    def norms(self, net: PreparedNetwork, r: Tensor) -> list[Tensor]:
        uniform = [r.amax(-1) * top for top in net.norms_A]
        weighted = [(r * mu.sqrt()).amax(-1) for mu in net.stretch]
        return [torch.minimum(a, b) * (1 + 16 * ULP) for a, b in zip(uniform, weighted, strict=True)]

    def radius(self, slope: Tensor) -> Tensor:
        return length(slope, dim=1)

    def stretched(self, slope: Tensor) -> Tensor:
        return _largest(slope, 1)


CUBE, BALL = Cube(), UnitBall()

Region = Cube | UnitBall
"""A set of u; every method returns upper bounds over it."""


def length(vectors: Tensor, dim: int = -1) -> Tensor:
    """The l_2 norms along a dimension, rounded up.

    >>> import torch
    >>> 0 <= float(length(torch.tensor([3e-200, 4e-200], dtype=torch.float64))) / 5e-200 - 1 < 1e-14
    True
    """
    if not vectors.shape[dim]:
        return vectors.sum(dim)
    largest = vectors.abs().amax(dim, keepdim=True).clamp_min(2.0**-900)
    norm: Tensor = torch.linalg.vector_norm(vectors / largest, 2, dim=dim)
    return norm * largest.squeeze(dim) * (1 + (vectors.shape[dim] + 16) * ULP)


def _lengths(r: Tensor, At: Tensor) -> Tensor:
    """The l_2 norms of the columns of `r * At`, for radii (boxes, features): (boxes, units)."""
    features = len(At)
    largest = r.amax(-1, keepdim=True).clamp_min(2.0**-900)
    part = (r / largest).square()
    top = At.amax(0).clamp_min(2.0**-900)
    norm = (part @ (At / top).square()).sqrt() * (1 + (features + 16) * ULP)
    # What underflowed among the squares, of numbers that are at most 1.
    return (norm + features * 2.0**-530) * largest * top


def _largest(slope: Tensor, square: float) -> Tensor:
    """An upper bound of `||slope^T u||_2` where `||u||_2^2 <= square`: (boxes,).

    The Gram matrix `g = slope^T slope`, divided by its trace, has `lambda_max^4 <= ||g^4||_F`. Everything in it is at
    most 1, and rounding adds at most `gamma_n` to g (in any norm, since `|| |slope|^T |slope| ||_2` is at most the
    trace) and `gamma_m` to each of its squares: less than what is added here to the fourth power.
    """
    n, units = slope.shape[1:]
    gram = slope.transpose(1, 2) @ slope
    trace = slope.square().sum((1, 2))
    g = (gram + gram.transpose(1, 2)) / (2 * trace.clamp_min(2.0**-900)).unsqueeze(-1).unsqueeze(-1)
    squared = g @ g
    fourth: Tensor = torch.linalg.vector_norm(squared @ squared.transpose(1, 2), dim=(1, 2))
    top = (fourth + 32 * (n + units + 8) * ULP).sqrt().sqrt()
    return (top * trace * square).sqrt() * (1 + (n * units + 32) * ULP) + 2.0**-440


# The linear forms `a_m.u` of all units m, over some boxes; those of one box serve any number of equal ones.


@dataclass(frozen=True, eq=False)
class DenseSlopes:
    """Slopes as matrices, (boxes, n, units)."""

    matrix: Tensor

    @property
    def units(self) -> int:
        """How many forms there are."""
        return self.matrix.shape[2]

    def times(self, factors: Tensor) -> DenseSlopes:
        """Each form times a number, (boxes, units)."""
        return DenseSlopes(self.matrix * factors.unsqueeze(1))

    def plus(self, other: Any, factors: Tensor) -> DenseSlopes:
        """The forms plus others of the same class, each times a number."""
        return DenseSlopes(torch.addcmul(self.matrix, other.matrix, factors.unsqueeze(1)))

    def through(self, step: Affine) -> DenseSlopes:
        """The forms after a map between products."""
        return DenseSlopes(step.linear(self.matrix))

    def back(self, step: Affine) -> DenseSlopes:
        """The forms before it, by its transpose."""
        boxes, n, units = self.matrix.shape
        return DenseSlopes(step.adjoint(self.matrix.reshape(-1, units)).reshape(boxes, n, step.inputs))

    def radius(self, region: Region) -> Tensor:
        """How far each form moves, (boxes, units)."""
        return region.radius(self.matrix)

    def squares(self) -> Tensor:
        """The sum of the squares of each form's coefficients, (boxes, units)."""
        return self.matrix.square().sum(1)

    def rows(self, rows: Tensor) -> DenseSlopes:
        """The forms over some of the boxes; all, if they are of one box."""
        return self if len(self.matrix) == 1 else DenseSlopes(self.matrix[rows])

    def written(self) -> Tensor:
        """All coefficients, (boxes, n, units)."""
        return self.matrix

    @staticmethod
    def products(left: Sequence[Any], right: Sequence[Any]) -> Tensor:
        """`sum_m a_m b_m'` over all units of all pairs, (boxes, n, n)."""
        a = torch.cat([slopes.matrix for slopes in left], -1)
        b = a if left is right else torch.cat([slopes.matrix for slopes in right], -1)
        if len(b) == 1:
            return (a.flatten(0, 1) @ b[0].T).reshape(len(a), a.shape[1], -1)
        return a @ b.transpose(1, 2)


@dataclass(frozen=True, eq=False)
class WindowSlopes:
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
        """The rows of a map of the input, scaled by radii, (boxes, features)."""
        return WindowSlopes(
            step.weight * step.windows.seen(r).unsqueeze(-1), step.windows.grid, step.windows, 1, active
        )

    @property
    def units(self) -> int:
        """Channels times places."""
        return self.weight.shape[1] * self.weight.shape[3]

    def times(self, factors: Tensor) -> WindowSlopes:
        return replace(self, weight=self.weight * self._by_place(factors))

    def plus(self, other: Any, factors: Tensor) -> WindowSlopes:
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
        if isinstance(step, Identity):
            return self
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
        if isinstance(step, Identity):
            return self
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

    @staticmethod
    def products(left: Sequence[Any], right: Sequence[Any]) -> Tensor:
        pairs = sorted(zip(left, right, strict=True), key=lambda pair: pair[0].windows.stride)
        windows, total = pairs[0][0].windows, pairs[0][0].weight.new_zeros(())
        for a, b in pairs:
            while windows.stride < a.windows.stride:
                windows, total = windows.pooled(), gathered(total, windows)
            total = total + a.weight @ b.weight.transpose(2, 3)
        return scattered(total, windows, pairs[0][0].active)

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


Slopes = DenseSlopes | WindowSlopes


def input_slopes(net: PreparedNetwork, r: Tensor, active: Tensor) -> list[Slopes]:
    """The rows of the maps of the input, scaled by radii (boxes, features), in the features that move."""
    radius = r[:, active].unsqueeze(-1)
    return [
        WindowSlopes.of(a, r, active) if isinstance(a, Windowed) else DenseSlopes(a.weight.T[active] * radius)
        for a in net.A
    ]
