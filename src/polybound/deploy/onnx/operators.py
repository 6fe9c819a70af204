"""What each operator does to tensors of which some depend on the input; whatever is no polynomial is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from math import prod

import numpy as np
import torch
import torch.nn.functional as F
from onnx import TensorProto
from torch import Tensor

from polybound.deploy.onnx.constants import Constant, cast, computed, constant_of, product, quotient, total
from polybound.deploy.onnx.moves import LARGEST, MOVES, Node, Operand, Value, check_size, copied, joined, padded
from polybound.errors import PolyboundError

Operator = Callable[[Node, Sequence[Operand]], Operand]

OPERATORS: dict[str, Operator] = {}
"""What is read beside `MOVES`; filled below."""

ATTRIBUTES: dict[str, tuple[str, ...]] = {}
"""The attributes that are read; old opsets have others, such as `broadcast`, which change what is computed."""

ALIKE = (
    *("Add", "Sub", "Mul", "Div", "Sum", "Mean", "Concat"),
    *("MatMul", "Gemm", "Conv", "ConvTranspose", "BatchNormalization"),
)
"""Operators whose operands are all of one type."""

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


def reads(*operators: str, attributes: Sequence[str] = ()) -> Callable[[Operator], Operator]:
    """Declare how some operators are read, and which of their attributes."""

    def known(function: Operator) -> Operator:
        for operator in operators:
            OPERATORS[operator], ATTRIBUTES[operator] = function, tuple(attributes)
        return function

    return known


reads("Concat", attributes=("axis",))(joined)
reads("Pad", attributes=("mode", "pads", "paddings", "value"))(padded)
reads("Upsample", attributes=("mode", "scales"))(copied)
reads("Resize", attributes=("mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a"))(copied)


def value_of(operands: Sequence[Operand]) -> Value:
    """The first operand, which must be one that depends on the input."""
    if not operands or not isinstance(operands[0], Value):
        raise PolyboundError("its first operand does not depend on the input")
    return operands[0]


def constant(operand: Operand, what: str) -> Constant:
    """An operand that must not depend on the input."""
    if not isinstance(operand, Constant):
        raise PolyboundError(f"{what} {'is left out' if operand is None else 'depends on the input'}")
    return operand


# Entry by entry.


def _two(operator: str, node: Node, one: Operand, other: Operand) -> Operand:
    """A sum, difference or product of two tensors, of which one may be repeated to fit the other."""
    if one is None or other is None:
        raise PolyboundError("an operand is left out")
    shapes = [operand.tensor.shape for operand in (one, other)]
    if node.opset < 7 and shapes[0] != shapes[1]:
        sizes = f"{tuple(shapes[0])} and {tuple(shapes[1])}"
        raise PolyboundError(f"shapes {sizes} differ, which opset {node.opset} forbids")
    if isinstance(one, Constant) and isinstance(other, Constant):
        return computed(operator, one, other)
    check_size(np.broadcast_shapes(*shapes))
    if operator == "Mul":
        return times(one, other)
    tensor = one.tensor + other.tensor if operator == "Add" else one.tensor - other.tensor
    return made(tensor, max(one.roundings, other.roundings))


def made(tensor: Tensor, roundings: float) -> Value:
    """What was computed from a traced tensor, which is one itself."""
    return Value(tensor, roundings)  # type: ignore[arg-type]


def times(one: Value | Constant, other: Value | Constant) -> Value:
    """The product of two tensors, or of one and a constant."""
    return made(one.tensor * other.tensor, one.roundings + other.roundings)


@reads("Add", "Sub", "Mul")
def _arithmetic(node: Node, operands: Sequence[Operand]) -> Operand:
    return _two(node.operator, node, *operands)


@reads("Div")
def _div(node: Node, operands: Sequence[Operand]) -> Operand:
    one, other = operands
    if isinstance(other, Value):
        raise PolyboundError("it divides by something that depends on the input, which is not a polynomial")
    divisor = constant(other, "the divisor")
    return computed("Div", one, divisor) if isinstance(one, Constant) else _two("Mul", node, one, reciprocal(divisor))


def reciprocal(divisor: Constant) -> Constant:
    """One over a constant."""
    return computed("Div", replace(divisor, tensor=torch.ones_like(divisor.tensor), roundings=0.0), divisor)


@reads("Sum", "Mean")
def _total(node: Node, operands: Sequence[Operand]) -> Operand:
    summed = reduce(lambda one, other: _two("Add", node, one, other), operands)
    if node.operator == "Sum" or summed is None:
        return summed
    count = Constant(torch.tensor(float(len(operands)), dtype=torch.float64))
    if isinstance(summed, Constant):
        return computed("Div", summed, replace(count, kind=summed.kind))
    return times(summed, reciprocal(count))


@reads("Neg")
def _neg(_: Node, operands: Sequence[Operand]) -> Operand:
    [operand] = operands
    if isinstance(operand, Constant):
        return replace(operand, tensor=-operand.tensor)
    return made(-value_of(operands).tensor, value_of(operands).roundings)


@reads("Pow")
def _pow(_: Node, operands: Sequence[Operand]) -> Operand:
    value, exponent = value_of(operands), constant(operands[1], "the exponent").tensor
    power = float(exponent.reshape(-1)[0]) if exponent.numel() == 1 and exponent.ndim <= value.tensor.ndim else 0.5
    if power < 1 or power != int(power):
        raise PolyboundError("only powers with one whole exponent from 1 on are read, which are polynomials")
    return made(value.tensor ** int(power), value.roundings * power)


@reads("Cast", attributes=("to", "saturate"))
def _cast(node: Node, operands: Sequence[Operand]) -> Operand:
    [operand] = operands
    if not isinstance(operand, Constant):
        raise PolyboundError("only constants are cast")
    return cast(operand, node.get("to", 0))


@reads("ConstantOfShape", attributes=("value",))
def _filled(node: Node, operands: Sequence[Operand]) -> Operand:
    shape = constant(operands[0], "the shape")
    sizes, value = [int(size) for size in shape.tensor.reshape(-1).tolist()], node.get("value", None)
    if any(size < 0 for size in sizes) or prod(sizes) > LARGEST:
        raise PolyboundError(f"it makes a tensor of shape {sizes}: up to {LARGEST:,} entries fit")
    entry = Constant(torch.zeros(1, dtype=torch.float64)) if value is None else constant_of(value)
    return replace(entry, tensor=entry.tensor.reshape(-1)[:1].expand(sizes).contiguous(), sizes=shape.sizes)


@reads("Shape", attributes=("start", "end"))
def _shape(node: Node, operands: Sequence[Operand]) -> Operand:
    """The sizes of a tensor; those of an open batch are not fixed."""
    [source] = operands
    if source is None:
        raise PolyboundError("its operand is left out")
    sizes = list(source.tensor.shape)[node.get("start", 0) : node.get("end", None)]
    is_open = node.batch is None and (isinstance(source, Value) or source.sizes)
    return Constant(torch.tensor(sizes, dtype=torch.long), sizes=is_open, kind=TensorProto.INT64)


@reads("Dropout", attributes=("ratio", "seed"))
def _dropout(node: Node, operands: Sequence[Operand]) -> Operand:
    training = operands[2] if len(operands) > 2 else None
    if node.opset < 7 or (training is not None and bool(constant(training, "training_mode").tensor.any())):
        raise PolyboundError("dropout in training mode is random")
    return operands[0]


@reads("BatchNormalization", attributes=("epsilon", "momentum", "training_mode", "spatial"))
def _normalised(node: Node, operands: Sequence[Operand]) -> Operand:
    value = value_of(operands)
    scale, bias, mean, var = (constant(operand, "a statistic") for operand in operands[1:5])
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
    return made(found, max(max(value.roundings, mean.roundings) + roundings, bias.roundings))


# Matrices.


@reads("Gemm", attributes=("alpha", "beta", "transA", "transB"))
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
    fixed = bias.tensor if isinstance(bias, Constant) else None
    if fixed is not None and alpha == 1 and (fixed.ndim < 2 or fixed.shape[0] == 1) and isinstance(other, Constant):
        added, own = product(torch.tensor(beta, dtype=torch.float64), fixed.reshape(-1).expand(shape[1]).contiguous())
        if not own:
            return made(torch.addmm(added, A, B), max(roundings, bias.roundings if bias else 0.0))
    found = _product(made(A, 0.0) if isinstance(one, Value) else Constant(A), _like(other, B)).tensor * alpha
    if bias is None:
        return made(found, roundings)
    return made(found + bias.tensor * beta, max(roundings, bias.roundings))


def _like(operand: Value | Constant, tensor: Tensor) -> Value | Constant:
    return made(tensor, 0.0) if isinstance(operand, Value) else Constant(tensor)


@reads("MatMul")
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
        return made(_product(_like(one, left.unsqueeze(0)), other).tensor.squeeze(-2), roundings)
    if right.ndim == 1:
        return made(_product(one, _like(other, right.unsqueeze(1))).tensor.squeeze(-1), roundings)
    if left.shape[-1] != right.shape[-2]:
        raise PolyboundError(f"matrices of shapes {tuple(left.shape)} and {tuple(right.shape)} do not fit")
    sides = *np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1]
    check_size(sides)
    if isinstance(one, Value) and isinstance(other, Constant) and right.ndim == 2:
        return made(torch.matmul(left, right), roundings)
    if isinstance(one, Constant) and left.ndim == 2:
        return made(torch.matmul(right.transpose(-1, -2), left.t()).transpose(-1, -2), roundings)
    if prod(sides) * left.shape[-1] > _MULTIPLIED:
        raise PolyboundError(f"it multiplies matrices by more than {_MULTIPLIED:,} products of entries")
    return made((left.unsqueeze(-1) * right.unsqueeze(-3)).sum(-2), roundings)


# Sums and means over dimensions.


@reads("ReduceMean", "ReduceSum", "ReduceSumSquare", attributes=("axes", "keepdims", "noop_with_empty_axes"))
def _reduced(node: Node, operands: Sequence[Operand]) -> Operand:
    value, given = value_of(operands), operands[1] if len(operands) > 1 else None
    tensor, roundings, rank = value.tensor, value.roundings, value.tensor.ndim
    chosen = node.get("axes", []) if given is None else constant(given, "which axes it takes").tensor.tolist()
    if any(not -rank <= axis < rank for axis in chosen):
        raise PolyboundError(f"axes {chosen} are not among {rank} dimensions")
    if node.operator == "ReduceSumSquare":
        tensor, roundings = tensor * tensor, 2 * roundings  # type: ignore[assignment]
    if not chosen and node.get("noop_with_empty_axes", 0):
        return made(tensor, roundings)
    axes = sorted({int(axis) % rank for axis in chosen} or set(range(rank)))
    summed = made(torch.sum(tensor, axes, keepdim=bool(node.get("keepdims", 1))), roundings)
    return mean(summed, prod(tensor.shape[axis] for axis in axes)) if node.operator == "ReduceMean" else summed


def mean(summed: Value, count: int) -> Value:
    """A sum of `count` entries, divided by their number."""
    return times(summed, reciprocal(Constant(torch.tensor(float(count), dtype=torch.float64))))


@reads("CumSum", attributes=("exclusive", "reverse"))
def _cumulated(node: Node, operands: Sequence[Operand]) -> Operand:
    value, axis = value_of(operands), int(constant(operands[1], "the axis").tensor.reshape(()))
    size = value.tensor.shape[axis]
    if size * value.tensor.numel() > LARGEST:
        raise PolyboundError(f"it adds up {size:,} entries, which are too many")
    below = torch.ones(size, size, dtype=torch.float64).triu(int(bool(node.get("exclusive", 0))))
    weight = Constant(below.t().contiguous() if node.get("reverse", 0) else below)
    last = made(value.tensor.movedim(axis, -1), value.roundings)
    return made(_product(last, weight).tensor.movedim(-1, axis), value.roundings)


# Windows over images: convolutions, transposed ones, average poolings.


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
