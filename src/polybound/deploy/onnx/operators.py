"""What each operator does to tensors of which some depend on the input; whatever is no polynomial is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.deploy.onnx.constants import Constant, cast, computed, product, quotient, total
from polybound.deploy.onnx.moves import MOVES, Node, Operand, Value, copied, joined, padded
from polybound.errors import PolyboundError
from polybound.models import Traced

Operator = Callable[[Node, Sequence[Operand]], Operand]

OPERATORS: dict[str, Operator] = {}
"""What is read beside `MOVES`; filled below."""

ATTRIBUTES: dict[str, tuple[str, ...]] = {}
"""The attributes that are read; old opsets have others, such as `broadcast`, which change what is computed."""

_LARGEST = 2**21
"""Entries that a tensor may have."""

_MULTIPLIED = 2**22
"""Products of entries that a product of two matrices may have."""

_REASONS = {
    ("Loop", "Scan", "If"): "loops and branches are not read",
    ("MaxPool", "Relu", "LeakyRelu", "Clip", "Abs", "Max", "Min", "PRelu"): "it is piecewise, not a polynomial",
    ("Softmax", "LogSoftmax", "Sigmoid", "Tanh", "Exp", "Erf", "Gelu", "Softplus"): "it is not a polynomial",
    ("LayerNormalization", "InstanceNormalization"): "it divides by a statistic of its input: not a polynomial",
    ("QuantizeLinear", "DequantizeLinear"): "it rounds, which is not a polynomial",
}


def why_not(operator: str) -> str:
    """Why an operator is not read."""
    for operators, reason in _REASONS.items():
        if operator in operators:
            return reason
    return f"only {', '.join(sorted((*OPERATORS, *MOVES)))} are read"


def _reads(*operators: str, attributes: Sequence[str] = ()) -> Callable[[Operator], Operator]:
    """Declare how some operators are read, and which of their attributes."""

    def known(function: Operator) -> Operator:
        for operator in operators:
            OPERATORS[operator], ATTRIBUTES[operator] = function, tuple(attributes)
        return function

    return known


_reads("Concat", attributes=("axis",))(joined)
_reads("Pad", attributes=("mode", "pads", "paddings", "value"))(padded)
_reads("Upsample", attributes=("mode", "scales"))(copied)
_reads("Resize", attributes=("mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a"))(copied)


def _value(operands: Sequence[Operand]) -> Value:
    """The first operand, which must be one that depends on the input."""
    if not operands or not isinstance(operands[0], Value):
        raise PolyboundError("its first operand does not depend on the input")
    return operands[0]


def _constant(operand: Operand, what: str) -> Constant:
    if not isinstance(operand, Constant):
        raise PolyboundError(f"{what} {'is left out' if operand is None else 'depends on the input'}")
    return operand


def _fits(shape: Sequence[int]) -> None:
    if not 0 < prod(shape) <= _LARGEST:
        raise PolyboundError(f"it makes a tensor of shape {tuple(shape)}: from 1 to {_LARGEST:,} entries fit")


# Entry by entry.


def _two(operator: str, node: Node, one: Operand, other: Operand) -> Operand:
    """A sum, difference or product of two tensors, of which one may be repeated to fit the other."""
    if one is None or other is None:
        raise PolyboundError("an operand is left out")
    shapes = [operand.tensor.shape for operand in (one, other)]
    if node.opset < 7 and shapes[0] != shapes[1]:
        raise PolyboundError(
            f"shapes {tuple(shapes[0])} and {tuple(shapes[1])} differ, which opset {node.opset} forbids"
        )
    if isinstance(one, Constant) and isinstance(other, Constant):
        return computed(operator, one, other)
    _fits(np.broadcast_shapes(*shapes))
    if operator == "Mul":
        return _times(one, other)
    return _made(
        one.tensor + other.tensor if operator == "Add" else one.tensor - other.tensor,
        max(one.roundings, other.roundings),
    )


def _made(tensor: Tensor, roundings: float) -> Value:
    return Value(tensor, roundings)  # type: ignore[arg-type]  # a tensor that is computed from a traced one is traced


def _times(one: Value | Constant, other: Value | Constant) -> Value:
    return _made(one.tensor * other.tensor, one.roundings + other.roundings)


@_reads("Add", "Sub", "Mul")
def _arithmetic(node: Node, operands: Sequence[Operand]) -> Operand:
    one, other = operands
    return _two(node.operator, node, one, other)


@_reads("Div")
def _div(node: Node, operands: Sequence[Operand]) -> Operand:
    one, other = operands
    if isinstance(other, Value):
        raise PolyboundError("it divides by something that depends on the input, which is not a polynomial")
    if isinstance(one, Constant):
        return computed("Div", one, _constant(other, "the divisor"))
    divisor = _constant(other, "the divisor")
    return _two("Mul", node, one, _reciprocal(divisor))


def _reciprocal(divisor: Constant) -> Constant:
    return computed("Div", Constant(torch.ones_like(divisor.tensor)), divisor)


@_reads("Sum", "Mean")
def _total(node: Node, operands: Sequence[Operand]) -> Operand:
    summed = reduce(lambda one, other: _two("Add", node, one, other), operands)
    if node.operator == "Sum" or summed is None:
        return summed
    count = Constant(torch.tensor(float(len(operands)), dtype=torch.float64))
    return computed("Div", summed, count) if isinstance(summed, Constant) else _times(summed, _reciprocal(count))


@_reads("Neg")
def _neg(_: Node, operands: Sequence[Operand]) -> Operand:
    [operand] = operands
    if isinstance(operand, Constant):
        return Constant(-_constant(operand, "its operand").tensor, False, operand.roundings)
    return _made(-_value(operands).tensor, _value(operands).roundings)


@_reads("Pow")
def _pow(_: Node, operands: Sequence[Operand]) -> Operand:
    value, exponent = _value(operands), _constant(operands[1], "the exponent").tensor
    power = float(exponent.reshape(-1)[0]) if exponent.numel() == 1 and exponent.ndim <= value.tensor.ndim else 0.5
    if power < 1 or power != int(power):
        raise PolyboundError("only powers with one whole exponent from 1 on are read, which are polynomials")
    return _made(value.tensor ** int(power), value.roundings * power)


@_reads("Cast", attributes=("to", "saturate"))
def _cast(node: Node, operands: Sequence[Operand]) -> Operand:
    [operand] = operands
    if not isinstance(operand, Constant):
        raise PolyboundError("only constants are cast")
    return cast(operand, node.get("to", 0))


@_reads("Dropout", attributes=("ratio", "seed"))
def _dropout(node: Node, operands: Sequence[Operand]) -> Operand:
    training = operands[2] if len(operands) > 2 else None
    if node.opset < 7 or (training is not None and bool(_constant(training, "training_mode").tensor.any())):
        raise PolyboundError("dropout in training mode is random")
    return operands[0]


@_reads("BatchNormalization", attributes=("epsilon", "momentum", "training_mode", "spatial"))
def _normalised(node: Node, operands: Sequence[Operand]) -> Operand:
    value = _value(operands)
    scale, bias, mean, var = (_constant(operand, "a statistic") for operand in operands[1:5])
    if node.get("training_mode", 0) or not node.get("spatial", 1) or node.opset < 7:
        raise PolyboundError("it is read with the fixed statistics of channels only, from opset 7 on")
    tensor = value.tensor
    if tensor.ndim < 2 or any(tuple(of.tensor.shape) != (tensor.shape[1],) for of in (scale, bias, mean, var)):
        raise PolyboundError(f"its statistics do not fit {tuple(tensor.shape)}")
    spread, roundings = total(var.tensor, torch.tensor(float(node.get("epsilon", 1e-5)), dtype=torch.float64), 0.0)
    if not bool((spread > 0).all()):
        raise PolyboundError("its variances are not positive")
    # One more rounding for the root, which halves those before it.
    weight, roundings = quotient(scale.tensor, spread.sqrt(), roundings + var.roundings + 1 + scale.roundings)
    sides = (1, -1, *(1,) * (tensor.ndim - 2))
    centred = tensor - mean.tensor.reshape(sides)
    found = centred * weight.reshape(sides) + bias.tensor.reshape(sides)
    return _made(found, max(max(value.roundings, mean.roundings) + roundings, bias.roundings))


# Matrices.


@_reads("Gemm", attributes=("alpha", "beta", "transA", "transB"))
def _gemm(node: Node, operands: Sequence[Operand]) -> Operand:
    one, other, bias = (*operands, None)[:3]
    if one is None or other is None or one.tensor.ndim != 2 or other.tensor.ndim != 2:
        raise PolyboundError("its matrices have two dimensions each")
    if isinstance(one, Constant) and isinstance(other, Constant) and not isinstance(bias, Value):
        raise PolyboundError("of constants it is not read; MatMul and Add are")
    A = one.tensor.t() if node.get("transA", 0) else one.tensor
    B = other.tensor.t() if node.get("transB", 0) else other.tensor
    alpha, beta = (float(node.get(name, 1.0)) for name in ("alpha", "beta"))
    shape, roundings = (A.shape[0], B.shape[1]), one.roundings + other.roundings
    if isinstance(other, Constant) and alpha != 1:
        weight, own = product(torch.tensor(alpha, dtype=torch.float64), B.double())
        if not own:  # else the factor is a map of its own
            B, alpha = weight, 1.0
    if bias is not None and (
        tuple(np.broadcast_shapes(bias.tensor.shape, shape)) != shape
        or (node.opset < 7 and tuple(bias.tensor.shape) != shape)
    ):
        raise PolyboundError(f"a summand of shape {tuple(bias.tensor.shape)} does not fit {shape}")
    fixed = _constant(bias, "the bias").tensor if isinstance(bias, Constant) else None
    added = None
    if fixed is not None and alpha == 1 and (fixed.ndim < 2 or fixed.shape[0] == 1) and isinstance(other, Constant):
        added, own = product(torch.tensor(beta, dtype=torch.float64), fixed.reshape(-1).expand(shape[1]).contiguous())
        if not own:
            return _made(torch.addmm(added, A, B), max(roundings, bias.roundings if bias else 0.0))
    found = _product(_made(A, 0.0) if isinstance(one, Value) else Constant(A), _like(other, B)).tensor * alpha
    if bias is None:
        return _made(found, roundings)
    return _made(found + bias.tensor * beta, max(roundings, bias.roundings))


def _like(operand: Value | Constant, tensor: Tensor) -> Value | Constant:
    return _made(tensor, 0.0) if isinstance(operand, Value) else Constant(tensor)


@_reads("MatMul")
def _matmul(_: Node, operands: Sequence[Operand]) -> Operand:
    one, other = operands
    if one is None or other is None:
        raise PolyboundError("an operand is left out")
    if isinstance(one, Constant) and isinstance(other, Constant):
        return computed("MatMul", one, other)
    return _product(one, other)


def _product(one: Value | Constant, other: Value | Constant) -> Value:
    """A product of matrices, or of stacks of them, one of which depends on the input."""
    left, right, roundings = one.tensor, other.tensor, one.roundings + other.roundings
    if not left.ndim or not right.ndim:
        raise PolyboundError("it multiplies a number, not matrices")
    if left.ndim == 1:
        return _made(_product(_like(one, left.unsqueeze(0)), other).tensor.squeeze(-2), roundings)
    if right.ndim == 1:
        return _made(_product(one, _like(other, right.unsqueeze(1))).tensor.squeeze(-1), roundings)
    if left.shape[-1] != right.shape[-2]:
        raise PolyboundError(f"matrices of shapes {tuple(left.shape)} and {tuple(right.shape)} do not fit")
    sides = *np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1]
    _fits(sides)
    if isinstance(one, Value) and isinstance(other, Constant) and right.ndim == 2:
        return _made(torch.matmul(left, right), roundings)
    if isinstance(one, Constant) and left.ndim == 2:
        return _made(torch.matmul(right.transpose(-1, -2), left.t()).transpose(-1, -2), roundings)
    if prod(sides) * left.shape[-1] > _MULTIPLIED:
        raise PolyboundError(f"it multiplies matrices by more than {_MULTIPLIED:,} products of entries")
    return _made((left.unsqueeze(-1) * right.unsqueeze(-3)).sum(-2), roundings)


# Sums and means over dimensions.


def _axes(node: Node, operands: Sequence[Operand], rank: int) -> list[int]:
    given = operands[1] if len(operands) > 1 else None
    chosen = node.get("axes", []) if given is None else _constant(given, "which axes it takes").tensor.tolist()
    if not chosen and node.get("noop_with_empty_axes", 0):
        return []
    if any(not -rank <= axis < rank for axis in chosen):
        raise PolyboundError(f"axes {chosen} are not among {rank} dimensions")
    return sorted({int(axis) % rank for axis in chosen} or set(range(rank)))


@_reads("ReduceMean", "ReduceSum", "ReduceSumSquare", attributes=("axes", "keepdims", "noop_with_empty_axes"))
def _reduced(node: Node, operands: Sequence[Operand]) -> Operand:
    value = _value(operands)
    axes, tensor, roundings = _axes(node, operands, value.tensor.ndim), value.tensor, value.roundings
    if node.operator == "ReduceSumSquare":
        tensor, roundings = tensor * tensor, 2 * roundings  # type: ignore[assignment]
    if axes:
        count = prod(tensor.shape[axis] for axis in axes)
        summed = _made(torch.sum(tensor, axes, keepdim=bool(node.get("keepdims", 1))), roundings)
        return _mean(summed, count) if node.operator == "ReduceMean" else summed
    return _made(tensor, roundings)


def _mean(summed: Value, count: int) -> Value:
    return _times(summed, _reciprocal(Constant(torch.tensor(float(count), dtype=torch.float64))))


@_reads("CumSum", attributes=("exclusive", "reverse"))
def _cumulated(node: Node, operands: Sequence[Operand]) -> Operand:
    value, axis = _value(operands), int(_constant(operands[1], "the axis").tensor.reshape(()))
    size = value.tensor.shape[axis]
    if size * value.tensor.numel() > _LARGEST:
        raise PolyboundError(f"it adds up {size:,} entries, which are too many")
    below = torch.ones(size, size, dtype=torch.float64).triu(int(bool(node.get("exclusive", 0))))
    weight = Constant(below.t().contiguous() if node.get("reverse", 0) else below)
    last = _made(value.tensor.movedim(axis, -1), value.roundings)
    return _made(_product(last, weight).tensor.movedim(-1, axis), value.roundings)


# Windows over images.

_WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")


class _Windows:
    """The attributes of a convolution or pooling, for images of some sizes.

    Attributes:
        size, stride, dilation: in each direction.
        begin, end: zeros around the image, before and after it.
        out: the sizes of the result.
        beyond: how far the last windows reach beyond all that.
    """

    def __init__(self, node: Node, image: Sequence[int], size: Sequence[int]) -> None:
        dims = len(image)
        self.size, self.stride = list(size), list(node.get("strides", [1] * dims))
        self.dilation = list(node.get("dilations", [1] * dims))
        pads = list(node.get("pads", [0] * 2 * dims))
        if not (len(self.size) == len(self.stride) == len(self.dilation) == dims and len(pads) == 2 * dims):
            raise PolyboundError(f"its attributes do not fit images of shape {tuple(image)}")
        if list(node.get("kernel_shape", self.size)) != self.size or min(*self.size, *self.stride, *self.dilation) < 1:
            raise PolyboundError("its kernel_shape, strides or dilations do not fit")
        spans = [(k - 1) * d + 1 for k, d in zip(self.size, self.dilation, strict=True)]
        auto = node.get("auto_pad", "NOTSET")
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            steps = zip(image, spans, self.stride, strict=True)
            whole = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in steps]
            less, more = [w // 2 for w in whole], [w - w // 2 for w in whole]
            pads = less + more if auto == "SAME_UPPER" else more + less
        elif auto not in ("NOTSET", "VALID"):
            raise PolyboundError(f"auto_pad {auto} is not read")
        elif auto == "VALID":
            pads = [0] * 2 * dims
        self.begin, self.end = pads[:dims], pads[dims:]
        if min(pads) < 0:
            raise PolyboundError("its margins are negative")
        room = [n + b + e - k for n, b, e, k in zip(image, self.begin, self.end, spans, strict=True)]
        if min(room) < 0:
            raise PolyboundError(f"its window does not fit {tuple(image)}")
        up = bool(node.get("ceil_mode", 0))
        self.out = [(-(-r // s) if up else r // s) + 1 for r, s in zip(room, self.stride, strict=True)]
        self.beyond = [max(0, (o - 1) * s - r) for o, s, r in zip(self.out, self.stride, room, strict=True)]
        _fits(self.out)
        _fits([n + b + e for n, b, e in zip(image, self.begin, self.end, strict=True)])


def _images(operands: Sequence[Operand]) -> tuple[Value, list[int]]:
    value = _value(operands)
    if not 3 <= value.tensor.ndim <= 5:
        raise PolyboundError(
            f"it needs a batch, channels and one to three sizes, not a shape of {value.tensor.ndim} dimensions"
        )
    return value, list(value.tensor.shape[2:])


def _margins(begin: Sequence[int], end: Sequence[int]) -> list[int]:
    return [side for pair in reversed(list(zip(begin, end, strict=True))) for side in pair]


@_reads("Conv", attributes=(*_WINDOW, "group"))
def _conv(node: Node, operands: Sequence[Operand]) -> Operand:
    (value, image), weight = _images(operands), _constant(operands[1], "the kernel")
    kernel, bias, roundings = _kernel(node, value, weight, operands, transposed=False)
    windows = _Windows(node, image, kernel.shape[2:])
    _fits([*value.tensor.shape[:1], kernel.shape[0], *windows.out])
    tensor: Tensor = value.tensor
    padding = windows.begin
    if windows.begin != windows.end:
        tensor, padding = F.pad(tensor, _margins(windows.begin, windows.end)), [0] * len(image)
    made = _convolved(tensor, kernel, bias, windows.stride, padding, windows.dilation, node.get("group", 1))
    return _made(made, value.roundings + roundings)


def _kernel(
    node: Node, value: Value, weight: Constant, operands: Sequence[Operand], transposed: bool
) -> tuple[Tensor, Tensor | None, float]:
    """The kernel and the bias of a convolution, checked, and their roundings."""
    kernel, groups, channels = weight.tensor.double(), node.get("group", 1), value.tensor.shape[1]
    fits = kernel.ndim == value.tensor.ndim and groups > 0 and kernel.shape[0] % groups == 0 and kernel.numel() > 0
    if not fits or channels != (kernel.shape[0] if transposed else kernel.shape[1] * groups):
        raise PolyboundError(
            f"a kernel of shape {tuple(kernel.shape)} does not fit {channels} channels in {groups} groups"
        )
    if len(operands) < 3 or operands[2] is None:
        return kernel, None, weight.roundings
    bias = _constant(operands[2], "the bias")
    if tuple(bias.tensor.shape) != (kernel.shape[1] * groups if transposed else kernel.shape[0],):
        raise PolyboundError(f"a bias of shape {tuple(bias.tensor.shape)} does not fit its kernel")
    return kernel, bias.tensor.double(), max(weight.roundings, bias.roundings)


def _convolved(
    tensor: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    left: Sequence[int] | None = None,
) -> Tensor:
    """A convolution, or a transposed one where `left`, its output padding, is given."""
    traced: Traced = tensor  # type: ignore[assignment]
    rest = left is not None, list(left or [0] * len(stride)), groups
    return traced.tracer.convolution(traced, kernel, bias, stride, padding, dilation, *rest)


@_reads("ConvTranspose", attributes=(*_WINDOW, "group", "output_padding", "output_shape"))
def _conv_transpose(node: Node, operands: Sequence[Operand]) -> Operand:
    (value, image), weight = _images(operands), _constant(operands[1], "the kernel")
    kernel, bias, roundings = _kernel(node, value, weight, operands, transposed=True)
    if node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or node.get("output_shape", None) is not None:
        raise PolyboundError("auto_pad and output_shape are not read; pads and output_padding are")
    dims = len(image)
    free: Mapping[str, Any] = {
        k: v for k, v in node.attributes.items() if k in ("strides", "dilations", "kernel_shape")
    }
    plain = Node(node.proto, free, node.opset, node.batch)
    size = [(k - 1) * d + 1 for k, d in zip(kernel.shape[2:], free.get("dilations", [1] * dims), strict=True)]
    windows = _Windows(plain, size, kernel.shape[2:])
    left = list(node.get("output_padding", [0] * dims))
    pads = [0] * 2 * dims if node.get("auto_pad", "NOTSET") == "VALID" else list(node.get("pads", [0] * 2 * dims))
    if len(left) != dims or len(pads) != 2 * dims or min(*left, *pads) < 0:
        raise PolyboundError("its pads or its output_padding do not fit")
    if any(o >= s for o, s in zip(left, windows.stride, strict=True)):
        raise PolyboundError("its output_padding is not smaller than its strides")
    whole = [(n - 1) * s + k + o for n, s, k, o in zip(image, windows.stride, size, left, strict=True)]
    begin, end = pads[:dims], pads[dims:]
    _fits([*value.tensor.shape[:1], kernel.shape[1] * node.get("group", 1), *whole])
    if min(n - b - e for n, b, e in zip(whole, begin, end, strict=True)) < 1:
        raise PolyboundError("its pads leave nothing")
    # What is cut is cut from the whole, so that pads may differ between the sides.
    even = begin == end and all(b < k for b, k in zip(begin, size, strict=True))
    padding = begin if even else [0] * dims
    options = windows.stride, padding, windows.dilation, node.get("group", 1), left
    made = _convolved(value.tensor, kernel, bias, *options)
    if not even:
        made = F.pad(made, [-side for side in _margins(begin, end)])
    return _made(made, value.roundings + roundings)


@_reads("AveragePool", attributes=(*_WINDOW, "ceil_mode", "count_include_pad"))
def _pool(node: Node, operands: Sequence[Operand]) -> Operand:
    value, image = _images(operands)
    windows = _Windows(node, image, node.get("kernel_shape", []))
    _fits([*value.tensor.shape[:2], *windows.out])
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
    kernel = torch.ones(1, 1, *windows.size, dtype=torch.float64)
    convolve: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    inside = F.pad(torch.ones(1, 1, *image, dtype=torch.float64), sides, value=float(include))
    counts = convolve(inside, kernel, None, windows.stride, 0, windows.dilation).round()
    if not bool((counts > 0).all()):
        raise PolyboundError("one of its windows lies outside of the image")
    padded_ = F.pad(traced, sides) if any(sides) else traced
    options = windows.stride, [0] * dims, windows.dilation, channels
    summed = _convolved(padded_, kernel.repeat(channels, *(1,) * (dims + 1)), None, *options)
    return _times(_made(summed, value.roundings), _reciprocal(Constant(counts)))


@_reads("GlobalAveragePool")
def _global_pool(_: Node, operands: Sequence[Operand]) -> Operand:
    value, image = _images(operands)
    axes = list(range(2, 2 + len(image)))
    return _mean(_made(torch.sum(value.tensor, axes, keepdim=True), value.roundings), prod(image))
