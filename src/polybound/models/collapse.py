"""PN-Conv's factors in one convolution each: all linear maps between two products collapse, border included.

A factor is a 3 x 3 pre-convolution into m channels, a larger convolution of those, and some 2 x 2 average poolings. All
of it is linear in the image x, and inside the image it is one strided convolution of x itself, whose kernel is the
convolution of the three kernels. On batches that is two to four times as fast as the layers.

Two things happen only at the border, where the second convolution meets zeros in place of the pre-convolution's output:

- The pre-convolution's constant counts only inside: its image under the second convolution is a fixed map, computed
  once for a whole batch.
- The collapsed kernel wrongly sees the pre-convolution's values on the frame of one pixel around the image. They depend
  on the outermost rows and columns of x alone and reach only the outermost rows and columns of the result;
  one-dimensional convolutions compute what they did there, and it is subtracted.

The result equals the layers', and so do its gradients.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def can_collapse(shape: tuple[int, ...], pre: int | None, kernel: int, pools: int) -> bool:
    """Whether `collapsed_factors` covers this network: 2-D, a 3 x 3 pre-convolution, sizes that the poolings divide."""
    sizes = shape[1:]
    return (
        len(sizes) == 2
        and pre == 3
        and kernel > 1
        and all(n % 2**pools == 0 and n >= max(kernel, 2**pools) for n in sizes)
    )


def collapsed_factors(x: Tensor, P: Tensor, c: Tensor, K: Tensor, pooled: list[int]) -> list[Tensor]:
    """All factors of E runs, each (batch, E, channels, height, width) at its pooled size.

    Args:
        x: images (groups, batch, inputs, height, width): shared by all runs (groups = 1) or one batch for each.
        P: pre-convolutions (E, m, inputs, 3, 3).
        c: their constants (E, m).
        K: kernels (E, k, channels, m, size, size).
        pooled: how often each of the k factors is pooled, in rising order.
    """
    groups, batch, inputs, height, width = x.shape
    runs, k, channels, m, size, _ = K.shape
    image = x.transpose(0, 1).reshape(batch, groups * inputs, height, width)
    # The kernels of `K * (P * x)`: (E, k, channels, inputs, size + 2, size + 2).
    stacked = K.transpose(0, 1).transpose(1, 2).reshape(k * channels, runs * m, size, size)
    flipped = P.flip(-1, -2).transpose(1, 2).reshape(runs * inputs, m, 3, 3)
    whole = F.conv2d(stacked, flipped, padding=2, groups=runs)
    whole = whole.reshape(k, channels, runs, inputs, size + 2, size + 2).permute(2, 0, 1, 3, 4, 5)
    # What the pre-convolution's constant becomes: the sum over taps that meet the image, at every place.
    weighted = (K * c[:, None, None, :, None, None]).sum(3).reshape(1, runs * k * channels, size, size)
    ones = K.new_ones(1, 1, height, width)
    constants = F.conv2d(ones, weighted.transpose(0, 1), padding=size // 2).reshape(runs, k, channels, height, width)
    factors: list[Tensor] = []
    for times in sorted(set(pooled)):
        first, count, stride = pooled.index(times), pooled.count(times), 2**times
        some = slice(first, first + count)
        kernel = whole[:, some].reshape(-1, 1, size + 2, size + 2)
        if stride > 1:  # followed by the average over windows
            kernel = F.conv2d(kernel, K.new_full((1, 1, stride, stride), 1 / stride**2), padding=stride - 1)
        left = size // 2 + 1
        padding = [edge for n in (width, height) for edge in (left, size + stride - left)]
        kernel = kernel.reshape(runs * count * channels, inputs, *[size + 1 + stride] * 2)
        h = F.conv2d(F.pad(image, padding), kernel, stride=stride, groups=groups)
        h = h.reshape(batch, runs, count * channels, height // stride, width // stride)
        h = h + F.avg_pool2d(constants[:, some].flatten(1, 2), stride)
        h = _MinusStrips.apply(h, *_frame(image, P, K[:, some], groups, stride))  # type: ignore[no-untyped-call]
        factors += h.reshape(batch, runs, count, channels, *h.shape[-2:]).unbind(2)
    return factors


def _frame(image: Tensor, P: Tensor, K: Tensor, groups: int, stride: int) -> list[Tensor]:
    """What the collapsed kernel sees of the pre-convolution on the frame: strips of the top, bottom, left and right.

    Strips are (batch, E, k * channels, rows, columns), rows along the side; K is (E, k, channels, m, size, size).
    """
    batch, (runs, m, inputs, _, _), half = len(image), P.shape, K.shape[-1] // 2
    strips = []
    for horizontal, far in product((True, False), (False, True)):
        # Bring every side into the place of the top: rows are what runs along the side.
        pixels, pre, kernel = (t if horizontal else t.transpose(-1, -2) for t in (image, P, K))
        if far:
            pixels, pre, kernel = pixels.flip(-2), pre.flip(-2), kernel.flip(-2)
        # From the first row, the frame above it, its corners counted with the horizontal sides; and from the frame the
        # first rows of the result. Row t of these meets the frame with its tap half - 1 - t.
        row = pre[..., 2, :].reshape(runs * m, inputs, 3)
        frame = F.conv1d(pixels[..., 0, :], row, padding=2 if horizontal else 1, groups=groups)
        taps = kernel[..., :half, :].flip(-2).movedim(-2, 3).reshape(-1, m, K.shape[-1])
        strip = F.conv1d(frame, taps, padding=half - 1 if horizontal else half, groups=runs)
        strip = strip.reshape(batch, -1, half, pixels.shape[-1])
        if stride > 1:
            strip = F.avg_pool2d(F.pad(strip, (0, 0, 0, -half % stride)), stride)
        strip = strip.flip(-2) if far else strip
        strips.append(strip.reshape(batch, runs, -1, *strip.shape[-2:]))
    return strips


class _MinusStrips(torch.autograd.Function):
    """`h` less strips along its top, bottom, left and right (those two lying on their side), in place.

    Autograd's own way for in-place slices copies the whole gradient for each of them.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, *strips: Tensor) -> Tensor:
        ctx.rows = [strip.shape[-2] for strip in strips]
        for part, strip in zip(_edges(h, ctx.rows), strips, strict=True):
            part.sub_(strip)
        ctx.mark_dirty(h)
        return h

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients[0], *(-part for part in _edges(gradients[0], ctx.rows))


def _edges(h: Tensor, rows: list[int]) -> list[Tensor]:
    """The top, bottom, left and right of h, with these numbers of rows, as views with rows along the edge."""
    turned = h.transpose(-1, -2)
    return [h[..., : rows[0], :], h[..., -rows[1] :, :], turned[..., : rows[2], :], turned[..., -rows[3] :, :]]
