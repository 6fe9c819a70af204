"""PN-Conv's factors in one convolution each: what is linear between the products collapses, border included.

A factor is a 3 x 3 pre-convolution into m channels, a larger convolution of those, and some 2 x 2 average poolings. All
of it is linear in the image x, and inside the image it is one strided convolution of x itself, whose kernel is the
convolution of the three kernels. For images of one or three channels that takes an order of magnitude less work.

Two things happen only at the border, where the second convolution meets zeros in place of the pre-convolution's output:

- The pre-convolution's constant counts only inside: its image under the second convolution is a fixed map, computed
  once for a whole batch.
- The collapsed kernel wrongly sees the pre-convolution's values on the frame of one pixel around the image. They depend
  on the outermost rows and columns of x alone and reach only the outermost rows and columns of the result;
  one-dimensional convolutions compute what they did there, and it is subtracted.

The result equals the layers', and so do its gradients.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["can_collapse", "collapsed_factors"]


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
    runs, _, channels, _, size, _ = K.shape
    image = x.transpose(0, 1).reshape(batch, groups * inputs, height, width)
    whole = _compose(K, P)
    constants = _constant_maps(K, c, (height, width))
    factors: list[Tensor] = []
    for times in sorted(set(pooled)):
        chosen = [n for n, q in enumerate(pooled) if q == times]
        some = slice(chosen[0], chosen[-1] + 1)
        stride, count = 2**times, len(chosen)
        kernel = _averaged(whole[:, some], stride).reshape(runs * count * channels, inputs, *[size + 1 + stride] * 2)
        left = size // 2 + 1
        padding = [edge for n in (width, height) for edge in (left, size + stride - left)]
        h = F.conv2d(F.pad(image, padding), kernel, stride=stride, groups=groups)
        h = h.reshape(batch, runs, count * channels, height // stride, width // stride)
        h = h + F.avg_pool2d(constants[:, some].flatten(1, 2), stride)
        h = _subtract_frame(h, image, P, K[:, some], groups, stride)
        factors += h.reshape(batch, runs, count, channels, *h.shape[-2:]).unbind(2)
    return factors


def _compose(K: Tensor, P: Tensor) -> Tensor:
    """The kernels of `K * (P * x)`: (E, k, channels, inputs, size + 2, size + 2)."""
    runs, k, channels, m, size, _ = K.shape
    inputs = P.shape[2]
    stacked = K.transpose(0, 1).transpose(1, 2).reshape(k * channels, runs * m, size, size)
    flipped = P.flip(-1, -2).transpose(1, 2).reshape(runs * inputs, m, 3, 3)
    whole = F.conv2d(stacked, flipped, padding=2, groups=runs)
    return whole.reshape(k, channels, runs, inputs, size + 2, size + 2).permute(2, 0, 1, 3, 4, 5)


def _averaged(kernel: Tensor, stride: int) -> Tensor:
    """The kernels followed by the average over windows of `stride` x `stride`."""
    if stride == 1:
        return kernel
    flat = kernel.reshape(-1, 1, *kernel.shape[-2:])
    window = kernel.new_full((1, 1, stride, stride), 1 / stride**2)
    flat = F.conv2d(flat, window, padding=stride - 1)
    return flat.reshape(*kernel.shape[:-2], *flat.shape[-2:])


def _constant_maps(K: Tensor, c: Tensor, space: tuple[int, int]) -> Tensor:
    """What the pre-convolution's constant becomes: (E, k, channels, height, width)."""
    runs, k, channels, _, size, _ = K.shape
    weighted = (K * c[:, None, None, :, None, None]).sum(3).reshape(1, runs * k * channels, size, size)
    # The sum over taps that meet the image, at every place: a convolution with ones by each kernel of its own.
    ones = K.new_ones(1, 1, *space)
    maps = F.conv2d(ones, weighted.transpose(0, 1), padding=size // 2)
    return maps.reshape(runs, k, channels, *space)


def _subtract_frame(h: Tensor, image: Tensor, P: Tensor, K: Tensor, groups: int, stride: int) -> Tensor:
    """Take away what the collapsed kernel saw of the pre-convolution on the frame around the image.

    `h` is (batch, E, k * channels, rows, columns), already pooled by `stride`; K is (E, k, channels, m, size, size).
    """
    half = K.shape[-1] // 2
    strips = []
    for horizontal in (True, False):
        for far in (False, True):
            # Bring every side into the place of the top: rows are what runs along the side.
            pixels = image if horizontal else image.transpose(-1, -2)
            pre, kernel = (P, K) if horizontal else (P.transpose(-1, -2), K.transpose(-1, -2))
            if far:
                pixels, pre, kernel = pixels.flip(-2), pre.flip(-2), kernel.flip(-2)
            strip = _side(pixels[..., 0, :], pre[..., 2, :], kernel[..., :half, :], groups, corners=horizontal)
            if stride > 1:
                strip = F.avg_pool2d(F.pad(strip, (0, 0, 0, -half % stride)), stride)
            if far:
                strip = strip.flip(-2)
            strips.append(strip.reshape(*h.shape[:3], *strip.shape[-2:]))
    result: Tensor = _MinusStrips.apply(h, *strips)  # type: ignore[no-untyped-call]
    return result


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
    """The top, bottom, left and right of h, so many rows or columns of them, as views with rows along the edge."""
    turned = h.transpose(-1, -2)
    return [h[..., : rows[0], :], h[..., -rows[1] :, :], turned[..., : rows[2], :], turned[..., -rows[3] :, :]]


def _side(line: Tensor, pre: Tensor, kernel: Tensor, groups: int, corners: bool) -> Tensor:
    """From the image's first row, what the frame above it adds to the first rows: (batch, E * k * channels, half, n).

    Args:
        line: (batch, groups * inputs, n).
        pre: the pre-convolutions' row that meets it, (E, m, inputs, 3).
        kernel: the kernels' first rows, (E, k, channels, m, half, size).
        groups: 1 if all runs share their images.
        corners: whether the frame's corners belong to this side.
    """
    runs, m, inputs, _ = pre.shape
    half, size = kernel.shape[-2:]
    frame = F.conv1d(line, pre.reshape(runs * m, inputs, 3), padding=2 if corners else 1, groups=groups)
    # Row t of the result meets the frame with its tap half - 1 - t.
    taps = kernel.flip(-2).movedim(-2, 3).reshape(-1, m, size)
    strip = F.conv1d(frame, taps, padding=half - 1 if corners else half, groups=runs)
    return strip.reshape(len(line), -1, half, line.shape[-1])
