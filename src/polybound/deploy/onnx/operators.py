"""ONNX's operators on values: those of affine maps and products. Any other is refused, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from polybound.deploy.onnx.affine import average_pool, convolution, written_out
from polybound.deploy.onnx.constants import PARTS, Constant, Node, product, quotient
from polybound.deploy.onnx.expressions import Value, add, multiply, scale, shift
from polybound.errors import PolyboundError
from polybound.models import Conv, Dense, Pool
from polybound.theory import DENSE_LIMIT

Operand = Value | Constant | None
Operator = Callable[[Node, Sequence[Operand]], Value]

OPERATORS: dict[str, Operator] = {}
"""What is read of tensors that depend on the input; filled below."""

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Cast": ("to", "saturate"),
    "Concat": ("axis",),
    "Gather": ("axis",),
    "Shape": ("end", "start"),
    "Split": ("axis", "num_outputs", "split"),
}
"""The attributes that are read; old opsets have others, such as `broadcast`, which change what is computed."""

_REASONS = {
    ("Loop", "Scan", "If"): "loops and branches are not read",
    ("MaxPool", "Relu", "LeakyRelu", "Clip", "Abs", "Max", "Min", "PRelu"): "it is piecewise, not a polynomial",
    ("Softmax", "LogSoftmax", "Sigmoid", "Tanh", "Exp", "Erf", "Gelu", "Softplus"): "it is not a polynomial",
    ("QuantizeLinear", "DequantizeLinear"): "it rounds, which is not a polynomial",
}


def why_not(operator: str) -> str:
    """Why an operator is not read."""
    for operators, reason in _REASONS.items():
        if operator in operators:
            return reason
    return f"only {', '.join(sorted((*OPERATORS, *PARTS)))} are read"


def _reads(operator: str, *attributes: str) -> Callable[[Operator], Operator]:
    """Declare how an operator is read, and which of its attributes."""

    def known(function: Operator) -> Operator:
        OPERATORS[operator], ATTRIBUTES[operator] = function, attributes
        return function

    return known


def _value(operands: Sequence[Operand]) -> Value:
    """The first operand, which must be the one that depends on the input."""
    if not isinstance(operands[0], Value):
        raise PolyboundError("only its first operand may depend on the input")
    return operands[0]


def _constant(operand: Operand, what: str) -> Tensor:
    if not isinstance(operand, Constant):
        raise PolyboundError(f"{what} depends on the input")
    if operand.sizes:
        raise PolyboundError(f"{what} depends on the size of the batch")
    return operand.tensor


def _roundings(*operands: Operand) -> float:
    """The largest number of roundings of the operands that are constants."""
    return max((operand.roundings for operand in operands if isinstance(operand, Constant)), default=0.0)


def _flat(constant: Operand, value: Value, what: str) -> Tensor:
    """A constant broadcast over a value's numbers as ONNX does, flat."""
    tensor = _constant(constant, what).double()
    dims = len(value.shape) + 1
    if tensor.ndim > dims:
        raise PolyboundError(f"{what} of shape {tuple(tensor.shape)} makes {tensor.ndim} dimensions of {dims}")
    if tensor.ndim == dims:
        if tensor.shape[0] != 1:
            raise PolyboundError(f"{what} of shape {tuple(tensor.shape)} differs between the inputs of a batch")
        tensor = tensor[0]
    try:
        return tensor.expand(value.shape).reshape(-1).contiguous()
    except RuntimeError:
        raise PolyboundError(f"{what} of shape {tuple(tensor.shape)} does not fit {value.shape}") from None


def _two(operands: Sequence[Operand]) -> tuple[Value, Operand]:
    """The operand that depends on the input, and the other one; if both do, they must have one shape."""
    one, other = operands
    if not isinstance(one, Value):
        one, other = other, one
    if not isinstance(one, Value):
        raise AssertionError("constants are folded before")
    if isinstance(other, Value) and one.shape != other.shape:
        raise PolyboundError(f"its operands have shapes {one.shape} and {other.shape}; one of them would be repeated")
    return one, other


@_reads("Add")
def _add(_: Node, operands: Sequence[Operand]) -> Value:
    value, other = _two(operands)
    if isinstance(other, Value):
        return add(value, other)
    return shift(value, _flat(other, value, "the summand"), _roundings(other))


@_reads("Neg")
def _neg(_: Node, operands: Sequence[Operand]) -> Value:
    value = _value(operands)
    return scale(value, -torch.ones(value.size, dtype=torch.float64))


@_reads("Sub")
def _sub(node: Node, operands: Sequence[Operand]) -> Value:
    one, other = operands
    if isinstance(other, Constant):
        return _add(node, (one, replace(other, tensor=-other.tensor)))
    return _add(node, (one, _neg(node, (other,))))


@_reads("Mul")
def _mul(node: Node, operands: Sequence[Operand]) -> Value:
    value, other = _two(operands)
    if isinstance(other, Value):
        return multiply(value, other, node.name)
    return scale(value, _flat(other, value, "the factor"), _roundings(other))


