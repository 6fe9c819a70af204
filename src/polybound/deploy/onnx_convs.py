"""A chain of products as a ConvCCP, if its maps are the convolutions and poolings of one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polybound.deploy.onnx_maps import Diagonal, Steps, folded, same_steps
from polybound.deploy.onnx_polynomial import Polynomial
from polybound.models import Conv, ConvCCP, Pool

__all__ = ["as_conv"]


@dataclass(frozen=True, eq=False)
class _Factor:
    """A pre-convolution or none, a kernel without a constant, then `poolings` poolings and a constant `shift`."""

    before: tuple[Conv, ...]
    kernel: Conv
    poolings: int
    shift: float


def as_conv(polynomial: Polynomial, shape: tuple[int, ...]) -> ConvCCP | None:
    """The ConvCCP that a polynomial is; None if it is none."""
    first, last = polynomial.first, polynomial.last
    if not polynomial.steps:
        place = max((n for n, step in enumerate(first, 1) if isinstance(step, Conv | Pool)), default=0)
        first, last = first[:place], first[place:]
    factors = [_factor(steps) for steps in (first, *(step.A for step in polynomial.steps))]
    known = [factor for factor in factors if factor is not None]
    if len(known) < len(factors) or not _alike(known) or [f.shift for f in known] != [0.0] + [1.0] * (len(known) - 1):
        return None
    pool = _pooled(known, [step.S for step in polynomial.steps[1:]])
    if pool is None:
        return None
    if last and isinstance(last[0], Pool):
        pool, last = [*pool, len(known)], last[1:]
    if len(set(pool)) < len(pool) or any(isinstance(step, Conv | Pool) for step in last):
        return None
    units = known[0].kernel.channels * torch.Size(n >> len(pool) for n in shape[1:]).numel()
    Q, beta = folded(last, units)
    before = known[0].before
    pre, bias = (before[0].weight, before[0].bias) if before else (None, None)
    kernels = [factor.kernel.weight for factor in known]
    return ConvCCP.from_factors(kernels, Q, beta, shape=shape, pre=pre, pre_bias=bias, pool=pool)


def _factor(steps: Steps) -> _Factor | None:
    """What a chain of maps of the input is as a factor of a ConvCCP; None if it is none."""
    convs = []
    for step in steps:
        if not isinstance(step, Conv):
            break
        convs.append(step)
    if not 1 <= len(convs) <= 2:
        return None
    shift, poolings = _uniform(convs[-1].bias), 0
    for step in steps[len(convs) :]:
        if isinstance(step, Pool):
            poolings += 1
        elif isinstance(step, Diagonal) and bool((step.weight == 1).all()):
            shift = _sum(shift, _uniform(step.constant))  # the mean of equal constants is that constant
        else:
            return None
    return None if shift is None else _Factor(tuple(convs[:-1]), convs[-1], poolings, shift)


def _uniform(constants: Tensor) -> float | None:
    """The number that all entries are; None if they differ."""
    return float(constants[0]) if bool((constants == constants[0]).all()) else None


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _alike(factors: list[_Factor]) -> bool:
    """Whether the factors have one pre-convolution and kernels of one shape, as wide in each direction."""
    shapes = {tuple(factor.kernel.weight.shape) for factor in factors}
    square = all(len(set(conv.weight.shape[2:])) == 1 for f in factors for conv in (*f.before, f.kernel))
    return len(shapes) == 1 and square and all(same_steps(factors[0].before, f.before) for f in factors[1:])


def _pooled(factors: list[_Factor], between: list[Steps]) -> list[int] | None:
    """The degrees after which the product is pooled; None if the factors are not pooled as often as it is."""
    pool = [1] * factors[0].poolings
    for n, factor in enumerate(factors[1:], 2):
        if n > 2:
            maps = between[n - 3]
            if not all(isinstance(step, Pool) for step in maps):
                return None
            pool += [n - 1] * len(maps)
        if factor.poolings != len(pool):
            return None
    return pool
