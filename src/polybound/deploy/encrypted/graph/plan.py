"""The plan of a graph: its circuit, primes and scales, from ranges that are proven or checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from polybound.deploy.encrypted.engine import Engine
from polybound.deploy.encrypted.graph.balance import balanced
from polybound.deploy.encrypted.graph.circuit import Circuit, design
from polybound.deploy.encrypted.graph.cost import Cost
from polybound.deploy.encrypted.graph.entries import Array
from polybound.deploy.encrypted.graph.execute import Evaluation
from polybound.deploy.encrypted.graph.moduli import Moduli, best_moduli, estimates, megabytes, seconds
from polybound.deploy.encrypted.graph.noise import Ranges, checked_ranges, proven_ranges, sources_of
from polybound.deploy.encrypted.graph.stages import stages_of
from polybound.deploy.encrypted.noise import RINGS
from polybound.deploy.encrypted.plan import Done, Plan
from polybound.errors import PolyboundError
from polybound.models import Graph

_MARGIN = 4.0
"""How much larger than at the images that were looked at values may become."""

_PROBES = 12
"""Images at which errors are estimated."""


@dataclass(frozen=True)
class GraphPlan(Plan):
    """How a graph is evaluated encrypted.

    Attributes:
        circuit: what is computed where.
        moduli: primes and scales.
        ranges: of all values.
    """

    circuit: Circuit = field(repr=False)
    moduli: Moduli
    ranges: Ranges = field(repr=False)

    @property
    def constants(self) -> Array:
        return self.circuit.stages.output.constant

    @property
    def reach(self) -> float:
        return self.ranges.forms[-1][0]

    def evaluation(self, engine: Engine, done: Done) -> Evaluation:
        return Evaluation(self.circuit, replace(self.moduli, found=tuple(engine.scheme.moduli)), engine, done)

    @property
    def megabytes(self) -> float:
        """The size of the encoded weights in the server's memory."""
        return megabytes(self.circuit, self.moduli.primes)

    def errors_at(self, images: Array) -> Array:
        """The estimates for each of these images (images, features)."""
        sources = sources_of(self.circuit, np.asarray(images, dtype=np.float64))
        return estimates(self.circuit, sources, self.moduli)

    def error_at(self, images: Array) -> float:
        return float(self.errors_at(images).max())

    def facts(self) -> dict[str, Any]:
        return {
            "ring": self.ring,
            "bits of the moduli": list(self.bits),
            "products in a row": self.circuit.stages.depth,
            "scales (bits)": [round(float(scale), 2) for scale in self.moduli.scales],
            "ciphertexts of an image": self.packing.count,
            "ciphertexts of each value": [layout.count for layout in self.circuit.layouts],
            "keys for rotations": len(self.steps),
            "plain products": self.circuit.products,
            "memory of the weights (MB)": round(self.megabytes),
            "predicted seconds": round(self.seconds, 2),
            "largest value": max(self.ranges.values),
            "largest logit": self.ranges.forms[-1][0],
            "largest logit that fits": 2.0 ** (self.moduli.last - 1 - self.moduli.output),
            "ranges": self.basis,
            "largest error": self.error,
        }


def plan_graph(
    graph: Graph,
    domain: tuple[float, float],
    class_names: Sequence[str] | None = None,
    tolerance: float = 1.0,
    images: Array | None = None,
) -> GraphPlan:
    """The fastest plan whose estimated error is within the tolerance, at 128-bit security.

    Ranges are proven where their proof fits the modulus, else they are those of the images, with a margin.

    Args:
        graph: the network.
        domain: the smallest and the largest value of a pixel.
        class_names: one for each class; numbers by default.
        tolerance: the largest error of a logit that is accepted.
        images: (images, features), at which errors are estimated; by default random ones of the domain.

    Raises:
        PolyboundError: the network does not fit; the message says what does not.
    """
    class_names = class_names or tuple(map(str, range(graph.classes)))
    source = "images"
    if images is None:
        images = np.random.default_rng(0).uniform(*domain, (64, graph.features))
        source = "random images"
    stages = stages_of(graph)
    if not stages.output.terms:
        raise PolyboundError("the network is constant: there is nothing to compute")
    largest = float(np.abs(stages.run(images)[1]).max(initial=0.0))
    if not largest <= 2.0**40:
        raise PolyboundError("the logits are not finite, or too large to be encrypted")
    stages = balanced(stages, images)
    proven, checked = proven_ranges(stages, domain), checked_ranges(stages, images, _MARGIN, source)
    closest: float | None = None
    for ring, choices in _choices(stages.depth):
        circuit = design(stages, ring // 2, Cost(ring))
        sources = sources_of(circuit, images[:_PROBES])
        for extra in choices:
            for ranges in (proven, checked):
                found = best_moduli(circuit, sources, ranges, extra)
                if found is None:
                    continue
                if found[1] <= tolerance:
                    return _plan(circuit, *found, ranges, domain, tuple(class_names))
                closest = found[1] if closest is None else min(closest, found[1])
    if closest is None:
        worst = int(np.argmax(checked.values))
        label = graph.label(stages.values[worst].number)
        raise PolyboundError(
            f"the network does not fit any ring: it has {stages.depth} products in a row, and {label} reaches "
            f"{checked.values[worst]:.3g} ({checked.basis}); fewer products or smaller weights would fit"
        )
    raise PolyboundError(
        f"the network does not fit an error of {tolerance:g}: {stages.depth} products in a row err by up to "
        f"{closest:.3g}; a larger tolerance, fewer products or smaller weights would fit"
    )


def _choices(depth: int) -> Iterator[tuple[int, list[int]]]:
    """The rings that have room for a prime at each depth, the smallest first, with how many depths may have two."""
    for ring, most in RINGS.items():
        room = (most - 60 - 40) // 40
        if room >= depth:
            yield ring, sorted({0, *(extra for extra in (depth // 2, depth) if room >= depth + extra)})


def _plan(
    circuit: Circuit, p: Moduli, error: float, ranges: Ranges, domain: tuple[float, float], names: tuple[str, ...]
) -> GraphPlan:
    stages, layout, output = circuit.stages, circuit.layouts[0], circuit.layouts[-1]
    if output.count > 1:
        raise PolyboundError(f"{len(names)} logits do not fit one ciphertext of {circuit.slots} slots")
    places, time = tuple(int(place) for place in output.address), round(seconds(circuit, p.primes), 4)
    return GraphPlan(
        p.ring, p.bits, float(p.scales[0]), tuple(stages.graph.shape), domain, names, error, ranges.basis,
        layout, circuit.keys, places, len(stages.values), time, circuit, p, ranges,
    )  # fmt: skip
