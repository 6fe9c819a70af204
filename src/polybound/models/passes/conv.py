"""Forward and backward passes of ConvCCP by hand: one matrix product for each row of a factor, and little else.

Between the products everything is linear, so a factor is one convolution of the image with a collapsed kernel; see
`conv_geometry` for what happens at the border, exactly. The image's columns are unfolded once for all runs, into
V: (rows of the image, inputs, taps) x (columns, images). Row r of a factor of all runs is then a matrix product with a
window of V, and so are the gradients:

    h_r = W_r^T V[window],   dW_r = V[window] dh_r^T,   dV[window] += W_r dh_r

The window has no zeros of a padding. A few images and runs at a time: what they need stays in the cache. The gradients
by P, c and K follow once a step from those by the collapsed kernels. Poolings add instead of averaging; the next
factor's kernel has the 1/4. `tests/models/test_closed_conv.py` holds all of it to the layers under autograd.

With directions r of the images, the factors change by `g_n = W_n^T V(r)`, without their constants, and the products by

    t_1 = g_1,   t_n = t_(n-1) h_n + y_(n-1) g_n

pooled where y is. For a loss of y_k and t_k, whose gradients are b and a, the gradients by the factors and by their
changes, one factor after another from the last:

    dh_n = a_n t_(n-1) + b_n y_(n-1),   dg_n = a_n y_(n-1),   a_(n-1) = a_n h_n,   b_(n-1) = a_n g_n + b_n h_n
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from polybound.models.conv import ConvCCP
from polybound.models.passes.base import JacobianGradients, LogitGradient
from polybound.models.passes.conv_geometry import Col2Im, Im2Col, levels
from polybound.models.passes.conv_memory import ActivationBuffer, Kernels, Layout, Operation, RowBlock, spread

__all__ = ["ClosedConvCCP", "Tangents", "Tile"]


# How the products of `conv_memory` change as the images move, and the way back through both.


@dataclass
class _Pair:
    """The same rows of the factors and of their changes, and what is to be done with both."""

    still: RowBlock
    moving: RowBlock
    forward: list[Operation] = field(default_factory=list)
    backward: list[Operation] = field(default_factory=list)
    copies: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class Tangents:
    """Two tapes, of factors and products, and of their changes, with the operations that join them.

    Args:
        still: the tape of the images.
        moving: another one: its factors will be the g_n, its products the t_n, its slopes the a_n.
    """

    def __init__(self, still: ActivationBuffer, moving: ActivationBuffer) -> None:
        self.still, self.moving = still, moving
        self._pairs = [self._level(number) for number in range(len(still.blocks))]

    def forward(self, number: int, place: int) -> None:
        """All t_n of a block of a level, from its factors and their changes."""
        for operation, inputs, out in self._pairs[number][place].forward:
            operation(*inputs, out=out)

    def backward(self, number: int) -> Iterator[tuple[RowBlock, RowBlock]]:
        """The gradients by a level's factors and by their changes, each in the place of what it is of, by blocks."""
        for pair in self._pairs[number]:
            for operation, inputs, out in pair.backward:
                operation(*inputs, out=out)
            for into, source in pair.copies:
                into.copy_(source)
            pair.still.split()
            pair.moving.split()
            yield pair.still, pair.moving

    def _level(self, number: int) -> list[_Pair]:
        factors = [n + 1 for n in range(self.still.layout.degree)[self.still.layout.levels[number].factors]]
        rows, units, length = self.still.factors[factors[0]].shape
        half = self.still.like.new_empty(rows // 2, units, length)
        pairs = [_Pair(*blocks) for blocks in zip(self.still.blocks[number], self.moving.blocks[number], strict=True)]
        for pair in pairs:
            for n in factors:
                self._forward(pair, n, half)
            for n in reversed(factors):
                self._backward(pair, n)
        return pairs

    def _forward(self, pair: _Pair, n: int, half: Tensor) -> None:
        part, h, g = pair.still.part, self.still.factors[n], self.moving.factors[n]
        y, t, into = self.still.products.get(n - 1), self.moving.products.get(n - 1), self.moving.products[n]
        if n not in self.still.layout.pool:
            if y is not None and t is not None:
                pair.forward.append((torch.mul, (h[part], t[part]), into[part]))
                pair.forward.append((torch.addcmul, (into[part], g[part], y[part]), into[part]))
            return
        even, odd = slice(part.start, part.stop, 2), slice(part.start + 1, part.stop, 2)
        halved = half[part.start // 2 : part.stop // 2]
        if y is None or t is None:
            pair.forward.append((torch.add, (g[even], g[odd]), halved))
        else:
            pair.forward.append((torch.mul, (h[even], t[even]), halved))
            terms = [(h[odd], t[odd]), (g[even], y[even]), (g[odd], y[odd])]
            pair.forward += [(torch.addcmul, (halved, *term), halved) for term in terms]
        left, right = halved.view(*halved.shape[:2], 2, -1).unbind(2)
        pair.forward.append((torch.add, (left, right), into[part.start // 2 : part.stop // 2]))

    def _backward(self, pair: _Pair, n: int) -> None:
        part, pooled = pair.still.part, n in self.still.layout.pool
        a, b = (tape.slope_of(n, part) for tape in (self.moving, self.still))
        h, g = (spread(tape.factors[n][part], pooled) for tape in (self.still, self.moving))
        if n == 1:
            pair.copies += [(h, b), (g, a)]
            return
        y, t = (spread(tape.products[n - 1][part], pooled) for tape in (self.still, self.moving))
        into_b, into_a = (spread(tape.slopes[n - 1][part], pooled) for tape in (self.still, self.moving))
        pair.backward += [
            (torch.mul, (a, h), into_a),
            (torch.mul, (b, h), into_b),
            (torch.addcmul, (into_b, a, g), into_b),
            (torch.mul, (b, y), h),
            (torch.addcmul, (h, a, t), h),
            (torch.mul, (a, y), g),
        ]


# The matrix products of `conv` for some runs and images, forward and backward.


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

    def forward(self, images: Im2Col, tape: ActivationBuffer) -> Tensor:
        """Logits (e, classes, n)."""
        for number, place in self._multiply(images, tape):
            for operation, inputs, out in tape.blocks[number][place].forward:
                operation(*inputs, out=out)
        return torch.baddbmm(self.beta, self.Q, tape.finish())

    def _multiply(self, images: Im2Col, tape: ActivationBuffer) -> Iterator[tuple[int, int]]:
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

    def backward(self, tape: ActivationBuffer, d: Tensor, into: ActivationBuffer) -> Iterator[tuple[int, RowBlock]]:
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

    def collect(self, images: Im2Col, tape: ActivationBuffer, d: Tensor) -> None:
        """Add the gradients by the kernels and by C, for the logits' gradient d of some images."""
        *_, of_Q, of_beta = self.collected
        of_Q.baddbmm_(d, tape.y.mT)
        of_beta += d.sum(-1, keepdim=True)
        for number, block in self.backward(tape, d, tape):
            self._collect_rows(number, block, images)
        self._collect_lines(tape, images)

    def _collect_rows(self, number: int, block: RowBlock, images: Im2Col) -> None:
        kernels, windows = self.collected[2][number], images.windows[number]
        for r, (_, row) in enumerate(block.rows, block.part.start):
            kernels[r].addmm_(windows[r], row)

    def _collect_lines(self, tape: ActivationBuffer, images: Im2Col) -> None:
        for number, level in enumerate(self.levels):
            if level.wide:
                self.collected[1][number].baddbmm_(images.lines[number], tape.strips[number].mT)

    def move(self, directions: Im2Col, tangents: Tangents) -> None:
        """The derivatives of all products as the images of the last `forward` move in these directions."""
        for number, place in self._multiply(directions, tangents.moving):
            tangents.forward(number, place)
        tangents.moving.finish()

    def collect_moving(
        self, images: Im2Col, directions: Im2Col, tangents: Tangents, d: Tensor | None, v: Tensor
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

    def fold(self, tape: ActivationBuffer, folded: Col2Im, d: Tensor, into: ActivationBuffer) -> Tensor:
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


CACHE = 8_000_000
"""Bytes of the factors of one run that are computed at a time; all runs that share a product may have 10 times that."""
BLOCK = 2_000_000
"""Bytes of the factors of all runs that share a product that are used as soon as they are computed."""
KEPT = 128_000_000
"""Bytes of factors that `logits` keeps for `input_gradient`; where there are more, they are computed again."""


class ClosedConvCCP(JacobianGradients):
    """`y_n = h_n y_(n-1)`, pooled here and there, so `dh_n = dy_n y_(n-1)` and `dy_(n-1) = dy_n h_n`.

    Args:
        model: a ConvCCP of images; the passes change its own parameters.
        cache: bytes of factors to compute at a time.
    """

    def __init__(self, model: ConvCCP, cache: int = CACHE) -> None:
        self.runs, self.classes, self.shape = model.runs or 1, model.classes, model.shape
        self.degree, self.channels, self.pool = model.degree, model.channels, model.pool
        # Detached views: the parameters are changed in place, behind autograd's back.
        names = ("K", "C") if model.pre is None else ("K", "C", "P", "c")
        found = {name: getattr(model, name).detach() for name in names}
        self.parameters = {name: t if model.runs else t.unsqueeze(0) for name, t in found.items()}
        like = self.parameters["K"]
        self.levels = levels(model.shape, model.degree, model.kernel, model.pre, model.pool, like)
        self.scale = torch.tensor([0.25 if n in model.pool else 1.0 for n in range(model.degree)]).to(like)
        self.shift = self.scale.clone()
        self.shift[0] = 0.0
        units: int = sum(level.count * level.rows.positions * level.columns.positions for level in self.levels)
        self.bytes = units * self.channels * like.element_size()
        self.cache = cache if like.device.type == "cpu" else 100 * cache
        block = BLOCK if like.device.type == "cpu" else 100 * cache
        self.layout = Layout(
            self.levels, model.shape, model.channels, model.degree, model.pool, block, self.parameters["K"]
        )
        self.batch = max(1, self.cache // self.bytes)
        self._descent = {name: torch.empty_like(parameter) for name, parameter in self.parameters.items()}
        self._unfolded: dict[int, Im2Col] = {}
        self._folded: dict[int, Col2Im] = {}
        self._tapes: dict[tuple[int, int, int], ActivationBuffer] = {}
        self._spare: dict[int, tuple[ActivationBuffer, Im2Col]] = {}
        self._tangents: dict[ActivationBuffer, Tangents] = {}
        self._kept: list[tuple[Tile, slice, ActivationBuffer]] | None = None
        self._all_tiles: dict[tuple[int, int], Tile] = {}

    def freeze(self, frozen: bool) -> None:
        super().freeze(frozen)
        for tile in self._all_tiles.values():
            tile.composed = False

    def logits(self, x: Tensor) -> Tensor:
        result = x.new_empty(self.runs, self.classes, x.shape[1])
        keep = self.runs * x.shape[1] * self.bytes <= KEPT
        self._x, self._kept = x, [] if keep else None
        for number, (tile, samples, images) in enumerate(self._parts(x, self._tiles(len(x), 1))):
            tape = self._tape(images.n, 1, number if keep else 0)
            result[tile.runs, :, samples] = tile.forward(images, tape)
            if self._kept is not None:
                self._kept.append((tile, samples, tape))
        return result

    def input_gradient(self, d: Tensor) -> Tensor:
        kept, self._kept = self._kept, None  # gradients take the place of factors, so these are good once
        return self._by_images(d, self._computed() if kept is None else kept, keep=False)

    def _by_images(self, d: Tensor, parts: Iterable[tuple[Tile, slice, ActivationBuffer]], *, keep: bool) -> Tensor:
        """The gradients by the images; `keep`: of tapes that are to stay as they are."""
        result = self._x.new_empty(self.runs, *self._x.shape[1:])
        for tile, samples, tape in parts:
            folded = self._folded.get(tape.n)
            if folded is None:
                folded = self._folded[tape.n] = Col2Im(self.levels, self.shape, tape.n, self._x)
            into = self._spare_of(tape.n)[0] if keep else tape
            result[tile.runs, samples] = tile.fold(tape, folded, d[tile.runs, :, samples], into)
        return result

    def _computed(self) -> Iterator[tuple[Tile, slice, ActivationBuffer]]:
        """What `logits` had to leave, computed again."""
        for tile, samples, images in self._parts(self._x, self._tiles(len(self._x), 1)):
            tape = self._tape(images.n, 1, 0)
            tile.forward(images, tape)
            yield tile, samples, tape

    def gradients(self, d: Tensor, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        return self.gradients_of(x, lambda _, runs, samples: d[runs, :, samples])

    def update_(self, d: Tensor, x: Tensor, rate: float, decay: float = 0.0) -> None:
        self.descend_(x, lambda _, runs, samples: d[runs, :, samples], rate, decay)

    def descend_(self, x: Tensor, slopes: LogitGradient, rate: float, decay: float = 0.0) -> None:
        self._gradients(x, slopes, self._descent)
        for name, parameter in self.parameters.items():
            parameter.mul_(1.0 - rate * decay).sub_(self._descent[name], alpha=rate)

    def gradients_of(self, x: Tensor, slopes: LogitGradient) -> list[tuple[Tensor, Tensor]]:
        found = {name: torch.empty_like(parameter) for name, parameter in self.parameters.items()}
        self._gradients(x, slopes, found)
        return [(self.parameters[name], gradient) for name, gradient in found.items()]

    def _gradients(self, x: Tensor, slopes: LogitGradient, found: dict[str, Tensor]) -> None:
        self._kept = None  # the tapes are used for something else now
        self._x = x
        each = self.runs // len(x)
        parts = max(1, -(-each * self.bytes * self._images_of(x.shape[1]) // (10 * self.cache)))
        tiles = self._tiles(len(x), max(1, -(-each // parts)))
        for tile in tiles:
            tile.clear()
        for tile, samples, images in self._parts(x, tiles):
            tape = self._tape(images.n, tile.size, 0)
            tile.collect(images, tape, slopes(tile.forward(images, tape), tile.runs, samples))
        for tile in tiles:
            tile.write_gradients(found, swapped=self.layout.swapped)

    def rows(self, v: Tensor) -> Tensor:
        self._v, kept = v, self._kept
        parts = self._computed if kept is None else lambda: kept
        return torch.stack([self._by_images(each, parts(), keep=kept is not None) for each in v.unbind(1)], 1)

    def gradients_by_rows(self, d: Tensor, r: Tensor, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The loss sees the rows through `<r, rows> = <v, J r>`, the derivative of the logits as the images move by r.

        So a pass of tangents forward, and back through both; see `Tangents`. The factors are those that `logits`
        kept, for the first direction.
        """
        found = {name: torch.empty_like(parameter) for name, parameter in self.parameters.items()}
        kept, self._kept = self._kept if x is self._x else None, None
        tiles = self._tiles(len(x), 1)
        for tile in tiles:
            tile.clear()
        for place, (tile, samples, images) in enumerate(self._parts(x, tiles)):
            tape = self._tape(images.n, 1, 0) if kept is None else kept[place][2]
            tangents, directions = self._moving(tape)
            for number, v in enumerate(self._v[tile.runs].unbind(1)):
                if kept is None or number:
                    tile.forward(images, tape)
                directions.fill(r[tile.runs.start, number, samples])
                tile.move(directions, tangents)
                by_logits = d[tile.runs, :, samples] if number == 0 else None
                tile.collect_moving(images, directions, tangents, by_logits, v[..., samples])
        for tile in tiles:
            tile.write_gradients(found, swapped=False)
        return [(self.parameters[name], gradient) for name, gradient in found.items()]

    def _images_of(self, batch: int) -> int:
        """How many images to take at a time: equal parts that fit into the cache."""
        parts: int = max(1, -(-batch * self.bytes // self.cache))
        return max(1, -(-batch // parts))

    def _tiles(self, groups: int, size: int) -> list[Tile]:
        """The runs, so many at a time; all runs of a tile are of one group."""
        each = self.runs // groups
        starts = [g * each + first for g in range(groups) for first in range(0, each, size)]
        found = []
        for start in starts:
            key = start, min(start + size, (start // each + 1) * each)
            if key not in self._all_tiles:
                self._all_tiles[key] = Tile(self.layout, self.parameters, self.scale, self.shift, slice(*key))
            found.append(self._all_tiles[key])
            if not (self.frozen and found[-1].composed):
                found[-1].compose()
            found[-1].composed = self.frozen
        return found

    def _parts(self, x: Tensor, tiles: list[Tile]) -> Iterator[tuple[Tile, slice, Im2Col]]:
        """All pairs of a tile and some of its images, unfolded."""
        groups, batch, _ = x.shape
        each, n = self.runs // groups, self._images_of(batch)
        for g in range(groups):
            mine = [tile for tile in tiles if tile.runs.start // each == g]
            for first in range(0, batch, n):
                samples = slice(first, min(first + n, batch))
                images = self._images(samples.stop - first)
                images.fill(x[g, samples])
                for tile in mine:
                    yield tile, samples, images

    def _images(self, n: int) -> Im2Col:
        if n not in self._unfolded:
            if len(self._unfolded) > 1:  # a batch has at most two sizes of parts
                for memory in (self._unfolded, self._folded, self._tapes, self._spare, self._tangents):
                    memory.clear()
            self._unfolded[n] = Im2Col(self.levels, self.shape, n, self.parameters["K"])
        return self._unfolded[n]

    def _spare_of(self, n: int) -> tuple[ActivationBuffer, Im2Col]:
        """Memory for what is done with a tape of n images of one run: another tape, and directions of the images."""
        if n not in self._spare:
            directions = Im2Col(self.levels, self.shape, n, self.parameters["K"], constant=0.0)
            self._spare[n] = ActivationBuffer(self.layout, n, 1), directions
        return self._spare[n]

    def _moving(self, tape: ActivationBuffer) -> tuple[Tangents, Im2Col]:
        """The tangents of a tape, and memory for the directions in which its images move."""
        moving, directions = self._spare_of(tape.n)
        if tape not in self._tangents:
            self._tangents[tape] = Tangents(tape, moving)
        return self._tangents[tape], directions

    def _tape(self, n: int, size: int, number: int) -> ActivationBuffer:
        key = n, size, number
        if key not in self._tapes:
            self._tapes[key] = ActivationBuffer(self.layout, n, size)
        return self._tapes[key]
