"""How exact folded constants are: the roundings that each entry of a tensor has met.

Numbers of a file are exact. A result that float64 holds exactly stays so; any other is the true value times `1 + t`
with `|t| <= K u / (1 - K u)`, u = 2^-53, for every entry alike. K counts the roundings; it is infinite where a sum
cancels all that it was computed from, or where a result comes near the ends of float64's range.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import torch
from torch import Tensor

__all__ = ["met", "product", "quantum", "quotient", "total"]


_WHOLE = 2.0**53
_RANGE = 2.0**400


def quantum(values: Tensor) -> Tensor:
    """The largest power of two that divides each number; infinity for zero."""
    mantissas, exponents = np.frexp(values.numpy())
    whole = (mantissas * _WHOLE).astype(np.int64)
    powers = np.ldexp((whole & -whole).astype(np.float64), exponents - 53)
    return torch.where(values == 0, inf, torch.from_numpy(np.asarray(powers)))


def met(result: Tensor, size: Tensor, quanta: Tensor, before: float, own: float) -> float:
    """The roundings of a computed tensor.

    Args:
        result: the tensor.
        size: the sums of the absolute values of its entries' terms, as computed.
        quanta: powers of two that divide the terms.
        before: the roundings that the terms have met.
        own: those that each of them meets here, at most, unless the result is exact.
    """
    exact = bool((size <= _WHOLE * quanta).all()) and not bool((quanta == 0).any())
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
