"""Convolutions and average poolings with ONNX's attributes, as affine maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from polybound.deploy.onnx_maps import written_out
from polybound.errors import PolyboundError
from polybound.models import Affine, Conv, Dense, Pool

__all__ = ["average_pool", "convolution"]

_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}
_POOLINGS: dict[int, Callable[..., Tensor]] = {
    1: functional.avg_pool1d,
    2: functional.avg_pool2d,
    3: functional.avg_pool3d,
}


def _dims(shape: Sequence[int]) -> int:
    if len(shape) - 1 not in _CONVOLUTIONS:
        raise PolyboundError(f"it needs channels and one to three sizes, not {tuple(shape)}")
    return len(shape) - 1


def _margins(attributes: Mapping[str, Any], window: Sequence[int], strides: Sequence[int]) -> list[int]:
    """How many zeros are put before each spatial dimension, and then how many behind each."""
    auto = attributes.get("auto_pad", "NOTSET")
    if auto == "NOTSET":
        return list(attributes.get("pads", [0] * (2 * len(window))))
    if auto == "VALID":
        return [0] * (2 * len(window))
    if auto in ("SAME_UPPER", "SAME_LOWER") and set(strides) == {1} and all(size % 2 for size in window):
        return [size // 2 for size in window] * 2
    raise PolyboundError(f"auto_pad {auto} is read for windows of odd size and stride 1 only")


def _padded(x: Tensor, margins: Sequence[int]) -> Tensor:
    dims = len(margins) // 2
    return functional.pad(x, list(chain(*((margins[d], margins[d + dims]) for d in reversed(range(dims))))))


def convolution(
    attributes: Mapping[str, Any], shape: tuple[int, ...], weight: Tensor, bias: Tensor | None
) -> tuple[Affine, tuple[int, ...]]:
    """The map of a Conv node on a tensor of that shape, and the shape that comes out.

    A "same" convolution with stride 1 stays one; any other is written out as a matrix.
    """
    dims = _dims(shape)
    groups = attributes.get("group", 1)
    strides = list(attributes.get("strides", [1] * dims))
    dilations = list(attributes.get("dilations", [1] * dims))
    if weight.ndim != dims + 2 or weight.shape[1] * groups != shape[0] or weight.shape[0] % groups:
        raise PolyboundError(f"a kernel of shape {tuple(weight.shape)} does not fit {shape} in {groups} groups")
    if bias is not None and tuple(bias.shape) != (len(weight),):
        raise PolyboundError(f"a bias of shape {tuple(bias.shape)} does not fit {len(weight)} channels")
    if list(attributes.get("kernel_shape", weight.shape[2:])) != list(weight.shape[2:]):
        raise PolyboundError(f"kernel_shape is not that of a kernel of shape {tuple(weight.shape)}")
    window = [(size - 1) * step + 1 for size, step in zip(weight.shape[2:], dilations, strict=True)]
    margins = _margins(attributes, window, strides)
    same = margins == [size // 2 for size in window] * 2 and all(size % 2 for size in window)
    if same and groups == 1 and set(strides) == {1} and set(dilations) == {1}:
        step = Conv(weight, bias, shape)
        return step, step.out_shape
    options: dict[str, Any] = {"stride": strides, "dilation": dilations, "groups": groups}

    def convolve(x: Tensor) -> Tensor:
        return _CONVOLUTIONS[dims](_padded(x.reshape(-1, *shape), margins), weight, **options)

    out = _out_shape(convolve, shape)
    dense = written_out(lambda x: convolve(x).flatten(1), prod(shape))
    return Dense(dense.weight, None if bias is None else bias.repeat_interleave(prod(out[1:]))), out


def average_pool(attributes: Mapping[str, Any], shape: tuple[int, ...]) -> tuple[Affine, tuple[int, ...]]:
    """The map of an AveragePool node on a tensor of that shape, and the shape that comes out.

    Halving stays a `Pool`; any other is written out as a matrix.
    """
    dims = _dims(shape)
    window = list(attributes["kernel_shape"])
    strides = list(attributes.get("strides", [1] * dims))
    margins = _margins(attributes, window, strides)
    space = [size + margins[d] + margins[d + dims] for d, size in enumerate(shape[1:])]
    uneven = any((size - wide) % step for size, wide, step in zip(space, window, strides, strict=True))
    if set(attributes.get("dilations", [1])) != {1} or (attributes.get("ceil_mode", 0) and uneven):
        raise PolyboundError("dilated poolings, and windows that stand out at the end, are not read")
    if any(margins) and not attributes.get("count_include_pad", 0):
        raise PolyboundError("poolings over margins that are not counted are not read")
    if window == strides == [2] * dims and not any(margins):
        step = Pool(shape, (), torch.zeros(1, dtype=torch.float64))
        if not step.outputs:
            raise PolyboundError(f"its window does not fit {tuple(shape)}")
        return step, step.out_shape

    def pool(x: Tensor) -> Tensor:
        return _POOLINGS[dims](_padded(x.reshape(-1, *shape), margins), window, strides)

    out = _out_shape(pool, shape)
    return written_out(lambda x: pool(x).flatten(1), prod(shape)), out


def _out_shape(function: Callable[[Tensor], Tensor], shape: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(function(torch.zeros(1, *shape, dtype=torch.float64)).shape[1:])
    except RuntimeError:
        raise PolyboundError(f"its window does not fit {tuple(shape)}") from None
