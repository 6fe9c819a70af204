"""The error of an encrypted logit, from the scheme's random errors and the ranges of the values.

Every error is tracked as the variance of a slot, in units of the value. A polynomial with random coefficients of
variance v has slots of variance N v, and slots of one polynomial are uncorrelated.

- encryption: coefficients of standard deviation 3.2; encoding: rounding, 1/12;
- rescaling and the end of a key switch: both parts are rounded, `(1 + 2 N / 3) / 12` with a ternary secret;
- a key switch: digits below q_i times errors of the keys, divided by the special prime P: `N 3.2^2 sum q_i^2 / 3 P^2`;
  in few slots it is much larger (see `packing.peaks`): the logits lie elsewhere, the rest counts the largest;
- a product: each side's error times the largest value of the other;
- what masks a reply: `mask_variance`, at the scale of the logits.

The estimate is seven standard deviations. It takes these errors as independent of the image, and the values at the
largest of their ranges, so it holds for every image for which the ranges do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polybound.deploy.encrypted.packing import Layout, peaks
from polybound.deploy.encrypted.polynomial import Array, Polynomial, Ranges
from polybound.errors import PolyboundError

DEVIATIONS = 7.0
FLOOR = 1e-9
"""What the rounding of double precision may add."""

_SIGMA = 3.2

MODULUS_BITS = {8192: 218, 16384: 438}
"""The largest modulus, in bits, that gives 128-bit security with ternary secrets (homomorphicencryption.org, 2018)."""


def check_modulus(ring: int, bits: Sequence[int], most: Mapping[int, int]) -> None:
    """Refuse primes that no plan has, or that are not secure with a ring; `most` has the largest modulus of each."""
    if ring not in most:
        raise PolyboundError(f"ring must be one of {', '.join(map(str, most))}, got {ring}")
    if len(bits) < 2 or not all(isinstance(b, int) and 20 <= b <= 60 for b in bits):
        raise PolyboundError(f"at least two primes of 20 to 60 bits are needed, got {list(bits)}")
    if sum(bits) > most[ring]:
        raise PolyboundError(
            f"a modulus of {sum(bits)} bits is not secure with ring {ring}: at most "
            f"{most[ring]} bits give 128-bit security"
        )


MARGIN = 0.15
"""Bits of room above every range: for the errors, and for primes being a little below their power of two."""


@dataclass(frozen=True)
class Parameters:
    """Ring, moduli and scales. The scales are arrays where several choices of them are compared.

    Attributes:
        ring: dimension N; there are N / 2 slots.
        bits: sizes of the primes in bits, the last data prime to be dropped first; the special prime last.
        pixels: binary logarithm of the pixels' scale.
        weights: of the scale of the factors' maps.
        output: of the scale of the output map.
    """

    ring: int
    bits: tuple[int, ...]
    pixels: Any
    weights: Any
    output: Any

    @property
    def primes(self) -> tuple[int, ...]:
        """The sizes of the data primes in bits."""
        return self.bits[:-1]

    def level(self, n: int) -> Array:
        """The binary logarithm of the scale of the products at level n of the tree."""
        scale = np.asarray(self.pixels + self.weights)
        for k in range(n):
            scale = 2 * scale - self.primes[-1 - k]
        return scale


@dataclass(frozen=True, eq=False)
class Gains:
    """The weights of the errors at each place in the logits: squares of factors, each (classes,).

    Attributes:
        pixels: of errors of the pixels, by the norms of the factors' rows.
        factors: of errors of the factors.
        levels: of errors of the products at level 1, 2, ... of the tree; the last are the output map's.
        products: the square of the l2 norm of all products.
        length: the l2 norm of an input, which errors of the factors' weights are multiplied with.
    """

    pixels: Array
    factors: Array
    levels: tuple[Array, ...]
    products: float
    length: float

    @staticmethod
    def of(polynomial: Polynomial, ranges: Ranges) -> Gains:
        """The gains for values of these ranges."""
        C2 = polynomial.C**2
        squares = [others**2 for others in ranges.others]
        # An error of the pixels is the same for all rows: as they may be alike, it adds up. Two bounds of that.
        together = C2 @ squares[0].sum(0) * np.linalg.norm(polynomial.W.reshape(-1, polynomial.features), 2) ** 2
        alone = (np.abs(polynomial.C) @ (ranges.others[0] * ranges.rows).sum(0)) ** 2
        levels = tuple(C2 @ square.sum(0) for square in squares)
        products = float((ranges.products**2).sum())
        return Gains(np.minimum(together, alone), levels[0], levels[1:] or (C2.sum(1),), products, ranges.length)


def fresh_variance(ring: int) -> float:
    """Return the variance of a slot of a fresh ciphertext, encoding included."""
    return ring * (_SIGMA**2 + 1 / 12)


def rounding_variance(ring: int) -> float:
    """Return the variance of a slot after rescaling."""
    return ring * (1 + 2 * ring / 3) / 12


def switch_variance(ring: int, primes: tuple[int, ...], special: int) -> float:
    """Return the variance of a slot after a key switch (rotation, conjugation or relinearisation)."""
    digits = float(sum(4.0 ** (prime - special) for prime in primes))
    return ring * ring * _SIGMA**2 * digits / 3 + rounding_variance(ring)


def mask_variance(ring: int) -> float:
    """Return the variance that masking adds to a slot of a reply: a fresh zero and the random slots are rounded."""
    return rounding_variance(ring) + ring / 12


def error_of(layout: Layout, gains: Gains, parameters: Parameters) -> Array:
    """The estimated errors of the logits: (..., classes), leading dimensions those of the scales."""
    ring, depth, primes = 2 * layout.slots, layout.depth, parameters.primes
    switch = [switch_variance(ring, primes[: len(primes) - n], parameters.bits[-1]) for n in range(depth + 1)]
    rounding = rounding_variance(ring)

    def at(scale: Any, variance: float) -> Array:
        return np.asarray(variance * 4.0 ** -np.asarray(scale))[..., None]

    highest = float(peaks(layout.slots).max())
    # One of the pixels may lie in the slot of the highest peak.
    pixels = fresh_variance(ring) + switch[0] * (layout.baby - 1) * max(1.0, highest / layout.pairs)
    total = gains.pixels * at(parameters.pixels, pixels) / 2
    rotations = 2 * (layout.giant * layout.copies + highest) + (depth > 0) * highest
    factors = at(parameters.weights, 2 * gains.length**2 * ring / 12) + at(parameters.level(0), rotations * switch[0])
    total = total + gains.factors * factors
    for n in range(1, depth + 1):
        error = at(parameters.level(n), rounding + (switch[n] * highest if n < depth else 0.0))
        error = error + at(2 * parameters.level(n - 1), switch[n - 1] * highest)
        total = total + gains.levels[n - 1] * error
    # The output map. Weights that repeat after p slots are polynomials of 2 p coefficients: only these are rounded.
    products = parameters.level(depth)
    final = products + parameters.output
    coefficients = 2 * max(layout.units, layout.class_period)
    error = gains.levels[-1] * at(products, (layout.out_baby - 1) * layout.peak * switch[-1])
    error = error + at(parameters.output, gains.products * coefficients / 12)
    folded = layout.units // layout.out_diagonals
    error = error + at(final, (layout.out_giant + 1) * folded * layout.peak * switch[-1])
    spare = len(primes) - 1 - depth
    error = error + at(final - sum(primes[1 : spare + 1]), spare * rounding + mask_variance(ring))
    return np.asarray(DEVIATIONS * np.sqrt(total + error) + FLOOR)


def best_parameters(
    layout: Layout, ranges: Ranges, proven: Gains, usual: Gains, spare: int, tolerance: float
) -> tuple[Parameters, float] | None:
    """The best of the safe parameters, and the largest error over the domain; None if the ranges fit no modulus.

    Best is the smallest product of the errors at the largest and at usual values, among those whose error over the
    domain is within the tolerance; if there is none, the smallest error.

    Args:
        layout: the packing.
        ranges: of all values over the domain.
        proven: the gains of these ranges.
        usual: the gains of usual values.
        spare: the number of primes beyond those of the tree: more bits for everything, in more time.
        tolerance: the largest error of a logit that is accepted.
    """
    best: tuple[float, Parameters, float] | None = None
    ring, others = 2 * layout.slots, layout.depth + spare
    # Sizes of primes to compare: the last data prime, those of the tree and the spare ones; the special prime.
    for last in range(44, 61, 2):
        for special in (34, 38, 42, 46, 50, 54, 58, 60):
            each = min(60, (MODULUS_BITS[ring] - last - special) // others) if others else 0
            if others and each < 24:
                continue
            primes = (last, *[each] * others)
            # The logits just fit the last modulus; the other scales follow from that.
            final = sum(primes[: spare + 1]) - 1 - MARGIN - np.log2(max(ranges.logits.max(), 1.0))
            output = np.arange(2.0, 50.0, 2.0)[:, None]
            level = final - output
            for prime in primes[len(primes) - layout.depth :]:
                level = (level + prime) / 2
            pixels = np.arange(8.0, 42.0)[None, :]
            found = Parameters(ring, (*primes, special), pixels, level - pixels, output)
            errors, usually = (error_of(layout, gains, found).max(-1) for gains in (proven, usual))
            badness = np.where(errors <= tolerance, errors * usually, errors + 1e100)
            badness = np.where(_has_room(found, layout, ranges), badness, np.inf)
            place = np.unravel_index(np.argmin(badness), badness.shape)
            if np.isfinite(badness[place]) and (best is None or badness[place] < best[0]):
                scales = (np.broadcast_to(v, badness.shape)[place] for v in (pixels, found.weights, output))
                chosen = Parameters(ring, found.bits, *map(float, scales))
                best = float(badness[place]), chosen, float(errors[place])
    return None if best is None else best[1:]


def _has_room(parameters: Parameters, layout: Layout, ranges: Ranges) -> npt.NDArray[np.bool_]:
    """Whether every value fits its modulus at its scale; arrays as the scales are."""
    room = (np.asarray(parameters.weights) >= 1) & (np.asarray(parameters.weights) <= 58)
    before = np.log2(max(ranges.factors.max(), ranges.partial, 1.0))
    primes = parameters.primes
    room &= parameters.level(0) + before + MARGIN < sum(primes) - 1
    for n in range(layout.depth):
        left = sum(primes[: len(primes) - n])
        largest = np.log2(max(ranges.nodes[n + 1].max(), 1.0))
        room &= 2 * parameters.level(n) + largest + MARGIN < left - 1
        room &= parameters.level(n + 1) > 4
    return room
