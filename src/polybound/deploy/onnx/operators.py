"""ONNX's operators on values: those of affine maps and products. Any other is refused, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from polybound.deploy.onnx.affine import average_pool, convolution, written_out
from polybound.deploy.onnx.expressions import Constant, Value, add, multiply, scale, shift
from polybound.deploy.onnx.rounding import product, quotient
from polybound.errors import PolyboundError
from polybound.models import Conv, Dense, Pool
from polybound.theory import DENSE_LIMIT

__all__ = ["ATTRIBUTES", "OPERATORS", "PARTS", "Node", "Operand", "gather", "parts_of", "slice_parts", "why_not"]


# Operators that take parts of a tensor: Slice, Gather and Split, of constants and of what depends on the input.


Attributes = dict[str, Any]

_LONGEST = 2**31 - 1
"""An end from here on means that of the axis."""


def slice_parts(source: Tensor, _: Attributes, operands: Sequence[Tensor | None]) -> list[Tensor]:
    """Slice: starts, ends, and perhaps axes and steps."""
    starts, ends, axes, steps = (None if part is None else part.tolist() for part in _four(operands))
    if starts is None or ends is None:
        raise PolyboundError("a slice without its starts and ends as operands is not read")
    for axis, start, end, step in zip(
        range(len(starts)) if axes is None else axes, starts, ends, steps or [1] * len(starts), strict=True
    ):
        if step < 1:
            raise PolyboundError("slices backwards are not read")
        places = range(source.shape[axis])[slice(start, end, step)]
        if not places:
            raise PolyboundError(f"it takes nothing of an axis of size {source.shape[axis]}")
        source = source.index_select(axis, torch.tensor(list(places), dtype=torch.long))
    return [source]


def _four(operands: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Starts, ends, axes and steps of a Slice; None for what is not there."""
    return (*operands, None, None, None, None)[:4]


def _takes_all(place: int, starts: Tensor | None, ends: Tensor | None, steps: Tensor | None) -> bool:
    """Whether a Slice takes an axis whole, however long it is."""
    if starts is None or ends is None:
        return False
    return int(starts[place]) == 0 and int(ends[place]) >= _LONGEST and (steps is None or int(steps[place]) == 1)


def gather(source: Tensor, attributes: Attributes, operands: Sequence[Tensor | None]) -> list[Tensor]:
    """Gather: the entries of an axis that an index names."""
    [index] = operands
    axis = attributes.get("axis", 0)
    axis, size = axis % source.ndim, source.shape[axis]
    if index is None or not bool(((index >= -size) & (index < size)).all()):
        raise PolyboundError(f"it takes what an axis of size {size} does not have")
    chosen = source.index_select(axis, index.reshape(-1).remainder(source.shape[axis]))
    return [chosen.reshape((*source.shape[:axis], *index.shape, *source.shape[axis + 1 :]))]


