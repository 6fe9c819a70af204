"""Constants of a graph: read from the file, and folded where all operands of a node are constants.

Numbers of a file are exact. What is only moved stays exact, and so does a result that float64 holds exactly. Any other
result is the true value times `1 + t` with `|t| <= K u / (1 - K u)`, u = 2^-53, for every entry alike. K counts the
roundings. It is infinite where a sum cancels all that it was computed from, or where a result comes near the ends of
float64's range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor

from polybound.deploy.onnx.files import type_name
from polybound.errors import PolyboundError
from polybound.theory import DENSE_LIMIT


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that does not depend on the input.

    Attributes:
        tensor: its entries; floats in float64.
        sizes: whether they are sizes of a tensor that depends on the input: 0 then stands for the size of the batch.
        roundings: the number K of roundings that each entry has met, at most.
    """

    tensor: Tensor
    sizes: bool = False
    roundings: float = 0.0


@dataclass(frozen=True)
class Node:
    """A node of a graph: its operator, its name, and its attributes as plain types."""

    operator: str
    name: str
    attributes: dict[str, Any]

    def get(self, name: str, default: Any) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)


_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
_WHOLE = (TensorProto.INT64, TensorProto.INT32)


def constant_of(tensor: onnx.TensorProto) -> Constant:
    """A tensor of the file; floats in float64.

    Raises:
        PolyboundError: its type is not float32, float64, int32 or int64, or its data do not fit its shape.
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
        raise PolyboundError(f"the data of a tensor do not fit its shape ({error})") from None
    if not torch.isfinite(array).all():
        raise PolyboundError("a tensor's entries are not all finite")
    return Constant(array.double() if tensor.data_type in _FLOATS else array.long())


Tensors = Sequence[Tensor]
"""The operands of a node, at least one; optional ones at the end may be missing."""


def fold(node: Node, operands: Sequence[Constant | None]) -> Constant:
    """The result of an operator on constants. Sizes of tensors may be moved, but not computed with.

    Raises:
        PolyboundError: the operator is not among those that are folded, or its operands do not fit.
    """
    constants = [operand for operand in operands if operand is not None]
    sizes = any(constant.sizes for constant in constants)
    if node.operator not in FOLDED:
        raise PolyboundError(f"of constants only {', '.join(sorted(FOLDED))} are read")
    if sizes and node.operator not in ("Cast", "Concat", "Gather", "Identity", "Slice", "Squeeze", "Unsqueeze"):
        raise PolyboundError("it computes with the size of the batch, which is not fixed")
    tensors = [constant.tensor for constant in constants]
    roundings = max((constant.roundings for constant in constants), default=0.0)
    if node.operator == "Slice":
        places = [None if operand is None else operand.tensor for operand in operands[1:]]
        [result] = PARTS["Slice"](tensors[0], node.attributes, places)
    elif node.operator in _MOVED:
        result = _MOVED[node.operator](node, tensors)
        if node.operator == "Cast" and roundings:
            roundings = inf  # a cast of a number that is not known may go either way
    else:
        (one, other), together = tensors, sum(constant.roundings for constant in constants)
        match node.operator:
            case "Add" | "Sub":
                result, roundings = total(one, other if node.operator == "Add" else -other, roundings)
            case "Mul" | "MatMul":
                multiply = torch.mul if node.operator == "Mul" else torch.matmul
                result, roundings = product(one, other, together, multiply)
            case _:
                if not one.is_floating_point() or not other.all():
                    raise PolyboundError("it divides whole numbers, or by zero")
                result, roundings = quotient(one, other, together)
    if result.numel() > DENSE_LIMIT:
        raise PolyboundError(f"a constant of shape {tuple(result.shape)} is too large")
    if not torch.isfinite(result).all():
        raise PolyboundError("it makes numbers that are not finite")
    return Constant(result, sizes, roundings)


def _axes(node: Node, operands: Tensors) -> list[int]:
    return [int(axis) for axis in (operands[1].tolist() if len(operands) > 1 else node.get("axes", []))]


def _reshape(node: Node, operands: Tensors) -> Tensor:
    source, target = operands
    if node.get("allowzero", 0) and not target.all():
        raise PolyboundError("the new shape is empty")
    return source.reshape([source.shape[i] if size == 0 else int(size) for i, size in enumerate(target.tolist())])


def _unsqueeze(node: Node, operands: Tensors) -> Tensor:
    source, axes = operands[0], _axes(node, operands)
    dims = source.ndim + len(axes)
    for axis in sorted(axis % dims for axis in axes):
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


def _expand(_: Node, operands: Tensors) -> Tensor:
    source, target = operands[0], [int(size) for size in operands[1].tolist()]
    if prod(target) * source.numel() > DENSE_LIMIT:
        raise PolyboundError(f"a constant of shape {target} is too large")
    return source * torch.ones(target, dtype=source.dtype)  # either of the two may be repeated


_MOVED: dict[str, Callable[[Node, Tensors], Tensor]] = {
    "Cast": _cast,
    "Concat": lambda node, operands: torch.cat(list(operands), dim=node.get("axis", 0)),
    "Expand": _expand,
    "Gather": lambda node, operands: PARTS["Gather"](operands[0], node.attributes, operands[1:])[0],
    "Identity": lambda _, operands: operands[0],
    "Neg": lambda _, operands: -operands[0],
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Transpose": lambda node, operands: operands[0].permute(*node.get("perm", range(operands[0].ndim - 1, -1, -1))),
    "Unsqueeze": _unsqueeze,
}
"""Operators that move, cast or negate constants; their results are exact."""

FOLDED = (*_MOVED, "Add", "Div", "MatMul", "Mul", "Slice", "Sub")
"""The operators that are folded where all operands are constants."""


# Parts of a tensor, of constants and of what depends on the input.


def _slice(source: Tensor, _: dict[str, Any], operands: Sequence[Tensor | None]) -> list[Tensor]:
    """Slice: starts, ends, and perhaps axes and steps."""
    starts, ends, axes, steps = (None if part is None else part.tolist() for part in (*operands, *[None] * 4)[:4])
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


def _gather(source: Tensor, attributes: dict[str, Any], operands: Sequence[Tensor | None]) -> list[Tensor]:
    """Gather: the entries of an axis that an index names."""
    [index] = operands
    axis = attributes.get("axis", 0) % source.ndim
    size = source.shape[axis]
    if index is None or not bool(((index >= -size) & (index < size)).all()):
        raise PolyboundError(f"its index is outside of an axis of size {size}")
    chosen = source.index_select(axis, index.reshape(-1).remainder(size))
    return [chosen.reshape((*source.shape[:axis], *index.shape, *source.shape[axis + 1 :]))]


def _split(source: Tensor, attributes: dict[str, Any], operands: Sequence[Tensor | None]) -> list[Tensor]:
    """Split: parts of given sizes, or of equal ones."""
    axis = attributes.get("axis", 0)
    size, count = source.shape[axis], attributes["outputs"]
    each = -(-size // count)
    sizes = attributes.get("split", [each] * (count - 1) + [size - each * (count - 1)])
    if operands and operands[0] is not None:
        sizes = operands[0].tolist()
    if sum(sizes) != size or len(sizes) != count or min(sizes) < 1:
        raise PolyboundError(f"parts of sizes {sizes} are not {count} of an axis of size {size}")
    return [source.narrow(axis, sum(sizes[:n]), length) for n, length in enumerate(sizes)]


PARTS: dict[str, Callable[[Tensor, dict[str, Any], Sequence[Tensor | None]], list[Tensor]]] = {
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
}
"""Each takes the tensor, the node's attributes with the number of `outputs`, and its other operands."""


