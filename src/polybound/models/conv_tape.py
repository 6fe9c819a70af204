"""The factors of some images in memory, and all that is done with them between the matrix products of `closed_conv`.

Memory stays where it is, so the operations on it are listed once, block of rows by block of rows, and run again for
every batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polybound.models.conv_geometry import Level

__all__ = ["Block", "Layout", "Operation", "Tape", "spread"]

Operation = tuple[Callable[..., Tensor], tuple[Tensor, ...], Tensor]
"""A function of tensors with an argument `out`, its inputs, and where to put the result."""


@dataclass(frozen=True)
class Layout:
    """What tapes must know of a network.

    Attributes:
        levels: of its factors.
        shape: of an image.
        channels: of a factor.
        degree: number of factors.
        pool: degrees after which to pool.
        block: bytes of factors that are used as soon as they are computed.
        like: a tensor of the right type and device.
    """

    levels: list[Level]
    shape: tuple[int, ...]
    channels: int
    degree: int
    pool: tuple[int, ...]
    block: int
    like: Tensor

    @property
    def swapped(self) -> bool:
        """Whether gradients by the first two factors take each other's place: there is no pooling in between."""
        return self.degree > 1 and 1 not in self.pool


@dataclass
class Block:
    """Some rows of a level: few enough that their factors stay in the nearest cache until they are used."""

    rows: list[tuple[Tensor, Tensor]]  # of the factors, (F e channels, columns n), and the same transposed
    part: slice  # which rows these are
    corrected: list[tuple[Tensor, Tensor]]  # columns of the factors, and what strips add to them
    forward: list[Operation]
    backward: list[Operation]
    copies: list[tuple[Tensor, Tensor]]  # after that

    def correct(self) -> None:
        """Add the strips to the columns."""
        for column, strip in self.corrected:
            column.add_(strip)

    def split(self) -> None:
        """The gradients by the strips: those by the columns."""
        for column, strip in self.corrected:
            strip.copy_(column)


