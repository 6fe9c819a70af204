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
    """The kernels of e runs at all levels.

    Args:
        levels: of the network.
        K: (e, k, o, m, T, T).
        P: (e, m, inputs, S, S), or None for no pre-convolution.
        c: (e, m), or None.
        scale: of each factor, (k,).
        shift: what each factor has besides, (k,).

    Attributes:
        rows: for each level, (rows of all windows, F e o).
        lines: for each level, the corrections of columns, (2, depth, columns F e o); no columns where there are none.
    """

    def __init__(
        self, levels: list[Level], K: Tensor, P: Tensor | None, c: Tensor | None, scale: Tensor, shift: Tensor
    ) -> None:
        self.levels, self.scale, self.shift = levels, scale, shift
        self.runs, self.degree, self.outputs, self.inner, self.T, _ = K.shape
        self.K = K.reshape(*K.shape[:4], -1)
        if P is None or c is None:
            self.inputs, self.S = self.inner, 1
            eye = torch.eye(self.inner, self.inner + 1, dtype=K.dtype, device=K.device)
            self.P = eye.expand(self.runs, -1, -1)
        else:
            self.inputs, self.S = P.shape[2:4]
            self.P = torch.cat([P.flatten(2), c.unsqueeze(-1)], -1)
        # (e, k, o, taps of P and the constant, taps of K)
        M = torch.matmul(self.P.mT[:, None, None], self.K).mul_(scale.view(-1, 1, 1, 1))
        taps = M[..., :-1, :].reshape(*M.shape[:3], self.inputs, self.S, self.S, self.T, self.T)
        # Columns before rows, runs and channels last: (k, columns' S T, inputs, rows' S T, e o), all but flat.
        self.taps = taps.permute(1, 5, 7, 3, 4, 6, 0, 2).reshape(self.degree, (self.S * self.T), -1)
        constants = M[..., -1, :].view(*M.shape[:3], self.T, self.T)
        self.constants = constants.permute(1, 4, 3, 0, 2).reshape(self.degree, self.T, self.T, -1)
        composed = [self._compose(level) for level in levels]
        self.rows = [rows for rows, _ in composed]
        self.lines = [lines for _, lines in composed]

    def _compose(self, level: Level) -> tuple[Tensor, Tensor]:
        taps, constants = self.taps[level.factors], self.constants[level.factors]
        by_columns = torch.matmul(level.B, taps).view(level.count, len(level.B), self.inputs, self.S * self.T, -1)
        middle = by_columns[:, : level.U].permute(3, 2, 1, 0, 4).reshape(self.S * self.T, -1)
        width = level.count * by_columns.shape[-1]
        counts = torch.matmul(level.a, constants.sum(1)).add_(self.shift[level.factors].view(-1, 1, 1))
        table = torch.zeros(level.table_rows, width, dtype=taps.dtype, device=taps.device)
        taken = level.kinds * level.U * level.U * self.inputs
        torch.mm(level.A, middle, out=table[:taken].view(len(level.A), -1))
        table[taken:-1] = counts.transpose(0, 1).reshape(level.kinds, -1)
        rows = table.index_select(0, level.order)
        if not level.wide:
            return rows, rows.new_empty(2, level.lines_depth, 0)
        lines = by_columns[:, level.U :].view(level.count, 2, level.lines, level.wide, *by_columns.shape[2:])
        lines = lines.permute(1, 5, 4, 2, 3, 0, 6).reshape(2, self.S * self.T, -1)
        edges = torch.matmul(level.b, constants.flatten(2)).view(level.count, 2, level.wide, self.T, -1)
        edges = edges.permute(1, 3, 2, 0, 4).reshape(2, self.T, -1)
        width *= level.wide
        parts = (
            torch.matmul(level.A_lines, lines).view(2, len(level.A_lines) * self.inputs * level.lines, width),
            torch.matmul(level.a_lines, edges),
        )
        return rows, torch.cat(parts, 1)

    def gradients(self, rows: list[Tensor], lines: list[Tensor]) -> tuple[Tensor, Tensor]:
        """From the gradients by `rows` and `lines`, those by K, (e, k, o, m, T T), and by [P, c], (e, m, taps + 1)."""
        taps, constants = torch.empty_like(self.taps), torch.empty_like(self.constants)
        for level, by_rows, by_lines in zip(self.levels, rows, lines, strict=True):
            self._decompose(level, by_rows, by_lines, taps[level.factors], constants[level.factors])
        lead = self.runs, self.degree, self.outputs
        M = taps.new_empty(*lead, self.inputs * self.S**2 + 1, self.T**2)
        sizes = self.S, self.T, self.inputs, self.S, self.T, self.runs, self.outputs
        by_taps = taps.view(self.degree, *sizes).permute(6, 0, 7, 3, 4, 1, 5, 2)
        M[..., :-1, :].view(by_taps.shape).copy_(by_taps)
        by_constants = constants.view(self.degree, self.T, self.T, self.runs, self.outputs).permute(3, 0, 4, 2, 1)
        M[..., -1, :].view(by_constants.shape).copy_(by_constants)
        M.mul_(self.scale.view(-1, 1, 1, 1))
        of_P = torch.matmul(self.K, M.mT).sum((1, 2))
        return torch.matmul(self.P[:, None, None], M), of_P

    def _decompose(self, level: Level, by_rows: Tensor, by_lines: Tensor, taps: Tensor, constants: Tensor) -> None:
        """The transpose of `_compose`, into `taps` and `constants`."""
        count, units = level.count, self.runs * self.outputs
        taken = level.kinds * level.U * level.U * self.inputs
        table = by_rows.new_zeros(level.table_rows, by_rows.shape[1]).index_add_(0, level.order, by_rows)
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