def _split(source: Tensor, attributes: Attributes, operands: Sequence[Tensor | None]) -> list[Tensor]:
    """Split: parts of given sizes, or of equal ones."""
    axis = attributes.get("axis", 0)
    size, count = source.shape[axis], attributes["outputs"]
    each = -(-size // count)
    sizes = (
        operands[0].tolist()
        if operands and operands[0] is not None
        else attributes.get("split", [each] * (count - 1) + [size - each * (count - 1)])
    )
    if sum(sizes) != size or len(sizes) != count or min(sizes) < 1:
        raise PolyboundError(f"parts of sizes {sizes} are not {count} of an axis of size {size}")
    return [source.narrow(axis, sum(sizes[:n]), length) for n, length in enumerate(sizes)]


PARTS: dict[str, Callable[[Tensor, Attributes, Sequence[Tensor | None]], list[Tensor]]] = {
    "Gather": gather,
    "Slice": slice_parts,
    "Split": _split,
}
"""Each takes the tensor, the node's attributes with the number of `outputs`, and its other operands."""


def parts_of(operator: str, value: Value, attributes: Attributes, operands: Sequence[Constant | None]) -> list[Value]:
    """The parts of a tensor that depends on the input, none of them along the batch.

    Raises:
        PolyboundError: it takes a part of the batch, or computes where with the size of the batch.
    """
    if any(operand is not None and operand.sizes for operand in operands):
        raise PolyboundError("which part it takes depends on the size of the batch")
    # The batch is one input here, so that a part of it is told by its size.
    places = torch.arange(value.size).reshape(1, *value.shape)
    constants = [None if operand is None else operand.tensor for operand in operands]
    axes = [attributes.get("axis", 0)]
    if operator == "Slice":
        starts, ends, chosen, steps = _four(constants)
        axes = list(range(0 if starts is None else len(starts))) if chosen is None else chosen.tolist()
        axes = [axis for place, axis in enumerate(axes) if not _takes_all(place, starts, ends, steps)]
    if any(axis % places.ndim == 0 for axis in axes):
        raise PolyboundError("it takes a part of the batch")
    return [_selected(value, part[0]) for part in PARTS[operator](places, attributes, constants)]


def _selected(value: Value, places: Tensor) -> Value:
    """The entries at some places of a value, in the shape that the places have."""
    flat, shape = places.reshape(-1), tuple(places.shape)
    last = value.steps[-1] if value.steps else None
    if isinstance(last, Dense):
        part: Dense | Conv = Dense(last.weight[flat], last.constant[flat])
        return replace(value, steps=(*value.steps[:-1], part), shape=shape)
    if isinstance(last, Conv) and (channels := _channels(last, flat)) is not None:
        part = Conv(last.weight[channels], last.bias[channels], last.shape)
        return replace(value, steps=(*value.steps[:-1], part), shape=shape)
    if len(flat) * value.size > DENSE_LIMIT:
        raise PolyboundError(f"{len(flat):,} of {value.size:,} numbers are too many to be picked one by one")
    matrix = torch.zeros(len(flat), value.size, dtype=torch.float64)
    matrix[torch.arange(len(flat)), flat] = 1.0
    return value.then(Dense(matrix), shape)


def _channels(step: Conv, flat: Tensor) -> Tensor | None:
    """The channels that are taken, if they are taken whole."""
    space = prod(step.shape[1:])
    channels = flat[::space] // space
    whole = (channels.unsqueeze(1) * space + torch.arange(space)).reshape(-1)
    return channels if torch.equal(whole, flat) else None


Operand = Value | Constant | None


@dataclass(frozen=True)
class Node:
    """A node of a graph: its operator, its name, and its attributes as plain types."""

    operator: str
    name: str
    attributes: dict[str, Any]

    def get(self, name: str, default: Any) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)


def _constant(operand: Operand, what: str) -> Tensor:
    if not isinstance(operand, Constant):
        raise PolyboundError(f"{what} depends on the input")
    if operand.sizes:
        raise PolyboundError(f"{what} depends on the size of the batch")
    return operand.tensor


def _roundings(*operands: Operand) -> float:
    """The most roundings that the entries of one of the operands have met, of those that are constants."""
    return max((operand.roundings for operand in operands if isinstance(operand, Constant)), default=0.0)


def _flat(constant: Operand, value: Value, what: str) -> Tensor:
    """A constant as long as a value's numbers: broadcast over them as ONNX does."""
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


def _pair(operands: Sequence[Operand]) -> tuple[Value, Value] | None:
    """Both operands if both depend on the input; they must then have one shape."""
    one, other = operands
    if not (isinstance(one, Value) and isinstance(other, Value)):
        return None
    if one.shape != other.shape:
        raise PolyboundError(f"its operands have shapes {one.shape} and {other.shape}; one of them would be repeated")
    return one, other


def _one(operands: Sequence[Operand]) -> tuple[Value, Operand]:
    """The operand that depends on the input, and the other one."""
    one, other = operands
    if isinstance(one, Value):
        return one, other
    if isinstance(other, Value):
        return other, one
    raise AssertionError("constants are folded before")


