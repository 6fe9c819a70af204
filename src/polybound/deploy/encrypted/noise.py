"""The error of an encrypted logit, from the scheme's random errors and the ranges of the values.

Every error is tracked as the variance of a slot, in units of the value. A polynomial with random coefficients of
variance v has slots of variance N v, and slots of one polynomial are uncorrelated.

- encryption: coefficients of standard deviation 3.2; encoding: rounding, 1/12;
- rescaling and the end of a key switch: both parts are rounded, `(1 + 2 N / 3) / 12` with a ternary secret;
- a key switch: digits below q_i times errors of the keys, divided by the special prime P: `N 3.2^2 sum q_i^2 / 3 P^2`;
  in few slots it is much larger (see `layout.peaks`): the logits lie where it is not, the rest counts the largest;
- a product: each side's error times the largest value of the other.

The estimate is seven standard deviations. It takes these errors as independent of the image, and the values at the
largest of their ranges, so it holds for every image for which the ranges do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from polybound.deploy.encrypted.layout import Layout, peaks
from polybound.deploy.encrypted.polynomial import Array, Polynomial
from polybound.deploy.encrypted.ranges import Ranges

__all__ = ["DEVIATIONS", "Gains", "Scales", "error_of", "fresh_variance", "rounding_variance", "switch_variance"]

DEVIATIONS = 7.0
_SIGMA = 3.2


@dataclass(frozen=True, eq=False)
class Scales:
    """Logarithms to base 2 of moduli and scales; arrays where several choices are compared.

    Attributes:
        primes: of the data primes, the last to be dropped first.
        special: of the special prime.
        pixels: of the scale of the pixels.
        weights: of the scale of the factors' maps.
        output: of the scale of the output map.
    """

    primes: tuple[float, ...]
    special: float
    pixels: Array
    weights: Array
    output: Array

    def level(self, n: int) -> Array:
        """The scale of the products at level n of the tree."""
        scale = self.pixels + self.weights
        for k in range(n):
            scale = 2 * scale - self.primes[-1 - k]
        return scale


@dataclass(frozen=True, eq=False)
class Gains:
    """How much the errors at each place count in the logits: squares of factors, each (classes,).

    Attributes:
        pixels: of errors of the pixels, by the norms of the factors' rows.
        factors: of errors of the factors.
        levels: of errors of the products at level 1, 2, ... of the tree; the last are the output map's.
        products: the square of the l2 norm of all products.
    """

    pixels: Array
    factors: Array
    levels: tuple[Array, ...]
    products: float

    @staticmethod
    def of(polynomial: Polynomial, ranges: Ranges) -> Gains:
        """The gains for values of these ranges."""
        C2 = polynomial.C**2
        squares = [others**2 for others in ranges.others]
        # An error of the pixels is the same for all rows: as they may be alike, it adds up. Two bounds of that.
        together = C2 @ squares[0].sum(0) * np.linalg.norm(polynomial.W.reshape(-1, polynomial.features), 2) ** 2
        alone = (np.abs(polynomial.C) @ (ranges.others[0] * ranges.rows).sum(0)) ** 2
        pixels = np.minimum(together, alone)
        levels = tuple(C2 @ square.sum(0) for square in squares)
        return Gains(pixels, levels[0], levels[1:] or (C2.sum(1),), float((ranges.products**2).sum()))


def fresh_variance(ring: int) -> float:
    """Of a slot of a fresh ciphertext, encoding included."""
    return ring * (_SIGMA**2 + 1 / 12)


def rounding_variance(ring: int) -> float:
    """Of a slot after rescaling."""
    return ring * (1 + 2 * ring / 3) / 12


def switch_variance(ring: int, primes: tuple[float, ...], special: float) -> float:
    """Of a slot after a key switch (rotation, conjugation or relinearisation)."""
    digits = float(sum(4.0 ** (prime - special) for prime in primes))
    return ring * ring * _SIGMA**2 * digits / 3 + rounding_variance(ring)


def error_of(layout: Layout, gains: Gains, scales: Scales, length: float) -> Array:
    """The estimated errors of the logits: (..., classes), leading dimensions those of the scales."""
    ring, depth = 2 * layout.slots, layout.depth
    switch = [switch_variance(ring, scales.primes[: len(scales.primes) - n], scales.special) for n in range(depth + 1)]
    rounding = rounding_variance(ring)

    def at(scale: Array, variance: float) -> Array:
        return np.asarray(variance * 4.0**-scale)[..., None]

    highest = float(peaks(layout.slots).max())
    # One of the pixels may lie in the slot of the highest peak.
    pixels = fresh_variance(ring) + switch[0] * (layout.baby - 1) * max(1.0, highest / layout.pairs)
    total = gains.pixels * at(scales.pixels, pixels) / 2
    rotations = 2 * (layout.giant * layout.copies + highest) + (depth > 0) * highest
    factors = at(scales.weights, 2 * length**2 * ring / 12) + at(scales.level(0), rotations * switch[0])
    total = total + gains.factors * factors
    for n in range(1, depth + 1):
        error = at(scales.level(n), rounding + (switch[n] * highest if n < depth else 0.0))
        error = error + at(2 * scales.level(n - 1), switch[n - 1] * highest)
        total = total + gains.levels[n - 1] * error
    total = total + _output_error(layout, gains, scales, at, switch[-1], rounding)
    estimate: Array = DEVIATIONS * np.sqrt(total)
    return estimate


def _output_error(
    layout: Layout, gains: Gains, scales: Scales, at: Callable[[Array, float], Array], switch: float, rounding: float
) -> Array:
    """The variance that the output map adds."""
    products = scales.level(layout.depth)
    final = products + scales.output
    # Weights that repeat after p slots are polynomials of 2 p coefficients: only these are rounded.
    coefficients = 2 * max(layout.units, layout.class_period)
    error = gains.levels[-1] * at(products, (layout.out_baby - 1) * layout.peak * switch)
    error = error + at(scales.output, gains.products * coefficients / 12)
    folded = layout.units // layout.out_diagonals
    error = error + at(final, (layout.out_giant + 1) * folded * layout.peak * switch)
    spare = len(scales.primes) - 1 - layout.depth
    if spare:
        error = error + at(final - sum(scales.primes[1 : spare + 1]), 2 * rounding)
    return error