class Tape:
    """Factors of some images by some runs, and all that is done with them, row by row: memory that is used again.

    Attributes:
        blocks: for each level.
        strips: for each level, corrections of columns, (2, columns F e channels, rows n).
        y: the last product, (e, units, n).
        last: the same as it comes, (rows, e, channels, columns, n).
        slope: the gradient by that.
    """

    def __init__(self, layout: Layout, n: int, size: int) -> None:
        self.n, self.size, self.layout, self.like = n, size, layout, layout.like
        self.units = size * layout.channels
        self.factors: dict[int, Tensor] = {}  # (rows, e channels, columns n)
        self.products: dict[int, Tensor] = {}  # after so many factors, pooled if that is where
        self.slopes: dict[int, Tensor] = {}
        self.strips: list[Tensor] = []
        self.blocks = [self._level(level) for level in layout.levels]
        _, height, width = (size >> len(layout.pool) for size in layout.shape)
        self.y = self.like.new_empty(size, layout.channels * height * width, n)
        self.by_units = size, layout.channels, height, width, n
        self.last = self.y.view(self.by_units).permute(2, 0, 1, 3, 4)
        self.slope = self.slopes[layout.degree].view(self.last.shape)
        self._elsewhere: tuple[Tape, list[list[Block]]] | None = None

    def _level(self, level: Level) -> list[Block]:
        rows, columns, layout = level.rows.positions, level.columns.positions, self.layout
        h = self.like.new_empty(rows, level.count, self.units, columns * self.n)
        each = dict(enumerate(h.unbind(1), level.factors.start + 1))
        self.factors |= each
        half = self.like.new_empty(rows // 2, self.units, columns * self.n)
        for n in each:
            pooled = n in layout.pool
            shape = (rows // 2, self.units, columns // 2 * self.n) if pooled else tuple(each[n].shape)
            self.products[n] = each[n] if n == 1 and not pooled else self.like.new_empty(shape)
            self.slopes[n] = self.like.new_empty(shape)
        strips = self.like.new_zeros(2, level.wide, level.count * self.units, rows, self.n)
        self.strips.append(strips.view(2, level.wide * level.count * self.units, rows * self.n))
        spread = h.view(rows, -1, columns, self.n)
        pairs = [(spread[:, :, column], strips[side, j].transpose(0, 1)) for side, j, column in level.corrected]
        step = max(2, layout.block // (h[0].numel() * h.element_size()) // 2 * 2)
        views = [(row, row.t()) for row in h.flatten(1, 2)]
        blocks = []
        for first in range(0, rows, step):
            part = slice(first, min(first + step, rows))
            block = Block(views[part], part, [(column[part], strip[part]) for column, strip in pairs], [], [], [])
            self._forward(block, each, half)
            self._backward(block, each, each)
            blocks.append(block)
        return blocks

    def blocks_into(self, other: Tape) -> list[list[Block]]:
        """For each level, blocks whose `backward` puts the gradients by these factors into those of another tape.

        So that the factors stay, for what is still to be done with them.
        """
        if other is self:
            return self.blocks
        if self._elsewhere is None or self._elsewhere[0] is not other:
            found = []
            for level, theirs in zip(self.layout.levels, other.blocks, strict=True):
                each = {n + 1: self.factors[n + 1] for n in range(self.layout.degree)[level.factors]}
                found.append([replace(block, forward=[], backward=[], copies=[]) for block in theirs])
                for block in found[-1]:
                    self._backward(block, each, other.factors)
            self._elsewhere = other, found
        return self._elsewhere[1]

    def finish(self) -> Tensor:
        """Put the last product into y."""
        self.last.copy_(self.products[self.layout.degree].view(self.last.shape))
        return self.y.mul_(0.25) if self.layout.degree in self.layout.pool else self.y

    def begin(self, dy: Tensor) -> None:
        """Take the gradient by y, (e, units, n)."""
        dy = dy.view(self.by_units).permute(2, 0, 1, 3, 4)
        torch.mul(dy, 0.25 if self.layout.degree in self.layout.pool else 1.0, out=self.slope)

    def _forward(self, block: Block, each: dict[int, Tensor], half: Tensor) -> None:
        """`y_n = h_n y_(n-1)`; where a pooling follows, sums of two rows of the product, and then of two columns."""
        part = block.part
        for n, factor in each.items():
            even, odd = slice(part.start, part.stop, 2), slice(part.start + 1, part.stop, 2)
            halved, y = half[part.start // 2 : part.stop // 2], self.products[n]
            before = self.products.get(n - 1)
            if n in self.layout.pool:
                if before is None:
                    block.forward.append((torch.add, (factor[even], factor[odd]), halved))
                else:
                    block.forward.append((torch.mul, (factor[even], before[even]), halved))
                    block.forward.append((torch.addcmul, (halved, factor[odd], before[odd]), halved))
                left, right = halved.view(*halved.shape[:2], 2, -1).unbind(2)
                block.forward.append((torch.add, (left, right), y[part.start // 2 : part.stop // 2]))
            elif before is not None:
                block.forward.append((torch.mul, (factor[part], before[part]), y[part]))

    def _backward(self, block: Block, each: dict[int, Tensor], into: dict[int, Tensor]) -> None:
        """`dy_(n-1) = dy_n h_n` and `dh_n = dy_n y_(n-1)`, the latter into the place of h_n, here or elsewhere.

        The gradient by the second factor comes in the place of the first and the other way round, where there is no
        pooling in between: each is multiplied with the same, and nothing is moved.
        """
        part = block.part
        for n in sorted(each, reverse=True):
            pooled = n in self.layout.pool
            slope = self.slope_of(n, part)
            factor, place = spread(each[n][part], pooled), spread(into[n][part], pooled)
            if n == 2 and self.layout.swapped:
                first, first_place = spread(each[1][part], pooled), spread(into[1][part], pooled)
                block.backward += [(torch.mul, (first, slope), first_place), (torch.mul, (factor, slope), place)]
                return
            if n == 1:
                block.copies.append((place, slope))
                return
            before = spread(self.products[n - 1][part], pooled)
            before_slope = spread(self.slopes[n - 1][part], pooled)
            block.backward += [(torch.mul, (slope, factor), before_slope), (torch.mul, (slope, before), place)]

    def slope_of(self, n: int, part: slice) -> Tensor:
        """The gradient by y_n as some rows of the factor see it, with dimensions of 1 for a pooling in between."""
        if n not in self.layout.pool:
            return self.slopes[n][part]
        return self.slopes[n][part.start // 2 : part.stop // 2, None, :, None]


def spread(t: Tensor, pooled: bool) -> Tensor:
    """(rows, units, length) with a dimension for the two rows, and one for the two columns, that a pooling adds."""
    if not pooled:
        return t
    rows, units, length = t.shape
    return t.view(rows // 2, 2, units, 2, length // 2)
