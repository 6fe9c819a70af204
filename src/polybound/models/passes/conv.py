"""Forward and backward passes of ConvCCP by hand: one matrix product for each row of a factor.

Between the products everything is linear, so a factor is one convolution of the image with a collapsed kernel; see
`conv_geometry` for what happens at the border, exactly. The image's columns are unfolded once for all runs, into
V: (rows of the image, inputs, taps) x (columns, images). Row r of a factor of all runs is then a matrix product with a
window of V, and so are the gradients:

    h_r = W_r^T V[window],   dW_r = V[window] dh_r^T,   dV[window] += W_r dh_r

The window has no zeros of a padding. A few images and runs at a time: what they need stays in the cache. The gradients
by P, c and K follow once a step from those by the collapsed kernels. Poolings add instead of averaging; the next
factor's kernel has the 1/4. `tests/models/test_passes.py` holds all of it to the layers under autograd.

With directions r of the images, the factors change by `g_n = W_n^T V(r)`, without their constants, and the products by

    t_1 = g_1,   t_n = t_(n-1) h_n + y_(n-1) g_n

pooled where y is. For a loss of y_k and t_k, whose gradients are b and a, the gradients by the factors and by their
changes, one factor after another from the last:

    dh_n = a_n t_(n-1) + b_n y_(n-1),   dg_n = a_n y_(n-1),   a_(n-1) = a_n h_n,   b_(n-1) = a_n g_n + b_n h_n
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from polybound.models.conv import ConvCCP
from polybound.models.passes.base import JacobianGradients, LogitGradient, Pairs
from polybound.models.passes.conv_geometry import Col2Im, Geometry, Im2Col, Step, run
from polybound.models.passes.conv_memory import ActivationBuffer, Kernels, RowBlock, multiply, with_pool_dims

CACHE = 8_000_000
"""Bytes of the factors of one run that are computed at a time; all runs that share a product may have 10 times that."""
KEPT = 128_000_000
"""Bytes of factors that `logits` keeps for `input_gradient`; where there are more, they are computed again."""

T = TypeVar("T")


class ConvGradients(JacobianGradients):
    """`y_n = h_n y_(n-1)`, pooled here and there, so `dh_n = dy_n y_(n-1)` and `dy_(n-1) = dy_n h_n`.

    Args:
        model: a ConvCCP of images; the passes change its own parameters.
        cache: bytes of factors to compute at a time.
    """

    def __init__(self, model: ConvCCP, cache: int = CACHE) -> None:
        self.runs, self.classes = model.runs or 1, model.classes
        # Detached views: the parameters are changed in place, behind autograd's back.
        names = ("K", "C") if model.pre is None else ("K", "C", "P", "c")
        found = {name: getattr(model, name).detach() for name in names}
        self.parameters = {name: t if model.runs else t.unsqueeze(0) for name, t in found.items()}
        like = self.parameters["K"]
        self.sizes = Geometry(
            model.shape, model.channels, model.degree, model.kernel, model.pre, model.pool, like.dtype, like.device
        )
        units = sum(level.count * level.rows.positions * level.columns.positions for level in self.sizes.levels)
        self.bytes: int = units * model.channels * like.element_size()
        self.cache = cache if like.device.type == "cpu" else 100 * cache
        self.batch = max(1, self.cache // self.bytes)
        self._memory: dict[Hashable, Any] = {}
        self._counts: set[int] = set()
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
            buffer = self._reuse(ActivationBuffer, self.sizes, images.n, 1, number=number if keep else 0)
            result[tile.runs, :, samples] = tile.forward(images, buffer)
            if self._kept is not None:
                self._kept.append((tile, samples, buffer))
        return result

    def input_gradient(self, d: Tensor) -> Tensor:
        kept, self._kept = self._kept, None  # gradients take the place of factors, so these are good once
        return self._by_images(d, self._computed() if kept is None else kept, keep=False)

    def rows(self, v: Tensor) -> Tensor:
        self._v, kept = v, self._kept
        parts = self._computed if kept is None else lambda: kept
        return torch.stack([self._by_images(each, parts(), keep=kept is not None) for each in v.unbind(1)], 1)

    def _by_images(self, d: Tensor, parts: Iterable[tuple[Tile, slice, ActivationBuffer]], *, keep: bool) -> Tensor:
        """The gradients by the images; with `keep`, the buffers stay as they are."""
        result = self._x.new_empty(self.runs, *self._x.shape[1:])
        for tile, samples, buffer in parts:
            gradient, into, steps = self._reuse(Col2Im, self.sizes, buffer.n), buffer, None
            if keep:
                into = self._spare(buffer.n)
                steps = self._reuse(ActivationBuffer.backward_into, buffer, into)
            tile.fold(buffer, gradient, d[tile.runs, :, samples], into, steps)
            result[tile.runs, samples] = gradient.image_gradient()
        return result

    def _computed(self) -> Iterator[tuple[Tile, slice, ActivationBuffer]]:
        """The factors that `logits` did not keep, computed again."""
        for tile, samples, images in self._parts(self._x, self._tiles(len(self._x), 1)):
            buffer = self._reuse(ActivationBuffer, self.sizes, images.n, 1)
            tile.forward(images, buffer)
            yield tile, samples, buffer

    def gradients_of(self, x: Tensor, logit_grad: LogitGradient) -> Pairs:
        self._x, self._kept = x, None  # the buffers are used for something else now
        each = self.runs // len(x)
        parts = max(1, -(-each * self.bytes * self._images_of(x.shape[1]) // (10 * self.cache)))
        tiles = self._tiles(len(x), max(1, -(-each // parts)))
        for tile in tiles:
            tile.clear()
        for tile, samples, images in self._parts(x, tiles):
            buffer = self._reuse(ActivationBuffer, self.sizes, images.n, tile.size)
            tile.collect(images, buffer, logit_grad(tile.forward(images, buffer), tile.runs, samples))
        return self._written(tiles)

    def gradients_by_rows(self, d: Tensor, r: Tensor) -> Pairs:
        """The loss sees the rows through `<r, rows> = <v, J r>`, the derivative of the logits as the images move by r.

        So a pass of tangents forward, and back through both; see `Tangents`. For the first direction, `logits` may have
        kept the factors.
        """
        x, kept, self._kept = self._x, self._kept, None
        tiles = self._tiles(len(x), 1)
        for tile in tiles:
            tile.clear()
        for place, (tile, samples, images) in enumerate(self._parts(x, tiles)):
            buffer = self._reuse(ActivationBuffer, self.sizes, images.n, 1) if kept is None else kept[place][2]
            directions = self._reuse(Im2Col, self.sizes, images.n, 0.0)
            tangents = self._reuse(Tangents, buffer, self._spare(images.n))
            for number, v in enumerate(self._v[tile.runs].unbind(1)):
                if kept is None or number:
                    tile.forward(images, buffer)
                directions.fill(r[tile.runs.start, number, samples])
                tile.move(directions, tangents)
                by_logits = d[tile.runs, :, samples] if number == 0 else torch.zeros_like(v[..., samples])
                tile.collect_moving(images, directions, tangents, by_logits, v[..., samples])
        return self._written(tiles)

    def _written(self, tiles: list[Tile]) -> Pairs:
        found = {name: torch.empty_like(parameter) for name, parameter in self.parameters.items()}
        for tile in tiles:
            tile.write_gradients(found)
        return [(self.parameters[name], gradient) for name, gradient in found.items()]

    def _images_of(self, batch: int) -> int:
        """How many images to take at a time: equal parts that fit into the cache."""
        parts: int = max(1, -(-batch * self.bytes // self.cache))
        return max(1, -(-batch // parts))

    def _tiles(self, groups: int, size: int) -> list[Tile]:
        """The runs in tiles of at most `size`; all runs of a tile are of one group."""
        each = self.runs // groups
        found = []
        for start in (g * each + first for g in range(groups) for first in range(0, each, size)):
            key = start, min(start + size, (start // each + 1) * each)
            if key not in self._all_tiles:
                self._all_tiles[key] = Tile(self.sizes, self.parameters, slice(*key))
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
                count = samples.stop - first
                if count not in self._counts and len(self._counts) > 1:  # a batch has at most two sizes of parts
                    self._memory.clear()
                    self._counts.clear()
                self._counts.add(count)
                images = self._reuse(Im2Col, self.sizes, count)
                images.fill(x[g, samples])
                for tile in mine:
                    yield tile, samples, images

    def _reuse(self, make: Callable[..., T], *args: Hashable, number: int = 0) -> T:
        """The result of `make(*args)`, which is made once: its memory is used again."""
        key = make, args, number
        if key not in self._memory:
            self._memory[key] = make(*args)
        found: T = self._memory[key]
        return found

    def _spare(self, n: int) -> ActivationBuffer:
        """A buffer for what is done with another one of n images of one run."""
        return self._reuse(ActivationBuffer, self.sizes, n, 1, number=-1)


class Tile:
    """The matrix products of a few runs that share their images, forward and backward.

    Args:
        sizes: of the network.
        parameters: of all runs.
        runs: which of them.
    """

    def __init__(self, sizes: Geometry, parameters: dict[str, Tensor], runs: slice) -> None:
        self.sizes, self.levels, self.runs, self.size = sizes, sizes.levels, runs, runs.stop - runs.start
        mine = {name: parameter[runs] for name, parameter in parameters.items()}
        self.kernels, self.C = Kernels(sizes, mine), mine["C"]
        self.Q, self.beta = self.C[..., :-1].contiguous(), self.C[..., -1:]
        self.rows = self._by_window(self.kernels.rows)
        self.across = [[kernel.t() for kernel in kernels] for kernels in self.rows]
        self.composed = False  # while the parameters are frozen

    def _by_window(self, kernels: list[Tensor]) -> list[list[Tensor]]:
        return [
            [rows[first:last] for _, _, first, last in level.windows]
            for level, rows in zip(self.levels, kernels, strict=True)
        ]

    def compose(self) -> None:
        """Compute all kernels from the current parameters."""
        self.kernels.compose()
        self.Q.copy_(self.C[..., :-1])

    def forward(self, images: Im2Col, buffer: ActivationBuffer) -> Tensor:
        """Logits (e, classes, n)."""
        for number, place in self._multiply(images, buffer):
            run(buffer.blocks[number][place].forward)
        return torch.baddbmm(self.beta, self.Q, buffer.finish())

    def move(self, directions: Im2Col, tangents: Tangents) -> None:
        """The derivatives of all products as the images of the last `forward` move in these directions."""
        for number, place in self._multiply(directions, tangents.moving):
            run(tangents.forward[number, place])
        tangents.moving.finish()

    def _multiply(self, images: Im2Col, buffer: ActivationBuffer) -> Iterator[tuple[int, int]]:
        """The factors of the images, block by block: the number of its level, and its place there."""
        for number, level in enumerate(self.levels):
            if level.wide:
                torch.bmm(self.kernels.lines[number].mT, images.lines[number], out=buffer.strips[number])
            kernels, windows = self.across[number], images.windows[number]
            for place, block in enumerate(buffer.blocks[number]):
                for r, (row, _) in enumerate(block.rows, block.part.start):
                    torch.mm(kernels[r], windows[r], out=row)
                run(block.correct)
                yield number, place

    @cached_property
    def collected(self) -> tuple[list[Tensor], list[Tensor], list[list[Tensor]], Tensor, Tensor]:
        """Gradients by the kernels, rows and lines, the former also by window, by Q and by beta."""
        rows, lines = ([torch.empty_like(t) for t in kernels] for kernels in (self.kernels.rows, self.kernels.lines))
        return rows, lines, self._by_window(rows), torch.empty_like(self.Q), torch.empty_like(self.beta)

    def clear(self) -> None:
        """Set the collected gradients to zero."""
        rows, lines, _, of_Q, of_beta = self.collected
        for tensor in (*rows, *lines, of_Q, of_beta):
            tensor.zero_()

    def collect(self, images: Im2Col, buffer: ActivationBuffer, d: Tensor) -> None:
        """Add the gradients by the kernels and by C, for the logits' gradient d of some images."""
        *_, of_Q, of_beta = self.collected
        of_Q.baddbmm_(d, buffer.y.mT)
        of_beta += d.sum(-1, keepdim=True)
        buffer.begin(torch.bmm(self.Q.mT, d))
        for number in reversed(range(len(self.levels))):
            for block in buffer.blocks[number]:
                run(block.backward)
                self._collect_rows(number, block, images)
        self._collect_lines(buffer, images)

    def collect_moving(self, images: Im2Col, directions: Im2Col, tangents: Tangents, d: Tensor, v: Tensor) -> None:
        """As `collect`, of `<d, logits> + <v, the logits' derivative in the directions>`."""
        still, moving = tangents.still, tangents.moving
        *_, of_Q, of_beta = self.collected
        of_Q.baddbmm_(d, still.y.mT).baddbmm_(v, moving.y.mT)
        of_beta += d.sum(-1, keepdim=True)
        moving.begin(torch.bmm(self.Q.mT, v))
        still.begin(torch.bmm(self.Q.mT, d))
        for number in reversed(range(len(self.levels))):
            for place, blocks in enumerate(zip(still.blocks[number], moving.blocks[number], strict=True)):
                run(tangents.backward[number, place])
                self._collect_rows(number, blocks[0], images)
                self._collect_rows(number, blocks[1], directions)
        self._collect_lines(still, images)
        self._collect_lines(moving, directions)

    def _collect_rows(self, number: int, block: RowBlock, images: Im2Col) -> None:
        kernels, windows = self.collected[2][number], images.windows[number]
        for r, (_, row) in enumerate(block.rows, block.part.start):
            kernels[r].addmm_(windows[r], row)

    def _collect_lines(self, buffer: ActivationBuffer, images: Im2Col) -> None:
        for number, level in enumerate(self.levels):
            if level.wide:
                self.collected[1][number].baddbmm_(images.lines[number], buffer.strips[number].mT)

    def write_gradients(self, into: dict[str, Tensor]) -> None:
        """Put the gradients by the parameters of these runs into those of all."""
        rows, lines, _, of_Q, of_beta = self.collected
        of_P = self.kernels.gradients(rows, lines, into["K"][self.runs])
        into["C"][self.runs, :, :-1] = of_Q
        into["C"][self.runs, :, -1:] = of_beta
        if "P" in into:
            into["P"][self.runs] = of_P[..., :-1].reshape(into["P"][self.runs].shape)
            into["c"][self.runs] = of_P[..., -1]

    def fold(
        self,
        buffer: ActivationBuffer,
        gradient: Col2Im,
        d: Tensor,
        into: ActivationBuffer,
        steps: list[list[list[Step]]] | None,
    ) -> None:
        """The gradient by the images of a single run, for the logits' gradient d.

        That by the factors comes in their place; or, by the given steps, into another buffer, and they stay.
        """
        gradient.clear()
        buffer.begin(torch.bmm(self.Q.mT, d))
        for number in reversed(range(len(self.levels))):
            kernels, windows = self.rows[number], gradient.windows[number]
            for place, block in enumerate(into.blocks[number]):
                run(block.backward if steps is None else steps[number][place])
                for r, (row, _) in enumerate(block.rows, block.part.start):
                    windows[r].addmm_(kernels[r], row)
        for number, level in enumerate(self.levels):
            if level.wide:
                torch.bmm(self.kernels.lines[number], into.strips[number], out=gradient.lines[number])


