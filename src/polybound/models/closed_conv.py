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

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from polybound.models.closed_base import ClosedForm, Slopes
from polybound.models.conv import ConvCCP
from polybound.models.conv_geometry import levels
from polybound.models.conv_kernels import Kernels
from polybound.models.conv_unfold import Folded, Unfolded

__all__ = ["ClosedConvCCP"]

CACHE = 2_000_000
"""Bytes of the factors of one run that are computed at a time; all runs that share a product may have 3 times that."""
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
        self.batch = max(1, self.cache // self.bytes)
        self._descent = {name: torch.empty_like(parameter) for name, parameter in self.parameters.items()}
        self._unfolded: dict[int, Unfolded] = {}
        self._folded: dict[int, Folded] = {}
        self._tapes: dict[tuple[int, int, int], _Tape] = {}
        self._kept: list[tuple[_Tile, slice, _Tape]] | None = None
        self._all_tiles: dict[tuple[int, int], _Tile] = {}

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
            tile.backward(tape, d[tile.runs, :, samples])
            result[tile.runs, samples] = tile.fold(tape, folded)
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
        tiles = self._tiles(len(x), max(1, 3 * self.cache // (self.bytes * self._images_of(x.shape[1]))))
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


class _Tape:
    """What a forward pass of some images by some runs leaves behind; memory that is used again.

    Attributes:
        h: the factors of each level, (rows, F, e channels, columns n).
        rows: each row of those, (F e channels, columns n).
        each: the k factors by themselves, (rows, e channels, columns n).
        before: what each was multiplied with; None for the first.
        strips: corrections of columns, (2, columns F e channels, rows n).
        corrected: pairs of a column of h and its correction, both (rows, F e channels, n).
        y: the last product, (e, units, n).
        last: the same as it comes, (rows, e, channels, columns, n).
    """

    def __init__(self, form: ClosedConvCCP, n: int, size: int) -> None:
        self.n, like, units = n, form.parameters["K"], size * form.channels
        self.rows, self.strips, self.corrected, self.each = [], [], [], list[Tensor]()
        for level in form.levels:
            rows, columns = level.rows.positions, level.columns.positions
            h = like.new_empty(rows, level.count, units, columns * n)
            self.rows.append([(row, row.t()) for row in h.flatten(1, 2)])
            self.each += h.unbind(1)
            strips = like.new_zeros(2, level.wide, level.count * units, rows, n)
            self.strips.append(strips.view(2, level.wide * level.count * units, rows * n))
            spread = h.view(rows, -1, columns, n)
            pairs = [(spread[:, :, column], strips[side, j].transpose(0, 1)) for side, j, column in level.corrected]
            self.corrected.append(pairs)
        self.before: list[Tensor | None] = [None] * form.degree
        self.buffers: dict[tuple[str, int], Tensor] = {}
        _, height, width = (size >> len(form.pool) for size in form.shape)
        self.y = like.new_empty(size, form.channels * height * width, n)
        self.by_units = size, form.channels, height, width, n
        self.last = self.y.view(self.by_units).permute(2, 0, 1, 3, 4)

    def buffer(self, name: str, number: int, shape: tuple[int, ...]) -> Tensor:
        """Memory for something of that name."""
        key = name, number
        if key not in self.buffers:
            self.buffers[key] = self.y.new_empty(shape)
        return self.buffers[key]


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
            for kernel, window, (row, _) in zip(
                self.across[number], images.windows[number], tape.rows[number], strict=True
            ):
                torch.mm(kernel, window, out=row)
            if level.wide:
                torch.bmm(self.kernels.lines[number].mT, images.lines[number], out=tape.strips[number])
                for column, strip in tape.corrected[number]:
                    column.add_(strip)
        tape.last.copy_(self._products(tape).view(tape.last.shape))
        if self.form.degree in self.form.pool:
            tape.y.mul_(0.25)
        return torch.baddbmm(self.beta, self.Q, tape.y)

    def _products(self, tape: _Tape) -> Tensor:
        y = tape.each[0]
        for n in range(1, self.form.degree + 1):
            factor = tape.each[n - 1]
            if n > 1:
                tape.before[n - 1] = y
            rows, units, length = factor.shape
            if n in self.form.pool:
                half = tape.buffer("half", n, (rows // 2, units, length))
                if n > 1:  # the sum of two rows of the product, which is not wanted itself
                    torch.mul(factor[0::2], y[0::2], out=half).addcmul_(factor[1::2], y[1::2])
                else:
                    torch.add(y[0::2], y[1::2], out=half)
                y = tape.buffer("pooled", n, (rows // 2, units, length // 2))
                left, right = half.view(rows // 2, units, 2, -1).unbind(2)
                torch.add(left, right, out=y)
            elif n > 1:
                y = torch.mul(factor, y, out=tape.buffer("product", n, (rows, units, length)))
        return y

    def backward(self, tape: _Tape, d: Tensor) -> None:
        """From the logits' gradient d, (e, classes, n), that of all factors, in their place.

        The gradient by the second factor comes in the place of the first and the other way round, where there is no
        pooling in between: each is multiplied with the same, and nothing is moved.
        """
        form, pool = self.form, self.form.pool
        g = torch.bmm(self.Q.mT, d).view(tape.by_units)
        if form.degree in pool:
            g.mul_(0.25)
        g = tape.buffer("slope", form.degree + 1, tuple(tape.last.shape)).copy_(g.permute(2, 0, 1, 3, 4))
        g = g.view(len(g), self.size * form.channels, -1)
        for number in range(form.degree, 0, -1):
            pooled = number in pool
            slope = g[:, None, :, None] if pooled else g
            if number == 2 and form.swapped:
                for factor in tape.each[:2]:
                    _spread(factor, pooled).mul_(slope)
                break
            factor, before = _spread(tape.each[number - 1], pooled), tape.before[number - 1]
            if before is None:
                factor.copy_(slope)
                break
            g = tape.buffer("slope", number, tuple(before.shape))
            torch.mul(slope, factor, out=_spread(g, pooled))
            torch.mul(slope, _spread(before, pooled), out=factor)
        for pairs in tape.corrected:
            for column, strip in pairs:
                strip.copy_(column)

    def collect(self, images: Unfolded, tape: _Tape, d: Tensor) -> None:
        """Add the gradients by the kernels and by C, for the logits' gradient d of some images."""
        _, of_lines, of_rows, of_Q, of_beta = self.collected
        of_Q.baddbmm_(d, tape.y.mT)
        of_beta += d.sum(-1, keepdim=True)
        self.backward(tape, d)
        for number, level in enumerate(self.form.levels):
            for kernel, window, (_, row) in zip(
                of_rows[number], images.windows[number], tape.rows[number], strict=True
            ):
                kernel.addmm_(window, row)
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

    def fold(self, tape: _Tape, folded: Folded) -> Tensor:
        """After `backward`, the gradient by the images of a single run, (n, features)."""
        rows, lines = self._swapped()
        folded.clear()
        for number, level in enumerate(self.form.levels):
            for kernel, window, (row, _) in zip(rows[number], folded.windows[number], tape.rows[number], strict=True):
                window.addmm_(kernel, row)
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
