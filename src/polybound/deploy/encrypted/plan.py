"""The plan of encrypted inference: what clients are told of it, and what any server does with it."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import isfinite, prod
from typing import Any

from polybound.deploy.encrypted.chain.packing import Pairs
from polybound.deploy.encrypted.chain.polynomial import Array
from polybound.deploy.encrypted.engine import Engine, Slots
from polybound.deploy.encrypted.graph.entries import Bit
from polybound.deploy.encrypted.graph.layout import Layout
from polybound.deploy.encrypted.noise import check_modulus
from polybound.errors import PolyboundError

PLAN_HEADER = "Polybound-Plan"
"""The header of a request that names the digest of its plan."""

_VERSION = 2


@dataclass(frozen=True)
class PublicPlan:
    """What a client is told of a plan; checked when it is made.

    Attributes:
        ring: dimension N.
        bits: sizes of the primes in bits, the special prime last.
        pixels: binary logarithm of the pixels' scale.
        shape: of one image.
        domain: the smallest and the largest value of a pixel.
        class_names: one for each class.
        error: the estimate of the largest error of a logit.
        basis: what the ranges of the values rest on.
        packing: where an image lies in the slots of its ciphertexts.
        steps: the rotations that need a key.
        places: the slot of each logit.
        blocks: how many parts an evaluation has, for progress.
        seconds: how long it takes, as predicted; 0 where that is not worth a prediction.

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
    packing: Pairs | Layout
    steps: tuple[int, ...]
    places: tuple[int, ...]
    blocks: int
    seconds: float

    def __post_init__(self) -> None:
        check_modulus(self.ring, self.bits)
        if not 1 <= self.pixels <= 60 or sum(self.bits[:-1]) < self.pixels + 2:
            raise PolyboundError("scales must lie between 2 and 2^60, and within the modulus")
        if not 1 <= len(self.shape) <= 8 or not all(n >= 1 for n in self.shape) or self.features > 2**16:
            raise PolyboundError("an image of the plan must have one to eight axes and at most 65536 entries")
        slots = self.ring // 2
        if not self.packing.fits(self.shape, slots):
            raise PolyboundError("the plan's packing does not fit its images, or its ring")
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
        if not all(map(isfinite, (low, high, self.error, self.seconds))) or not low < high:
            raise PolyboundError("the plan's domain, error or time is not a number")
        if not 1 <= self.blocks <= 10_000:
            raise PolyboundError("the plan must have 1 to 10000 blocks")

    @property
    def features(self) -> int:
        """How many numbers an image has."""
        return prod(self.shape)

    def pack(self, image: Array) -> list[Slots]:
        """The slots of an image's ciphertexts."""
        return list(self.packing.place(image, self.ring // 2))

    def logits(self, slots: Array) -> Array:
        """The logits among the slots of a reply."""
        return slots[list(self.places)]

    @cached_property
    def digest(self) -> str:
        """The SHA-256, in hexadecimal, of all of it: keys and requests name the plan that they are for."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The public part as JSON."""
        content = {one.name: getattr(self, one.name) for one in fields(PublicPlan)}
        return json.dumps({**content, "version": _VERSION, "packing": self.packing.public()}, sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes) -> PublicPlan:
        """A plan from JSON.

        Raises:
            PolyboundError: it is not a plan, or a client must not follow it.
        """

        def count(value: Any, low: int = 0) -> int:
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= 2**20:
                raise ValueError(f"{value!r} is not a count")
            return value

        def counts(values: Sequence[Any]) -> tuple[int, ...]:
            return tuple(count(value) for value in values[: 2**15])

        def bit(value: Any) -> Bit:
            return count(value[0], -1), count(value[1])

        try:
            content = json.loads(text)
            if content["version"] != _VERSION:
                raise PolyboundError("the server's plan has another version: use the same polybound on both sides")
            shape, packing = counts(content["shape"]), content["packing"]
            if "columns" in packing:
                packed: Pairs | Layout = Pairs(*counts([packing[name] for name in ("columns", "shift", "count")]))
            else:
                low = tuple(None if value is None else bit(value) for value in packing["low"])
                packed = Layout(shape, low, tuple(map(bit, packing["high"])))
            return PublicPlan(
                count(content["ring"]),
                counts(content["bits"]),
                float(content["pixels"]),
                shape,
                (float(content["domain"][0]), float(content["domain"][1])),
                tuple(map(str, content["class_names"])),
                float(content["error"]),
                str(content["basis"]),
                packed,
                counts(content["steps"]),
                counts(content["places"]),
                count(content["blocks"]),
                float(content["seconds"]),
            )
        except PolyboundError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            raise PolyboundError(f"the server's plan cannot be read ({error!r})") from None


Done = Callable[[int], None]
"""Is called with the number of blocks that are done."""


@dataclass(frozen=True)
class Plan(PublicPlan, ABC):
    """How a network is evaluated encrypted: what clients are told, and what the server alone knows."""

    @cached_property
    def public(self) -> PublicPlan:
        """What a client needs: nothing of the weights but the structure that its keys and packing show."""
        return PublicPlan(*(getattr(self, one.name) for one in fields(PublicPlan)))

    @property
    @abstractmethod
    def constants(self) -> Array:
        """What is added to the logits at the end: (classes,)."""

    @property
    @abstractmethod
    def reach(self) -> float:
        """How large logits can be."""

    @abstractmethod
    def evaluation(self, engine: Engine, done: Done) -> Callable[[Engine, Sequence[Any], Done], list[Any]]:
        """Encode the weights: the evaluation turns an image's ciphertexts into one of the logits without constants."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a reader wants to know of it."""

    @abstractmethod
    def error_at(self, images: Array) -> float:
        """The estimate for these images (images, features) alone."""
