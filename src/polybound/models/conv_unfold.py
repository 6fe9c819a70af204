"""A few images with their columns unfolded, as `conv_geometry` arranges them, and gradients by them folded back."""

from __future__ import annotations

import torch
from torch import Tensor

from polybound.models.conv_geometry import Level

__all__ = ["Folded", "Unfolded"]


class Unfolded:
    """n images, rows of the image first and images last; memory that is filled again for the next n images.

    Args:
        levels: of the network.
        shape: of an image.
        n: how many images.
        like: a tensor of the right type and device.
        constant: what multiplies the constants of the factors: 1, or 0 for directions, which see the linear part alone.

    Attributes:
        windows: for each level, the window of V that each row of its factors sees, (depth, columns n).
        lines: for each level, the lines that corrections of columns see, (2, depth, rows n).
    """

    def __init__(
        self, levels: list[Level], shape: tuple[int, ...], n: int, like: Tensor, constant: float = 1.0
    ) -> None:
        self.n, (self.inputs, self.height, self.width) = n, shape
        self.constant = constant
        self.reach = levels[0].rows.reach
        right = max(level.columns.place(level.columns.positions - 1, level.U) for level in levels)
        below = max(level.rows.place(level.rows.positions - 1, level.U) for level in levels)
        self.image = like.new_zeros(self.height, self.inputs, self.reach + max(right, self.width), n)
        self.inside = self.image[:, :, self.reach : self.reach + self.width]
        self.edges = like.new_zeros(2, self.reach + max(below, self.height), self.inputs * levels[0].lines, n)
        # All that is to be done for new images: copies, in this order.
        self.copies = [self._edge(side, edge) for side, edge in enumerate(levels[0].edges) if levels[0].lines]
        self.windows: list[list[Tensor]] = []
        self.lines: list[Tensor] = []
        for level in levels:
            V = like.new_full((level.depth, level.columns.positions * n), constant)
            self.windows.append([V[first:last] for first, last, *_ in level.windows])
            self.copies += self._columns(level, V)
            L = self._constant_lines(level)
            self.lines.append(L.flatten(2))
            if level.wide and level.lines:
                self.copies += self._lines(level, L)

    def fill(self, x: Tensor) -> None:
        """Take the images x, (n, inputs * height * width)."""
        self.inside.copy_(x.reshape(self.n, self.inputs, self.height, self.width).permute(2, 1, 3, 0))
        for into, source in self.copies:
            into.copy_(source)

    def _edge(self, side: int, edge: slice) -> tuple[Tensor, Tensor]:
        source = self.inside[:, :, edge]
        return self.edges[side, self.reach : self.reach + self.height].view(source.shape), source

    def _columns(self, level: Level, V: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Pieces of V, and the views of the image that they are copies of."""
        by_row, by_input, n, _ = self.image.stride()
        steps = [level.stride * 2**m * n for m in range(level.halvings + 1)]  # of the halves, and of what is left
        pieces = []
        for start, low, high in level.segments:
            sizes = high - low, self.inputs, level.U, *(2,) * level.halvings, level.last, n
            source = self.image.as_strided(sizes, (by_row, by_input, n, *steps, 1), low * by_row)
            block = self.inputs * level.U
            pieces.append((V[start : start + (high - low) * block].view(sizes), source))
        return pieces

    def _constant_lines(self, level: Level) -> Tensor:
        """Lines, all of them zero but for those that are constant."""
        L = self.image.new_zeros(2, level.lines_depth, level.rows.positions, self.n)
        first = level.lines_depth - len(level.exceptional)
        L[:, first - 1] = self.constant
        for number, r in enumerate(level.exceptional):
            L[:, first + number, r] = self.constant
        return L

    def _lines(self, level: Level, L: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Lines by taps of the rows, and those of exceptional rows by themselves."""
        by_side, by_row, n, _ = self.edges.stride()
        rows, width = level.rows.positions, self.inputs * level.lines
        sizes = 2, level.U, width, rows, n
        taps = self.edges.as_strided(sizes, (by_side, by_row, n, level.stride * by_row, 1))
        first = level.U * width
        found = [(L[:, :first].view(sizes), taps)]
        for number, (r, _, place) in enumerate(level.exceptions):
            start = first + number * width
            found.append((L[:, start : start + width, r], self.edges[:, self.reach + place]))
        return found


class Folded:
    """The gradient by n images, folded back from those by the windows and lines of `Unfolded`.

    Attributes:
        windows: as those of `Unfolded`, to be added to.
        lines: the same of the lines.
    """

    def __init__(self, levels: list[Level], shape: tuple[int, ...], n: int, like: Tensor) -> None:
        self.levels, self.n, (self.inputs, self.height, self.width) = levels, n, shape
        self.V = [like.new_zeros(level.depth, level.columns.positions * n) for level in levels]
        self.windows = [
            [V[first:last] for first, last, *_ in level.windows] for level, V in zip(levels, self.V, strict=True)
        ]
        self.lines = [like.new_empty(2, level.lines_depth, level.rows.positions * n) for level in levels]
        self.folding = [level.folding for level in levels]
        self.image = like.new_zeros(self.height, self.inputs, self.width, n)

    def clear(self) -> None:
        """Set all gradients to zero."""
        for V in self.V:
            V.zero_()

    def image_gradient(self) -> Tensor:
        """The gradient by the images, (n, inputs * height * width)."""
        self.image.zero_()
        for level, V, L, (columns, lines) in zip(self.levels, self.V, self.lines, self.folding, strict=True):
            for start, low, high in level.segments:
                count = (high - low) * self.inputs
                piece = V[start : start + count * level.U].view(count, -1, self.n)
                self.image[low:high].view(count, self.width, self.n).baddbmm_(columns.expand(count, -1, -1), piece)
            if level.wide and level.lines:
                found = torch.matmul(lines, L.view(2, -1, self.n))
                for side, edge in enumerate(level.edges):
                    self.image[:, :, edge] += found[side].view(self.height, self.inputs, level.lines, self.n)
        return self.image.permute(3, 1, 0, 2).reshape(self.n, -1)