@_reads("Div")
def _div(_: Node, operands: Sequence[Operand]) -> Value:
    if isinstance(operands[1], Value):
        raise PolyboundError("it divides by something that depends on the input, which is not a polynomial")
    value = _value(operands)
    divisor = _flat(operands[1], value, "the divisor")
    if not divisor.all():
        raise PolyboundError("it divides by zero")
    return scale(value, *quotient(torch.ones_like(divisor), divisor, _roundings(operands[1])))


@_reads("Gemm", "alpha", "beta", "transA", "transB")
def _gemm(node: Node, operands: Sequence[Operand]) -> Value:
    source, weight = operands[0], _constant(operands[1], "the matrix").double()
    if not isinstance(source, Value) or node.get("transA", 0):
        raise PolyboundError("the input must be its first operand, not transposed")
    if not node.get("transB", 0):
        weight = weight.T
    if len(source.shape) != 1 or weight.ndim != 2 or weight.shape[1] != source.size:
        raise PolyboundError(f"a matrix of shape {tuple(weight.shape)} does not fit {source.shape}")
    shape = (weight.shape[0],)
    alpha, beta = (torch.tensor(node.get(name, 1.0), dtype=torch.float64) for name in ("alpha", "beta"))
    weight, roundings = product(alpha, weight, _roundings(operands[1]))
    bias = None
    if len(operands) > 2 and operands[2] is not None:
        flat = _flat(operands[2], replace(source, shape=shape), "the bias")
        bias, more = product(beta, flat, _roundings(operands[2]))
        roundings = max(roundings, more)
    return source.then(Dense(weight.contiguous(), bias), shape, roundings)


@_reads("MatMul")
def _matmul(_: Node, operands: Sequence[Operand]) -> Value:
    if isinstance(operands[0], Value) and isinstance(operands[1], Value):
        raise PolyboundError("it multiplies two matrices that both depend on the input")
    source, weight = operands[0], _constant(operands[1], "the matrix").double()
    if not isinstance(source, Value) or weight.ndim != 2 or source.shape[-1:] != weight.shape[:1]:
        raise PolyboundError(f"only x @ W is read, with W of two dimensions that fit; W has {tuple(weight.shape)}")
    shape, roundings = (*source.shape[:-1], weight.shape[1]), _roundings(operands[1])
    if len(source.shape) == 1:
        return source.then(Dense(weight.T.contiguous()), shape, roundings)
    before = source.shape
    matrix = written_out(lambda x: (x.reshape(-1, *before) @ weight).flatten(1), source.size)
    return source.then(matrix, shape, roundings)


_WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")


@_reads("Conv", *_WINDOW, "group")
def _conv(node: Node, operands: Sequence[Operand]) -> Value:
    weight, value = _constant(operands[1], "the kernel").double(), _value(operands)
    bias = None if len(operands) < 3 or operands[2] is None else _constant(operands[2], "the bias").double()
    step, shape = convolution(node.attributes, value.shape, weight, bias)
    return value.then(step, shape, _roundings(*operands))


@_reads("AveragePool", *_WINDOW, "ceil_mode", "count_include_pad")
def _pool(node: Node, operands: Sequence[Operand]) -> Value:
    value = _value(operands)
    step, shape = average_pool(node.attributes, value.shape)
    window = prod(node.attributes["kernel_shape"])
    return value.then(step, shape, 0.0 if isinstance(step, Pool) or window & (window - 1) == 0 else 2.0)


# Operators that change the shape. The batch, of any size, stays the first dimension.


@_reads("Identity")
def _identity(_: Node, operands: Sequence[Operand]) -> Value:
    return _value(operands)


@_reads("Flatten", "axis")
def _flatten(node: Node, operands: Sequence[Operand]) -> Value:
    value, axis = _value(operands), node.get("axis", 1)
    if axis not in (1, -len(value.shape)):
        raise PolyboundError(f"axis {axis} would mix the inputs of a batch; only 1 does not")
    return replace(value, shape=(value.size,))