# How exact a computed constant is.

_EXACT = 2.0**53
_RANGE = 2.0**400


def quantum(values: Tensor) -> Tensor:
    """The largest power of two that divides each number; infinity for zero."""
    mantissas, exponents = np.frexp(values.numpy())
    whole = (mantissas * _EXACT).astype(np.int64)
    powers = np.ldexp((whole & -whole).astype(np.float64), exponents - 53)
    return torch.where(values == 0, inf, torch.from_numpy(np.asarray(powers)))


def met(result: Tensor, size: Tensor, quanta: Tensor, before: float, own: float) -> float:
    """The roundings of a computed tensor.

    Args:
        result: the tensor.
        size: the sums of the absolute values of its entries' terms, as computed.
        quanta: powers of two that divide the terms.
        before: the roundings that the terms have met.
        own: the roundings that each term meets here, at most, unless the result is exact.
    """
    exact = bool((size <= _EXACT * quanta).all()) and not bool((quanta == 0).any())
    if exact and not before:
        return 0.0
    some = size != 0
    if not bool(some.any()):
        return before if exact else inf
    if not _tame(result) or not bool(result[some].all()):
        return inf
    cancelled = float((size[some] / result[some].abs()).amax())
    return (before + (0.0 if exact else own)) * cancelled * 1.01


def product(
    one: Tensor, other: Tensor, before: float = 0.0, multiply: Callable[[Tensor, Tensor], Tensor] = torch.mul
) -> tuple[Tensor, float]:
    """A product, entry by entry or of matrices, and its roundings; `before` is the sum of its operands'."""
    result = multiply(one, other)
    if not result.is_floating_point():
        return result, 0.0
    if multiply is torch.mul:
        own, quanta = 1, quantum(one) * quantum(other)
    else:
        own, quanta = one.shape[-1] + 1, quantum(one).amin() * quantum(other).amin()
    roundings = met(result, multiply(one.abs(), other.abs()), quanta, before, own)
    return result, roundings if not roundings or (_tame(one) and _tame(other)) else inf


def total(one: Tensor, other: Tensor, before: float = 0.0) -> tuple[Tensor, float]:
    """A sum, and its roundings; `before` is the larger of its operands'."""
    result = one + other
    if not result.is_floating_point():
        return result, 0.0
    return result, met(result, one.abs() + other.abs(), torch.minimum(quantum(one), quantum(other)), before, 1)


def quotient(one: Tensor, other: Tensor, before: float = 0.0) -> tuple[Tensor, float]:
    """A quotient, and its roundings; `before` is the sum of its operands'."""
    result = one / other
    if not (_tame(one) and _tame(other)):
        return result, inf
    back, roundings = product(result, other)
    exact = not roundings and torch.equal(back, one.expand_as(back))
    return result, before * 1.01 if exact else met(result, result.abs(), torch.zeros(()), before, 1)


def _tame(values: Tensor) -> bool:
    """Whether products and quotients of the numbers stay far from the ends of float64."""
    sizes = values[values != 0].abs()
    return not sizes.numel() or (float(sizes.amin()) > 1 / _RANGE and float(sizes.amax()) < _RANGE)
