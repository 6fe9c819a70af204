"""Constants of a graph: read from the file, and folded in float64 where operators have constants only.

What is moved stays exact; what is computed says how many roundings it has met, see `onnx_rounding`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod

import onnx
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor

from polybound.deploy.onnx.expressions import Constant, Value
from polybound.deploy.onnx.files import type_name
from polybound.deploy.onnx.operators import Node, Operand, gather, slice_parts
from polybound.deploy.onnx.rounding import product, quotient, total
from polybound.errors import PolyboundError
from polybound.theory import DENSE_LIMIT

__all__ = ["FOLDED", "constant_of", "fold", "sizes_of"]


_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
_WHOLE = (TensorProto.INT64, TensorProto.INT32)


def constant_of(tensor: onnx.TensorProto) -> Constant:
    """A tensor of the file; floats in float64.

    Raises:
        PolyboundError: its type is none of float32, float64, int32 and int64, or it does not hold what it claims.
    """
    if tensor.data_type not in (*_FLOATS, *_WHOLE):
        raise PolyboundError(
            f"tensors of type {type_name(tensor.data_type)} are not read; FLOAT, DOUBLE, INT32 and INT64 are"
        )
    if prod(tensor.dims) > DENSE_LIMIT:
        raise PolyboundError(f"a tensor of shape {list(tensor.dims)} is too large: {DENSE_LIMIT:,} entries fit")
    try:
        array = torch.from_numpy(numpy_helper.to_array(tensor).copy())
    except (ValueError, TypeError) as error:
        raise PolyboundError(f"a tensor does not hold what it claims ({error})") from None
    if not torch.isfinite(array).all():
        raise PolyboundError("a tensor's entries are not all finite")
    return Constant(array.double() if tensor.data_type in _FLOATS else array.long())


def sizes_of(value: Value, node: Node) -> Constant:
    """The sizes of a tensor that depends on the input: 0 for the batch, which may be of any size."""
    sizes = [0, *value.shape][node.get("start", 0) : node.get("end", None)]
    return Constant(torch.tensor(sizes, dtype=torch.long), sizes=True)


Tensors = Sequence[Tensor]
"""The operands of a node, at least one; an optional one that is left out at the end is missing."""


def _axes(node: Node, operands: Tensors) -> list[int]:
    return [int(axis) for axis in (operands[1].tolist() if len(operands) > 1 else node.get("axes", []))]


def _reshape(node: Node, operands: Tensors) -> Tensor:
    source, target = operands
    if node.get("allowzero", 0) and not target.all():
        raise PolyboundError("the new shape is empty")
    return source.reshape([source.shape[i] if size == 0 else int(size) for i, size in enumerate(target.tolist())])


def _unsqueeze(node: Node, operands: Tensors) -> Tensor:
    source = operands[0]
    dims = source.ndim + len(_axes(node, operands))
    for axis in sorted(axis % dims for axis in _axes(node, operands)):
        source = source.unsqueeze(axis)
    return source


def _squeeze(node: Node, operands: Tensors) -> Tensor:
    axes = _axes(node, operands)
    if any(operands[0].shape[axis] != 1 for axis in axes):
        raise PolyboundError(f"axes {axes} of {tuple(operands[0].shape)} cannot be squeezed")
    return operands[0].squeeze(tuple(axes)) if axes else operands[0].squeeze()


def _cast(node: Node, operands: Tensors) -> Tensor:
    if node.get("to", 0) in _FLOATS:
        # Numbers between two of float32 are rounded to one of them by the cast itself.
        return (operands[0].float() if node.get("to", 0) == TensorProto.FLOAT else operands[0]).double()
    if node.get("to", 0) in _WHOLE and not operands[0].is_floating_point():
        return operands[0]
    raise PolyboundError("constants are cast to FLOAT and DOUBLE only")


def _transpose(node: Node, operands: Tensors) -> Tensor:
    return operands[0].permute(*node.get("perm", range(operands[0].ndim - 1, -1, -1)))


def _expand(_: Node, operands: Tensors) -> Tensor:
    source, target = operands[0], [int(size) for size in operands[1].tolist()]
    if prod(target) * source.numel() > DENSE_LIMIT:
        raise PolyboundError(f"a constant of shape {target} is too large")
    return source * torch.ones(target, dtype=source.dtype)  # either of the two may be repeated


_MOVED: dict[str, Callable[[Node, Tensors], Tensor]] = {
    "Cast": _cast,
    "Concat": lambda node, operands: torch.cat(list(operands), dim=node.get("axis", 0)),
    "Expand": _expand,
    "Gather": lambda node, operands: gather(operands[0], node.attributes, operands[1:])[0],
    "Identity": lambda _, operands: operands[0],
    "Neg": lambda _, operands: -operands[0],
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""What is moved about, cast or negated where all operands are constants: exactly."""


def _divide(one: Tensor, other: Tensor, roundings: float) -> tuple[Tensor, float]:
    if not one.is_floating_point() or not other.all():
        raise PolyboundError("it divides whole numbers, or by zero")
    return quotient(one, other, roundings)


_COMPUTED: dict[str, Callable[[Tensor, Tensor, Constant, Constant], tuple[Tensor, float]]] = {
    "Add": lambda a, b, one, other: total(a, b, max(one.roundings, other.roundings)),
    "Div": lambda a, b, one, other: _divide(a, b, one.roundings + other.roundings),
    "MatMul": lambda a, b, one, other: product(a, b, one.roundings + other.roundings, torch.matmul),
    "Mul": lambda a, b, one, other: product(a, b, one.roundings + other.roundings),
    "Sub": lambda a, b, one, other: total(a, -b, max(one.roundings, other.roundings)),
}
"""What is computed where both operands are constants, and the roundings that the result has met."""

FOLDED = (*_MOVED, *_COMPUTED, "Slice")
"""What is folded where all operands are constants."""

_SIZES = ("Cast", "Concat", "Gather", "Identity", "Slice", "Squeeze", "Unsqueeze")


def fold(node: Node, operands: Sequence[Operand]) -> Constant:
    """An operator on constants. Sizes of tensors may be moved about, but not computed with: the batch has any size.

    Raises:
        PolyboundError: the operator is not among those that are folded, or its operands do not fit.
    """
    constants = [operand for operand in operands if isinstance(operand, Constant)]
    sizes = any(constant.sizes for constant in constants)
    if node.operator not in FOLDED:
        raise PolyboundError(f"of constants only {', '.join(sorted(FOLDED))} are read")
    if sizes and node.operator not in _SIZES:
        raise PolyboundError("it computes with the size of the batch, which may be any")
    tensors = [constant.tensor for constant in constants]
    roundings = max((constant.roundings for constant in constants), default=0.0)
    if node.operator == "Slice":
        places = [operand.tensor if isinstance(operand, Constant) else None for operand in operands[1:]]
        [result] = slice_parts(tensors[0], node.attributes, places)
    elif node.operator in _MOVED:
        result = _MOVED[node.operator](node, tensors)
        if node.operator == "Cast" and roundings:
            roundings = inf  # a cast of a number that is not known may go either way
    else:
        one, other = constants
        result, roundings = _COMPUTED[node.operator](one.tensor, other.tensor, one, other)
    if result.numel() > DENSE_LIMIT:
        raise PolyboundError(f"a constant of shape {tuple(result.shape)} is too large")
    if not torch.isfinite(result).all():
        raise PolyboundError("it makes numbers that are not finite")
    return Constant(result, sizes, roundings)
