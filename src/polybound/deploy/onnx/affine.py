"""Affine maps one after another, as an ONNX graph has them: `Steps`, written out, put together, or a convolution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from polybound.deploy.onnx.constants import quantum
from polybound.errors import PolyboundError
from polybound.models import Affine, Chain, Conv, Dense, Identity, Pool
from polybound.theory import DENSE_LIMIT

Steps = tuple[Affine, ...]
"""Maps in the order in which they are applied; none for the identity."""


class Diagonal(Affine):
    """`x -> d * x + b`, entry by entry: weight (outputs,), bias (outputs,) or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.inputs = self.outputs = weight.shape[-1]
        self.lead = tuple(weight.shape[:-1])
        self.constant = torch.zeros_like(weight) if bias is None else bias

    def linear(self, x: Tensor) -> Tensor:
        return x * self.weight

    def adjoint(self, y: Tensor) -> Tensor:
        return y * self.weight

    def transform(self, change: Callable[[Tensor], Tensor]) -> Diagonal:
        return Diagonal(change(self.weight), change(self.constant))


def same_steps(one: Sequence[Affine], other: Sequence[Affine]) -> bool:
    """Whether two chains are the same maps with the same numbers."""

    def same(a: Affine, b: Affine) -> bool:
        if a is b:
            return True
        if type(a) is not type(b) or (a.inputs, a.outputs) != (b.inputs, b.outputs):
            return False
        if isinstance(a, Conv | Pool) and isinstance(b, Conv | Pool) and a.shape != b.shape:
            return False
        weights = [getattr(step, "weight", step.constant) for step in (a, b)]
        return torch.equal(*weights) and torch.equal(a.constant, b.constant)

    return len(one) == len(other) and all(map(same, one, other))


def is_linear(steps: Sequence[Affine]) -> bool:
    """Whether every map of the chain is without a constant."""
    return not any(bool(step.constant.any()) for step in steps)


def written_out(linear: Callable[[Tensor], Tensor], inputs: int) -> Dense:
    """The matrix of a linear function of (batch, inputs), found by applying it to the unit vectors.

    Raises:
        PolyboundError: the matrix has too many entries to be written out.
    """
    outputs = linear(torch.zeros(1, inputs, dtype=torch.float64)).shape[1]
    if inputs * max(inputs, outputs) > DENSE_LIMIT:
        raise PolyboundError(f"a map from {inputs:,} to {outputs:,} numbers is too large to be written out")
    return Dense(linear(torch.eye(inputs, dtype=torch.float64)).T.contiguous())


def folded(steps: Sequence[Affine], inputs: int) -> tuple[Tensor, Tensor]:
    """One matrix and one constant for the whole chain, in float64."""
    if not steps:
        return torch.eye(inputs, dtype=torch.float64), torch.zeros(inputs, dtype=torch.float64)
    if isinstance(steps[0], Dense) and all(isinstance(step, Diagonal) for step in steps[1:]):
        weight, constant = steps[0].weight, steps[0].constant
        for step in steps[1:]:
            scale = step.linear(torch.ones(step.inputs, dtype=torch.float64))
            weight, constant = weight * scale.unsqueeze(1), constant * scale + step.constant
        return weight, constant
    chain = as_affine(steps, inputs)
    if chain.outputs <= inputs and inputs * chain.outputs <= DENSE_LIMIT:
        return chain.adjoint(torch.eye(chain.outputs, dtype=torch.float64)), chain.constant
    return written_out(chain.linear, inputs).weight, chain.constant


def divisor(steps: Sequence[Affine]) -> float:
    """A power of two that divides all entries of the matrix and the constant of a chain, and all terms of them."""
    found = 1.0
    for step in steps:
        if isinstance(step, Pool):
            found /= 2**step.dims
        elif isinstance(step, Dense | Diagonal | Conv):
            found *= min(1.0, float(quantum(step.weight).amin()), float(quantum(step.constant).amin()))
        elif not isinstance(step, Identity):
            return 0.0
    return found


def as_affine(steps: Sequence[Affine], inputs: int) -> Affine:
    """The chain as one affine map, nothing of it computed yet."""
    if not steps:
        return Identity(inputs, (), torch.zeros(1, dtype=torch.float64))
    return steps[0] if len(steps) == 1 else Chain(steps)


# Convolutions and average poolings with ONNX's attributes, as affine maps.


_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
_POOLINGS = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)


def _dims(shape: Sequence[int]) -> int:
    if not 2 <= len(shape) <= 4:
        raise PolyboundError(f"it needs channels and one to three sizes, not {tuple(shape)}")
    return len(shape) - 1


def _margins(attributes: Mapping[str, Any], window: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The zeros padded before each spatial dimension, then those padded after each."""
    auto = attributes.get("auto_pad", "NOTSET")
    if auto == "NOTSET":
        return list(attributes.get("pads", [0] * (2 * len(window))))
    if auto == "VALID":
        return [0] * (2 * len(window))
    if auto in ("SAME_UPPER", "SAME_LOWER") and set(strides) == {1} and all(size % 2 for size in window):
        return [size // 2 for size in window] * 2
    raise PolyboundError(f"auto_pad {auto} is read for windows of odd size and stride 1 only")


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
    dense, out = _swept(lambda x: _CONVOLUTIONS[dims - 1](x, weight, **options), shape, margins)
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
        raise PolyboundError("dilated poolings, and windows that reach beyond the end, are not read")
    if any(margins) and not attributes.get("count_include_pad", 0):
        raise PolyboundError("poolings over margins that are not counted are not read")
    if window == strides == [2] * dims and not any(margins):
        step = Pool(shape, (), torch.zeros(1, dtype=torch.float64))
        if not step.outputs:
            raise PolyboundError(f"its window does not fit {tuple(shape)}")
        return step, step.out_shape

    return _swept(lambda x: _POOLINGS[dims - 1](x, window, strides), shape, margins)


def _swept(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...], margins: Sequence[int]
) -> tuple[Dense, tuple[int, ...]]:
    """The matrix of a linear function of images with margins of zeros, and the shape that comes out."""
    dims = len(shape) - 1
    sides = [side for d in reversed(range(dims)) for side in (margins[d], margins[d + dims])]

    def linear(x: Tensor) -> Tensor:
        return function(functional.pad(x.reshape(-1, *shape), sides))

    try:
        out = tuple(linear(torch.zeros(1, *shape, dtype=torch.float64)).shape[1:])
    except RuntimeError:
        raise PolyboundError(f"its window does not fit {tuple(shape)}") from None
    return written_out(lambda x: linear(x).flatten(1), prod(shape)), out
