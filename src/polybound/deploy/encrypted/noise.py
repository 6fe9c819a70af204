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

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polybound.deploy.encrypted.packing import Layout, peaks
from polybound.deploy.encrypted.polynomial import Array, Polynomial, Ranges
from polybound.errors import PolyboundError

__all__ = [
    "DEVIATIONS",
    "MODULUS_BITS",
    "Choice",
    "Demand",
    "Gains",
    "Parameters",
    "Scales",
    "best_parameters",
    "error_of",
    "fresh_variance",
    "rounding_variance",
    "switch_variance",
]


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


# Ring, moduli and scales: which are safe, which have room for the proven ranges, and which give the least error.


MODULUS_BITS = {8192: 218, 16384: 438}
"""The largest modulus, in bits, that gives 128-bit security with ternary secrets (homomorphicencryption.org, 2018)."""


@dataclass(frozen=True, eq=False)
class Demand:
    """Ranges of all values, and how much errors count with them."""

    ranges: Ranges
    gains: Gains

    @staticmethod
    def of(polynomial: Polynomial, ranges: Ranges) -> Demand:
        """The demand of a polynomial whose values have these ranges."""
        return Demand(ranges, Gains.of(polynomial, ranges))


MARGIN = 0.15
"""Bits of room above every range: for the errors, and for primes being a little below their power of two."""


@dataclass(frozen=True)
class Parameters:
    """The parameters of the scheme, as client and server must agree on them.

    Attributes:
        ring: dimension N; there are N / 2 slots.
        bits: sizes of the primes in bits, the special prime last.
        pixels: binary logarithm of the pixels' scale.
        weights: of the scale of the factors' maps.
        output: of the scale of the output map.
    """

    ring: int
    bits: tuple[int, ...]
    pixels: float
    weights: float
    output: float

    def check(self) -> None:
        """Refuse parameters that are not safe or make no sense, whoever offers them.

        Raises:
            PolyboundError: the message says which.
        """
        if self.ring not in MODULUS_BITS:
            raise PolyboundError(f"ring must be one of {', '.join(map(str, MODULUS_BITS))}, got {self.ring}")
        if len(self.bits) < 2 or not all(isinstance(b, int) and 20 <= b <= 60 for b in self.bits):
            raise PolyboundError(f"at least two primes of 20 to 60 bits are needed, got {list(self.bits)}")
        if sum(self.bits) > MODULUS_BITS[self.ring]:
            raise PolyboundError(
                f"a modulus of {sum(self.bits)} bits is not secure with ring {self.ring}: at most "
                f"{MODULUS_BITS[self.ring]} bits give 128-bit security"
            )
        if not all(1 <= scale <= 60 for scale in (self.pixels, self.weights, self.output)):
            raise PolyboundError("scales must lie between 2 and 2^60")

    def scales(self) -> Scales:
        """The same, as the error's formula takes it."""
        one = [np.asarray(value) for value in (self.pixels, self.weights, self.output)]
        return Scales(tuple(map(float, self.bits[:-1])), float(self.bits[-1]), *one)

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Choice:
    """Parameters, the largest error of a logit over the domain, and how well they do in all: less is better."""

    parameters: Parameters
    error: float
    badness: float


def best_parameters(layout: Layout, proven: Demand, usual: Demand, spare: int, tolerance: float) -> Choice | None:
    """The best of the safe parameters; None if the ranges fit no modulus.

    Best is the smallest product of the errors at the largest and at usual values, among those whose error over the
    domain is within the tolerance; if there is none, the smallest error.

    Args:
        layout: the packing.
        proven: ranges of all values over the domain, and their gains.
        usual: the same of usual values.
        spare: how many primes more than the tree needs: more bits for everything, in more time.
        tolerance: the largest error of a logit that will do.
    """
    best: Choice | None = None
    ring = 2 * layout.slots
    for bits in _moduli(MODULUS_BITS[ring], layout.depth, spare):
        scales = _scales_for(bits, layout, proven.ranges)
        errors, usually = (error_of(layout, d.gains, scales, d.ranges.length).max(-1) for d in (proven, usual))
        badness = np.where(errors <= tolerance, errors * usually, errors + 1e100)
        badness = np.where(_has_room(scales, layout, proven.ranges), badness, np.inf)
        place = np.unravel_index(np.argmin(badness), badness.shape)
        if np.isfinite(badness[place]) and (best is None or badness[place] < best.badness):
            chosen = (np.broadcast_to(v, badness.shape)[place] for v in (scales.pixels, scales.weights, scales.output))
            best = Choice(Parameters(ring, bits, *map(float, chosen)), float(errors[place]), float(badness[place]))
    return best


def _moduli(limit: int, depth: int, spare: int) -> Iterator[tuple[int, ...]]:
    """Sizes of primes to compare: the last data prime, the spare ones and those of the tree; the special prime."""
    others = depth + spare
    for last in range(44, 61, 2):
        for special in (34, 38, 42, 46, 50, 54, 58, 60):
            each = min(60, (limit - last - special) // others) if others else 0
            if others == 0 or each >= 24:
                yield (last, *[each] * others, special)


def _scales_for(bits: tuple[int, ...], layout: Layout, ranges: Ranges) -> Scales:
    """All scales worth comparing for these moduli: the logits just fit, the rest follows from that."""
    primes = tuple(map(float, bits[:-1]))
    spare = len(primes) - 1 - layout.depth
    final = sum(primes[: spare + 1]) - 1 - MARGIN - np.log2(max(ranges.logits.max(), 1.0))
    output = np.arange(2.0, 50.0, 2.0)[:, None]
    level = final - output
    for k in reversed(range(layout.depth)):
        level = (level + primes[-1 - k]) / 2
    pixels = np.arange(8.0, 42.0)[None, :]
    return Scales(primes, float(bits[-1]), pixels, level - pixels, output)


def _has_room(scales: Scales, layout: Layout, ranges: Ranges) -> Any:
    """Whether every value fits its modulus at its scale; arrays as the scales are."""
    room = (scales.weights >= 1) & (scales.weights <= 58)
    before = np.log2(max(ranges.factors.max(), ranges.partial, 1.0))
    room &= scales.level(0) + before + MARGIN < sum(scales.primes) - 1
    for n in range(layout.depth):
        left = sum(scales.primes[: len(scales.primes) - n])
        largest = np.log2(max(ranges.nodes[n + 1].max(), 1.0))
        room &= 2 * scales.level(n) + largest + MARGIN < left - 1
        room &= scales.level(n + 1) > 4
    return room
