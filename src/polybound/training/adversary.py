"""The adversary of Algorithm 2: an attack on the network as it is while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polybound.attacks import Attack, check_protocol, parse_attack
from polybound.errors import PolyboundError
from polybound.registry import check_start

__all__ = ["Adversary"]


@dataclass(frozen=True)
class Adversary:
    """Training on adversarial examples, from some epoch on.

    Attributes:
        attack: any attack, or its name: "fgsm-0.1", "pgd-0.1-20-0.01:random_start=false".
        protocol: what it clips to: "sound", the domain of the data, or "published", [0, 1] whatever that is.
        start: first epoch with it, from 0, or a share of all epochs; the paper's is half of them.

    >>> Adversary("fgsm-0.1").as_dict()
    {'attack': 'fgsm-0.1', 'protocol': 'sound', 'start': 0.5}
    """

    attack: Attack
    protocol: str = "sound"
    start: int | float = 0.5

    def __init__(self, attack: str | Attack, protocol: str = "sound", start: int | float = 0.5) -> None:
        object.__setattr__(self, "attack", parse_attack(attack))
        object.__setattr__(self, "protocol", check_protocol(protocol))
        object.__setattr__(self, "start", start)
        check_start("start", start)
        if self.attack.only_sound:
            raise PolyboundError(f"{self.attack.name} comes from another library: it is too slow for every step")

    def as_dict(self) -> dict[str, Any]:
        """All options, as JSON can hold them."""
        return {"attack": self.attack.name, "protocol": self.protocol, "start": self.start}

    @classmethod
    def of(cls, given: str | Attack | Adversary | Mapping[str, Any]) -> Adversary:
        """An adversary from its attack's name or from a mapping."""
        if isinstance(given, Adversary):
            return given
        if not isinstance(given, Mapping):
            return cls(given)
        if unknown := [name for name in given if name not in ("attack", "protocol", "start")]:
            raise PolyboundError(f"an adversary has no {unknown[0]!r}; it has attack, protocol, start")
        if "attack" not in given:
            raise PolyboundError("an adversary needs an attack, such as fgsm-0.1")
        return cls(**given)

    @property
    def start_epoch(self) -> int:
        """The first epoch with it, from 0; only a recipe can tell if that is a share of its epochs."""
        if isinstance(self.start, float):
            raise PolyboundError(f"{self.label}: only a recipe knows how many these are")
        return self.start

    def starting(self, start: int) -> Adversary:
        """The same with another start."""
        return Adversary(self.attack, self.protocol, start)

    @property
    def label(self) -> str:
        """What people call it."""
        when = f"{self.start:g} of the epochs on" if isinstance(self.start, float) else f"epoch {self.start + 1}"
        return f"{self.attack.name} ({self.protocol}) from {when}"