def _add(_: Node, operands: Sequence[Operand]) -> Value:
    if pair := _pair(operands):
        return add(*pair)
    value, constant = _one(operands)
    return shift(value, _flat(constant, value, "the summand"), _roundings(constant))


def _negated(operand: Operand) -> Operand:
    if isinstance(operand, Value):
        return scale(operand, -torch.ones(operand.size, dtype=torch.float64))
    return operand if operand is None else replace(operand, tensor=-operand.tensor)


def _sub(node: Node, operands: Sequence[Operand]) -> Value:
    return _add(node, (operands[0], _negated(operands[1])))


def _neg(_: Node, operands: Sequence[Operand]) -> Value:
    value, _other = _one((*operands, None))
    return scale(value, -torch.ones(value.size, dtype=torch.float64))


def _mul(node: Node, operands: Sequence[Operand]) -> Value:
    if pair := _pair(operands):
        return multiply(*pair, node.name)
    value, constant = _one(operands)
    return scale(value, _flat(constant, value, "the factor"), _roundings(constant))


def _div(_: Node, operands: Sequence[Operand]) -> Value:
    if isinstance(operands[1], Value):
        raise PolyboundError("it divides by something that depends on the input, which is no polynomial")
    value, constant = _one(operands)
    divisor = _flat(constant, value, "the divisor")
    if not divisor.all():
        raise PolyboundError("it divides by zero")
    return scale(value, *quotient(torch.ones_like(divisor), divisor, _roundings(constant)))


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


def _identity(_: Node, operands: Sequence[Operand]) -> Value:
    return _one((operands[0], None))[0]


def _flatten(node: Node, operands: Sequence[Operand]) -> Value:
    value, _ = _one((operands[0], None))
    axis = node.get("axis", 1)
    if axis not in (1, -len(value.shape)):
        raise PolyboundError(f"axis {axis} would mix the inputs of a batch; only 1 does not")
    return replace(value, shape=(value.size,))


def _reshape(node: Node, operands: Sequence[Operand]) -> Value:
    value, target = operands
    if not isinstance(value, Value) or not isinstance(target, Constant):
        raise PolyboundError("the new shape depends on the input")
    sizes = [int(size) for size in target.tensor.reshape(-1).tolist()]
    if not sizes or (0 in sizes and node.get("allowzero", 0) and not target.sizes):
        raise PolyboundError(f"the new shape {sizes} has no batch, or is empty")
    if sizes[0] not in (0, 1, -1) or (target.sizes and 0 in sizes[1:]):
        raise PolyboundError(f"the new shape {sizes} does not begin with the batch, which may be of any size")
    rest = _inferred(sizes, value)
    if any(size < 1 for size in rest) or prod(rest) != value.size:
        raise PolyboundError(f"{value.shape} to {sizes} would mix the inputs of a batch")
    return replace(value, shape=tuple(rest))


