"""Rounding outwards: a bound computed in float64 must not be below the bound of the real numbers, at any scale.

Relative errors are covered by a factor, as long as nothing overflows or underflows on the way. Powers of two keep it
so: to multiply by one is exact, so matrices are brought to entries of about 1, and the result is brought back.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["ULP", "mantissa_product", "outward", "power", "power_of_two", "product", "times_power_of_two"]

ULP: float = 2.0**-52
"""Twice the unit roundoff of float64; the factor 2 also covers the rounding of the error terms themselves."""

_LEAST = 2.0**-1074
_SMALL = 2.0**-960


def outward(value: Tensor, terms: int) -> Tensor:
    """A float64 value, raised by more than the rounding of a sum of `terms` non-negative products."""
    raised = value * (1.0 + (terms + 16) * ULP)
    # Here products are rounded to multiples of the least number, whatever their size.
    return torch.where((value > 0) & (value < _SMALL), raised + (terms + 16) * _LEAST, raised)


def power_of_two(tensor: Tensor, dims: int) -> Tensor:
    """The exponent e of the least power of two above the largest entry of the last `dims` dimensions; 0 of zeros."""
    largest = tensor.abs().flatten(-dims).amax(-1) if tensor.numel() else tensor.new_zeros(tensor.shape[:-dims])
    return torch.where(torch.isfinite(largest), torch.frexp(largest).exponent, 0)


def times_power_of_two(tensor: Tensor, exponent: Tensor) -> Tensor:
    """`2^exponent` times a tensor whose leading dimensions the exponents have; rounded up where it is too small."""
    exponent = exponent.reshape((*exponent.shape, *(1,) * (tensor.ndim - exponent.ndim))).clamp(-2200, 2200)
    if exponent.numel() and int(exponent.abs().max()) < 1000:
        result = tensor * torch.exp2(exponent.to(tensor.dtype))
    else:  # in three steps, as 2^1100 is no float64 number
        result = tensor
        for part in (exponent // 3, exponent // 3, exponent - 2 * (exponent // 3)):
            result = result * torch.exp2(part.to(tensor.dtype))
    small = result.abs() < _SMALL
    if not small.any():  # the usual case, and the matrices are large
        return result
    return torch.where(small & (tensor != 0), result + torch.sign(tensor) * _LEAST, result)


def mantissa_product(values: Tensor) -> tuple[Tensor, Tensor]:
    """The product over the first dimension as a mantissa in [1/2, 1) and an exponent: nothing over- or underflows.

    Factor by factor, so that where the plain product is a float64 number this rounds as it does; finite values only.
    """
    mantissas, exponents = torch.frexp(values)
    mantissa, exponent = mantissas[0], exponents.sum(0)
    for factor in mantissas[1:]:
        mantissa, moved = torch.frexp(mantissa * factor)
        exponent = exponent + moved
    return mantissa, exponent


def product(values: Tensor) -> Tensor:
    """The product over the first dimension of numbers that are not negative, rounded outwards.

    A product that is too small for float64 comes out as a small number, not as 0, and one too large as infinity.
    """
    mantissa, exponent = mantissa_product(values)
    found = times_power_of_two(outward(mantissa, len(values)), exponent)
    found = torch.where(torch.isinf(values).any(0), torch.inf, found)
    # A zero is exact, an infinity stands for a number that is too large.
    found = torch.where((values == 0).any(0), 0.0, found)
    return torch.where(torch.isnan(values).any(0), torch.nan, found)


def power(base: Tensor, exponent: float) -> Tensor:
    """`base^exponent` of numbers that are not negative, rounded outwards.

    The exponent's own rounding, u of it, changes the power by a factor of `1 + u exponent log(base)`.
    """
    logarithm = base.clamp(1e-320, 1e308).log().abs()
    return base**exponent * (1.0 + (16 + 2 * abs(exponent) * logarithm) * ULP)
