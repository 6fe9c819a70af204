"""Constants of a graph: read from the file, and folded where all operands of a node are constants.

Numbers of a file are exact. What is only moved stays exact, and so does a result that float64 holds exactly. Any other
result is the true value times `1 + t` with `|t| <= K u / (1 - K u)`, u = 2^-53, for every entry alike. K counts the
roundings. It is infinite where a sum cancels all that it was computed from, or where a result comes near the ends of
float64's range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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
        sizes: whether they depend on the size of the batch, as the sizes of a tensor do that depends on the input.
        roundings: the number K of roundings that each entry has met, at most.
        kind: ONNX's number of its type.
    """

    tensor: Tensor
    sizes: bool = False
    roundings: float = 0.0
    kind: int = TensorProto.FLOAT


_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
_WHOLE = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)


def constant_of(tensor: onnx.TensorProto) -> Constant:
    """A tensor of the file; floats in float64, whole numbers and truth values in int64.

    Raises:
        PolyboundError: its type is another, its entries are not all finite, or its data do not fit its shape.
    """
    if tensor.data_type not in (*_FLOATS, *_WHOLE):
        raise PolyboundError(
            f"tensors of type {type_name(tensor.data_type)} are not read; FLOAT, DOUBLE, INT32, INT64 and BOOL are"
        )
    if prod(tensor.dims) > DENSE_LIMIT:
        raise PolyboundError(f"a tensor of shape {list(tensor.dims)} is too large: {DENSE_LIMIT:,} entries fit")
    try:
        array = torch.from_numpy(numpy_helper.to_array(tensor).copy())
    except (ValueError, TypeError) as error:
        raise PolyboundError(f"the data of a tensor do not fit its shape ({error})") from None
    if not torch.isfinite(array).all():
        raise PolyboundError("a tensor's entries are not all finite")
    whole = tensor.data_type not in _FLOATS
    return Constant(array.long() if whole else array.double(), kind=tensor.data_type)


def given_constant(name: str, value: Any) -> Constant:
    """The tensor of a Constant node, by its only attribute."""
    if name == "value":
        return constant_of(value)
    if name in ("value_float", "value_floats"):
        return _finite(Constant(torch.tensor(value, dtype=torch.float64)))
    if name in ("value_int", "value_ints"):
        return Constant(torch.tensor(value, dtype=torch.long), kind=TensorProto.INT64)
    raise PolyboundError(f"constants given as {name} are not read")


def cast(constant: Constant, kind: int) -> Constant:
    """A constant in another type of ONNX."""
    if kind in _FLOATS:
        # Numbers between two of float32 are rounded to one of them by the cast itself.
        tensor = constant.tensor.float() if kind == TensorProto.FLOAT else constant.tensor
        # A cast of a number that is not known may go either way.
        return _finite(Constant(tensor.double(), constant.sizes, inf if constant.roundings else 0.0, kind))
    if kind in (TensorProto.INT64, TensorProto.INT32) and not constant.tensor.is_floating_point():
        return replace(constant, kind=kind)
    raise PolyboundError("constants are cast to FLOAT and DOUBLE, and whole numbers to INT64")


def computed(operator: str, one: Constant, other: Constant) -> Constant:
    """A sum, difference, product, quotient or product of matrices of two constants.

    Raises:
        PolyboundError: it divides by zero, or whole numbers; or the result is too large, or not finite.
    """
    if one.sizes or other.sizes:
        raise PolyboundError("it computes with the size of the batch, which is not fixed")
    left, right = tuple(one.tensor.shape), tuple(other.tensor.shape)
    if operator == "MatMul":
        size = prod(np.broadcast_shapes(left[:-2], right[:-2])) * prod(left[-2:-1]) * prod(right[-1:])
    else:
        size = prod(np.broadcast_shapes(left, right))
    if size > DENSE_LIMIT:
        raise PolyboundError("it makes a constant that is too large")
    together, most = one.roundings + other.roundings, max(one.roundings, other.roundings)
    match operator:
        case "Add":
            made = total(one.tensor, other.tensor, most)
        case "Sub":
            made = total(one.tensor, -other.tensor, most)
        case "Mul":
            made = product(one.tensor, other.tensor, together)
        case "MatMul":
            made = product(one.tensor, other.tensor, together, torch.matmul)
        case _:
            if not one.tensor.is_floating_point() or not other.tensor.all():
                raise PolyboundError("it divides whole numbers, or by zero")
            made = quotient(one.tensor, other.tensor, together)
    return _finite(Constant(made[0], False, made[1], one.kind))


def _finite(constant: Constant) -> Constant:
    if not torch.isfinite(constant.tensor).all():
        raise PolyboundError("it makes numbers that are not finite")
    return constant


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
