"""Everything that determines one run, and what runs have in common that train together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from polybound.errors import PolyboundError
from polybound.training.recipe import Recipe

__all__ = ["Plan", "bounds_of", "common_recipe"]


@dataclass(frozen=True)
class Plan:
    """Everything that determines one run."""

    dataset: str
    model: str
    recipe: Recipe
    seed: int = 0
    rank: int = 16
    validation: float = 0.0
    samples: int = 0

    def config(self) -> dict[str, Any]:
        """The run's config, as its folder keeps it and its address is made from."""
        recipe = self.recipe.as_dict()
        return {
            "dataset": self.dataset,
            "model": self.model,
            "rank": self.rank,
            "seed": self.seed,
            "validation": self.validation,
            **({"samples": self.samples} if self.samples else {}),
            "recipe": {key: recipe[key] for key in sorted(recipe) if key not in _irrelevant(self.recipe)},
        }

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Plan:
        """The plan of a run's config."""
        try:
            return cls(**{**config, "recipe": Recipe.of(config["recipe"])})
        except (KeyError, TypeError) as error:
            raise PolyboundError(f"not a run's config ({error})") from error

    @property
    def name(self) -> str:
        """A readable beginning for the folder's name."""
        bound = f"-{self.recipe.bound:g}" if _has_number(self.recipe) else ""
        return (
            f"{self.dataset.replace(':', '_').replace('/', '_')}-{self.model}-{self.recipe.method}{bound}-s{self.seed}"
        )


def _has_number(recipe: Recipe) -> bool:
    return recipe.regulariser == "projection" and isinstance(recipe.bound, int | float)


def _irrelevant(recipe: Recipe) -> set[str]:
    """Options that do not matter to a method must not tell its runs apart."""
    names: set[str] = set()
    if recipe.regulariser != "projection":
        names |= {"bound", "norm", "on", "every"}
    if recipe.regulariser not in ("jacobian", "l2"):
        names.add("penalty")
    if recipe.regulariser != "jacobian":
        names.add("jacobian")
    if not recipe.adversarial:
        names |= {"adversary", "adversary_start", "adversary_steps", "adversary_step_size", "random_start", "protocol"}
    if not recipe.adversarial and recipe.regulariser != "certified":
        names.add("eps")
    if recipe.adversarial and recipe.adversary == "fgsm":
        names |= {"adversary_steps", "adversary_step_size"}
    if recipe.adversary_from == recipe.start:
        names.add("adversary_start")
    if not recipe.constrained and not (recipe.adversarial and recipe.adversary_from == recipe.start):
        names.add("start")
    return names


def common_recipe(plans: list[Plan]) -> Recipe:
    """What all plans agree on; they may differ in seed and bound, and some may have no bound at all."""
    first = next((plan for plan in plans if plan.recipe.regulariser == "projection"), plans[0])
    for plan in plans:
        recipe = plan.recipe
        if _unbounded(recipe, first.recipe):
            recipe = replace(recipe, method=first.recipe.method, every=first.recipe.every, start=first.recipe.start)
            recipe = replace(recipe, norm=first.recipe.norm, on=first.recipe.on)
        if replace(plan, seed=first.seed, recipe=replace(recipe, bound=first.recipe.bound)) != first:
            raise PolyboundError(
                f"{plan.name} cannot train together with {first.name}: more than seed and bound differ"
            )
    return first.recipe


def _unbounded(recipe: Recipe, among: Recipe) -> bool:
    """Whether a run without projection can train among projected ones, as one whose bound is infinite."""
    return among.regulariser == "projection" and recipe.method == among.method.replace("projection", "none")


def bounds_of(plans: list[Plan]) -> Any:
    """The plans' bounds side by side, as `Projection` takes them for a stack."""
    bounds = [plan.recipe.bound if plan.recipe.regulariser == "projection" else inf for plan in plans]
    named = next((bound for bound in bounds if isinstance(bound, Mapping)), None)
    if named is None:
        return bounds
    return {name: [bound[name] if isinstance(bound, Mapping) else bound for bound in bounds] for name in named}
