"""The collapsed kernels of ConvCCP, as `conv_geometry` arranges them, and the factors of some images in memory.

With `M = K^T [P, c]`, the products of all taps of the kernels with all taps of the pre-convolution, every collapsed
kernel is `A M B^T`, with fixed A for the rows and B for the columns. So `dM = A^T dW B`, `dK = [P, c] dM^T` and
`d[P, c] = K dM`: once a step, for all images.

Memory stays where it is, so the operations on it are listed once, block of rows by block of rows, and run again for
every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from polybound.models.passes.conv_geometry import Geometry, Level, Step

BLOCK = 2_000_000
"""Bytes of the factors of all runs that share a product that are used as soon as they are computed, on a CPU."""


class Kernels:
    """The kernels of e runs at all levels, in memory that stays where it is.

    Args:
        sizes: of the network.
        parameters: of these runs: K, (e, k, o, m, T, T), and P, (e, m, inputs, S, S), and c, (e, m), if there are such.

    Attributes:
        rows: for each level, (rows of all windows, F e o).
        lines: for each level, the corrections of columns, (2, depth, columns F e o); no columns where there are none.
    """

    def __init__(self, sizes: Geometry, parameters: dict[str, Tensor]) -> None:
        self.levels, self.parameters, self.degree = sizes.levels, parameters, sizes.degree
        # Poolings add instead of averaging; the next factor has the 1/4. All factors but the first have 1 added.
        self.scale = sizes.full(1.0, sizes.degree)
        self.scale[[n for n in sizes.pool if n < sizes.degree]] = 0.25
        self.shift = self.scale.clone()
        self.shift[0] = 0.0
        self.runs, _, self.outputs, self.inner, self.T, _ = parameters["K"].shape
        self.inputs, self.S = parameters["P"].shape[2:4] if "P" in parameters else (self.inner, 1)
        flat, units = self.degree * self.outputs * self.T**2, self.runs * self.outputs
        self.K = sizes.empty(self.runs, self.inner, flat)  # (e, m, k o T T)
        self.P = torch.eye(self.inner, self.inputs * self.S**2 + 1).to(self.K).repeat(self.runs, 1, 1)
        self.M = sizes.empty(self.runs, self.P.shape[-1], flat)  # taps of P and the constant by taps of K
        # Columns before rows, runs and channels last: (k, columns' S T, inputs, rows' S T, e o), all but flat.
        self.taps = sizes.empty(self.degree, self.S * self.T, self.inputs * self.S * self.T * units)
        self.constants = sizes.empty(self.degree, self.T, self.T, units)
        self.tables = [sizes.empty(level.table_rows, level.count * units) for level in self.levels]
        self.rows = [sizes.empty(len(level.order), level.count * units) for level in self.levels]
        self.lines = [sizes.empty(2, level.lines_depth, level.wide * level.count * units) for level in self.levels]

    def _of_inner(self, K: Tensor) -> Tensor:
        """(e, m, k o T T) as (e, k, o, m, T, T)."""
        return K.view(self.runs, self.inner, self.degree, self.outputs, self.T, self.T).permute(0, 2, 3, 1, 4, 5)

    def _parts(self, M: Tensor) -> tuple[Tensor, Tensor]:
        """Of M, what belongs to the taps of P, (k, s', t', i, s, t, e, o), and to the constant, (k, t', t, e, o)."""
        S, rest = self.S, (self.degree, self.outputs, self.T, self.T)
        taps = M[:, :-1].view(self.runs, self.inputs, S, S, *rest)  # (e, i, s, s', k, o, t, t')
        return taps.permute(4, 3, 7, 1, 2, 6, 0, 5), M[:, -1].view(self.runs, *rest).permute(1, 4, 3, 0, 2)

    def _scaled(self, source: Tensor, into: Tensor) -> None:
        torch.mul(source, self.scale.view(-1, *(1,) * (source.ndim - 1)), out=into)

    def compose(self) -> None:
        """Compute all kernels from the current parameters."""
        self._of_inner(self.K).copy_(self.parameters["K"])
        if "P" in self.parameters:
            self.P[..., :-1].copy_(self.parameters["P"].flatten(2))
            self.P[..., -1].copy_(self.parameters["c"])
        taps, constants = self._parts(torch.bmm(self.P.mT, self.K, out=self.M))
        self._scaled(taps, self.taps.view(taps.shape))
        self._scaled(constants, self.constants.view(constants.shape))
        for level, table, rows, into in zip(self.levels, self.tables, self.rows, self.lines, strict=True):
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

    def gradients(self, rows: list[Tensor], lines: list[Tensor], of_K: Tensor) -> Tensor:
        """From the gradients by `rows` and `lines`, that by [P, c], (e, m, i S S + 1); that by K goes into `of_K`.

        The transpose of `compose`, step by step.
        """
        taps, constants, units = torch.empty_like(self.taps), torch.empty_like(self.constants), self.runs * self.outputs
        for level, table, by_rows, by_lines in zip(self.levels, self.tables, rows, lines, strict=True):
            table.zero_().index_add_(0, level.order, by_rows)
            taken = level.kinds * level.U * level.U * self.inputs
            middle = torch.mm(level.A.mT, table[:taken].view(len(level.A), -1))
            middle = middle.view(self.S * self.T, self.inputs, level.U, level.count, units).permute(3, 2, 1, 0, 4)
            by_columns = middle.new_empty(level.count, len(level.B), self.inputs, self.S * self.T, units)
            by_columns[:, : level.U] = middle
            counts = table[taken:-1].view(level.kinds, level.count, units).transpose(0, 1)
            by_counts = constants[level.factors]
            by_counts.copy_(torch.matmul(level.a.mT, counts).unsqueeze(1).expand_as(by_counts))
            if level.wide:
                depth = level.lines_depth - len(level.a_lines)
                found = torch.matmul(level.A_lines.mT, by_lines[:, :depth].reshape(2, len(level.A_lines), -1))
                shape = 2, self.S * self.T, self.inputs, level.lines, level.wide, level.count, units
                into = by_columns[:, level.U :].view(level.count, 2, level.lines, level.wide, *by_columns.shape[2:])
                into.copy_(found.view(shape).permute(5, 0, 3, 4, 2, 1, 6))
                edges = torch.matmul(level.a_lines.mT, by_lines[:, depth:])
                edges = edges.view(2, self.T, level.wide, level.count, units).permute(3, 0, 2, 1, 4)
                by_edges = torch.matmul(level.b.mT, edges.reshape(level.count, len(level.b), -1))
                by_counts += by_edges.view_as(by_counts)
            flat = by_columns.view(level.count, len(level.B), -1)
            torch.matmul(level.B.mT, flat, out=taps[level.factors])
        by_taps, by_constants = self._parts(self.M)
        self._scaled(taps.view(by_taps.shape), by_taps)
        self._scaled(constants.view(by_constants.shape), by_constants)
        of_P = torch.bmm(self.K, self.M.mT)
        # The kernels' own values are no longer wanted.
        of_K.copy_(self._of_inner(torch.bmm(self.P, self.M, out=self.K)))
        return of_P


@dataclass
class RowBlock:
    """Some rows of a level: few enough that their factors stay in the nearest cache until they are used."""

    rows: list[tuple[Tensor, Tensor]]  # of the factors, (F e channels, columns n), and the same transposed
    part: slice  # which rows these are
    correct: list[Step]  # add to the columns near the border what their strips have
    split: list[Step]  # the gradients by the strips: those by the columns
    forward: list[Step] = field(default_factory=list)
    backward: list[Step] = field(default_factory=list)


class ActivationBuffer:
    """Factors of some images by some runs, and the steps from them to products and gradients; memory to be used again.

    Args:
        sizes: of the network.
        n: how many images.
        runs: how many runs.

    Attributes:
        factors: each, (rows, e channels, columns n).
        products: after each factor, pooled if that is where.
        slopes: the gradients by these.
        blocks: for each level.
        strips: for each level, corrections of columns, (2, columns F e channels, rows n).
        y: the last product, (e, units, n).
        last: the same as it comes, (rows, e, channels, columns, n).
        slope: the gradient by that.
    """

    def __init__(self, sizes: Geometry, n: int, runs: int) -> None:
        self.sizes, self.n = sizes, n
        self.factors: dict[int, Tensor] = {}
        self.products: dict[int, Tensor] = {}
        self.slopes: dict[int, Tensor] = {}
        self.strips: list[Tensor] = []
        self.blocks = [self._level(level, runs * sizes.channels) for level in sizes.levels]
        _, height, width = (size >> len(sizes.pool) for size in sizes.shape)
        self.y = sizes.empty(runs, sizes.channels * height * width, n)
        self.last = self.y.view(runs, sizes.channels, height, width, n).permute(2, 0, 1, 3, 4)
        self.slope = self.slopes[sizes.degree].view(self.last.shape)
        self.mean = 0.25 if sizes.degree in sizes.pool else 1.0

    def _level(self, level: Level, units: int) -> list[RowBlock]:
        rows, columns = level.rows.positions, level.columns.positions
        h = self.sizes.empty(rows, level.count, units, columns * self.n)
        each = dict(enumerate(h.unbind(1), level.factors.start + 1))
        self.factors |= each
        half = self.sizes.empty(rows // 2, units, columns * self.n)
        for n in each:
            pooled = n in self.sizes.pool
            shape = (rows // 2, units, columns // 2 * self.n) if pooled else tuple(each[n].shape)
            self.products[n] = each[n] if n == 1 and not pooled else self.sizes.empty(*shape)
            self.slopes[n] = self.sizes.empty(*shape)
        strips = self.sizes.full(0.0, 2, level.wide, level.count * units, rows, self.n)
        self.strips.append(strips.view(2, level.wide * level.count * units, rows * self.n))
        by_column = h.view(rows, -1, columns, self.n)
        pairs = [(by_column[:, :, column], strips[side, j].transpose(0, 1)) for side, j, column in level.corrected]
        most = BLOCK if h.device.type == "cpu" else 400 * BLOCK
        step = max(2, most // (h[0].numel() * h.element_size()) // 2 * 2)
        views = [(row, row.t()) for row in h.flatten(1, 2)]
        blocks = []
        for first in range(0, rows, step):
            part = slice(first, min(first + step, rows))
            correct: list[Step] = [partial(column[part].add_, strip[part]) for column, strip in pairs]
            split: list[Step] = [partial(strip[part].copy_, column[part]) for column, strip in pairs]
            block = RowBlock(views[part], part, correct, split)
            for n, factor in each.items():
                term = (factor, self.products[n - 1]) if n > 1 else (factor,)
                block.forward += multiply([term], self.products[n], half, part, n in self.sizes.pool)
            block.backward = [*self._backward(level, part, self), *split]
            blocks.append(block)
        return blocks

    def backward_into(self, other: ActivationBuffer) -> list[list[list[Step]]]:
        """For each level and block, `backward` with the gradients by these factors in the place of another buffer's.

        So these factors stay, for what is still to be done with them.
        """
        return [
            [[*self._backward(level, block.part, other), *block.split] for block in blocks]
            for level, blocks in zip(self.sizes.levels, other.blocks, strict=True)
        ]

    def _backward(self, level: Level, part: slice, into: ActivationBuffer) -> list[Step]:
        """`dy_(n-1) = dy_n h_n` and `dh_n = dy_n y_(n-1)`, the latter into the place of h_n, here or elsewhere."""
        steps: list[Step] = []
        for n in range(level.factors.stop, level.factors.start, -1):
            pooled, slope = n in self.sizes.pool, self.slope_of(n, part)
            factor, place = (with_pool_dims(buffer.factors[n][part], pooled) for buffer in (self, into))
            if n == 1:
                return [*steps, partial(place.copy_, slope)]
            before, before_slope = (with_pool_dims(t[n - 1][part], pooled) for t in (self.products, self.slopes))
            steps.append(partial(torch.mul, slope, factor, out=before_slope))
            steps.append(partial(torch.mul, slope, before, out=place))
        return steps

    def finish(self) -> Tensor:
        """Put the last product into y."""
        self.last.copy_(self.products[self.sizes.degree].view(self.last.shape))
        return self.y.mul_(self.mean) if self.mean < 1.0 else self.y

    def begin(self, dy: Tensor) -> None:
        """Take the gradient by y, (e, units, n)."""
        rows, e, channels, columns, n = self.last.shape
        torch.mul(dy.view(e, channels, rows, columns, n).permute(2, 0, 1, 3, 4), self.mean, out=self.slope)

    def slope_of(self, n: int, part: slice) -> Tensor:
        """The gradient by y_n as some rows of the factor see it, with dimensions of 1 for a pooling in between."""
        if n not in self.sizes.pool:
            return self.slopes[n][part]
        return self.slopes[n][part.start // 2 : part.stop // 2, None, :, None]


def multiply(terms: Sequence[tuple[Tensor, ...]], into: Tensor, half: Tensor, part: slice, pooled: bool) -> list[Step]:
    """Steps for the sum of the terms' products, (rows, units, length), in some of the rows of the terms.

    If `pooled`, two rows are added, into `half`, and then two columns. A term is a pair, or one tensor by itself.
    """
    if pooled:
        rows, halved = [slice(part.start + odd, part.stop, 2) for odd in (0, 1)], slice(part.start // 2, part.stop // 2)
        pieces, total = [tuple(t[some] for t in term) for term in terms for some in rows], half[halved]
    else:
        pieces, total = [tuple(t[part] for t in term) for term in terms], into[part]
    steps: list[Step] = []
    if len(terms[0]) == 2:
        steps.append(partial(torch.mul, *pieces[0], out=total))
        steps += [partial(torch.addcmul, total, *piece, out=total) for piece in pieces[1:]]
    elif pooled:
        steps.append(partial(torch.add, *pieces[0], *pieces[1], out=total))
    if pooled:
        left, right = total.view(*total.shape[:2], 2, -1).unbind(2)
        steps.append(partial(torch.add, left, right, out=into[halved]))
    return steps


def with_pool_dims(t: Tensor, pooled: bool) -> Tensor:
    """(rows, units, length) with a dimension for the two rows, and one for the two columns, that a pooling adds."""
    if not pooled:
        return t
    rows, units, length = t.shape
    return t.view(rows // 2, 2, units, 2, length // 2)
