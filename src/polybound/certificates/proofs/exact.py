"""A network's value at a float64 point in rational arithmetic: slow, and exact."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polybound.certificates.proofs.schema import Claim, RefusedError, Vector
from polybound.errors import PolyboundError
from polybound.models import Affine, Chain, Conv, Factors, Identity, Pool

Whole = npt.NDArray[Any]
"""Whole numbers of any size."""


def exact_logits(factors: Factors, x: Tensor) -> list[Fraction]:
    """The logits at x, (features,), of one model's factors.

    >>> import torch, polybound as pb
    >>> model = pb.CCP(3, 2, 2, degree=2, seed=0)
    >>> exact_logits(model.factors().double(), torch.zeros(3)) == [Fraction(b) for b in model.C[:, -1].tolist()]
    True
    """
    point = _Dyadic.of(x)
    y = _apply(factors.A[0], point) * _Dyadic.of(factors.s1)
    for a, s in zip(factors.A[1:], factors.S, strict=True):
        y = _apply(a, point) * _apply(s, y)
    return _apply(factors.C, y).fractions()


def exact_forms(factors: Factors, x: Tensor, a: Tensor, b: Tensor) -> list[Fraction]:
    """`a f(x) + b`, row by row, for a (forms, classes) and b (forms,)."""
    logits = exact_logits(factors, x)
    rows = [_fractions(row) for row in a]
    return [
        sum((weight * value for weight, value in zip(row, logits, strict=True) if weight), start)
        for row, start in zip(rows, _fractions(b), strict=True)
    ]


def exact_sides(claim: Claim, domain: tuple[Vector, Vector] | None) -> tuple[list[Fraction], list[Fraction]]:
    """The sides of the box that a claim is about, or that its ball lies in."""
    x = [Fraction(v) for v in claim.x]
    if claim.sides is not None:
        lower, upper = ([Fraction(v) for v in side] for side in claim.sides)
    else:
        eps = [Fraction(v) for v in claim.radii or ()]
        lower, upper = ([v + s * e for v, e in zip(x, eps, strict=True)] for s in (-1, 1))
        if domain is not None:
            lower = [max(v, Fraction(end)) for v, end in zip(lower, domain[0], strict=True)]
            upper = [min(v, Fraction(end)) for v, end in zip(upper, domain[1], strict=True)]
    if any(not a <= v <= b for a, v, b in zip(lower, x, upper, strict=True)):
        raise RefusedError("an input lies outside of its box or of the domain")
    return lower, upper


def _fractions(values: Tensor) -> list[Fraction]:
    return [Fraction(value) for value in values.detach().double().tolist()]


@dataclass(frozen=True, eq=False)
class _Dyadic:
    """A vector of `whole * 2^exponent`, what floats and their sums and products are: no fraction is ever reduced."""

    whole: Whole
    exponent: int

    @classmethod
    def of(cls, values: Tensor) -> _Dyadic:
        if not torch.isfinite(values).all():
            raise PolyboundError("rational arithmetic is about finite numbers only")
        mantissas, exponents = np.frexp(values.detach().double().numpy())
        whole = (mantissas * 2.0**53).astype(np.int64).astype(object)
        least = int(exponents[mantissas != 0].min(initial=0))
        shifts = np.maximum(exponents - least, 0).astype(object)
        return cls(whole << shifts, least - 53)

    def __mul__(self, other: _Dyadic) -> _Dyadic:
        return _Dyadic(self.whole * other.whole, self.exponent + other.exponent)

    def __add__(self, other: _Dyadic) -> _Dyadic:
        least = min(self.exponent, other.exponent)
        return _Dyadic((self.whole << self.exponent - least) + (other.whole << other.exponent - least), least)

    def fractions(self) -> list[Fraction]:
        unit = Fraction(2) ** self.exponent
        return [Fraction(value) * unit for value in self.whole]


def _apply(step: Affine, x: _Dyadic) -> _Dyadic:
    if isinstance(step, Identity):
        return x
    if isinstance(step, Chain):
        # A chain's own matrix and constant would be rounded; its parts' are not.
        for part in step.maps:
            x = _apply(part, x)
        return x + _Dyadic.of(torch.tensor([step.shift], dtype=torch.float64))
    if isinstance(step, Conv):
        return _convolve(step, x) + _Dyadic.of(step.constant)
    if isinstance(step, Pool):
        return _pool(step, x)
    matrix = step.matrix()
    rows, columns = matrix.nonzero().T.numpy()
    weights = _Dyadic.of(matrix[rows, columns])
    total = np.zeros(step.outputs, dtype=object)
    np.add.at(total, rows, weights.whole * x.whole[columns])
    return _Dyadic(total, weights.exponent + x.exponent) + _Dyadic.of(step.constant)


def _convolve(step: Conv, x: _Dyadic) -> _Dyadic:
    """The convolution without its constant, one entry of the kernel's window after another: its matrix may be huge."""
    kernel = _Dyadic.of(step.weight)
    window = step.weight.shape[2:]
    # Not by np.pad, whose zeros are numpy's own and overflow.
    image = np.zeros([step.shape[0], *(n + 2 * (w // 2) for n, w in zip(step.shape[1:], window, strict=True))], object)
    inside = (slice(w // 2, w // 2 + n) for n, w in zip(step.shape[1:], window, strict=True))
    image[(slice(None), *inside)] = x.whole.reshape(step.shape)
    total = np.zeros((step.channels, prod(step.shape[1:])), dtype=object)
    for place in np.ndindex(*window):
        part = image[(slice(None), *(slice(p, p + size) for p, size in zip(place, step.shape[1:], strict=True)))]
        total += kernel.whole[(slice(None), slice(None), *place)] @ part.reshape(step.shape[0], -1)
    return _Dyadic(total.reshape(-1), kernel.exponent + x.exponent)


def _pool(step: Pool, x: _Dyadic) -> _Dyadic:
    """The sums of the windows of two in each direction, over 2^dims."""
    image = x.whole.reshape(step.shape)
    for axis, size in enumerate(step.out_shape[1:], 1):
        even, odd = (np.take(image, range(start, 2 * size, 2), axis) for start in (0, 1))
        image = even + odd
    return _Dyadic(image.reshape(-1), x.exponent - step.dims)
