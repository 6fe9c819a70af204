"""The plan of a graph: what clients are told, and what the server alone knows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import isfinite, log2, prod
from typing import Any

import numpy as np

from polybound.deploy.encrypted.deep.balance import balanced
from polybound.deploy.encrypted.deep.chain import RINGS, Chain, best_chain, estimates, megabytes, seconds
from polybound.deploy.encrypted.deep.circuit import Circuit, design
from polybound.deploy.encrypted.deep.cost import Cost
from polybound.deploy.encrypted.deep.entries import Array, Bit
from polybound.deploy.encrypted.deep.layout import Layout
from polybound.deploy.encrypted.deep.noise import Ranges, checked_ranges, proven_ranges, sources_of
from polybound.deploy.encrypted.deep.stages import stages_of
from polybound.deploy.encrypted.noise import check_modulus
from polybound.errors import PolyboundError
from polybound.models import Graph

_VERSION = 1
_MARGIN = 4.0
"""How much larger than at the images that were looked at values may become."""

_PROBES = 12
"""Images at which errors are estimated."""


@dataclass(frozen=True)
class GraphPublicPlan:
    """What a client is told of a graph's plan; checked when it is made.

    Attributes:
        ring: dimension N.
        bits: sizes of the primes in bits, the special prime last.
        pixels: binary logarithm of the pixels' scale.
        shape: of one image.
        domain: the smallest and the largest value of a pixel.
        class_names: one for each class.
        error: the estimate of the largest error of a logit.
        basis: what the ranges of the values rest on.
        low: of the layout of an image: the bits of its slots.
        high: the bits of its ciphertexts' numbers.
        steps: the rotations that need a key.
        places: the slot of each logit.
        blocks: how many parts an evaluation has, for progress.
        seconds: how long it takes, as predicted.

    Raises:
        PolyboundError: a client must not follow such a plan; the message says why.
    """

    ring: int
    bits: tuple[int, ...]
    pixels: float
    shape: tuple[int, ...]
    domain: tuple[float, float]
    class_names: tuple[str, ...]
    error: float
    basis: str
    low: tuple[Bit | None, ...]
    high: tuple[Bit, ...]
    steps: tuple[int, ...]
    places: tuple[int, ...]
    blocks: int
    seconds: float

    def __post_init__(self) -> None:
        check_modulus(self.ring, self.bits, RINGS)
        if not 1 <= self.pixels <= 60 or sum(self.bits[:-1]) < self.pixels + 2:
            raise PolyboundError("scales must lie between 2 and 2^60, and within the modulus")
        slots, axes = self.ring // 2, range(len(self.shape))
        if not 1 <= len(self.shape) <= 4 or not all(n >= 1 for n in self.shape) or self.features > 2**16:
            raise PolyboundError("an image of the plan must have one to four axes and at most 65536 entries")
        if 1 << len(self.low) > slots or len(self.high) > 4:
            raise PolyboundError("the plan's packing does not fit its ring")
        bits = [bit for bit in (*self.low, *self.high) if bit is not None and bit[0] >= 0]
        if sorted(bits) != sorted((axis, bit) for axis in axes for bit in range((self.shape[axis] - 1).bit_length())):
            raise PolyboundError("the plan's packing does not fit its images")
        if len(set(self.steps)) != len(self.steps) or len(self.steps) > 256:
            raise PolyboundError("the plan's rotations are repeated, or too many")
        if not all(0 < step < slots for step in self.steps):
            raise PolyboundError("the plan's rotations do not fit its ring")
        if not 1 <= len(self.places) <= slots or not all(0 <= place < slots for place in self.places):
            raise PolyboundError("the plan's logits do not fit its ring")
        if len(self.class_names) != len(self.places):
            raise PolyboundError("the plan's class names do not fit its logits")
        if not all(name.isprintable() and len(name) <= 100 for name in (*self.class_names, self.basis)):
            raise PolyboundError("the plan's class names must be printable, and of at most 100 letters")
        low, high = self.domain
        numbers = (low, high, self.error, self.seconds)
        if not all(map(isfinite, numbers)) or not low < high or not 1 <= self.blocks <= 10_000:
            raise PolyboundError("the plan's domain, error or time is not a number")

    @property
    def features(self) -> int:
        """How many numbers an image has."""
        return prod(self.shape)

    def pack(self, image: Array) -> list[Array]:
        """The slots of an image's ciphertexts."""
        return list(Layout(self.shape, self.low, self.high).place(image, self.ring // 2))

    def logits(self, slots: Array) -> Array:
        """The logits among the slots of a reply."""
        return slots[list(self.places)]

    @cached_property
    def digest(self) -> str:
        """The SHA-256, in hexadecimal, of all of it: keys and requests name the plan that they are for."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The public part as JSON."""
        content = {one.name: getattr(self, one.name) for one in fields(GraphPublicPlan)}
        return json.dumps({"version": _VERSION, "kind": "graph", **content}, sort_keys=True)

    @staticmethod
    def from_content(content: dict[str, Any]) -> GraphPublicPlan:
        """A plan from what its JSON holds, without version and kind.

        Raises:
            PolyboundError: a client must not follow it.
            ValueError: or another error of Python's: it is not a plan.
        """

        def count(value: Any, low: int = 0) -> int:
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= 2**20:
                raise ValueError(f"{value!r} is not a count")
            return value

        def bit(value: Any) -> Bit | None:
            return None if value is None else (count(value[0], -1), count(value[1]))

        high = tuple(bit(value) for value in content["high"])
        if None in high or len(content["steps"]) > 4096 or len(content["places"]) > 2**15:
            raise ValueError("a bit of a ciphertext's number, or too many slots")
        return GraphPublicPlan(
            count(content["ring"]),
            tuple(count(b) for b in content["bits"]),
            float(content["pixels"]),
            tuple(count(n) for n in content["shape"]),
            (float(content["domain"][0]), float(content["domain"][1])),
            tuple(str(name) for name in content["class_names"]),
            float(content["error"]),
            str(content["basis"]),
            tuple(bit(value) for value in content["low"]),
            high,  # type: ignore[arg-type]
            tuple(count(step) for step in content["steps"]),
            tuple(count(place) for place in content["places"]),
            count(content["blocks"]),
            float(content["seconds"]),
        )


@dataclass(frozen=True)
class GraphPlan(GraphPublicPlan):
    """How a graph is evaluated encrypted: what clients are told, and what the server alone knows.

    Attributes:
        circuit: what is computed where.
        chain: primes and scales.
        ranges: of all values.
    """

    circuit: Circuit = field(repr=False)
    chain: Chain
    ranges: Ranges = field(repr=False)

    @cached_property
    def public(self) -> GraphPublicPlan:
        """What a client needs: nothing of the weights but the structure that its keys and packing show."""
        return GraphPublicPlan(*(getattr(self, one.name) for one in fields(GraphPublicPlan)))

    @property
    def megabytes(self) -> float:
        """The size of the encoded weights in the server's memory."""
        return megabytes(self.circuit, self.chain.primes)

    def errors_at(self, images: Array) -> Array:
        """The estimates for each of these images (images, features)."""
        sources = sources_of(self.circuit, np.asarray(images, dtype=np.float64))
        return estimates(self.circuit, sources, self.chain)

    def error_at(self, images: Array) -> float:
        """The estimate for these images (images, features) alone."""
        return float(self.errors_at(images).max())

    def facts(self) -> dict[str, Any]:
        """What a reader wants to know of it."""
        return {
            "ring": self.ring,
            "bits of the moduli": list(self.bits),
            "products in a row": self.circuit.stages.depth,
            "scales (bits)": [round(float(scale), 2) for scale in self.chain.scales],
            "ciphertexts of an image": 1 << len(self.high),
            "ciphertexts of each value": [layout.count for layout in self.circuit.layouts],
            "keys for rotations": len(self.steps),
            "plain products": self.circuit.products,
            "memory of the weights (MB)": round(self.megabytes),
            "predicted seconds": round(self.seconds, 2),
            "largest value": max(self.ranges.values),
            "largest logit": self.ranges.forms[-1][0],
            "largest logit that fits": 2.0 ** (self.chain.last - 1 - self.chain.output),
            "ranges": self.basis,
            "largest error": self.error,
        }


def plan_graph(
    graph: Graph,
    domain: tuple[float, float],
    class_names: Sequence[str],
    tolerance: float,
    images: Array | None = None,
) -> GraphPlan:
    """The fastest plan whose estimated error is within the tolerance, at 128-bit security.

    Ranges are proven where their proof fits the modulus, else they are those of the images, with a margin.

    Args:
        graph: the network.
        domain: the smallest and the largest value of a pixel.
        class_names: one for each class.
        tolerance: the largest error of a logit that is accepted.
        images: (images, features), at which errors are estimated; by default random ones of the domain.

    Raises:
        PolyboundError: the network does not fit; the message says what does not.
    """
    source = "images"
    if images is None:
        images = np.random.default_rng(0).uniform(*domain, (64, graph.features))
        source = "random images"
    stages = stages_of(graph)
    if not stages.output.terms:
        raise PolyboundError("the network is constant: there is nothing to compute")
    _finite(stages.run(images)[1], "the logits")
    stages = balanced(stages, images)
    proven, checked = proven_ranges(stages, domain), checked_ranges(stages, images, _MARGIN, source)
    closest: tuple[float, Ranges] | None = None
    for ring, choices in _choices(stages.depth):
        circuit = design(stages, ring // 2, Cost(ring))
        sources = sources_of(circuit, images[:_PROBES])
        for extra in choices:
            for ranges in (proven, checked):
                found = best_chain(circuit, sources, ranges, extra)
                if found is None:
                    continue
                if found[1] <= tolerance:
                    return _plan(circuit, *found, ranges, domain, class_names)
                if closest is None or found[1] < closest[0]:
                    closest = found[1], ranges
    if closest is None:
        worst = int(np.argmax(checked.values))
        label = graph.label(stages.values[worst].number)
        raise PolyboundError(
            f"the network does not fit any ring: it has {stages.depth} products in a row, and {label} reaches "
            f"{checked.values[worst]:.3g} ({checked.basis}); fewer products or smaller weights would fit"
        )
    raise PolyboundError(
        f"the network does not fit an error of {tolerance:g}: {stages.depth} products in a row err by up to "
        f"{closest[0]:.3g}; a larger tolerance, fewer products or smaller weights would fit"
    )


def _choices(depth: int) -> Iterator[tuple[int, list[int]]]:
    """The rings that have room for a prime at each depth, the smallest first, with how many depths may have two."""
    for ring, most in RINGS.items():
        room = (most - 60 - 40) // 40
        if room >= depth:
            yield ring, sorted({0, *(extra for extra in (depth // 2, depth) if room >= depth + extra)})


def _plan(
    circuit: Circuit,
    chain: Chain,
    error: float,
    ranges: Ranges,
    domain: tuple[float, float],
    class_names: Sequence[str],
) -> GraphPlan:
    stages, layout, output = circuit.stages, circuit.layouts[0], circuit.layouts[-1]
    if output.count > 1:
        raise PolyboundError(f"{len(class_names)} logits do not fit one ciphertext of {circuit.slots} slots")
    return GraphPlan(
        chain.ring,
        chain.bits,
        float(chain.scales[0]),
        tuple(stages.graph.shape),
        domain,
        tuple(class_names),
        error,
        ranges.basis,
        layout.low,
        layout.high,
        circuit.keys,
        tuple(int(place) for place in output.address),
        len(stages.values),
        round(seconds(circuit, chain.primes), 4),
        circuit,
        chain,
        ranges,
    )


def _finite(values: Array, what: str) -> None:
    if not np.isfinite(values).all() or (values.size and log2(max(1.0, float(np.abs(values).max()))) > 40):
        raise PolyboundError(f"{what} are not finite, or too large to be encrypted")
