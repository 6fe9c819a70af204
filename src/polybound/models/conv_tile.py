"""The matrix products of `closed_conv` for some runs and images, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from polybound.models.conv_kernels import Kernels
from polybound.models.conv_tangents import Tangents
from polybound.models.conv_tape import Block, Layout, Tape
from polybound.models.conv_unfold import Folded, Unfolded

__all__ = ["Tile"]


class Tile:
    """The passes of a few runs that share their images.

    Args:
        layout: of the network.
        parameters: of all runs.
        scale: of each factor, as `Kernels` takes it.
        shift: of each factor.
        runs: which of them.
    """

    def __init__(
        self, layout: Layout, parameters: dict[str, Tensor], scale: Tensor, shift: Tensor, runs: slice
    ) -> None:
        self.layout, self.levels, self.runs, self.size = layout, layout.levels, runs, runs.stop - runs.start
        self.mine = {name: parameter[runs] for name, parameter in parameters.items()}
        self.kernels = Kernels(layout.levels, self.mine, scale, shift)
        self.Q = self.mine["C"][..., :-1].contiguous()
        self.beta = self.mine["C"][..., -1:]
        self.rows = self._by_window(self.kernels.rows)
        self.across = [[kernel.t() for kernel in kernels] for kernels in self.rows]
        self.composed = False  # while the parameters are frozen
        self.turned: tuple[list[list[Tensor]], list[Tensor]] | None = None

    def _by_window(self, kernels: list[Tensor]) -> list[list[Tensor]]:
        return [
            [rows[first:last] for _, _, first, last in level.windows]
            for level, rows in zip(self.levels, kernels, strict=True)
        ]

    def compose(self) -> None:
        """Take the parameters as they are now."""
        self.kernels.compose()
        self.turned = None
        self.Q.copy_(self.mine["C"][..., :-1])

    @cached_property
    def collected(self) -> tuple[list[Tensor], list[Tensor], list[list[Tensor]], Tensor, Tensor]:
        """Gradients by the kernels, rows and lines, the former also by window, by Q and by beta."""
        rows, lines = ([torch.empty_like(t) for t in kernels] for kernels in (self.kernels.rows, self.kernels.lines))
        return rows, lines, self._by_window(rows), torch.empty_like(self.Q), torch.empty_like(self.beta)

    def clear(self) -> None:
        """Begin to collect gradients."""
        rows, lines, _, of_Q, of_beta = self.collected
        for tensor in (*rows, *lines, of_Q, of_beta):
            tensor.zero_()

    def forward(self, images: Unfolded, tape: Tape) -> Tensor:
        """Logits (e, classes, n)."""
        for number, place in self._multiply(images, tape):
            for operation, inputs, out in tape.blocks[number][place].forward:
                operation(*inputs, out=out)
        return torch.baddbmm(self.beta, self.Q, tape.finish())

    def _multiply(self, images: Unfolded, tape: Tape) -> Iterator[tuple[int, int]]:
        """The factors of the images, block by block: the number of its level, and its place there."""
        for number, level in enumerate(self.levels):
            if level.wide:
                torch.bmm(self.kernels.lines[number].mT, images.lines[number], out=tape.strips[number])
            kernels, windows = self.across[number], images.windows[number]
            for place, block in enumerate(tape.blocks[number]):
                for r, (row, _) in enumerate(block.rows, block.part.start):
                    torch.mm(kernels[r], windows[r], out=row)
                block.correct()
                yield number, place

    def backward(self, tape: Tape, d: Tensor, into: Tape) -> Iterator[tuple[int, Block]]:
        """From the logits' gradient d, (e, classes, n), that of all factors, block by block.

        It comes in the place of a tape's factors: of these, or of others, and then these stay.
        """
        tape.begin(torch.bmm(self.Q.mT, d))
        blocks = tape.blocks_into(into)
        for number in range(len(self.levels) - 1, -1, -1):
            for block in blocks[number]:
                for operation, inputs, out in block.backward:
                    operation(*inputs, out=out)
                for place, source in block.copies:
                    place.copy_(source)
                block.split()
                yield number, block

    def collect(self, images: Unfolded, tape: Tape, d: Tensor) -> None:
        """Add the gradients by the kernels and by C, for the logits' gradient d of some images."""
        *_, of_Q, of_beta = self.collected
        of_Q.baddbmm_(d, tape.y.mT)
        of_beta += d.sum(-1, keepdim=True)
        for number, block in self.backward(tape, d, tape):
            self._collect_rows(number, block, images)
        self._collect_lines(tape, images)

    def _collect_rows(self, number: int, block: Block, images: Unfolded) -> None:
        kernels, windows = self.collected[2][number], images.windows[number]
        for r, (_, row) in enumerate(block.rows, block.part.start):
            kernels[r].addmm_(windows[r], row)

    def _collect_lines(self, tape: Tape, images: Unfolded) -> None:
        for number, level in enumerate(self.levels):
            if level.wide:
                self.collected[1][number].baddbmm_(images.lines[number], tape.strips[number].mT)

    def move(self, directions: Unfolded, tangents: Tangents) -> None:
        """The derivatives of all products as the images of the last `forward` move in these directions."""
        for number, place in self._multiply(directions, tangents.moving):
            tangents.forward(number, place)
        tangents.moving.finish()

    def collect_moving(
        self, images: Unfolded, directions: Unfolded, tangents: Tangents, d: Tensor | None, v: Tensor
    ) -> None:
        """As `collect`, of `<d, logits> + <v, the logits' derivative in the directions>`; without d, of the latter."""
        *_, of_Q, of_beta = self.collected
        if d is not None:
            of_Q.baddbmm_(d, tangents.still.y.mT)
            of_beta += d.sum(-1, keepdim=True)
        of_Q.baddbmm_(v, tangents.moving.y.mT)
        tangents.moving.begin(torch.bmm(self.Q.mT, v))
        tangents.still.begin(torch.bmm(self.Q.mT, torch.zeros_like(v) if d is None else d))
        for number in range(len(self.levels) - 1, -1, -1):
            for still, moving in tangents.backward(number):
                self._collect_rows(number, still, images)
                self._collect_rows(number, moving, directions)
        self._collect_lines(tangents.still, images)
        self._collect_lines(tangents.moving, directions)

    def write_gradients(self, into: dict[str, Tensor], *, swapped: bool) -> None:
        """Put the gradients by the parameters of these runs into those of all; `swapped` as `backward` left them."""
        rows, lines, _, of_Q, of_beta = self.collected
        of_P = self.kernels.gradients(rows, lines, into["K"][self.runs], swapped)
        into["C"][self.runs, :, :-1] = of_Q
        into["C"][self.runs, :, -1:] = of_beta
        if "P" in into:
            into["P"][self.runs] = of_P[..., :-1].reshape(into["P"][self.runs].shape)
            into["c"][self.runs] = of_P[..., -1]

    def fold(self, tape: Tape, folded: Folded, d: Tensor, into: Tape) -> Tensor:
        """The gradient by the images of a single run, (n, features), for the logits' gradient d; see `backward`."""
        rows, lines = self._swapped()
        folded.clear()
        for number, block in self.backward(tape, d, into):
            kernels, windows = rows[number], folded.windows[number]
            for r, (row, _) in enumerate(block.rows, block.part.start):
                windows[r].addmm_(kernels[r], row)
        for number, level in enumerate(self.levels):
            if level.wide:
                torch.bmm(lines[number], into.strips[number], out=folded.lines[number])
        return folded.image_gradient()

    def _swapped(self) -> tuple[list[list[Tensor]], list[Tensor]]:
        """The kernels, by window, and lines, in the order in which `backward` leaves the gradients by the factors."""
        if not self.layout.swapped:
            return self.rows, self.kernels.lines
        if self.turned is None:
            rows, lines = self.kernels.swapped()
            self.turned = [self._by_window(rows)[0], *self.rows[1:]], lines
        return self.turned
