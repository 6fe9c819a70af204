"""The error of a chain's logits from the ranges of its values, and the parameters that make it small.

Every error is tracked as the variance of a slot (see `noise.py`), in units of the value. A product multiplies each
side's error by the largest value of the other. All values are taken at the largest of their ranges, so the estimate
holds for every image for which the ranges do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polybound.deploy.encrypted import noise
from polybound.deploy.encrypted.chain.packing import ChainLayout
from polybound.deploy.encrypted.chain.polynomial import Array, Polynomial, Ranges

SMALL_RINGS = 8192, 16384
"""The rings of chains, which are short."""


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


def error_of(layout: ChainLayout, gains: Gains, parameters: Parameters) -> Array:
    """The estimated errors of the logits: (..., classes), leading dimensions those of the scales."""
    ring, depth, primes = 2 * layout.slots, layout.depth, parameters.primes
    switch = [noise.switch_variance(ring, primes[: len(primes) - n], parameters.bits[-1]) for n in range(depth + 1)]
    rounding = noise.rounding_variance(ring)

    def at(scale: Any, variance: float) -> Array:
        return np.asarray(variance * 4.0 ** -np.asarray(scale))[..., None]

    highest, peak = float(noise.peaks(layout.slots).max()), layout.calmest[1]
    # One of the pixels may lie in the slot of the highest peak.
    pixels = noise.fresh_variance(ring) + switch[0] * (layout.baby - 1) * max(1.0, highest / layout.pairs)
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
    error = gains.levels[-1] * at(products, (layout.out_baby - 1) * peak * switch[-1])
    error = error + at(parameters.output, gains.products * coefficients / 12)
    folded = layout.units // layout.out_diagonals
    error = error + at(final, (layout.out_giant + 1) * folded * peak * switch[-1])
    spare = len(primes) - 1 - depth
    error = error + at(final - sum(primes[1 : spare + 1]), spare * rounding + noise.mask_variance(ring))
    return noise.estimate(total + error)


def best_parameters(
    layout: ChainLayout, ranges: Ranges, proven: Gains, usual: Gains, spare: int, tolerance: float
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
            each = min(60, (noise.RINGS[ring] - last - special) // others) if others else 0
            if others and each < 24:
                continue
            primes = (last, *[each] * others)
            # The logits just fit the last modulus; the other scales follow from that.
            final = sum(primes[: spare + 1]) - 1 - noise.MARGIN - np.log2(max(ranges.logits.max(), 1.0))
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


def _has_room(parameters: Parameters, layout: ChainLayout, ranges: Ranges) -> npt.NDArray[np.bool_]:
    """Whether every value fits its modulus at its scale; arrays as the scales are."""
    room = (np.asarray(parameters.weights) >= 1) & (np.asarray(parameters.weights) <= 58)
    before = np.log2(max(ranges.factors.max(), ranges.partial, 1.0))
    primes = parameters.primes
    room &= parameters.level(0) + before + noise.MARGIN < sum(primes) - 1
    for n in range(layout.depth):
        left = sum(primes[: len(primes) - n])
        largest = np.log2(max(ranges.nodes[n + 1].max(), 1.0))
        room &= 2 * parameters.level(n) + largest + noise.MARGIN < left - 1
        room &= parameters.level(n + 1) > 4
    return room
