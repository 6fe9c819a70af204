"""Operators that slide windows over images: convolutions, transposed ones, average poolings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.deploy.onnx.constants import Constant
from polybound.deploy.onnx.moves import Node, Operand, Value
from polybound.deploy.onnx.operators import check_size, constant, made, mean, reads, reciprocal, times, value_of
from polybound.errors import PolyboundError

_CONVOLVE: tuple[Callable[..., Tensor], ...] = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED: tuple[Callable[..., Tensor], ...] = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")


class _Windows:
    """The attributes of a convolution or pooling, for images of some sizes.

    Attributes:
        size, stride, dilation: in each direction.
        begin, end: zeros before and after the image; of a transposed convolution what is cut from its result.
        left: the output padding of a transposed convolution.
        out: the sizes of the result.
        beyond: how far the last windows reach beyond all that.
    """

    def __init__(self, node: Node, image: Sequence[int], size: Sequence[int], transposed: bool = False) -> None:
        dims = len(image)
        self.size, self.stride = list(size), list(node.get("strides", [1] * dims))
        self.dilation, self.left = list(node.get("dilations", [1] * dims)), list(node.get("output_padding", [0] * dims))
        pads, auto = list(node.get("pads", [0] * 2 * dims)), node.get("auto_pad", "NOTSET")
        lists = self.size, self.stride, self.dilation, self.left
        if any(len(given) != dims for given in lists) or len(pads) != 2 * dims:
            raise PolyboundError(f"its attributes do not fit images of shape {tuple(image)}")
        if list(node.get("kernel_shape", self.size)) != self.size or min(*self.size, *self.stride, *self.dilation) < 1:
            raise PolyboundError("its kernel_shape, strides or dilations do not fit")
        spans = [(k - 1) * d + 1 for k, d in zip(self.size, self.dilation, strict=True)]
        if auto == "VALID":
            pads = [0] * 2 * dims
        elif auto in ("SAME_UPPER", "SAME_LOWER") and not transposed:
            steps = zip(image, spans, self.stride, strict=True)
            whole = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in steps]
            less, more = [w // 2 for w in whole], [w - w // 2 for w in whole]
            pads = less + more if auto == "SAME_UPPER" else more + less
        elif auto != "NOTSET":
            raise PolyboundError(f"auto_pad {auto} is not read; pads are")
        if min(*pads, *self.left) < 0 or any(o >= s for o, s in zip(self.left, self.stride, strict=True)):
            raise PolyboundError("its pads are negative, or its output_padding is not from 0 to below its strides")
        self.begin, self.end = pads[:dims], pads[dims:]
        margins = [b + e for b, e in zip(self.begin, self.end, strict=True)]
        if transposed:
            wide = [(n - 1) * s + k + o for n, s, k, o in zip(image, self.stride, spans, self.left, strict=True)]
            self.out, self.beyond = [w - m for w, m in zip(wide, margins, strict=True)], [0] * dims
        else:
            wide = [n + m for n, m in zip(image, margins, strict=True)]
            room = [w - k for w, k in zip(wide, spans, strict=True)]
            up = bool(node.get("ceil_mode", 0))
            self.out = [(-(-r // s) if up else r // s) + 1 for r, s in zip(room, self.stride, strict=True)]
            self.beyond = [max(0, (o - 1) * s - r) for o, s, r in zip(self.out, self.stride, room, strict=True)]
        if min(self.out) < 1:
            raise PolyboundError(f"its window, or what it cuts off, does not fit {tuple(image)}")
        check_size(wide)


def _images(operands: Sequence[Operand]) -> tuple[Value, list[int]]:
    value = value_of(operands)
    if not 3 <= (dims := value.tensor.ndim) <= 5:
        raise PolyboundError(f"it needs a batch, channels and one to three sizes, not a shape of {dims} dimensions")
    return value, list(value.tensor.shape[2:])


def _margins(begin: Sequence[int], end: Sequence[int]) -> list[int]:
    return [side for pair in reversed(list(zip(begin, end, strict=True))) for side in pair]


@reads("Conv", attributes=(*_WINDOW, "group"))
@reads("ConvTranspose", attributes=(*_WINDOW, "group", "output_padding"))
def _conv(node: Node, operands: Sequence[Operand]) -> Operand:
    (value, image), weight = _images(operands), constant(operands[1], "the kernel")
    tensor: Tensor = value.tensor
    kernel, groups, channels = weight.tensor.double(), node.get("group", 1), tensor.shape[1]
    transposed = node.operator == "ConvTranspose"
    fits = kernel.ndim == tensor.ndim and groups > 0 and kernel.shape[0] % groups == 0 and kernel.numel() > 0
    outputs, inputs = kernel.shape[0], kernel.shape[1] * groups if kernel.ndim > 1 else 0
    if transposed:
        outputs, inputs = inputs, outputs
    if not fits or channels != inputs:
        shape = tuple(kernel.shape)
        raise PolyboundError(f"a kernel of shape {shape} does not fit {channels} channels in {groups} groups")
    bias, roundings = None, weight.roundings
    if len(operands) > 2 and operands[2] is not None:
        given = constant(operands[2], "the bias")
        bias, roundings = given.tensor.double(), max(roundings, given.roundings)
        if tuple(bias.shape) != (outputs,):
            raise PolyboundError(f"a bias of shape {tuple(bias.shape)} does not fit {outputs} channels")
    windows = _Windows(node, image, kernel.shape[2:], transposed)
    check_size([*tensor.shape[:1], outputs, *windows.out])
    even, padding = windows.begin == windows.end, windows.begin
    # What differs between the sides is added to the image, or cut from the result.
    sides = _margins(windows.begin, windows.end)
    if not even:
        padding = [0] * len(image)
    if transposed:
        options = windows.stride, padding, windows.left, groups, windows.dilation
        tensor = _TRANSPOSED[len(image) - 1](tensor, kernel, bias, *options)
        tensor = tensor if even else F.pad(tensor, [-side for side in sides])
    else:
        tensor = tensor if even else F.pad(tensor, sides)
        tensor = _CONVOLVE[len(image) - 1](tensor, kernel, bias, windows.stride, padding, windows.dilation, groups)
    return made(tensor, value.roundings + roundings)


@reads("AveragePool", attributes=(*_WINDOW, "ceil_mode", "count_include_pad"))
def _pool(node: Node, operands: Sequence[Operand]) -> Operand:
    value, image = _images(operands)
    windows = _Windows(node, image, node.get("kernel_shape", []))
    check_size([*value.tensor.shape[:2], *windows.out])
    traced, dims, include = value.tensor, len(image), bool(node.get("count_include_pad", 0))
    ends = [e + over for e, over in zip(windows.end, windows.beyond, strict=True)]
    if not any((*windows.begin, *ends)) and set(windows.dilation) == {1}:
        pooled = traced.tracer.pool(traced, windows.size, windows.stride, [0] * dims)
        # Shares that are no powers of two are rounded where the map is written out.
        return Value(pooled, value.roundings + (2.0 if prod(windows.size) & (prod(windows.size) - 1) else 0.0))
    if any(windows.beyond) and include:
        raise PolyboundError("windows that reach beyond counted margins are not read")
    # Sums over windows, each divided by how many entries count.
    sides, channels = _margins(windows.begin, ends), traced.shape[1]
    kernel, options = torch.ones(1, 1, *windows.size, dtype=torch.float64), (windows.stride, 0, windows.dilation)
    inside = F.pad(torch.ones(1, 1, *image, dtype=torch.float64), sides, value=float(include))
    counts = _CONVOLVE[dims - 1](inside, kernel, None, *options).round()
    if not bool((counts > 0).all()):
        raise PolyboundError("one of its windows lies outside of the image")
    around = F.pad(traced, sides) if any(sides) else traced
    summed = _CONVOLVE[dims - 1](around, kernel.repeat(channels, *(1,) * (dims + 1)), None, *options, channels)
    return times(made(summed, value.roundings), reciprocal(Constant(counts)))


@reads("GlobalAveragePool")
def _global_pool(_: Node, operands: Sequence[Operand]) -> Operand:
    value, image = _images(operands)
    summed = torch.sum(value.tensor, list(range(2, 2 + len(image))), keepdim=True)
    return mean(made(summed, value.roundings), prod(image))
