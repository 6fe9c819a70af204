"""The collapsed kernels of ConvCCP, as `conv_geometry` arranges them, and back to gradients of P, c and K.

With `M = K^T [P, c]`, the products of all taps of the kernels with all taps of the pre-convolution, every collapsed
kernel is `A M B^T`, with fixed A for the rows and B for the columns. So `dM = A^T dW B`, `dK = [P, c] dM^T` and
`d[P, c] = K dM`: once a step, for all images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polybound.models.conv_geometry import Level

__all__ = ["Kernels"]


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
