"""Rounding outwards: a bound computed in float64 must not be below the bound of the real numbers, at any scale.

Relative errors are covered by a factor, as long as nothing overflows or underflows on the way. Powers of two keep it
so: to multiply by one is exact, so matrices are brought to entries of about 1, and the result is brought back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import frexp

import torch
from torch import Tensor

from polybound.models import Affine, Chain, Conv, Dense, Factors, Windowed

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


# A network scaled so that its maps have row sums of at most 1: underflow in its bounds cannot grow.


_NOTHING = -(10**8)
"""The exponent of zero, far below all others."""

UNDERFLOW = 2.0**-900
"""More than underflow takes from a bound of a balanced network: see `restored`."""

UNDERFLOW_UNDER_ROOT = 2.0**-400
"""The same where numbers are squared and rooted on the way."""


@dataclass(frozen=True, eq=False)
class Balanced:
    """A network over `|x| <= radius` as another one, over inputs of at most 1, times powers of two.

    Over those inputs every factor, every map between products and every row of the output, with constants and
    absolute values in the place of weights, is at most 1.

    Attributes:
        factors: the other network.
        radius: what the radius became, in (1/2, 1].
        product: the exponents e, one a run: 2^e times its last product is the network's.
        output: the same of the output, but for the output's constants.
        slope: the same of its derivative by the inputs.
    """

    factors: Factors
    radius: float
    product: Tensor
    output: Tensor
    slope: Tensor

    def sizes(self, q: float) -> tuple[list[Tensor], list[Tensor]]:
        """Bounds a_n of `|A_n(x)|` and w_n of `|S_n(y_(n-1))|` over an l_p ball, q the dual exponent; `w_1 = |s_1|`.

        Each is (*lead, units), and `a_n w_n` bounds `|y_n|`.
        """
        sizes = [self.radius * row_norms(a, q) + a.constant.abs() + a.rounding()[1] for a in self.factors.A]
        weights = [self.factors.s1.abs()]
        for n, s in enumerate(self.factors.S):
            weights.append(s.absolute()((sizes[n] * weights[n]).unsqueeze(-2)).squeeze(-2))
        return sizes, weights


def row_norms(step: Affine, q: float) -> Tensor:
    """Upper bounds of the l_q norms of the rows; by l_1 norms, which are never smaller, of what is not written out."""
    if not isinstance(step, Dense | Windowed):
        return step.row_l1()
    rows = step.weight if isinstance(step, Dense) else step.rows()
    exponent = power_of_two(rows, 1)
    norms: Tensor = torch.linalg.vector_norm(times_power_of_two(rows, -exponent), q, dim=-1)
    return times_power_of_two(norms, exponent) + step.rounding()[0]


def balanced(factors: Factors, radius: float = 1.0) -> Balanced:
    """Divide every map by the power of two that makes its row sums at most 1, and no less than 1/2.

    Powers of two are exact but where an entry becomes too small for float64; it is then rounded up. Poolings and
    identities have row sums of 1 already. The constants of a map are divided by what its input was divided by as well.
    """
    mantissa, inside = frexp(radius)
    if mantissa == 0.5:
        mantissa, inside = 1.0, inside - 1
    exponent = power_of_two(factors.s1, 1)
    s1, A, S = times_power_of_two(factors.s1, -exponent), [], []
    input_exponent = torch.full_like(exponent, inside)
    for n, a in enumerate(factors.A):
        if n > 0:
            s, exponent = _divided(factors.S[n - 1], exponent)
            S.append(s)
        a, of_a = _divided(a, input_exponent)
        A.append(a)
        exponent = exponent + of_a
    C, of_output = _divided(factors.C, exponent, constants=False)
    scaled = replace(factors, A=tuple(A), S=tuple(S), s1=s1, C=C)
    return Balanced(scaled, mantissa, exponent, of_output, of_output - inside)


def restored(value: Tensor, exponent: Tensor, terms: int, lost: float = UNDERFLOW) -> Tensor:
    """A bound of a balanced network, after this many roundings, as a bound of the network itself, rounded outwards.

    Underflow takes less than 2^-1074 from a number. All that multiplies the number afterwards is at most 1: forwards
    what follows it maps inputs of at most 1 to outputs of at most 1, backwards the sum over the units of what is left
    of a row of the output is at most 1. So each operation that underflows takes less than 2^-1074 from the bound, all
    2^100 of them less than `UNDERFLOW`, and less than `UNDERFLOW_UNDER_ROOT` under a root. (Row sums are at most 1
    but for their own rounding, which 2^70 more would cover.) A NaN stands for 0 times an overflow.
    """
    value = torch.nan_to_num(value, nan=torch.inf, posinf=torch.inf)
    return times_power_of_two(outward(value + lost, terms), exponent)


def without_scale(step: Affine) -> tuple[Affine, Tensor]:
    """Divide a map's matrix by the power of two that brings its largest entry into [1/2, 1); return both."""
    if isinstance(step, Chain):
        parts = [without_scale(part) for part in step.maps]
        return Chain([part for part, _ in parts]), sum((e for _, e in parts), torch.zeros_like(parts[0][1]))
    if isinstance(step, Dense | Conv):
        exponent = power_of_two(step.weight, step.weight.ndim - len(step.lead))
        return step.transform(lambda t: times_power_of_two(t, -exponent)), exponent
    return step, torch.zeros(step.lead, dtype=torch.int32, device=step.constant.device)


