"""The plan of encrypted inference: ring, moduli, scales and packing for one network, from proven ranges."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from math import isfinite, prod
from typing import Any

import numpy as np

from polybound.deploy.encrypted.deep.plan import GraphPlan, GraphPublicPlan, plan_graph
from polybound.deploy.encrypted.noise import MODULUS_BITS, Gains, Parameters, best_parameters, check_modulus, error_of
from polybound.deploy.encrypted.packing import ComplexArray, Layout, pack
from polybound.deploy.encrypted.polynomial import (
    Array,
    Polynomial,
    Ranges,
    check_finite,
    is_one_product,
    proven_ranges,
    ranges_at,
    read_polynomial,
    usual_ranges,
)
from polybound.errors import PolyboundError
from polybound.models import PolynomialNetwork

PLAN_HEADER = "Polybound-Plan"
"""The header of a request that names the digest of its plan."""

_VERSION = 1


@dataclass(frozen=True)
class PublicPlan:
    """What a client is told of a plan; checked when it is made.

    Attributes:
        layout: where everything lies in the slots.
        ring: dimension N.
        bits: sizes of the primes in bits, the special prime last.
        pixels: binary logarithm of the pixels' scale.
        shape: of one image.
        domain: the smallest and the largest value of a pixel.
        class_names: one for each class.
        error: the estimate of the largest error of a logit over the domain.

    Raises:
        PolyboundError: a client must not follow such a plan; the message says why.
    """

    layout: Layout
    ring: int
    bits: tuple[int, ...]
    pixels: float
    shape: tuple[int, ...]
    domain: tuple[float, float]
    class_names: tuple[str, ...]
    error: float

    def __post_init__(self) -> None:
        check_modulus(self.ring, self.bits, MODULUS_BITS)
        if not 1 <= self.pixels <= 60:
            raise PolyboundError("scales must lie between 2 and 2^60")
        layout = self.layout
        if layout.slots != self.ring // 2 or not layout.fits() or layout.depth > 3 or layout.uploads > 8:
            raise PolyboundError("the plan's packing does not fit its ring")
        if prod(self.shape) != layout.features or len(self.class_names) != layout.classes:
            raise PolyboundError("the plan's image shape or class names do not fit its packing")
        if not all(name.isprintable() and len(name) <= 100 for name in self.class_names):
            raise PolyboundError("the plan's class names must be printable, and of at most 100 letters")
        if len(self.bits) < layout.depth + 2 or sum(self.bits[:-1]) < self.pixels + 2:
            raise PolyboundError("the plan's moduli are too few for its network")
        low, high = self.domain
        if not (isfinite(low) and isfinite(high) and low < high and isfinite(self.error)):
            raise PolyboundError("the plan's domain or error is not a number")

    @property
    def features(self) -> int:
        """How many numbers an image has."""
        return self.layout.features

    @property
    def steps(self) -> list[int]:
        """The rotations that need a key."""
        return self.layout.steps

    @property
    def blocks(self) -> int:
        """How many parts an evaluation has, for progress: it is short."""
        return 1

    def pack(self, image: Array) -> list[ComplexArray]:
        """The slots of an image's ciphertexts."""
        return pack(self.layout, image)

    def logits(self, slots: Array) -> Array:
        """The logits among the slots of a reply."""
        return slots[self.layout.first : self.layout.first + self.layout.classes]

    @cached_property
    def digest(self) -> str:
        """The SHA-256, in hexadecimal, of all of it: keys and requests name the plan that they are for."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The public part as JSON."""
        content = {field.name: getattr(self, field.name) for field in fields(PublicPlan)}
        return json.dumps({"version": _VERSION, **content, "layout": asdict(self.layout)}, sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes) -> PublicPlan:
        """A plan from JSON.

        Raises:
            PolyboundError: it is not a plan, or a client must not follow it.
        """

        def count(value: Any) -> int:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**20:
                raise ValueError(f"{value!r} is not a count")
            return value

        try:
            content = json.loads(text)
            if content.pop("version") != _VERSION:
                raise PolyboundError("the server's plan has another version: use the same polybound on both sides")
            return PublicPlan(
                Layout(**{field.name: count(content["layout"][field.name]) for field in fields(Layout)}),
                count(content["ring"]),
                tuple(count(b) for b in content["bits"]),
                float(content["pixels"]),
                tuple(count(n) for n in content["shape"]),
                (float(content["domain"][0]), float(content["domain"][1])),
                tuple(str(name) for name in content["class_names"]),
                float(content["error"]),
            )
        except PolyboundError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            raise PolyboundError(f"the server's plan cannot be read ({error!r})") from None


def read_plan(text: str | bytes) -> PublicPlan | GraphPublicPlan:
    """A plan of either kind from JSON.

    Raises:
        PolyboundError: it is not a plan, or a client must not follow it.
    """
    try:
        content = json.loads(text)
        if not (isinstance(content, dict) and content.get("kind") == "graph"):
            return PublicPlan.from_json(text)
        if content["version"] != _VERSION:
            raise PolyboundError("the server's plan has another version: use the same polybound on both sides")
        return GraphPublicPlan.from_content(content)
    except PolyboundError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise PolyboundError(f"the server's plan cannot be read ({error!r})") from None


