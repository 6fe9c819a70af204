"""How to train: a method, an adversary, an optimiser, a schedule and a loss; the default recipe, and the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import Any

import numpy as np

from polybound.attacks import Attack, check_protocol, parse_attack
from polybound.errors import ArgumentError, PolyboundError, check_choice, check_int, check_number
from polybound.registry import Component, Components, check_start, start_epoch
from polybound.training.augment import Augmentation, augmentations
from polybound.training.losses import LOSSES, CrossEntropy, Loss
from polybound.training.methods import METHODS, Method, Plain
from polybound.training.optim import OPTIMISERS, SCHEDULES, SGD, Optimiser, Schedule, Steps


@dataclass(frozen=True)
class Adversary:
    """Training on adversarial examples, from some epoch on.

    Attributes:
        attack: any attack, or its name: "fgsm-0.1", "pgd-0.1-20-0.01:random_start=false".
        protocol: what it clips to: "sound", the domain of the data, or "published", always [0, 1].
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
        """Its name in tables and figures."""
        when = f"{self.start:g} of the epochs on" if isinstance(self.start, float) else f"epoch {self.start + 1}"
        return f"{self.attack.name} ({self.protocol}) from {when}"


_STEPS, _LEAST_EPOCHS = 3000, 20
"""Of the default recipe."""
_RATES = {"adamw": 3e-3, "momentum": 5e-3, "sgd": 0.05}
"""Learning rates of the default recipe, for inputs of up to 64 features."""


