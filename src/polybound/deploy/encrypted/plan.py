"""The plan: ring, moduli, scales and packing for one network, from proven ranges; and its public part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from math import isfinite, prod
from typing import Any

import numpy as np

from polybound.deploy.encrypted.noise import MODULUS_BITS, Choice, Demand, Parameters, best_parameters, error_of
from polybound.deploy.encrypted.packing import Layout
from polybound.deploy.encrypted.polynomial import (
    Array,
    Polynomial,
    Ranges,
    proven_ranges,
    ranges_at,
    read_polynomial,
    usual_ranges,
)
from polybound.errors import PolyboundError
from polybound.models import PolynomialNetwork

__all__ = ["PLAN_HEADER", "Plan", "PublicPlan", "plan_encryption"]


# What a client is told of a plan, and checks before it trusts it.


PLAN_HEADER = "Polybound-Plan"
"""The header of a request that names the digest of its plan."""

_VERSION = 1


@dataclass(frozen=True)
class PublicPlan:
    """The public part of a plan, the same for client and server.

    Attributes:
        layout: where everything lies in the slots.
        ring: dimension N.
        bits: sizes of the primes in bits, the special prime last.
        pixels: binary logarithm of the pixels' scale.
        shape: of one image.
        domain: the smallest and the largest value of a pixel.
        class_names: one for each class.
        error: the estimate of the largest error of a logit.
    """

    layout: Layout
    ring: int
    bits: tuple[int, ...]
    pixels: float
    shape: tuple[int, ...]
    domain: tuple[float, float]
    class_names: tuple[str, ...]
    error: float

    @cached_property
    def digest(self) -> str:
        """The SHA-256, in hexadecimal, of all of it: keys and requests name the plan that they are for."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps({"version": _VERSION, **asdict(self)}, sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes) -> PublicPlan:
        """A plan from JSON, checked: a server that offers unsafe parameters is refused.

        Raises:
            PolyboundError: it is no plan, or one that a client must not follow.
        """
        try:
            content = json.loads(text)
            if content.pop("version") != _VERSION:
                raise PolyboundError("the server's plan has another version: use the same polybound on both sides")
            layout = Layout(**{field.name: _count(content["layout"][field.name]) for field in fields(Layout)})
            plan = PublicPlan(
                layout,
                _count(content["ring"]),
                tuple(_count(b) for b in content["bits"]),
                float(content["pixels"]),
                tuple(_count(n) for n in content["shape"]),
                (float(content["domain"][0]), float(content["domain"][1])),
                tuple(str(name) for name in content["class_names"]),
                float(content["error"]),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            if isinstance(error, PolyboundError):
                raise
            raise PolyboundError(f"the server's plan cannot be read ({error!r})") from None
        plan.check()
        return plan

    def check(self) -> None:
        """Refuse what is not safe, or does not fit together.

        Raises:
            PolyboundError: the message says which.
        """
        Parameters(self.ring, self.bits, self.pixels, 20.0, 20.0).check()
        layout = self.layout
        if layout.slots != self.ring // 2 or not layout.fits() or layout.depth > 3 or layout.uploads > 8:
            raise PolyboundError("the plan's packing does not fit its ring")
        if prod(self.shape) != layout.features or len(self.class_names) != layout.classes:
            raise PolyboundError("the plan's image shape or class names do not fit its packing")
        if not all(name.isprintable() and len(name) <= 100 for name in self.class_names):
            raise PolyboundError("the plan's class names are no names")
        if len(self.bits) < layout.depth + 2 or sum(self.bits[:-1]) < self.pixels + 2:
            raise PolyboundError("the plan's moduli are too few for its network")
        low, high = self.domain
        if not (isfinite(low) and isfinite(high) and low < high and isfinite(self.error)):
            raise PolyboundError("the plan's domain or error is not a number")


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**20:
        raise ValueError(f"{value!r} is no count")
    return value


TOLERANCE = 1.0


@dataclass(frozen=True, eq=False)
class Plan:
    """How a network is evaluated encrypted; `public` is what a client is told of it.

    Attributes:
        polynomial: the network, with the domain.
        ranges: proven bounds of all values over the domain.
        layout: where everything lies in the slots.
        parameters: ring, moduli and scales.
        error: the estimate of the largest error of a logit over the domain.
        class_names: one name for each class.
    """

    polynomial: Polynomial = field(repr=False)
    ranges: Ranges = field(repr=False)
    layout: Layout
    parameters: Parameters
    error: float
    class_names: tuple[str, ...]

    @cached_property
    def public(self) -> PublicPlan:
        """What a client needs: nothing of the weights but the size of the network, and the estimated error."""
        p = self.parameters
        domain = (self.polynomial.low, self.polynomial.high)
        shape = tuple(self.polynomial.shape)
        return PublicPlan(self.layout, p.ring, p.bits, p.pixels, shape, domain, self.class_names, self.error)

    def error_at(self, images: Array) -> float:
        """The estimate for these images (images, features) alone: smaller, since their values are."""
        demand = Demand.of(self.polynomial, ranges_at(self.polynomial, np.asarray(images, dtype=np.float64)))
        scales = self.parameters.scales()
        return float(error_of(self.layout, demand.gains, scales, demand.ranges.length).max())


def plan_encryption(
    model: PolynomialNetwork | Polynomial,
    domain: tuple[float, float] = (-1.0, 1.0),
    class_names: Sequence[str] | None = None,
    tolerance: float = TOLERANCE,
    uploads: int = 2,
) -> Plan:
    """The fastest plan whose error over the whole domain is within the tolerance, at 128-bit security.

    Args:
        model: a CCP of degree up to 8, or an NCP of degree 2.
        domain: the smallest and the largest value of a pixel.
        class_names: one for each class; numbers by default.
        tolerance: the largest error of a logit that will do.
        uploads: how many ciphertexts a client may send for one image; more take less of the server's time.

    Raises:
        PolyboundError: the model does not fit; the message names the value that is too large, and the bound of the
            rows' l1 norms that would make it fit.
    """
    polynomial = model if isinstance(model, Polynomial) else read_polynomial(model, domain)
    names = tuple(class_names or map(str, range(polynomial.classes)))
    if len(names) != polynomial.classes:
        raise PolyboundError(f"{len(names)} class names for {polynomial.classes} classes")
    if not tolerance > 0 or uploads not in (1, 2, 4, 8):
        raise PolyboundError(f"the tolerance must be positive and uploads 1, 2, 4 or 8, got {tolerance:g}, {uploads}")
    ranges = proven_ranges(polynomial)
    found = _fastest(polynomial, ranges, tolerance, uploads)
    if found is None:
        raise PolyboundError(_refusal(polynomial, ranges, tolerance, uploads))
    layout, choice = found
    return Plan(polynomial, ranges, layout, choice.parameters, choice.error, names)


def _layouts(polynomial: Polynomial, uploads: int) -> Iterator[tuple[float, Layout, int]]:
    """All packings that have room, with the relative time that they take and the spare primes, the fastest first."""
    depth = (polynomial.degree - 1).bit_length()
    found = []
    for ring in MODULUS_BITS:
        for baby in (1, 2, 4):
            for spare in (0, 1, 2):
                sizes = (polynomial.features, polynomial.classes, polynomial.rank, depth, ring // 2)
                layout = Layout(*sizes, uploads, baby)
                layout = layout if layout.fits() else Layout(*sizes, 1, baby)
                if layout.fits():
                    found.append((_time(layout, spare), layout, spare))
    yield from sorted(found, key=lambda candidate: candidate[0])


def _time(layout: Layout, spare: int) -> float:
    """Rotations, counted by the primes that each goes through; plain products cost a tenth."""
    primes = layout.depth + 1 + spare
    first = layout.uploads * (layout.baby - 1) + layout.giant + len(layout.folds) + 0.1 * layout.diagonals
    time = first * primes * (primes + 1)
    for n in range(layout.depth):
        time += 2.2 * (primes - n) * (primes - n + 1)
    last = primes - layout.depth
    time += (layout.out_baby + layout.out_giant + len(layout.out_folds)) * last * (last + 1)
    return time * layout.slots * float(np.log2(layout.slots))


def _fastest(polynomial: Polynomial, ranges: Ranges, tolerance: float, uploads: int) -> tuple[Layout, Choice] | None:
    proven, usual = Demand.of(polynomial, ranges), Demand.of(polynomial, usual_ranges(polynomial))
    for _, layout, spare in _layouts(polynomial, uploads):
        choice = best_parameters(layout, proven, usual, spare, tolerance)
        if choice is not None and choice.error <= tolerance:
            return layout, choice
    return None


def _refusal(polynomial: Polynomial, ranges: Ranges, tolerance: float, uploads: int) -> str:
    """What is too large, and what would fit."""
    layouts = [layout for _, layout, _ in _layouts(polynomial, uploads)]
    if not layouts:
        rows = polynomial.rank << (polynomial.degree - 1).bit_length()
        most = max(MODULUS_BITS) // 2
        return (
            f"{rows} rows of all factors (the rank times the degree, padded) and {polynomial.features} pixels do not "
            f"fit {most} slots: a smaller rank or smaller images would"
        )
    unit = int(np.argmax(ranges.products))
    largest = float(ranges.products[unit])
    logit = float(ranges.logits.max())
    bound = _largest_bound(polynomial, tolerance, uploads)
    advice = f"row-l1 norms bounded by {bound:.3g} would fit" if bound else "no bound of the row-l1 norms would fit"
    factor = float(ranges.factors.max())
    return (
        f"the model does not fit an error of {tolerance:g}: over the domain its factors reach {factor:.3g}, the "
        f"product of unit {unit} reaches {largest:.3g} and a logit {logit:.3g}; {advice}"
    )


def _largest_bound(polynomial: Polynomial, tolerance: float, uploads: int) -> float:
    """The largest bound of the l1 norms of all rows, to some digits, that makes the model fit; 0 if none does."""
    # What fits anything fits the packing with the most slots and the fewest rotations of pixels.
    most = [found for found in _layouts(polynomial, uploads) if found[1].baby == 1]
    widest = max(layout.slots for _, layout, _ in most)
    candidates = [(layout, spare) for _, layout, spare in most if layout.slots == widest]

    def fits(bound: float) -> bool:
        smaller = polynomial.bounded(bound)
        proven, usual = Demand.of(smaller, proven_ranges(smaller)), Demand.of(smaller, usual_ranges(smaller))
        choices = (best_parameters(layout, proven, usual, spare, tolerance) for layout, spare in candidates)
        return any(choice is not None and choice.error <= tolerance for choice in choices)

    low, high = 0.0, float(max(np.abs(polynomial.W).sum(-1).max(), np.abs(polynomial.C).sum(-1).max()))
    # By factors first: the norms may be far too large.
    while high > 1e-3 and not fits(high / 4):
        high /= 4
    low = high / 4 if high > 1e-3 else 0.0
    for _ in range(5 if low else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
