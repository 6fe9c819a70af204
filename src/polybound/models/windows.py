"""Convolutions written out where they are not zero: each place of the result sees a window of the image.

A factor of a convolutional network is a chain of convolutions and poolings. All of it is linear, and its value at
place p, in all channels, depends on a window of the image alone: of 784 pixels on 81 to 144, for PN-Conv. So its matrix
is kept window by window. This takes an order of magnitude less memory than the full matrix and is exact: all other
entries are zero. Where a window reaches beyond the image, its slots point at an extra pixel of weight zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.models.affine import Affine, Chain, Conv, Dense, Pool

SAVING = 4
"""Windows replace a matrix if they are smaller by this factor."""

_PROBES = 32
"""Images that a chain is applied to at once: float64 convolutions copy every window of all of them."""

_ENTRIES = 2**22
"""Entries of the windows' values that are held at once."""


@dataclass(frozen=True)
class Windows:
    """The window of each place: `stride * p - before + (0, ..., size - 1)` in each direction, of all input channels.

    Attributes:
        shape: (channels, *space) of the image.
        grid: places in each direction.
        stride: from window to window, in pixels.
        before: how many pixels of a window lie before `stride * p`, in each direction.
        size: of a window, in each direction.
    """

    shape: tuple[int, ...]
    grid: tuple[int, ...]
    stride: int
    before: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def features(self) -> int:
        """Pixels of the image, all channels."""
        return prod(self.shape)

    @property
    def places(self) -> int:
        """How many windows there are."""
        return prod(self.grid)

    @property
    def patch(self) -> int:
        """Pixels of a window, all channels."""
        return self.shape[0] * prod(self.size)

    def pooled(self) -> Windows:
        """The windows of a pooling's places, each the union of those of the 2 x 2 that it averages."""
        grid, size = tuple(n // 2 for n in self.grid), tuple(n + self.stride for n in self.size)
        return Windows(self.shape, grid, 2 * self.stride, self.before, size)

    @cached_property
    def index(self) -> Tensor:
        """The pixel in each slot of each window, (places, patch); `features` where it lies outside of the image."""
        margins = [
            (before, self.stride * (count - 1) - before + size - n)
            for n, count, before, size in zip(self.shape[1:], self.grid, self.before, self.size, strict=True)
        ]
        image = torch.arange(self.features).reshape(self.shape)
        image = F.pad(image, [n for pair in reversed(margins) for n in pair], value=self.features)
        for d, size in enumerate(self.size, 1):
            image = image.unfold(d, size, self.stride)
        return image.movedim(0, len(self.grid)).reshape(self.places, self.patch)

    @cached_property
    def inside(self) -> Tensor:
        """Which slots lie within the image, (places, patch)."""
        return self.index < self.features

    def seen(self, x: Tensor) -> Tensor:
        """The pixels in each window of images (images, features), zero outside of them: (images, places, patch)."""
        return torch.cat([x, x.new_zeros(len(x), 1)], 1)[:, self.index]

    def probes(self) -> Tensor:
        """For each pixel, which of `patch` probes has it, so that no window holds two pixels of one: (features,)."""
        number = torch.arange(self.shape[0])
        for n, size in zip(self.shape[1:], self.size, strict=True):
            number = number.unsqueeze(-1) * size + torch.arange(n) % size
        return number.flatten()


class Windowed(Affine):
    """An affine map of images whose rows are zero outside of windows.

    Args:
        weight: (places, patch, channels).
        constant: (channels * places,).
        windows: where the windows lie.
        off: see `Affine`.
    """

    def __init__(
        self, weight: Tensor, constant: Tensor, windows: Windows, off: tuple[Tensor, Tensor] | None = None
    ) -> None:
        self.weight, self.constant, self.windows, self.off = weight, constant, windows, off
        self.lead = ()
        self.channels = weight.shape[-1]
        self.inputs, self.outputs = windows.features, self.channels * windows.places

    def linear(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.inputs)
        pixels = torch.cat([rows.T, rows.new_zeros(1, len(rows))])
        parts = [
            weight.transpose(1, 2) @ pixels[index.flatten()].reshape(*index.shape, len(rows))
            for index, weight in self._chunks(len(rows))
        ]
        return torch.cat(parts).transpose(0, 1).reshape(self.outputs, len(rows)).T.reshape(*x.shape[:-1], self.outputs)

    def adjoint(self, y: Tensor) -> Tensor:
        rows = y.reshape(-1, self.channels, self.windows.places)
        values = rows.permute(2, 1, 0).contiguous()
        total = values.new_zeros(self.inputs + 1, len(rows))
        start = 0
        for index, weight in self._chunks(len(rows)):
            seen = weight @ values[start : start + len(index)]
            total.index_add_(0, index.flatten(), seen.flatten(0, 1))
            start += len(index)
        return total[:-1].T.reshape(*y.shape[:-1], self.inputs)

    def _chunks(self, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Some windows at a time, so that their values for all rows stay small."""
        step = max(1, _ENTRIES // max(1, self.windows.patch * rows))
        for start in range(0, self.windows.places, step):
            yield self.windows.index[start : start + step], self.weight[start : start + step]

    def gram(self) -> Tensor:
        """`W^T W`, (features, features)."""
        total = self.weight.new_zeros(self.inputs * self.inputs)
        # Slots outside of the image have weights of zero, so they may point at any pixel.
        at = torch.where(self.windows.inside, self.windows.index, 0)
        step = max(1, _ENTRIES // self.windows.patch**2)
        for start in range(0, self.windows.places, step):
            some, weight = at[start : start + step], self.weight[start : start + step]
            index = (some.unsqueeze(2) * self.inputs + some.unsqueeze(1)).flatten()
            total.scatter_add_(0, index, (weight @ weight.transpose(1, 2)).flatten())
        return total.reshape(self.inputs, self.inputs)

    def rows(self) -> Tensor:
        """The rows of W, each within its window: (outputs, patch)."""
        return self.weight.permute(2, 0, 1).reshape(self.outputs, self.windows.patch)

    def times(self, rows: Tensor) -> Windowed:
        """`diag(rows) W`, without a constant, for rows (outputs,) that are not negative."""
        scale = rows.reshape(self.channels, self.windows.places).T.unsqueeze(1)
        lost, _ = self.rounding()
        return Windowed(self.weight * scale, torch.zeros_like(self.constant), self.windows, (lost * rows, lost * 0))

    def transform(self, change: Callable[[Tensor], Tensor]) -> Windowed:
        off = self.off and (change(self.off[0]), change(self.off[1]))
        return Windowed(change(self.weight), change(self.constant), self.windows, off)


def parts(step: Affine) -> Iterator[Affine]:
    """The maps of a chain, with chains inside it taken apart; of any other map, the map itself."""
    if isinstance(step, Chain):
        for part in step.maps:
            yield from parts(part)
    else:
        yield step


def windows_of(step: Affine) -> Windows | None:
    """The windows that a chain of convolutions and poolings sees; None for all others."""
    maps = list(parts(step))
    if step.lead or not all(isinstance(part, (Conv, Pool)) for part in maps):
        return None
    shape, stride = maps[0].shape, 1  # type: ignore[attr-defined]  # of both kinds
    before, size = [0] * (len(shape) - 1), [1] * (len(shape) - 1)
    for part in maps:
        if isinstance(part, Conv):
            reach = [stride * (n // 2) for n in part.weight.shape[-part.dims :]]
            before = [b + r for b, r in zip(before, reach, strict=True)]
            size = [n + 2 * r for n, r in zip(size, reach, strict=True)]
        else:
            size = [n + stride for n in size]
            stride *= 2
    grid = maps[-1].out_shape[1:]  # type: ignore[attr-defined]
    return Windows(tuple(shape), tuple(grid), stride, tuple(before), tuple(size))


def windowed(step: Affine, windows: Windows) -> Windowed:
    """A chain of convolutions and poolings written out, window by window.

    Each entry is a sum of products of the chain's weights, as it is in `Affine.matrix`: a probe has ones in it so far
    apart that every place sees at most one.
    """
    number = windows.probes()
    probes = F.one_hot(number, windows.patch).T.to(step.constant).contiguous()
    seen = torch.cat([step.linear(probes[start : start + _PROBES]) for start in range(0, len(probes), _PROBES)])
    seen = seen.reshape(windows.patch, -1, windows.places).permute(2, 0, 1)
    slots = F.pad(number, (0, 1))[windows.index].unsqueeze(-1).expand(-1, -1, seen.shape[-1])
    weight = seen.gather(1, slots) * windows.inside.unsqueeze(-1)
    return Windowed(weight.contiguous(), step.constant, windows, step.rounding())


def written_out(step: Affine) -> Dense | Windowed:
    """The same map with a matrix whose absolute values are those of W itself: by windows where these are smaller."""
    if isinstance(step, Windowed):
        return step
    windows = windows_of(step)
    if windows is None or SAVING * windows.patch > step.inputs:
        return step.dense()
    return windowed(step, windows)


def slots_in_pooled(bits: Sequence[int], windows: Windows) -> tuple[slice, ...]:
    """The slots of a pooled window that the window of one of its 2 x 2 places takes up; `bits` says which place."""
    return tuple(slice(windows.stride * b, windows.stride * b + n) for b, n in zip(bits, windows.size, strict=True))


def gathered(blocks: Tensor, windows: Windows) -> Tensor:
    """Matrices of the windows, (boxes, places, patch, patch), summed into matrices of the pooled windows."""
    pooled, inputs = windows.pooled(), windows.shape[0]
    data = blocks.reshape(len(blocks), *windows.grid, *(inputs, *windows.size) * 2)
    total = blocks.new_zeros(len(blocks), *pooled.grid, *(inputs, *pooled.size) * 2)
    every = slice(None)
    for bits in product((0, 1), repeat=len(windows.grid)):
        at = [slice(b, 2 * n, 2) for b, n in zip(bits, pooled.grid, strict=True)]
        slots = (every, *slots_in_pooled(bits, windows)) * 2
        total[(every,) * (1 + len(bits)) + slots] += data[(every, *at)]
    return total.reshape(len(blocks), pooled.places, pooled.patch, pooled.patch)


def scattered(blocks: Tensor, windows: Windows, active: Tensor) -> Tensor:
    """Matrices of the windows summed into one of the pixels that move, (boxes, n, n)."""
    n = len(active)
    # Pixels outside of the image, and pixels that do not move, are zero in all blocks, so they may point anywhere.
    place = torch.zeros(windows.features + 1, dtype=torch.int64)
    place[active] = torch.arange(n)
    at = place[windows.index]
    step = max(1, _ENTRIES // windows.patch**2)
    total = blocks.new_zeros(len(blocks), n * n)
    for start in range(0, windows.places, step):
        some = at[start : start + step]
        index = (some.unsqueeze(2) * n + some.unsqueeze(1)).flatten()
        for box, values in zip(total, blocks[:, start : start + step], strict=True):
            box.scatter_add_(0, index, values.flatten())
    return total.reshape(len(blocks), n, n)