class Tangents:
    """How the products of a buffer change as its images move, and the way back through both, block by block.

    Args:
        still: the buffer of the images.
        moving: another one: its factors will be the g_n, its products the t_n, its slopes the a_n.

    Attributes:
        forward: by level and block, steps to all t_n from the factors and their changes.
        backward: steps to the gradients by the factors and by their changes, each in the place of what it is of.
    """

    def __init__(self, still: ActivationBuffer, moving: ActivationBuffer) -> None:
        self.still, self.moving = still, moving
        self.forward: dict[tuple[int, int], list[Step]] = {}
        self.backward: dict[tuple[int, int], list[Step]] = {}
        for number, level in enumerate(still.sizes.levels):
            rows, *rest = still.factors[level.factors.start + 1].shape
            half = still.sizes.empty(rows // 2, *rest)
            for place, blocks in enumerate(zip(still.blocks[number], moving.blocks[number], strict=True)):
                forward, backward, part = list[Step](), [*blocks[0].split, *blocks[1].split], blocks[0].part
                for n in range(level.factors.start + 1, level.factors.stop + 1):
                    h, g = still.factors[n], moving.factors[n]
                    terms: list[tuple[Tensor, ...]] = [(g,)]
                    if n > 1:
                        terms = [(h, moving.products[n - 1]), (g, still.products[n - 1])]
                    forward += multiply(terms, moving.products[n], half, part, n in still.sizes.pool)
                    backward = [*self._backward(n, part), *backward]
                self.forward[number, place], self.backward[number, place] = forward, backward

    def _backward(self, n: int, part: slice) -> list[Step]:
        pooled, both = n in self.still.sizes.pool, (self.still, self.moving)
        b, a = (buffer.slope_of(n, part) for buffer in both)
        h, g = (with_pool_dims(buffer.factors[n][part], pooled) for buffer in both)
        if n == 1:
            return [partial(h.copy_, b), partial(g.copy_, a)]
        y, t = (with_pool_dims(buffer.products[n - 1][part], pooled) for buffer in both)
        into_b, into_a = (with_pool_dims(buffer.slopes[n - 1][part], pooled) for buffer in both)
        return [
            partial(torch.mul, a, h, out=into_a),
            partial(torch.mul, b, h, out=into_b),
            partial(torch.addcmul, into_b, a, g, out=into_b),
            partial(torch.mul, b, y, out=h),
            partial(torch.addcmul, h, a, t, out=h),
            partial(torch.mul, a, y, out=g),
        ]
