"""Ring, moduli and scales: which are safe, which have room for the proven ranges, and which give the least error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from polybound.deploy.encrypted.layout import Layout
from polybound.deploy.encrypted.noise import Gains, Scales, error_of
from polybound.deploy.encrypted.polynomial import Polynomial
from polybound.deploy.encrypted.ranges import Ranges
from polybound.errors import PolyboundError

__all__ = ["MODULUS_BITS", "Choice", "Demand", "Parameters", "best_parameters"]

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