@dataclass(frozen=True)
class Recipe:
    """One way to train, with every option decided. `Recipe(Projected(bound=1.0))` is the paper's Algorithm 1.

    `Recipe.for_data` is the default of `fit`, `polybound train` and the estimators. `Recipe.from_options` is the
    paper's, and so are the parts that a call of `Recipe` leaves out.

    Attributes:
        method: what is done to the loss and after a step.
        adversary: whose adversarial examples to train on, if any.
        optimiser: how a gradient becomes a step.
        schedule: epochs, batches and learning rates.
        loss: what is descended.
        augment: random changes of the training images, one after the other; their names do as well.
        clip: the largest l2 norm of a gradient, all weights together; 0 for no such limit.
        precision: "bfloat16" lets PyTorch compute steps of deep networks in it where that does little harm, faster on
            some processors; weights and what is measured are float32.

    A `start` that is a share of the epochs becomes an epoch, so that equal recipes have one form.

    >>> Recipe.from_options(method="projection", bound=2.0, epochs=10).method
    Projected(bound=2.0, norm='inf', on='weights', every=10, start=5)
    """

    method: Method = field(default_factory=Plain)
    adversary: Adversary | None = None
    optimiser: Optimiser = field(default_factory=SGD)
    schedule: Schedule = field(default_factory=Steps)
    loss: Loss = field(default_factory=CrossEntropy)
    augment: tuple[Augmentation, ...] = ()
    clip: float = 0.0
    precision: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "augment", augmentations(self.augment))
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        object.__setattr__(self, "clip", float(check_number("clip", self.clip)) + 0.0)
        if self.adversary is not None and not self.method.takes_adversary:
            raise PolyboundError(f"method {self.method.name} takes no adversary: its loss sees the whole ball")
        if self.method.own_loss and self.loss != CrossEntropy():
            raise PolyboundError(f"method {self.method.name} has a loss of its own, the plain cross-entropy's")
        if self.adversary is not None and not self.loss.classifies:
            raise PolyboundError(f"an adversary attacks classes, and loss {self.loss.name} has none")
        if isinstance(start := getattr(self.method, "start", 0), float):
            object.__setattr__(self, "method", replace(self.method, **{"start": start_epoch(start, self.epochs)}))
        if self.adversary is not None:
            start = start_epoch(self.adversary.start, self.epochs)
            object.__setattr__(self, "adversary", self.adversary.starting(start))

    def check(self) -> None:
        """Refuse a method or an adversary that would never be applied.

        A recipe that says so can be read, as of a run of long ago, but not be trained by.
        """
        begins = [(f"method {self.method.name}", self.method.begins)]
        if self.adversary is not None:
            begins.append((f"adversary {self.adversary.attack.name}", self.adversary.start_epoch))
        for what, start in begins:
            if start >= self.epochs:
                raise PolyboundError(
                    f"{what} would never be applied: it starts after {start} epochs, and there are {self.epochs}; "
                    "start is an epoch counted from 0, or a share of all epochs such as 0.5"
                )

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | None = None, /, **more: Any) -> Recipe:
        """The paper's recipe with some options: its parts by name, and any of their options.

        `start` is that of the method and, unless there is an `adversary_start`, of the adversary; `protocol` is the
        adversary's. Milestones are at 25 % and 75 % of the epochs unless they are given.
        """
        return cls().replace({"schedule": "steps", **(options or {}), **more})

    @classmethod
    def for_data(cls, samples: int, features: int, options: Mapping[str, Any] | None = None, /, **more: Any) -> Recipe:
        """The default recipe for a number of samples and features, with some options as in `from_options`.

        AdamW along a cosine, in batches of 64, with a label smoothing of 0.1 unless the method has a loss of its own:

            learning rate   0.003 min(1, sqrt(64 / features)): a step moves the sum over all features
            weight decay    25 features / samples, from 0.1 to 1: few samples leave much open
            epochs          about 3,000 steps, from 20 to 200 epochs

        An optimiser or a schedule that is named instead has its own rate, and the same epochs. An option that only one
        optimiser or schedule has names it: `milestones` the schedule "steps". `docs/training.md` has the measurements.

        >>> recipe = Recipe.for_data(1437, 64, bound=1.0, method="projection")
        >>> recipe.epochs, recipe.method.begins, recipe.optimiser.learning_rate
        (131, 65, 0.003)
        """
        given = _numbers({**(options or {}), **more})
        plan: dict[str, Any] = {
            "optimiser": _implied(OPTIMISERS, "adamw", given),
            "schedule": _implied(SCHEDULES, "cosine", given),
        } | given
        if isinstance(optimiser := plan["optimiser"], str):
            if optimiser in _RATES:
                plan.setdefault("learning_rate", _RATES[optimiser] * min(1.0, sqrt(64 / features)))
            if optimiser == "adamw":
                plan.setdefault("weight_decay", min(1.0, max(0.1, 25 * features / samples)))
        if isinstance(plan["schedule"], str):
            batch = check_int("batch_size", plan.setdefault("batch_size", 64))
            plan.setdefault("epochs", min(200, max(_LEAST_EPOCHS, ceil(_STEPS / ceil(samples / batch)))))
        method = plan.get("method", "none")
        method = method if isinstance(method, Method) else METHODS.build(method)
        if "loss" not in plan and not method.own_loss:
            plan.setdefault("label_smoothing", 0.1)
        return cls().replace(plan)

    @classmethod
    def named(
        cls, name: object, samples: int, features: int, options: Mapping[str, Any], *, deep: bool = False
    ) -> Recipe:
        """The recipe of a name, "default" or "paper", with some options.

        The default of deep networks is Muon along one cycle, in batches of 128, unless the method has a loss of its
        own or the options name another optimiser or schedule; all else is as in `for_data`.
        """
        if name not in ("default", "paper"):
            raise PolyboundError(f"recipe must be 'default', 'paper' or a polybound.Recipe, got {name!r}")
        if name == "paper":
            return cls.from_options(options)
        method = options.get("method", "none")
        if deep and not (method if isinstance(method, Method) else METHODS.build(method)).own_loss:
            parts = {
                "optimiser": _implied(OPTIMISERS, "muon", options),
                "schedule": _implied(SCHEDULES, "one-cycle", options),
            }
            options = {**parts, "batch_size": 128, **options}
        return cls.for_data(samples, features, options)

    def replace(self, options: Mapping[str, Any]) -> Recipe:
        """The same with other parts or other options of them; an option that no part has is refused."""
        left = _numbers(options)
        parts: dict[str, Any] = {"adversary": None}
        parts |= {name: left.pop(name, getattr(self, name)) for name in _EXTRAS}
        taken: set[str] = set()
        given: Any = left.pop("adversary", self.adversary)
        its = {key: left.pop(name) for name, key in _OF_THE_ADVERSARY.items() if name in left}
        if given is not None and given != "none":
            if "start" in left and not (isinstance(given, Mapping) and "start" in given):
                its.setdefault("start", left["start"])
            before = Adversary.of(given)
            its = {"protocol": before.protocol, "start": before.start} | its
            parts["adversary"], taken = Adversary(before.attack, **its), {"start"}
        elif its:
            raise ArgumentError(next(iter(its)), "requires an adversary: adversary=fgsm-0.1")
        for kind, registry in _REGISTRIES.items():
            given = left.pop(kind, getattr(self, kind))
            part = given if isinstance(given, Component) else registry.build(given)
            mine = {name: left[name] for name in part.options() if name in left}
            taken |= set(mine)
            if kind == "schedule" and isinstance(given, str):  # another way through the same epochs
                mine = {"epochs": self.epochs, "batch_size": self.schedule.batch_size} | mine
                parts[kind] = registry.build({"name": given, **mine})  # at once: milestones depend on the epochs
            else:
                parts[kind] = replace(part, **mine)
        for name in (option for option in left if option not in taken):
            owners = [f"{kind} {part}" for kind, registry in _REGISTRIES.items() for part in registry.having(name)]
            known = dict.fromkeys(option for kind in _REGISTRIES for option in parts[kind].options())
            hint = f"it belongs to {', '.join(owners)}" if owners else f"it has {', '.join([*known, *_EXTRAS])}"
            raise ArgumentError(name, f"is no option of {parts['method'].name} training; {hint}")
        recipe = Recipe(**parts)
        recipe.check()
        return recipe

    @property
    def epochs(self) -> int:
        """Passes over the data."""
        return self.schedule.epochs

    def rate(self, epoch: float) -> float:
        """The learning rate of an epoch, counted from 0, or within one."""
        return self.optimiser.learning_rate * self.schedule.factor_at(epoch)

    def phases(self) -> list[int]:
        """The epochs with which something new begins: the first, and those of the method and the adversary."""
        begins = {0, self.method.begins} | ({self.adversary.start_epoch} if self.adversary is not None else set())
        return sorted(epoch for epoch in begins if epoch < self.epochs)

    def plain(self) -> Recipe:
        """The same without its method: how all runs of a seed train before their methods begin."""
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
            changes["adversary"] = self.adversary.starting(self.schedule.place(self.adversary.start_epoch, schedule))
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """All parts with all their options, as JSON can hold them.

        What came later is not mentioned where it is as it was: plain cross-entropy, no augmentation, no clipping,
        float32.
        """
        content: dict[str, Any] = {
            "method": self.method.as_dict(),
            "adversary": None if self.adversary is None else self.adversary.as_dict(),
            "optimiser": self.optimiser.as_dict(),
            "schedule": self.schedule.as_dict(),
        }
        if self.loss != CrossEntropy():
            content["loss"] = self.loss.as_dict()
        if self.augment:
            content["augment"] = ", ".join(one.name for one in self.augment)
        if self.clip:
            content["clip"] = self.clip
        if self.precision != "float32":
            content["precision"] = self.precision
        return content

    @property
    def label(self) -> str:
        """Its name in tables and figures: its method and its adversary."""
        return self.method.label + ("" if self.adversary is None else f" + {self.adversary.label}")


_REGISTRIES: dict[str, Components[Any]] = {
    "method": METHODS,
    "optimiser": OPTIMISERS,
    "schedule": SCHEDULES,
    "loss": LOSSES,
}

_EXTRAS = ("augment", "clip", "precision")
"""What a recipe has beside its parts."""

_OF_THE_ADVERSARY = {"adversary_start": "start", "adversary_protocol": "protocol", "protocol": "protocol"}


def _numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in which numbers out of an array, as a grid search hands them over, are Python's."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}


def _implied(registry: Components[Any], usual: str, options: Mapping[str, Any]) -> str:
    """The part of a kind that the names of some options ask for; the usual one if they do not say."""
    asked = [name for name in options if name not in registry.find(usual).options() and not METHODS.having(name)]
    owners = [registry.having(name) for name in asked]
    return next((parts[0] for parts in owners if len(parts) == 1), usual)
