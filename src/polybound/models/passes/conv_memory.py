"""The collapsed kernels of ConvCCP, as `conv_geometry` arranges them, and back to gradients of P, c and K.

With `M = K^T [P, c]`, the products of all taps of the kernels with all taps of the pre-convolution, every collapsed
kernel is `A M B^T`, with fixed A for the rows and B for the columns. So `dM = A^T dW B`, `dK = [P, c] dM^T` and
`d[P, c] = K dM`: once a step, for all images.

Memory stays where it is, so the operations on it are listed once, block of rows by block of rows, and run again for
every batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polybound.models.passes.conv_geometry import Level

__all__ = ["ActivationBuffer", "Kernels", "Layout", "Operation", "RowBlock", "spread"]


class Kernels:
    """The kernels of e runs at all levels, in memory that stays where it is.

    Args:
        levels: of the network.
        parameters: of these runs: K, (e, k, o, m, T, T), and P, (e, m, inputs, S, S), and c, (e, m), if there are such.
        scale: of each factor, (k,).
        shift: what each factor has besides, (k,).

    Attributes:
        rows: for each level, (rows of all windows, F e o).
        lines: for each level, the corrections of columns, (2, depth, columns F e o); no columns where there are none.
    """

    def __init__(self, levels: list[Level], parameters: dict[str, Tensor], scale: Tensor, shift: Tensor) -> None:
        self.levels, self.parameters, self.scale, self.shift = levels, parameters, scale, shift
        K = parameters["K"]
        self.runs, self.degree, self.outputs, self.inner, self.T, _ = K.shape
        self.inputs, self.S = parameters["P"].shape[2:4] if "P" in parameters else (self.inner, 1)
        flat, units = self.degree * self.outputs * self.T**2, self.runs * self.outputs
        self.K = K.new_empty(self.runs, self.inner, flat)  # (e, m, k o T T)
        self.P = torch.eye(self.inner, self.inputs * self.S**2 + 1).to(K).repeat(self.runs, 1, 1)
        self.M = K.new_empty(self.runs, self.P.shape[-1], flat)  # taps of P and the constant by taps of K
        # Columns before rows, runs and channels last: (k, columns' S T, inputs, rows' S T, e o), all but flat.
        self.taps = K.new_empty(self.degree, self.S * self.T, self.inputs * self.S * self.T * units)
        self.constants = K.new_empty(self.degree, self.T, self.T, units)
        self.tables = [K.new_empty(level.table_rows, level.count * units) for level in levels]
        self.rows = [K.new_empty(len(level.order), level.count * units) for level in levels]
        self.lines = [K.new_empty(2, level.lines_depth, level.wide * level.count * units) for level in levels]

    def compose(self) -> None:
        """Compute all kernels from the parameters as they are now."""
        self._of_inner(self.K).copy_(self.parameters["K"])
        if "P" in self.parameters:
            self.P[..., :-1].copy_(self.parameters["P"].flatten(2))
            self.P[..., -1].copy_(self.parameters["c"])
        taps, constants = self._parts(torch.bmm(self.P.mT, self.K, out=self.M))
        torch.mul(taps, self.scale.view(-1, *(1,) * 7), out=self.taps.view(taps.shape))
        torch.mul(constants, self.scale.view(-1, *(1,) * 4), out=self.constants.view(constants.shape))
        for number, level in enumerate(self.levels):
            self._compose(level, self.tables[number], self.rows[number], self.lines[number])

    def _of_inner(self, K: Tensor) -> Tensor:
        """(e, m, k o T T) as (e, k, o, m, T, T)."""
        return K.view(self.runs, self.inner, self.degree, self.outputs, self.T, self.T).permute(0, 2, 3, 1, 4, 5)

    def _parts(self, M: Tensor) -> tuple[Tensor, Tensor]:
        """Of M, what belongs to the taps of P, (k, s', t', i, s, t, e, o), and to the constant, (k, t', t, e, o)."""
        S, rest = self.S, (self.degree, self.outputs, self.T, self.T)
        taps = M[:, :-1].view(self.runs, self.inputs, S, S, *rest)  # (e, i, s, s', k, o, t, t')
        return taps.permute(4, 3, 7, 1, 2, 6, 0, 5), M[:, -1].view(self.runs, *rest).permute(1, 4, 3, 0, 2)

    def _compose(self, level: Level, table: Tensor, rows: Tensor, into: Tensor) -> None:
        taps, constants = self.taps[level.factors], self.constants[level.factors]
        by_columns = torch.matmul(level.B, taps).view(level.count, len(level.B), self.inputs, self.S * self.T, -1)
        middle = by_columns[:, : level.U].permute(3, 2, 1, 0, 4).reshape(self.S * self.T, -1)
        counts = torch.matmul(level.a, constants.sum(1)).add_(self.shift[level.factors].view(-1, 1, 1))
        taken = level.kinds * level.U * level.U * self.inputs
        torch.mm(level.A, middle, out=table[:taken].view(len(level.A), -1))
        table[taken:-1].view(level.kinds, level.count, -1).copy_(counts.transpose(0, 1))
        table[-1] = 0.0
        torch.index_select(table, 0, level.order, out=rows)
        if level.wide:
            lines = by_columns[:, level.U :].view(level.count, 2, level.lines, level.wide, *by_columns.shape[2:])
            lines = lines.permute(1, 5, 4, 2, 3, 0, 6).reshape(2, self.S * self.T, -1)
            edges = torch.matmul(level.b, constants.flatten(2)).view(level.count, 2, level.wide, self.T, -1)
            edges = edges.permute(1, 3, 2, 0, 4).reshape(2, self.T, -1)
            depth = level.lines_depth - len(level.a_lines)
            into[:, :depth] = torch.matmul(level.A_lines, lines).view(2, depth, into.shape[-1])
            into[:, depth:] = torch.matmul(level.a_lines, edges)

    def swapped(self) -> tuple[list[Tensor], list[Tensor]]:
        """Rows and lines of all levels, those of the first two factors in each other's place."""
        order = [1, 0, *range(2, self.levels[0].count)]
        first = [
            t.view(*t.shape[:-1], -1, len(order), self.runs * self.outputs)[..., order, :].view(t.shape)
            for t in (self.rows[0], self.lines[0])
        ]
        return [first[0], *self.rows[1:]], [first[1], *self.lines[1:]]

    def gradients(self, rows: list[Tensor], lines: list[Tensor], of_K: Tensor, swapped: bool) -> Tensor:
        """From the gradients by `rows` and `lines`, that by [P, c], (e, m, i S S + 1); that by K goes into `of_K`.

        With `swapped`, those of the first two factors are in each other's place.
        """
        taps, constants = torch.empty_like(self.taps), torch.empty_like(self.constants)
        for level, table, by_rows, by_lines in zip(self.levels, self.tables, rows, lines, strict=True):
            table.zero_().index_add_(0, level.order, by_rows)
            self._decompose(level, table, by_lines, taps[level.factors], constants[level.factors])
        if swapped:
            taps, constants = (torch.cat([t[1:2], t[:1], t[2:]]) for t in (taps, constants))
        by_taps, by_constants = self._parts(self.M)
        torch.mul(taps.view(by_taps.shape), self.scale.view(-1, *(1,) * 7), out=by_taps)
        torch.mul(constants.view(by_constants.shape), self.scale.view(-1, *(1,) * 4), out=by_constants)
        of_P = torch.bmm(self.K, self.M.mT)
        of_K.copy_(
            self._of_inner(torch.bmm(self.P, self.M, out=self.K))
        )  # the kernels' own values are no longer wanted
        return of_P

    def _decompose(self, level: Level, table: Tensor, by_lines: Tensor, taps: Tensor, constants: Tensor) -> None:
        """The transpose of `_compose`, into `taps` and `constants`."""
        count, units = level.count, self.runs * self.outputs
        taken = level.kinds * level.U * level.U * self.inputs
        middle = torch.mm(level.A.mT, table[:taken].view(len(level.A), -1))
        middle = middle.view(self.S * self.T, self.inputs, level.U, count, units).permute(3, 2, 1, 0, 4)
        by_columns = middle.new_empty(count, len(level.B), self.inputs, self.S * self.T, units)
        by_columns[:, : level.U] = middle
        counts = table[taken:-1].view(level.kinds, count, units).transpose(0, 1)
        constants.copy_(torch.matmul(level.a.mT, counts).unsqueeze(1).expand_as(constants))
        if level.wide:
            depth = len(level.A_lines) * self.inputs * level.lines
            lines = torch.matmul(level.A_lines.mT, by_lines[:, :depth].reshape(2, len(level.A_lines), -1))
            shape = 2, self.S * self.T, self.inputs, level.lines, level.wide, count, units
            into = by_columns[:, level.U :].view(count, 2, level.lines, level.wide, *by_columns.shape[2:])
            into.copy_(lines.view(shape).permute(5, 0, 3, 4, 2, 1, 6))
            edges = torch.matmul(level.a_lines.mT, by_lines[:, depth:])
            edges = edges.view(2, self.T, level.wide, count, units).permute(3, 0, 2, 1, 4)
            constants += torch.matmul(level.b.mT, edges.reshape(count, len(level.b), -1)).view_as(constants)
        torch.matmul(level.B.mT, by_columns.view(count, len(level.B), -1), out=taps)


# The factors of some images in memory, and all that is done with them between the matrix products of `conv`.


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
class RowBlock:
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


class ActivationBuffer:
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
        self._elsewhere: tuple[ActivationBuffer, list[list[RowBlock]]] | None = None

    def _level(self, level: Level) -> list[RowBlock]:
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
            block = RowBlock(views[part], part, [(column[part], strip[part]) for column, strip in pairs], [], [], [])
            self._forward(block, each, half)
            self._backward(block, each, each)
            blocks.append(block)
        return blocks

    def blocks_into(self, other: ActivationBuffer) -> list[list[RowBlock]]:
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

    def _forward(self, block: RowBlock, each: dict[int, Tensor], half: Tensor) -> None:
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

    def _backward(self, block: RowBlock, each: dict[int, Tensor], into: dict[int, Tensor]) -> None:
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