@_reads("Reshape", "allowzero")
def _reshape(node: Node, operands: Sequence[Operand]) -> Value:
    value, target = operands
    if not isinstance(value, Value) or not isinstance(target, Constant):
        raise PolyboundError("the new shape depends on the input")
    sizes = [int(size) for size in target.tensor.reshape(-1).tolist()]
    if not sizes or (0 in sizes and node.get("allowzero", 0) and not target.sizes):
        raise PolyboundError(f"the new shape {sizes} has no batch, or is empty")
    if sizes[0] not in (0, 1, -1) or (target.sizes and 0 in sizes[1:]):
        raise PolyboundError(f"the new shape {sizes} does not begin with the batch, which may be of any size")
    # 0 keeps a size, and -1, if there is one, is whatever is left.
    kept = [0, *value.shape] + [0] * len(sizes)
    rest = [size or kept[place] for place, size in enumerate(sizes) if place]
    known = prod(size for size in rest if size != -1)
    rest = [value.size // known if size == -1 and known > 0 else size for size in rest]
    if any(size < 1 for size in rest) or prod(rest) != value.size:
        raise PolyboundError(f"{value.shape} to {sizes} would mix the inputs of a batch")
    return replace(value, shape=tuple(rest))


def _axes(node: Node, operands: Sequence[Operand]) -> list[int]:
    if len(operands) > 1 and operands[1] is not None:
        return [int(axis) for axis in _constant(operands[1], "the axes").reshape(-1).tolist()]
    return list(node.get("axes", []))


@_reads("Squeeze", "axes")
def _squeeze(node: Node, operands: Sequence[Operand]) -> Value:
    value = _value(operands)
    axes = {axis % (len(value.shape) + 1) for axis in _axes(node, operands)}
    if not axes:
        raise PolyboundError("without axes it would squeeze a batch of one as well")
    if 0 in axes or any(value.shape[axis - 1] != 1 for axis in axes):
        raise PolyboundError(f"axes {sorted(axes)} of {value.shape} cannot be squeezed")
    return replace(value, shape=tuple(size for place, size in enumerate(value.shape, 1) if place not in axes))


@_reads("Unsqueeze", "axes")
def _unsqueeze(node: Node, operands: Sequence[Operand]) -> Value:
    value, axes = _value(operands), _axes(node, operands)
    dims = len(value.shape) + 1 + len(axes)
    if 0 in (places := {axis % dims for axis in axes}):
        raise PolyboundError("a dimension before the batch is not read")
    sizes = iter(value.shape)
    return replace(value, shape=tuple(1 if place in places else next(sizes) for place in range(1, dims)))


@_reads("Transpose", "perm")
def _transpose(node: Node, operands: Sequence[Operand]) -> Value:
    value = _value(operands)
    order = list(node.get("perm", range(len(value.shape), -1, -1)))
    if order[0] != 0:
        raise PolyboundError(f"it moves the batch from the first dimension: {order}")
    before, shape = value.shape, tuple(value.shape[place - 1] for place in order[1:])
    wide = [place for place in order[1:] if before[place - 1] > 1]
    if wide == sorted(wide):
        return replace(value, shape=shape)
    return value.then(written_out(lambda x: x.reshape(-1, *before).permute(order).flatten(1), value.size), shape)


def parts_of(node: Node, value: Value, operands: Sequence[Constant | None]) -> list[Value]:
    """The parts of a tensor that depends on the input, none of them along the batch.

    Raises:
        PolyboundError: it takes a part of the batch, or a place that depends on the size of the batch.
    """
    if any(operand is not None and operand.sizes for operand in operands):
        raise PolyboundError("which part it takes depends on the size of the batch")
    # The batch is one input here, so that a part of it shows in the size.
    places = torch.arange(value.size).reshape(1, *value.shape)
    constants = [None if operand is None else operand.tensor for operand in operands]
    axes = [node.get("axis", 0)]
    if node.operator == "Slice":
        starts, ends, chosen, steps = (*constants, None, None, None, None)[:4]
        axes = list(range(0 if starts is None else len(starts))) if chosen is None else chosen.tolist()
        if starts is not None and ends is not None:
            # An end of 2^31 - 1 or more means that of the axis, however long it is.
            ranges = zip(starts, ends, [1] * len(starts) if steps is None else steps, strict=True)
            whole = [int(start) == 0 and int(end) >= 2**31 - 1 and int(step) == 1 for start, end, step in ranges]
            axes = [axis for axis, all_of_it in zip(axes, whole, strict=True) if not all_of_it]
    if any(axis % places.ndim == 0 for axis in axes):
        raise PolyboundError("it takes a part of the batch")
    return [_selected(value, part[0]) for part in PARTS[node.operator](places, node.attributes, constants)]


def _selected(value: Value, places: Tensor) -> Value:
    """The entries at some places of a value, in the shape that the places have."""
    flat, shape = places.reshape(-1), tuple(places.shape)
    last = value.steps[-1] if value.steps else None
    if isinstance(last, Dense):
        part: Dense | Conv = Dense(last.weight[flat], last.constant[flat])
        return replace(value, steps=(*value.steps[:-1], part), shape=shape)
    if isinstance(last, Conv):
        space = prod(last.shape[1:])
        channels = flat[::space] // space
        if torch.equal((channels.unsqueeze(1) * space + torch.arange(space)).reshape(-1), flat):
            part = Conv(last.weight[channels], last.bias[channels], last.shape)
            return replace(value, steps=(*value.steps[:-1], part), shape=shape)
    if len(flat) * value.size > DENSE_LIMIT:
        raise PolyboundError(f"{len(flat):,} of {value.size:,} numbers are too many to be picked one by one")
    matrix = torch.zeros(len(flat), value.size, dtype=torch.float64)
    matrix[torch.arange(len(flat)), flat] = 1.0
    return value.then(Dense(matrix), shape)
