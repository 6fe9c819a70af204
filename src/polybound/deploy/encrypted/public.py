"""What a client is told of a plan, and checks before it trusts it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from math import isfinite, prod
from typing import Any

from polybound.deploy.encrypted.layout import Layout
from polybound.deploy.encrypted.parameters import Parameters
from polybound.errors import PolyboundError

__all__ = ["PLAN_HEADER", "PublicPlan"]

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