def _divided(step: Affine, before: Tensor, constants: bool = True) -> tuple[Affine, Tensor]:
    """`2^-e step(2^before x)` with row sums of at most 1, and e. Without `constants`, these do not count."""
    if isinstance(step, Chain):
        maps: list[Affine] = []
        for part in step.maps:
            part, before = _divided(part, before, constants)
            maps.append(part)
        if not step.shift:
            return Chain(maps), before
        # Half of the row sum for the shift. What has no weights passes a scale on.
        more = (_exponent(step.constant.new_full((*step.lead, 1), step.shift), 1) - before).clamp_min(0) + 1
        last = max(n for n, part in enumerate(maps) if isinstance(part, Dense | Conv))
        maps[last] = _times(maps[last], -more, -more)
        before = before + more
        return Chain(maps, float(times_power_of_two(step.constant.new_tensor(step.shift), -before))), before
    if not isinstance(step, Dense | Conv | Windowed):
        return step, before
    exponent = _exponent(step.weight, step.weight.ndim - len(step.lead))
    rows, shifts = step.rounding()
    exponent = torch.maximum(exponent, _exponent(rows, 1))
    if constants:
        exponent = torch.maximum(exponent, _exponent(step.constant.abs() + shifts, 1) - before)
    exponent = torch.where(exponent > _NOTHING // 2, exponent, 0)
    largest = _times(step, -exponent, -exponent - before)
    sums = largest.row_l1() + largest.rounding()[0]
    if constants:
        sums = sums + largest.constant.abs() + largest.rounding()[1]
    exponent = exponent + power_of_two(sums * (1 + 2.0**-30), 1)
    return _times(step, -exponent, -exponent - before), before + exponent


def _times(step: Affine, weights: Tensor, constants: Tensor) -> Affine:
    """A matrix or convolution with its weights and its constants multiplied by powers of two."""
    if isinstance(step, Conv):
        return Conv(times_power_of_two(step.weight, weights), times_power_of_two(step.bias, constants), step.shape)
    bias = times_power_of_two(step.constant, constants)
    rows, shifts = step.rounding()
    off = times_power_of_two(rows, weights), times_power_of_two(shifts, constants)
    if isinstance(step, Windowed):
        return Windowed(times_power_of_two(step.weight, weights), bias, step.windows, off)
    return Dense(times_power_of_two(step.matrix(), weights), bias, off)


def _exponent(tensor: Tensor, dims: int) -> Tensor:
    """As `power_of_two`, but far below any other of zeros."""
    nonzero = (tensor != 0).flatten(-dims).any(-1)
    return torch.where(nonzero, power_of_two(tensor, dims), _NOTHING)
