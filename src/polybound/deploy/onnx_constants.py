"""Constants of a graph: read from the file, and folded in float64 where operators have constants only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import onnx
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor

from polybound.deploy.onnx_files import type_name
from polybound.deploy.onnx_operators import Node, Operand
from polybound.deploy.onnx_select import gather, slice_parts
from polybound.deploy.onnx_values import Constant, Value
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


def _axes(node: Node, operands: Sequence[Tensor]) -> list[int]:
    return [int(axis) for axis in (operands[1].tolist() if len(operands) > 1 else node.get("axes", []))]


def _reshape(_: Node, operands: Sequence[Tensor]) -> Tensor:
    source, target = operands
    return source.reshape([source.shape[i] if size == 0 else int(size) for i, size in enumerate(target.tolist())])


def _unsqueeze(node: Node, operands: Sequence[Tensor]) -> Tensor:
    source = operands[0]
    dims = source.ndim + len(_axes(node, operands))
    for axis in sorted(axis % dims for axis in _axes(node, operands)):
        source = source.unsqueeze(axis)
    return source


def _squeeze(node: Node, operands: Sequence[Tensor]) -> Tensor:
    axes = _axes(node, operands)
    return operands[0].squeeze(tuple(axes)) if axes else operands[0].squeeze()


def _cast(node: Node, operands: Sequence[Tensor]) -> Tensor:
    if node.get("to", 0) in _FLOATS:
        return operands[0].double()
    if node.get("to", 0) in _WHOLE and not operands[0].is_floating_point():
        return operands[0]
    raise PolyboundError("constants are cast to FLOAT and DOUBLE only")


def _divide(_: Node, operands: Sequence[Tensor]) -> Tensor:
    one, other = operands
    if not one.is_floating_point() or not other.all():
        raise PolyboundError("it divides whole numbers, or by zero")
    return one / other


def _transpose(node: Node, operands: Sequence[Tensor]) -> Tensor:
    return operands[0].permute(*node.get("perm", range(operands[0].ndim - 1, -1, -1)))


def _expand(_: Node, operands: Sequence[Tensor]) -> Tensor:
    source, target = operands[0], [int(size) for size in operands[1].tolist()]
    if prod(target) * source.numel() > DENSE_LIMIT:
        raise PolyboundError(f"a constant of shape {target} is too large")
    return source * torch.ones(target, dtype=source.dtype)  # either of the two may be repeated


FOLDED: dict[str, Callable[[Node, Sequence[Tensor]], Tensor]] = {
    "Add": lambda _, operands: operands[0] + operands[1],
    "Cast": _cast,
    "Concat": lambda node, operands: torch.cat(list(operands), dim=node.get("axis", 0)),
    "Div": _divide,
    "Expand": _expand,
    "Gather": lambda node, operands: gather(operands[0], node.attributes, operands[1:])[0],
    "Identity": lambda _, operands: operands[0],
    "MatMul": lambda _, operands: operands[0] @ operands[1],
    "Mul": lambda _, operands: operands[0] * operands[1],
    "Neg": lambda _, operands: -operands[0],
    "Reshape": _reshape,
    "Slice": lambda node, operands: slice_parts(operands[0], node.attributes, operands[1:])[0],
    "Squeeze": _squeeze,
    "Sub": lambda _, operands: operands[0] - operands[1],
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""What is computed where all operands are constants."""

_MOVES = ("Cast", "Concat", "Gather", "Identity", "Slice", "Squeeze", "Unsqueeze")


def fold(node: Node, operands: Sequence[Operand]) -> Constant:
    """An operator on constants. Sizes of tensors may be moved about, but not computed with: the batch has any size.

    Raises:
        PolyboundError: the operator is not among those that are folded, or its operands do not fit.
    """
    constants = [operand for operand in operands if isinstance(operand, Constant)]
    sizes = any(constant.sizes for constant in constants)
    if node.operator not in FOLDED:
        raise PolyboundError(f"of constants only {', '.join(FOLDED)} are read")
    if sizes and node.operator not in _MOVES:
        raise PolyboundError("it computes with the size of the batch, which may be any")
    result = FOLDED[node.operator](node, [constant.tensor for constant in constants])
    if result.numel() > DENSE_LIMIT:
        raise PolyboundError(f"a constant of shape {tuple(result.shape)} is too large")
    return Constant(result, sizes)