@dataclass(frozen=True)
class Plan(PublicPlan):
    """How a network is evaluated encrypted: what clients are told, and what the server alone knows.

    Attributes:
        weights: binary logarithm of the scale of the factors' maps.
        output: of the scale of the output map.
        polynomial: the network, with the domain.
        ranges: proven bounds of all values over the domain.
    """

    weights: float
    output: float
    polynomial: Polynomial = field(repr=False)
    ranges: Ranges = field(repr=False)

    @cached_property
    def public(self) -> PublicPlan:
        """What a client needs: nothing of the weights but the size of the network, and the estimated error."""
        return PublicPlan(*(getattr(self, field.name) for field in fields(PublicPlan)))

    @property
    def parameters(self) -> Parameters:
        """Ring, moduli and scales."""
        return Parameters(self.ring, self.bits, self.pixels, self.weights, self.output)

    def facts(self) -> dict[str, Any]:
        """What a reader wants to know of it."""
        return {
            "ring": self.ring,
            "bits of the moduli": list(self.bits),
            "scales (bits)": {"pixels": self.pixels, "weights": round(self.weights, 2), "output": self.output},
            "ciphertexts of an image": self.layout.uploads,
            "keys for rotations": len(self.layout.steps) + 1,
            "largest factor": float(self.ranges.factors.max()),
            "largest product": float(self.ranges.products.max()),
            "largest logit": float(self.ranges.logits.max()),
            "largest error": self.error,
        }

    def error_at(self, images: Array) -> float:
        """The estimate for these images (images, features) alone: smaller, since their values are."""
        ranges = ranges_at(self.polynomial, np.asarray(images, dtype=np.float64))
        return float(error_of(self.layout, Gains.of(self.polynomial, ranges), self.parameters).max())


def plan_encryption(
    model: PolynomialNetwork | Polynomial,
    domain: tuple[float, float] = (-1.0, 1.0),
    class_names: Sequence[str] | None = None,
    tolerance: float = 1.0,
    uploads: int = 2,
    images: Array | None = None,
) -> Plan | GraphPlan:
    """The fastest plan whose error is within the tolerance, at 128-bit security.

    CCPs of degree up to 8 and NCPs of degree 2 have a plan for the whole domain; all other networks one for their
    graph (see `plan_graph`), which states what its ranges and its error rest on.

    Args:
        model: any polynomial network.
        domain: the smallest and the largest value of a pixel.
        class_names: one for each class; numbers by default.
        tolerance: the largest error of a logit that is accepted.
        uploads: the number of ciphertexts of one image of a chain; more take less of the server's time.
        images: (images, ...), at which the errors of a graph are estimated; by default random ones of the domain.

    Raises:
        PolyboundError: the model does not fit; the message names the value that is too large, and the bound of the
            rows' l1 norms that would make it fit.
    """
    if isinstance(model, PolynomialNetwork) and not is_one_product(model):
        numbers = class_names or tuple(map(str, range(model.classes)))
        flat = None if images is None else np.asarray(images, dtype=np.float64).reshape(len(images), -1)
        return plan_graph(model.graph(), check_finite(domain), numbers, tolerance, flat)
    polynomial = model if isinstance(model, Polynomial) else read_polynomial(model, domain)
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
            f"fit {max(MODULUS_BITS) // 2} slots: a smaller rank or smaller images would"
        )
    ranges = proven_ranges(polynomial)
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
    pixels, weights, output = float(p.pixels), float(p.weights), float(p.output)
    box = polynomial.low, polynomial.high
    return Plan(
        layout, p.ring, p.bits, pixels, tuple(polynomial.shape), box, names, error, weights, output, polynomial, ranges
    )


def _layouts(polynomial: Polynomial, uploads: int) -> list[tuple[Layout, int]]:
    """All packings that have room, each with a number of spare primes, the fastest first."""
    depth = (polynomial.degree - 1).bit_length()
    found = []
    for ring in MODULUS_BITS:
        for baby in (1, 2, 4):
            for spare in (0, 1, 2):
                sizes = (polynomial.features, polynomial.classes, polynomial.rank, depth, ring // 2)
                layout = Layout(*sizes, uploads, baby)
                layout = layout if layout.fits() else Layout(*sizes, 1, baby)
                if not layout.fits():
                    continue
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
    polynomial: Polynomial, ranges: Ranges, layouts: Iterable[tuple[Layout, int]], tolerance: float
) -> tuple[Layout, Parameters, float] | None:
    """The first packing with an error within the tolerance, its parameters and its error."""
    proven, usual = Gains.of(polynomial, ranges), Gains.of(polynomial, usual_ranges(polynomial))
    for layout, spare in layouts:
        best = best_parameters(layout, ranges, proven, usual, spare, tolerance)
        if best is not None and best[1] <= tolerance:
            return layout, *best
    return None


def _largest_bound(polynomial: Polynomial, layouts: Sequence[tuple[Layout, int]], tolerance: float) -> float:
    """The largest bound of the l1 norms of all rows, to some digits, that makes the model fit; 0 if none does."""
    # What fits anything fits the packing with the most slots and the fewest rotations of pixels.
    widest = max(layout.slots for layout, _ in layouts if layout.baby == 1)
    candidates = [(layout, spare) for layout, spare in layouts if layout.baby == 1 and layout.slots == widest]

    def fits(bound: float) -> bool:
        smaller = polynomial.bounded(bound)
        return _first_fit(smaller, proven_ranges(smaller), candidates, tolerance) is not None

    low, high = 0.0, float(max(np.abs(polynomial.W).sum(-1).max(), np.abs(polynomial.C).sum(-1).max()))
    # By factors first: the norms may be far too large.
    while high > 1e-3 and not fits(high / 4):
        high /= 4
    low = high / 4 if high > 1e-3 else 0.0
    for _ in range(5 if low else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
