"""The plan of a chain: the fastest packing, and the parameters that keep its error within a tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from polybound.deploy.encrypted.chain import polynomial as chains
from polybound.deploy.encrypted.chain.packing import ChainEvaluation, ChainLayout
from polybound.deploy.encrypted.chain.parameters import SMALL_RINGS, Gains, Parameters, best_parameters, error_of
from polybound.deploy.encrypted.chain.polynomial import Array, Polynomial, Ranges
from polybound.deploy.encrypted.engine import Engine
from polybound.deploy.encrypted.plan import Done, Plan
from polybound.errors import PolyboundError
from polybound.models import PolynomialNetwork


@dataclass(frozen=True)
class ChainPlan(Plan):
    """How a chain is evaluated encrypted.

    Attributes:
        layout: where everything lies in the slots.
        parameters: ring, moduli and scales.
        polynomial: the network, with the domain.
        ranges: proven bounds of all values over the domain.
    """

    layout: ChainLayout
    parameters: Parameters
    polynomial: Polynomial = field(repr=False)
    ranges: Ranges = field(repr=False)

    @property
    def constants(self) -> Array:
        return self.polynomial.beta

    @property
    def reach(self) -> float:
        return float(self.ranges.logits.max())

    def evaluation(self, engine: Engine, done: Done) -> Callable[[Engine, Sequence[Any], Done], list[Any]]:
        p = self.parameters
        found = ChainEvaluation(self.layout, self.polynomial, p.weights, p.output, len(p.primes), engine)
        done(1)
        return found

    def facts(self) -> dict[str, Any]:
        p = self.parameters
        return {
            "ring": self.ring,
            "bits of the moduli": list(self.bits),
            "scales (bits)": {"pixels": self.pixels, "weights": round(p.weights, 2), "output": p.output},
            "ciphertexts of an image": self.layout.uploads,
            "keys for rotations": len(self.steps) + 1,
            "largest factor": float(self.ranges.factors.max()),
            "largest product": float(self.ranges.products.max()),
            "largest logit": self.reach,
            "largest error": self.error,
        }

    def error_at(self, images: Array) -> float:
        """The estimate for these images (images, features) alone: smaller, since their values are."""
        ranges = chains.ranges_at(self.polynomial, np.asarray(images, dtype=np.float64))
        return float(error_of(self.layout, Gains.of(self.polynomial, ranges), self.parameters).max())


def plan_chain(
    model: PolynomialNetwork | Polynomial,
    domain: tuple[float, float],
    class_names: Sequence[str] | None,
    tolerance: float,
    uploads: int,
) -> ChainPlan:
    """The fastest plan of a CCP of degree up to 8 or an NCP of degree 2, for every image of the domain.

    Args and errors are those of `plan_encryption`.
    """
    polynomial = model if isinstance(model, Polynomial) else chains.read_polynomial(model, domain)
    names = tuple(class_names or map(str, range(polynomial.classes)))
    if len(names) != polynomial.classes:
        raise PolyboundError(f"{len(names)} class names for {polynomial.classes} classes")
    if not tolerance > 0 or uploads not in (1, 2, 4, 8):
        raise PolyboundError(f"the tolerance must be positive and uploads 1, 2, 4 or 8, got {tolerance:g}, {uploads}")
    layouts = _layouts(polynomial, uploads)
    if not layouts:
        rows = polynomial.rank << (polynomial.degree - 1).bit_length()
        raise PolyboundError(
            f"{rows} rows of all factors (the rank times the degree, padded) and {polynomial.features} pixels do not "
            f"fit {max(SMALL_RINGS) // 2} slots: a smaller rank or smaller images would"
        )
    ranges = chains.proven_ranges(polynomial)
    found = _first_fit(polynomial, ranges, layouts, tolerance)
    if found is None:
        bound = _largest_bound(polynomial, layouts, tolerance)
        unit = int(np.argmax(ranges.products))
        advice = f"row-l1 norms bounded by {bound:.3g} would fit" if bound else "no bound of the row-l1 norms would fit"
        raise PolyboundError(
            f"the model does not fit an error of {tolerance:g}: over the domain its factors reach "
            f"{ranges.factors.max():.3g}, the product of unit {unit} reaches {ranges.products[unit]:.3g} and a logit "
            f"{ranges.logits.max():.3g}; {advice}"
        )
    layout, p, error = found
    first = layout.calmest[0]
    box, places = (polynomial.low, polynomial.high), tuple(range(first, first + polynomial.classes))
    return ChainPlan(
        p.ring, p.bits, p.pixels, tuple(polynomial.shape), box, names, error, "proven over the domain",
        layout.packing, layout.steps, places, 1, 0.0, layout, p, polynomial, ranges,
    )  # fmt: skip


def _layouts(polynomial: Polynomial, uploads: int) -> list[tuple[ChainLayout, int]]:
    """All packings that have room, each with a number of spare primes, the fastest first."""
    depth = (polynomial.degree - 1).bit_length()
    found = []
    for ring in SMALL_RINGS:
        for baby in (1, 2, 4):
            of = partial(ChainLayout.of, polynomial, ring // 2, baby=baby)
            layout = of(uploads) or of(1)
            if layout is None:
                continue
            for spare in (0, 1, 2):
                # Rotations, counted by the primes that each goes through; plain products cost a tenth.
                primes = depth + 1 + spare
                first = layout.uploads * (baby - 1) + layout.giant + len(layout.folds) + 0.1 * layout.diagonals
                time = first * primes * (primes + 1)
                for n in range(depth):
                    time += 2.2 * (primes - n) * (primes - n + 1)
                last = primes - depth
                time += (layout.out_baby + layout.out_giant + len(layout.out_folds)) * last * (last + 1)
                found.append((time * layout.slots * float(np.log2(layout.slots)), layout, spare))
    return [(layout, spare) for _, layout, spare in sorted(found, key=lambda candidate: candidate[0])]


def _first_fit(
    polynomial: Polynomial, ranges: Ranges, layouts: Iterable[tuple[ChainLayout, int]], tolerance: float
) -> tuple[ChainLayout, Parameters, float] | None:
    """The first packing with an error within the tolerance, its parameters and its error."""
    proven, usual = Gains.of(polynomial, ranges), Gains.of(polynomial, chains.usual_ranges(polynomial))
    for layout, spare in layouts:
        best = best_parameters(layout, ranges, proven, usual, spare, tolerance)
        if best is not None and best[1] <= tolerance:
            return layout, *best
    return None


def _largest_bound(polynomial: Polynomial, layouts: Sequence[tuple[ChainLayout, int]], tolerance: float) -> float:
    """The largest bound of the l1 norms of all rows, to some digits, that makes the model fit; 0 if none does."""
    # What fits anything fits the packing with the most slots and the fewest rotations of pixels.
    widest = max(layout.slots for layout, _ in layouts if layout.baby == 1)
    candidates = [(layout, spare) for layout, spare in layouts if layout.baby == 1 and layout.slots == widest]

    def fits(bound: float) -> bool:
        smaller = polynomial.bounded(bound)
        return _first_fit(smaller, chains.proven_ranges(smaller), candidates, tolerance) is not None

    low, high = 0.0, float(max(np.abs(polynomial.W).sum(-1).max(), np.abs(polynomial.C).sum(-1).max()))
    # By factors first: the norms may be far too large.
    while high > 1e-3 and not fits(high / 4):
        high /= 4
    low = high / 4 if high > 1e-3 else 0.0
    for _ in range(5 if low else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