def _inferred(sizes: list[int], value: Value) -> list[int]:
    """A new shape without the batch: 0 keeps a size, and -1, if there is one, is whatever is left."""
    kept = [0, *value.shape] + [0] * len(sizes)
    rest = [size or kept[place] for place, size in enumerate(sizes) if place]
    known = prod(size for size in rest if size != -1)
    return [value.size // known if size == -1 and known > 0 else size for size in rest]


def _axes(node: Node, operands: Sequence[Operand]) -> list[int]:
    if len(operands) > 1 and operands[1] is not None:
        return [int(axis) for axis in _constant(operands[1], "the axes").reshape(-1).tolist()]
    return list(node.get("axes", []))


def _squeeze(node: Node, operands: Sequence[Operand]) -> Value:
    value, _ = _one((operands[0], None))
    axes = {axis % (len(value.shape) + 1) for axis in _axes(node, operands)}
    if not axes:
        raise PolyboundError("without axes it would squeeze a batch of one as well")
    if 0 in axes or any(value.shape[axis - 1] != 1 for axis in axes):
        raise PolyboundError(f"axes {sorted(axes)} of {value.shape} cannot be squeezed")
    return replace(value, shape=tuple(size for place, size in enumerate(value.shape, 1) if place not in axes))


def _unsqueeze(node: Node, operands: Sequence[Operand]) -> Value:
    value, _ = _one((operands[0], None))
    axes = _axes(node, operands)
    dims = len(value.shape) + 1 + len(axes)
    if 0 in (places := {axis % dims for axis in axes}):
        raise PolyboundError("a dimension before the batch is not read")
    sizes = iter(value.shape)
    return replace(value, shape=tuple(1 if place in places else next(sizes) for place in range(1, dims)))


def _transpose(node: Node, operands: Sequence[Operand]) -> Value:
    value, _ = _one((operands[0], None))
    order = list(node.get("perm", range(len(value.shape), -1, -1)))
    if order[0] != 0:
        raise PolyboundError(f"it moves the batch from the first dimension: {order}")
    shape = tuple(value.shape[place - 1] for place in order[1:])
    if [place for place in order[1:] if value.shape[place - 1] > 1] == sorted(
        place for place in order[1:] if value.shape[place - 1] > 1
    ):
        return replace(value, shape=shape)
    before = value.shape
    return value.then(written_out(lambda x: x.reshape(-1, *before).permute(order).flatten(1), value.size), shape)


def _conv(node: Node, operands: Sequence[Operand]) -> Value:
    value = operands[0]
    weight = _constant(operands[1], "the kernel").double()
    if not isinstance(value, Value):
        raise PolyboundError("the kernel may not depend on the input")
    bias = None if len(operands) < 3 or operands[2] is None else _constant(operands[2], "the bias").double()
    step, shape = convolution(node.attributes, value.shape, weight, bias)
    return value.then(step, shape, _roundings(*operands))


def _pool(node: Node, operands: Sequence[Operand]) -> Value:
    value, _ = _one((operands[0], None))
    step, shape = average_pool(node.attributes, value.shape)
    window = prod(node.attributes["kernel_shape"])
    return value.then(step, shape, 0.0 if isinstance(step, Pool) or window & (window - 1) == 0 else 2.0)


_WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "AveragePool": (*_WINDOW, "ceil_mode", "count_include_pad"),
    "Cast": ("to", "saturate"),
    "Concat": ("axis",),
    "Conv": (*_WINDOW, "group"),
    "Flatten": ("axis",),
    "Gather": ("axis",),
    "Gemm": ("alpha", "beta", "transA", "transB"),
    "Reshape": ("allowzero",),
    "Shape": ("end", "start"),
    "Split": ("axis", "num_outputs", "split"),
    "Squeeze": ("axes",),
    "Transpose": ("perm",),
    "Unsqueeze": ("axes",),
}
"""The attributes that are read; old opsets have others, such as `broadcast`, which change what is computed."""

OPERATORS: dict[str, Callable[[Node, Sequence[Operand]], Value]] = {
    "Add": _add,
    "AveragePool": _pool,
    "Conv": _conv,
    "Div": _div,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "Identity": _identity,
    "MatMul": _matmul,
    "Mul": _mul,
    "Neg": _neg,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Sub": _sub,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""What is read of tensors that depend on the input."""

_REASONS = {
    ("Loop", "Scan", "If"): "loops and branches are not read",
    ("MaxPool", "Relu", "LeakyRelu", "Clip", "Abs", "Max", "Min", "PRelu"): "it is piecewise, not a polynomial",
    ("Softmax", "LogSoftmax", "Sigmoid", "Tanh", "Exp", "Erf", "Gelu", "Softplus"): "it is no polynomial",
    ("QuantizeLinear", "DequantizeLinear"): "it rounds, which is no polynomial",
}


def why_not(operator: str) -> str:
    """Why an operator is not read."""
    for operators, reason in _REASONS.items():
        if operator in operators:
            return reason
    return f"only {', '.join(sorted((*OPERATORS, *PARTS)))} are read"
