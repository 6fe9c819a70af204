"""How to train: a method, an adversary, an optimiser and a schedule, with the paper's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from polybound.errors import PolyboundError
from polybound.registry import Part
from polybound.training.adversary import Adversary
from polybound.training.methods import METHODS, Method, Plain
from polybound.training.optimisers import OPTIMISERS, SGD, Optimiser
from polybound.training.schedules import SCHEDULES, Schedule, Steps

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """One way to train. `Recipe(Projected(bound=1.0))` is the paper's Algorithm 1, with its schedule.

    Attributes:
        method: what is done to the loss and after a step.
        adversary: whose adversarial examples to train on, if any.
        optimiser: how a gradient becomes a step.
        schedule: epochs, batches and learning rates.

    >>> Recipe.of(method="projection", bound=2.0, epochs=10).method
    Projected(bound=2.0, norm='inf', on='weights', every=10, start=50)
    """

    method: Method = field(default_factory=Plain)
    adversary: Adversary | None = None
    optimiser: Optimiser = field(default_factory=SGD)
    schedule: Schedule = field(default_factory=Steps)

    def __post_init__(self) -> None:
        if self.adversary is not None and not self.method.takes_adversary:
            raise PolyboundError(f"method {self.method.name} takes no adversary: its loss sees the whole ball")

    @classmethod
    def of(cls, options: Mapping[str, Any] | None = None, /, **more: Any) -> Recipe:
        """A recipe from flat options: the parts by name, and any of their options.

        `start` is that of the method and, unless there is an `adversary_start`, of the adversary; `protocol` is the
        adversary's.
        """
        return cls().changed({**(options or {}), **more})

    def changed(self, options: Mapping[str, Any]) -> Recipe:
        """The same with other parts or other options of them; an option that no part has is refused."""
        left = dict(options)
        parts: dict[str, Any] = {"adversary": self._adversary(left)}
        taken: set[str] = {"start"} if parts["adversary"] is not None else set()
        for kind, registry in (("method", METHODS), ("optimiser", OPTIMISERS), ("schedule", SCHEDULES)):
            given: Any = left.pop(kind, getattr(self, kind))
            part = given if isinstance(given, Part) else registry.build(given)
            mine = {name: left[name] for name in part.options() if name in left}
            taken |= set(mine)
            parts[kind] = replace(part, **mine)
        if unknown := [name for name in left if name not in taken]:
            raise PolyboundError(f"{parts['method'].name} training has no option {unknown[0]!r}; {_known(parts)}")
        return Recipe(**parts)

    def _adversary(self, left: dict[str, Any]) -> Adversary | None:
        """The adversary that some options lead to; those that are its alone are taken out."""
        given = left.pop("adversary", self.adversary)
        mine = {key: left.pop(name) for name, key in _OF_THE_ADVERSARY.items() if name in left}
        if given is None or given == "none":
            if mine:
                raise PolyboundError(f"{next(iter(mine))} is an adversary's, and there is none")
            return None
        if "start" in left and not (isinstance(given, Mapping) and "start" in given):
            mine.setdefault("start", left["start"])
        adversary = Adversary.of(given)
        return Adversary(adversary.attack, **{"protocol": adversary.protocol, "start": adversary.start, **mine})

    @property
    def epochs(self) -> int:
        """Passes over the data."""
        return self.schedule.epochs

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        return self.optimiser.learning_rate * self.schedule.factor_at(epoch)

    def phases(self) -> list[int]:
        """The epochs with which something new begins: the first, and those of the method and the adversary."""
        begins = {0, self.method.begins} | ({self.adversary.start} if self.adversary is not None else set())
        return sorted(epoch for epoch in begins if epoch < self.epochs)

    def plain(self) -> Recipe:
        """What the runs of a seed have in common before their methods begin."""
        return replace(self, method=Plain())

    def scaled(self, share: float) -> Recipe:
        """The same with a share of the epochs, everything at its place in them."""
        if share == 1.0:
            return self
        schedule = self.schedule.scaled(share)
        changes: dict[str, Any] = {"schedule": schedule}
        if "start" in self.method.options():
            start = self.schedule.place(self.method.begins, schedule)
            changes["method"] = replace(self.method, **{"start": start})
        if self.adversary is not None:
            start = self.schedule.place(self.adversary.start, schedule)
            changes["adversary"] = Adversary(self.adversary.attack, self.adversary.protocol, start)
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """All parts with all their options, as JSON can hold them."""
        return {
            "method": self.method.as_dict(),
            "adversary": None if self.adversary is None else self.adversary.as_dict(),
            "optimiser": self.optimiser.as_dict(),
            "schedule": self.schedule.as_dict(),
        }

    @property
    def label(self) -> str:
        """What people call it: its method and its adversary."""
        return self.method.label + ("" if self.adversary is None else f" + {self.adversary.label}")


_OF_THE_ADVERSARY = {"adversary_start": "start", "adversary_protocol": "protocol", "protocol": "protocol"}


def _known(parts: Mapping[str, Any]) -> str:
    names = [name for kind in ("method", "optimiser", "schedule") for name in parts[kind].options()]
    return f"it has {', '.join(dict.fromkeys(names))}"
