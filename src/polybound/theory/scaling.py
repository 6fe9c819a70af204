"""A network with entries of about 1 in all its maps: what its bounds are computed from, so that nothing underflows."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from polybound.models import Affine, Chain, Conv, Dense, Factors
from polybound.theory.rounding import outward, power_of_two, times_power_of_two

__all__ = ["balanced", "restored", "without_scale"]

_NOTHING = -(10**8)
_UNDERFLOW = 2.0**-400
"""More than all that underflow can take from a bound of a balanced network: see `restored`."""


def balanced(factors: Factors) -> tuple[Factors, Tensor, Tensor]:
    """Factors with the largest entry of every matrix in [1/2, 1), and how many times more the network has.

    That is, two exponents, one for each run: with 2^e times the last product of those factors the network has its own,
    and with 2^e' times their output its own, but for constants of the output.

    Everything is multiplied by powers of two, which is exact. The constants of a map between two products are
    multiplied by what the product before it was. Maps that are not written out stay as they are.
    """
    exponent = power_of_two(factors.s1, 1)
    s1, A, S = times_power_of_two(factors.s1, -exponent), [], []
    for n, a in enumerate(factors.A):
        if n > 0:
            s, exponent = _divided(factors.S[n - 1], exponent)
            S.append(s)
        a, of_a = _divided(a, torch.zeros_like(exponent))
        A.append(a)
        exponent = exponent + of_a
    C, of_output = _divided(factors.C, exponent, constants=False)
    return replace(factors, A=tuple(A), S=tuple(S), s1=s1, C=C), exponent, of_output


def without_scale(step: Affine) -> tuple[Affine, Tensor]:
    """A map whose matrix has its largest entry in [1/2, 1), and the exponent of what it was divided by."""
    if isinstance(step, Chain):
        parts = [without_scale(part) for part in step.maps]
        return Chain([part for part, _ in parts]), sum((e for _, e in parts), torch.zeros_like(parts[0][1]))
    if isinstance(step, Dense | Conv):
        exponent = power_of_two(step.weight, step.weight.ndim - len(step.lead))
        return step.transform(lambda t: times_power_of_two(t, -exponent)), exponent
    return step, torch.zeros(step.lead, dtype=torch.int32, device=step.constant.device)


def restored(value: Tensor, exponent: Tensor, terms: int) -> Tensor:
    """A bound of a balanced network, with so many roundings, as a bound of the network itself, rounded outwards.

    In a balanced network entries are below 1, so a product that underflowed, by less than 2^-1074, cannot grow beyond
    the sizes of the maps multiplied together. A NaN stands for 0 times an overflow.
    """
    value = torch.nan_to_num(value, nan=torch.inf, posinf=torch.inf)
    return times_power_of_two(outward(value + _UNDERFLOW, terms), exponent)


def _divided(step: Affine, before: Tensor, constants: bool = True) -> tuple[Affine, Tensor]:
    """`2^-(before + e) step(2^before x)` with entries of about 1, and before + e."""
    if not isinstance(step, Dense):  # poolings have no constants, and what is not written out stays as it is
        return step, before
    exponent = _exponent(step.weight, 2)
    if constants:
        exponent = torch.maximum(exponent, _exponent(step.constant, 1) - before)
    exponent = torch.where(exponent > _NOTHING // 2, exponent, 0)
    weight = times_power_of_two(step.weight, -exponent)
    return Dense(weight, times_power_of_two(step.constant, -exponent - before)), before + exponent


def _exponent(tensor: Tensor, dims: int) -> Tensor:
    """As `power_of_two`, but far below any other of zeros."""
    nonzero = (tensor != 0).flatten(-dims).any(-1)
    return torch.where(nonzero, power_of_two(tensor, dims), _NOTHING)
