"""A chain of products as a ConvCCP, if its maps are the convolutions and poolings of one."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

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
    factors = [_factor(steps, shape) for steps in (first, *(step.A for step in polynomial.steps))]
    known = [factor for factor in factors if factor is not None]
    if len(known) < len(factors) or not _alike(known):
        return None
    between = [step.S for step in polynomial.steps[1:]]
    if last and isinstance(last[0], Pool):
        between, last = [*between, last[:1]], last[1:]
    else:
        between = [*between, ()]
    pool = _pooled(known, between, shape)
    if pool is None or any(isinstance(step, Conv | Pool) for step in last):
        return None
    units = known[0].kernel.channels * prod(n >> len(pool) for n in shape[1:])
    Q, beta = folded(last, units)
    before = known[0].before
    pre, bias = (before[0].weight, before[0].bias) if before else (None, None)
    kernels = [factor.kernel.weight for factor in known]
    return ConvCCP.from_factors(kernels, Q, beta, shape=shape, pre=pre, pre_bias=bias, pool=pool)


def _follow(steps: Steps, shape: tuple[int, ...]) -> bool:
    """Whether each map is of images of the shape that the one before it makes; a reshape may have come between."""
    for step in steps:
        if isinstance(step, Conv | Pool):
            if step.shape != shape:
                return False
            shape = step.out_shape
    return True


def _factor(steps: Steps, shape: tuple[int, ...]) -> _Factor | None:
    """What a chain of maps of the input is as a factor of a ConvCCP; None if it is none."""
    convs = []
    for step in steps:
        if not isinstance(step, Conv):
            break
        convs.append(step)
    if not 1 <= len(convs) <= 2 or not _follow(steps, shape):
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
    """Whether the factors are of one kind: kernels square and of one shape, one pre-convolution, constants 0, 1, ..."""
    shapes = {tuple(factor.kernel.weight.shape) for factor in factors}
    square = all(len(set(conv.weight.shape[2:])) == 1 for f in factors for conv in (*f.before, f.kernel))
    constants = [factor.shift for factor in factors] == [0.0] + [1.0] * (len(factors) - 1)
    one = all(same_steps(factors[0].before, factor.before) for factor in factors[1:])
    wide = all(conv.channels == factors[0].kernel.channels for conv in factors[0].before)
    return len(shapes) == 1 and square and constants and one and wide


def _pooled(factors: list[_Factor], between: list[Steps], shape: tuple[int, ...]) -> list[int] | None:
    """The degrees after which the product is pooled, once each; None if the factors are not pooled as often as it is.

    Args:
        factors: the factors.
        between: the maps after the second product, after the third, and so on, and those after the last.
        shape: shape of one input.
    """
    degree = len(factors)
    # What is done after the first factor is part of it; of degree one it was split off.
    after = [*([()] if degree > 1 else []), *between]
    pool = [1] * factors[0].poolings
    for n, (factor, maps) in enumerate(zip(factors, after, strict=True), 1):
        image = (factors[0].kernel.channels, *(size >> len(pool) for size in shape[1:]))
        if (n > 1 and factor.poolings != len(pool)) or not all(isinstance(step, Pool) for step in maps):
            return None
        if not _follow(maps, image):
            return None
        pool += [n] * len(maps)
    return pool if len(set(pool)) == len(pool) else None
