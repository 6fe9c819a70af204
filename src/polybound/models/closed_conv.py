"""Forward and backward passes of ConvCCP by hand: one matrix product for each row of a factor, and little else.

Between the products everything is linear, so a factor is one convolution of the image with a collapsed kernel; see
`conv_geometry` for what happens at the border, exactly. The image's columns are unfolded once for all runs, into
V: (rows of the image, inputs, taps) x (columns, images). Row r of a factor of all runs is then a matrix product with a
window of V, and so are the gradients::

    h_r = W_r^T V[window],   dW_r = V[window] dh_r^T,   dV[window] += W_r dh_r

The window has no zeros of a padding. A few images and runs at a time: what they need stays in the cache. The gradients
by P, c and K follow once a step from those by the collapsed kernels. Poolings add instead of averaging; the next
factor's kernel has the 1/4. `tests/test_closed_conv.py` holds all of it to the layers under autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from polybound.models.closed_base import ClosedForm, Slopes
from polybound.models.conv import ConvCCP
from polybound.models.conv_geometry import Level, levels
from polybound.models.conv_kernels import Kernels
from polybound.models.conv_unfold import Folded, Unfolded

__all__ = ["ClosedConvCCP"]

CACHE = 4_000_000
"""Bytes of the factors of one run that are computed at a time; all runs that share a product may have 10 times that."""
BLOCK = 2_000_000
"""Bytes of the factors of all runs that share a product that are used as soon as they are computed."""
KEPT = 128_000_000
"""Bytes of factors that `logits` keeps for `input_gradient`; where there are more, they are computed again."""


class ClosedConvCCP(ClosedForm):
    """`y_n = h_n y_(n-1)`, pooled here and there, so `dh_n = dy_n y_(n-1)` and `dy_(n-1) = dy_n h_n`.

    Args:
        model: a ConvCCP of images; the passes change its own parameters.
        cache: bytes of factors to compute at a time.
    """

    def __init__(self, model: ConvCCP, cache: int = CACHE) -> None:
        self.runs, self.classes, self.shape = model.runs or 1, model.classes, model.shape
        self.degree, self.channels, self.pool = model.degree, model.channels, model.pool
        self.swapped = model.degree > 1 and 1 not in model.pool
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
        self.block = BLOCK if like.device.type == "cpu" else 100 * cache
        self.batch = max(1, self.cache // self.bytes)
        self._descent = {name: torch.empty_like(parameter) for name, parameter in self.parameters.items()}
        self._unfolded: dict[int, Unfolded] = {}
        self._folded: dict[int, Folded] = {}
        self._tapes: dict[tuple[int, int, int], _Tape] = {}
        self._kept: list[tuple[_Tile, slice, _Tape]] | None = None
        self._all_tiles: dict[tuple[int, int], _Tile] = {}

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
        result = self._x.new_empty(self.runs, *self._x.shape[1:])
        for tile, samples, tape in self._taped():
            folded = self._folded.get(tape.n)
            if folded is None:
                folded = self._folded[tape.n] = Folded(self.levels, self.shape, tape.n, self._x)
            result[tile.runs, samples] = tile.fold(tape, folded, d[tile.runs, :, samples])
        return result

    def _taped(self) -> Iterator[tuple[_Tile, slice, _Tape]]:
        """What `logits` left behind, or had to leave to be computed again."""
        if self._kept is not None:
            kept, self._kept = self._kept, None  # gradients take the place of factors, so these are good once
            yield from kept
            return
        for tile, samples, images in self._parts(self._x, self._tiles(len(self._x), 1)):
            tape = self._tape(images.n, 1, 0)
            tile.forward(images, tape)
            yield tile, samples, tape

    def gradients(self, d: Tensor, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        return self.gradients_of(x, lambda _, runs, samples: d[runs, :, samples])

    def update_(self, d: Tensor, x: Tensor, rate: float, decay: float = 0.0) -> None:
        self.descend_(x, lambda _, runs, samples: d[runs, :, samples], rate, decay)

    def descend_(self, x: Tensor, slopes: Slopes, rate: float, decay: float = 0.0) -> None:
        self._gradients(x, slopes, self._descent)
        for name, parameter in self.parameters.items():
            parameter.mul_(1.0 - rate * decay).sub_(self._descent[name], alpha=rate)

    def gradients_of(self, x: Tensor, slopes: Slopes) -> list[tuple[Tensor, Tensor]]:
        found = {name: torch.empty_like(parameter) for name, parameter in self.parameters.items()}
        self._gradients(x, slopes, found)
        return [(self.parameters[name], gradient) for name, gradient in found.items()]

    def _gradients(self, x: Tensor, slopes: Slopes, found: dict[str, Tensor]) -> None:
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
            tile.write_gradients(found)

    def _images_of(self, batch: int) -> int:
        """How many images to take at a time: equal parts that fit into the cache."""
        parts: int = max(1, -(-batch * self.bytes // self.cache))
        return max(1, -(-batch // parts))

    def _tiles(self, groups: int, size: int) -> list[_Tile]:
        """The runs, so many at a time; all runs of a tile are of one group."""
        each = self.runs // groups
        starts = [g * each + first for g in range(groups) for first in range(0, each, size)]
        found = []
        for start in starts:
            key = start, min(start + size, (start // each + 1) * each)
            if key not in self._all_tiles:
                self._all_tiles[key] = _Tile(self, slice(*key))
            found.append(self._all_tiles[key])
            if not (self.frozen and found[-1].composed):
                found[-1].compose()
            found[-1].composed = self.frozen
        return found

    def _parts(self, x: Tensor, tiles: list[_Tile]) -> Iterator[tuple[_Tile, slice, Unfolded]]:
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

    def _images(self, n: int) -> Unfolded:
        if n not in self._unfolded:
            if len(self._unfolded) > 1:  # a batch has at most two sizes of parts
                for memory in (self._unfolded, self._folded, self._tapes):
                    memory.clear()
            self._unfolded[n] = Unfolded(self.levels, self.shape, n, self.parameters["K"])
        return self._unfolded[n]

    def _tape(self, n: int, size: int, number: int) -> _Tape:
        key = n, size, number
        if key not in self._tapes:
            self._tapes[key] = _Tape(self, n, size)
        return self._tapes[key]


Operation = tuple[Callable[..., Tensor], tuple[Tensor, ...], Tensor]
"""A function of tensors with an argument `out`, its inputs, and where to put the result."""


@dataclass
class _Block:
    """Some rows of a level: few enough that their factors stay in the nearest cache until they are used."""

    rows: list[tuple[Tensor, Tensor]]  # of the factors, (F e channels, columns n), and the same transposed
    first: int
    last: int
    forward: list[Operation]
    backward: list[Operation]
    copies: list[tuple[Tensor, Tensor]]  # after that, of corrected columns into their strips


class _Tape:
    """Factors of some images by some runs, and all that is done with them, row by row: memory that is used again.

    Attributes:
        blocks: for each level.
        strips: for each level, corrections of columns, (2, columns F e channels, rows n).
        y: the last product, (e, units, n).
        last: the same as it comes, (rows, e, channels, columns, n).
        slope: the gradient by that.
    """

    def __init__(self, form: ClosedConvCCP, n: int, size: int) -> None:
        self.n, self.form, self.units, self.like = n, form, size * form.channels, form.parameters["K"]
        self.products: dict[int, Tensor] = {}  # after so many factors, pooled if that is where
        self.slopes: dict[int, Tensor] = {}
        self.strips: list[Tensor] = []
        self.blocks = [self._level(level) for level in form.levels]
        _, height, width = (size >> len(form.pool) for size in form.shape)
        self.y = self.like.new_empty(size, form.channels * height * width, n)
        self.by_units = size, form.channels, height, width, n
        self.last = self.y.view(self.by_units).permute(2, 0, 1, 3, 4)
        self.slope = self.slopes[form.degree].view(self.last.shape)

    def _level(self, level: Level) -> list[_Block]:
        rows, columns, form = level.rows.positions, level.columns.positions, self.form
        h = self.like.new_empty(rows, level.count, self.units, columns * self.n)
        each = dict(enumerate(h.unbind(1), level.factors.start + 1))
        half = self.like.new_empty(rows // 2, self.units, columns * self.n)
        for n in each:
            pooled = n in form.pool
            shape = (rows // 2, self.units, columns // 2 * self.n) if pooled else tuple(each[n].shape)
            self.products[n] = each[n] if n == 1 and not pooled else self.like.new_empty(shape)
            self.slopes[n] = self.like.new_empty(shape)
        strips = self.like.new_zeros(2, level.wide, level.count * self.units, rows, self.n)
        self.strips.append(strips.view(2, level.wide * level.count * self.units, rows * self.n))
        spread = h.view(rows, -1, columns, self.n)
        pairs = [(spread[:, :, column], strips[side, j].transpose(0, 1)) for side, j, column in level.corrected]
        step = max(2, form.block // (h[0].numel() * h.element_size()) // 2 * 2)
        views = [(row, row.t()) for row in h.flatten(1, 2)]
        blocks = []
        for first in range(0, rows, step):
            part = slice(first, min(first + step, rows))
            columns_here = [(column[part], strip[part]) for column, strip in pairs]
            forward: list[Operation] = [(torch.add, pair, pair[0]) for pair in columns_here]
            block = _Block(views[part], part.start, part.stop, forward, [], [])
            self._forward(block, each, half, part)
            self._backward(block, each, part)
            block.copies += [(strip, column) for column, strip in columns_here]
            blocks.append(block)
        return blocks

    def _forward(self, block: _Block, each: dict[int, Tensor], half: Tensor, part: slice) -> None:
        """`y_n = h_n y_(n-1)`; where a pooling follows, sums of two rows of the product, and then of two columns."""
        for n, factor in each.items():
            even, odd = slice(part.start, part.stop, 2), slice(part.start + 1, part.stop, 2)
            halved, y = half[part.start // 2 : part.stop // 2], self.products[n]
            before = self.products.get(n - 1)
            if n in self.form.pool:
                if before is None:
                    block.forward.append((torch.add, (factor[even], factor[odd]), halved))
                else:
                    block.forward.append((torch.mul, (factor[even], before[even]), halved))
                    block.forward.append((torch.addcmul, (halved, factor[odd], before[odd]), halved))
                left, right = halved.view(*halved.shape[:2], 2, -1).unbind(2)
                block.forward.append((torch.add, (left, right), y[part.start // 2 : part.stop // 2]))
            elif before is not None:
                block.forward.append((torch.mul, (factor[part], before[part]), y[part]))

    def _backward(self, block: _Block, each: dict[int, Tensor], part: slice) -> None:
        """`dy_(n-1) = dy_n h_n` and `dh_n = dy_n y_(n-1)`, the latter in the place of h_n.

        The gradient by the second factor comes in the place of the first and the other way round, where there is no
        pooling in between: each is multiplied with the same, and nothing is moved.
        """
        for n in sorted(each, reverse=True):
            pooled = n in self.form.pool
            slope = self.slopes[n]
            slope = slope[part.start // 2 : part.stop // 2, None, :, None] if pooled else slope[part]
            factor = _spread(each[n][part], pooled)
            if n == 2 and self.form.swapped:
                first = _spread(each[1][part], pooled)
                block.backward += [(torch.mul, (first, slope), first), (torch.mul, (factor, slope), factor)]
                return
            if n == 1:
                block.copies.append((factor, slope))
                return
            before = _spread(self.products[n - 1][part], pooled)
            into = _spread(self.slopes[n - 1][part], pooled)
            block.backward += [(torch.mul, (slope, factor), into), (torch.mul, (slope, before), factor)]


class _Tile:
    """The passes of a few runs that share their images."""

    def __init__(self, form: ClosedConvCCP, runs: slice) -> None:
        self.form, self.runs, self.size = form, runs, runs.stop - runs.start
        self.mine = {name: parameter[runs] for name, parameter in form.parameters.items()}
        self.kernels = Kernels(form.levels, self.mine, form.scale, form.shift)
        self.Q = self.mine["C"][..., :-1].contiguous()
        self.beta = self.mine["C"][..., -1:]
        self.rows = self._by_window(self.kernels.rows)
        self.across = [[kernel.t() for kernel in kernels] for kernels in self.rows]
        self.composed = False  # while the parameters are frozen
        self.turned: tuple[list[list[Tensor]], list[Tensor]] | None = None

    def _by_window(self, kernels: list[Tensor]) -> list[list[Tensor]]:
        return [
            [rows[first:last] for _, _, first, last in level.windows]
            for level, rows in zip(self.form.levels, kernels, strict=True)
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

    def forward(self, images: Unfolded, tape: _Tape) -> Tensor:
        """Logits (e, classes, n)."""
        for number, level in enumerate(self.form.levels):
            if level.wide:
                torch.bmm(self.kernels.lines[number].mT, images.lines[number], out=tape.strips[number])
            kernels, windows = self.across[number], images.windows[number]
            for block in tape.blocks[number]:
                for r, (row, _) in enumerate(block.rows, block.first):
                    torch.mm(kernels[r], windows[r], out=row)
                for operation, inputs, out in block.forward:
                    operation(*inputs, out=out)
        tape.last.copy_(tape.products[self.form.degree].view(tape.last.shape))
        if self.form.degree in self.form.pool:
            tape.y.mul_(0.25)
        return torch.baddbmm(self.beta, self.Q, tape.y)

    def backward(self, tape: _Tape, d: Tensor) -> Iterator[tuple[int, _Block]]:
        """From the logits' gradient d, (e, classes, n), that of all factors, in their place, block by block."""
        slope = torch.bmm(self.Q.mT, d).view(tape.by_units).permute(2, 0, 1, 3, 4)
        torch.mul(slope, 0.25 if self.form.degree in self.form.pool else 1.0, out=tape.slope)
        for number in range(len(self.form.levels) - 1, -1, -1):
            for block in tape.blocks[number]:
                for operation, inputs, out in block.backward:
                    operation(*inputs, out=out)
                for into, source in block.copies:
                    into.copy_(source)
                yield number, block

    def collect(self, images: Unfolded, tape: _Tape, d: Tensor) -> None:
        """Add the gradients by the kernels and by C, for the logits' gradient d of some images."""
        _, of_lines, of_rows, of_Q, of_beta = self.collected
        of_Q.baddbmm_(d, tape.y.mT)
        of_beta += d.sum(-1, keepdim=True)
        for number, block in self.backward(tape, d):
            kernels, windows = of_rows[number], images.windows[number]
            for r, (_, row) in enumerate(block.rows, block.first):
                kernels[r].addmm_(windows[r], row)
        for number, level in enumerate(self.form.levels):
            if level.wide:
                of_lines[number].baddbmm_(images.lines[number], tape.strips[number].mT)

    def write_gradients(self, into: dict[str, Tensor]) -> None:
        """Put the gradients by the parameters of these runs into those of all."""
        rows, lines, _, of_Q, of_beta = self.collected
        of_P = self.kernels.gradients(rows, lines, into["K"][self.runs], self.form.swapped)
        into["C"][self.runs, :, :-1] = of_Q
        into["C"][self.runs, :, -1:] = of_beta
        if "P" in into:
            into["P"][self.runs] = of_P[..., :-1].reshape(into["P"][self.runs].shape)
            into["c"][self.runs] = of_P[..., -1]

    def fold(self, tape: _Tape, folded: Folded, d: Tensor) -> Tensor:
        """The gradient by the images of a single run, (n, features), for the logits' gradient d."""
        rows, lines = self._swapped()
        folded.clear()
        for number, block in self.backward(tape, d):
            kernels, windows = rows[number], folded.windows[number]
            for r, (row, _) in enumerate(block.rows, block.first):
                windows[r].addmm_(kernels[r], row)
        for number, level in enumerate(self.form.levels):
            if level.wide:
                torch.bmm(lines[number], tape.strips[number], out=folded.lines[number])
        return folded.image_gradient()

    def _swapped(self) -> tuple[list[list[Tensor]], list[Tensor]]:
        """The kernels, by window, and lines, in the order in which `backward` leaves the gradients by the factors."""
        if not self.form.swapped:
            return self.rows, self.kernels.lines
        if self.turned is None:
            rows, lines = self.kernels.swapped()
            self.turned = [self._by_window(rows)[0], *self.rows[1:]], lines
        return self.turned


def _spread(t: Tensor, pooled: bool) -> Tensor:
    """(rows, units, length) with a dimension for the two rows, and one for the two columns, that a pooling adds."""
    if not pooled:
        return t
    rows, units, length = t.shape
    return t.view(rows // 2, 2, units, 2, length // 2)
