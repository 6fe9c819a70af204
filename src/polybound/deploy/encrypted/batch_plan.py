"""The plan of a batch: one ciphertext a pixel, an image a slot; no rotations, and whole-number weights.

The factors' maps are multiplied in as whole numbers `round(2^v W)`, exactly, in float64: that holds while the largest
l1 norm of a row times a prime is below `2^53`. So the primes are small, and several are dropped where that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product as combinations

import numpy as np

from polybound.deploy.encrypted.noise import DEVIATIONS, fresh_variance, rounding_variance, switch_variance
from polybound.deploy.encrypted.parameters import MARGIN, MODULUS_BITS, Demand
from polybound.deploy.encrypted.polynomial import Array, Polynomial, read_polynomial
from polybound.deploy.encrypted.ranges import Ranges, proven_ranges, ranges_at, usual_ranges
from polybound.errors import PolyboundError
from polybound.models import PolynomialNetwork

__all__ = ["BatchParameters", "BatchPlan", "plan_batches"]


@dataclass(frozen=True)
class BatchParameters:
    """The parameters of a batch.

    Attributes:
        ring: dimension N; a batch has up to N / 2 images.
        bits: sizes of the primes in bits, the special prime last.
        pixels: binary logarithm of the pixels' scale.
        weights: v, of the scale of the factors' maps; a whole number.
        output: of the scale of the output map.
        drops: how many primes each level of the tree drops.
    """

    ring: int
    bits: tuple[int, ...]
    pixels: float
    weights: int
    output: float
    drops: tuple[int, ...]

    @property
    def primes(self) -> int:
        """The number of data primes."""
        return len(self.bits) - 1

    def scales(self) -> list[float]:
        """The binary logarithms of the scales of all levels of the tree."""
        found = [self.pixels + self.weights]
        for drop in self.drops:
            found.append(2 * found[-1] - drop * self.bits[0])
        return found


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """How a network is evaluated on a batch.

    Attributes:
        polynomial: the network, with the domain.
        ranges: proven bounds of all values over the domain.
        parameters: ring, moduli and scales.
        error: the estimate of the largest error of a logit over the domain.
    """

    polynomial: Polynomial = field(repr=False)
    ranges: Ranges = field(repr=False)
    parameters: BatchParameters
    error: float

    def error_at(self, images: Array) -> float:
        """The estimate for these images (images, features) alone."""
        demand = Demand.of(self.polynomial, ranges_at(self.polynomial, np.asarray(images, dtype=np.float64)))
        return _error(self.parameters, demand)


def plan_batches(
    model: PolynomialNetwork | Polynomial, domain: tuple[float, float] = (-1.0, 1.0), tolerance: float = 1.0
) -> BatchPlan:
    """The fastest plan for batches whose error over the whole domain is within the tolerance.

    Args:
        model: a CCP of degree up to 8, or an NCP of degree 2.
        domain: the smallest and the largest value of a pixel.
        tolerance: the largest error of a logit that will do.

    Raises:
        PolyboundError: the model does not fit; the message says which value is too large.
    """
    polynomial = model if isinstance(model, Polynomial) else read_polynomial(model, domain)
    ranges = proven_ranges(polynomial)
    proven, usual = Demand.of(polynomial, ranges), Demand.of(polynomial, usual_ranges(polynomial))
    norm = float(np.abs(polynomial.W).sum(-1).max()) + 1e-9
    for ring in MODULUS_BITS:
        for primes in range(2, 9):
            found = _best(ring, primes, norm, polynomial.features, proven, usual, tolerance)
            if found is not None:
                return BatchPlan(polynomial, ranges, *found)
    raise PolyboundError(
        f"the model does not fit an error of {tolerance:g} in batches: over the domain its factors reach "
        f"{ranges.factors.max():.3g}, a product {ranges.products.max():.3g} and a logit {ranges.logits.max():.3g}; "
        "smaller bounds of the row-l1 norms make them smaller"
    )


def _best(
    ring: int, primes: int, norm: float, features: int, proven: Demand, usual: Demand, tolerance: float
) -> tuple[BatchParameters, float] | None:
    """The parameters with so many primes that do best on usual values, among those within the tolerance."""
    best: tuple[float, BatchParameters, float] | None = None
    for candidate in _candidates(ring, primes, norm, features, proven.ranges):
        error = _error(candidate, proven)
        badness = error * _error(candidate, usual)
        if error <= tolerance and (best is None or badness < best[0]):
            best = badness, candidate, error
    return None if best is None else best[1:]


def _candidates(ring: int, primes: int, norm: float, features: int, ranges: Ranges) -> Iterator[BatchParameters]:
    depth = len(ranges.nodes) - 1
    for bits in (28, 30, 31, 32):
        special = min(60, MODULUS_BITS[ring] - primes * bits)
        # Rounding may raise the l1 norm by half a unit for each pixel.
        weights = int(np.floor(np.log2(2.0 ** (53 - bits) - features / 2) - np.log2(norm)))
        if special < bits or weights < 6:
            continue
        for drops in combinations((1, 2), repeat=depth):
            left = primes - sum(drops)
            if left < 1:
                continue
            final = left * bits - 1 - MARGIN - np.log2(max(float(ranges.logits.max()), 1.0))
            for output in range(4, 28, 2):
                scale = final - output
                for drop in reversed(drops):
                    scale = (scale + drop * bits) / 2
                found = BatchParameters(
                    ring, (bits,) * primes + (special,), float(scale - weights), weights, float(output), drops
                )
                if _has_room(found, ranges):
                    yield found


def _has_room(p: BatchParameters, ranges: Ranges) -> bool:
    if not 4 <= p.pixels <= 40 or p.pixels > p.bits[0] * p.primes - 4:
        return False
    before = np.log2(max(float(ranges.factors.max()), ranges.partial, 1.0))
    if p.scales()[0] + before + MARGIN >= p.primes * p.bits[0] - 1:
        return False
    left = p.primes
    for scale, drop, nodes in zip(p.scales(), p.drops, ranges.nodes[1:], strict=False):
        if 2 * scale + np.log2(max(float(nodes.max()), 1.0)) + MARGIN >= left * p.bits[0] - 1 or scale < 4:
            return False
        left -= drop
    return p.scales()[-1] >= 4


def _error(p: BatchParameters, demand: Demand) -> float:
    """The estimate of the largest error of a logit: the noise of `noise.py` without rotations."""
    gains, ring, levels = demand.gains, p.ring, p.scales()
    total = gains.pixels * fresh_variance(ring) * 4.0**-p.pixels
    total = total + gains.factors * demand.ranges.length**2 / 12 * 4.0**-p.weights
    left = p.primes
    for n, drop in enumerate(p.drops, 1):
        switch = switch_variance(ring, tuple(map(float, p.bits[:left])), float(p.bits[-1]))
        error = switch * 4.0 ** (-2 * levels[n - 1]) + 2 * rounding_variance(ring) * 4.0 ** -levels[n]
        total = total + gains.levels[n - 1] * error
        left -= drop
    total = total + gains.products / 12 * 4.0**-p.output
    return float(DEVIATIONS * np.sqrt(total).max())
