"""Experiments by name: what to train, what to measure, how to show it. Each is a small TOML file in `named/`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Literal

from polybound.errors import PolyboundError
from polybound.experiments.plan import Plan
from polybound.models import paper_rank
from polybound.training.recipe import Recipe

__all__ = ["BOUNDS", "Entry", "Experiment", "experiment_names", "find_experiment"]

BOUNDS = (100000.0, 1000.0, 100.0, 20.0, 10.0, 5.0, 2.0, 1.5, 1.2, 1.0, 0.8, 0.6, 0.4, 0.2)
"""The bounds of the paper's sweeps."""

Kind = Literal["accuracy", "search", "growth", "initial", "samples"]


@dataclass(frozen=True)
class Entry:
    """A run of an experiment: its plan, and the projection and level that it stands for (none: "" and None).

    A level is the bound of a projection, or, where there are several to choose from, the weight of a penalty.
    """

    plan: Plan
    projection: str = ""
    level: float | None = None


@dataclass(frozen=True)
class Experiment:
    """A table or figure: the runs it needs, the measurements on them, and its layout.

    Attributes:
        name: what it is called.
        title: one line for its heading.
        paper: where it is in the paper; empty for those that the paper lacks.
        kind: "accuracy" (train and evaluate), "search" (find layer-wise bounds first), "growth" (theta and gamma of
            trained models and during training), "initial" (the same at initialisation) or "samples" (of the data).
        layout: "table", "curves", "chosen" (one bound for each row, chosen on validation) or "tradeoff".
        published: name of the table in the paper's source, to compare with.
        datasets: data sets.
        models: models of the paper.
        methods: training methods.
        attacks: attacks on the test split.
        bounds: of the methods with projection.
        projections: kinds of projection: "single" (one bound for the l_inf norms of all matrices, as in the paper),
            "layer-wise" (`layerwise` times the bound), "spectral" (l2 norms; of pn-4 and pn-10 a quarter of the bound,
            but for C) or "product" (the norm of the product).
        ranks: hidden ranks, one for each run; each model's own by default.
        penalty: weight of the penalty of a method, or several to choose from.
        recipe: fields of the training recipe that differ from the paper's.
        layerwise: a bound for each matrix by name, as a search found them.
        search: options of the search.
        defences: denoisers to put in front of the plain models.
        splits: what to evaluate on.
        eps: radii to certify, if any; certified training is done for each of them.
        x: what the x-axis of a curve is: "bound", "rank" or "steps".
        lines: what tells lines apart: "attack" or "model".
        seeds: how many.
        validation: share of train held out.
        samples: how many training samples to use; 0 for all.
        measure_every: in tables and curves, measure under the published protocol not only after the last epoch but
            every so many since the first with a projection or an adversary, of which the best counts, as in the paper.
            0 for the last alone.
        limit: how many images to attack; 0 for all.
        budget: share of the schedule's epochs.
    """

    name: str
    title: str
    paper: str = ""
    kind: Kind = "accuracy"
    layout: Literal["table", "curves", "chosen", "tradeoff"] = "table"
    published: str = ""
    datasets: tuple[str, ...] = ()
    models: tuple[str, ...] = ("pn-4",)
    methods: tuple[str, ...] = ("none",)
    attacks: tuple[str, ...] = ()
    bounds: tuple[float, ...] = BOUNDS
    projections: tuple[str, ...] = ("single",)
    ranks: tuple[int, ...] = ()
    penalty: Mapping[str, float | Sequence[float]] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    layerwise: Mapping[str, float] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    defences: tuple[str, ...] = ()
    splits: tuple[str, ...] = ("test",)
    eps: tuple[float, ...] = ()
    x: Literal["bound", "rank", "steps"] = "bound"
    lines: Literal["attack", "model"] = "attack"
    seeds: int = 3
    validation: float = 0.0
    samples: int = 0
    limit: int = 0
    measure_every: int = 0
    budget: float = 1.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            if isinstance(value := getattr(self, entry.name), list):
                object.__setattr__(self, entry.name, tuple(value))
        if not 0.0 < self.budget <= 1.0:
            raise PolyboundError(f"budget must be a share of the epochs, above 0 and at most 1, got {self.budget:g}")
        if unknown := set(self.projections) - {"single", "layer-wise", "spectral", "product"}:
            raise PolyboundError(f"there is no projection called {min(unknown)!r}")
        if self.seeds < 1 or min(self.samples, self.limit, self.measure_every) < 0:
            raise PolyboundError("seeds must be at least 1, samples, limit and measure_every at least 0")

    def changed(self, **changes: Any) -> Experiment:
        """With other values for some fields; those that are None stay."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def recipe_for(self, method: str, **more: Any) -> Recipe:
        """The training recipe of a method, its schedule scaled by the budget."""
        weight = self.penalty.get(method.removesuffix("+at"))
        penalty = {"penalty": weight} if isinstance(weight, int | float) else {}
        plain = Recipe.of({"method": method, **penalty, **self.recipe, **more})
        if self.budget == 1.0:
            return plain
        epochs = max(2, round(plain.epochs * self.budget))

        def scaled(epoch: int) -> int:
            return min(max(1, round(epoch * epochs / plain.epochs)), epochs - 1) if epoch else 0

        return replace(
            plain,
            epochs=epochs,
            start=scaled(plain.start),
            adversary_start=None if plain.adversary_start is None else scaled(plain.adversary_start),
            milestones=tuple(map(scaled, plain.milestones)),
        )

    def earlier(self, plan: Plan) -> list[Plan]:
        """A plan's run as it is after every `measure_every` epochs since the first with a projection or adversary.

        None where one network is to have all the values: the epoch that is best for each is chosen on the test split.
        """
        if not self.measure_every or self.layout in ("chosen", "tradeoff"):
            return []
        step = max(1, round(self.measure_every * self.budget))
        ends = range(plan.recipe.start + step, plan.recipe.epochs, step)
        return [replace(plan, recipe=replace(plan.recipe, epochs=end)) for end in ends]

    def stacks(self) -> Iterator[list[Entry]]:
        """The runs that train together: all bounds of a data set, model, rank, method, projection and seed.

        Where there are no bounds to stack, it is the seeds; but for convolutions, which gain nothing from it.
        """
        if self.kind in ("initial", "samples"):
            return  # nothing to train
        widths = [(model, rank) for model in self.models for rank in self.ranks or (paper_rank(model),)]
        for dataset, (model, rank), method in product(self.datasets, widths, self.methods):
            for projection, levels in self._levels(method):
                constraints = [self._constraint(method, projection, level, model) for level in levels]
                recipes = [self.recipe_for(method, **constraint) for constraint in constraints]
                entries = [
                    Entry(Plan(dataset, model, recipe, seed, rank, self.validation, self.samples), projection, level)
                    for seed in range(self.seeds)
                    for recipe, level in zip(recipes, levels, strict=True)
                ]
                size = len(entries) if len(levels) == 1 and model != "pn-conv" else len(levels)
                yield from (entries[first : first + size] for first in range(0, len(entries), size))

    def _levels(self, method: str) -> Iterator[tuple[str, tuple[float | None, ...]]]:
        """The projections of a method, with the levels that train together; "" for none."""
        kind = method.removesuffix("+at")
        if kind == "projection":
            yield from ((name, self.bounds) for name in self.projections)
            if self.kind == "search" and self.layerwise:
                yield "searched", (None,)
        elif kind == "certified" and self.eps:
            yield from (("", (eps,)) for eps in self.eps)
        elif isinstance(weights := self.penalty.get(kind), Sequence):
            yield from (("", (weight,)) for weight in weights)
        else:
            yield "", (None,)

    def _constraint(self, method: str, projection: str, level: float | None, model: str) -> dict[str, Any]:
        """What the recipe of a level says; levels of different projections are about equally tight."""
        if projection == "searched":
            return {"bound": dict(self.layerwise)}
        if level is None:
            return {}
        if not projection:
            return {"eps" if method == "certified" else "penalty": level}
        if projection == "layer-wise":
            return {"bound": {name: value * level for name, value in self.layerwise.items()}}
        degree = 10 if model == "pn-10" else 4
        if projection == "spectral" and model in ("pn-4", "pn-10"):
            # Trained with a single bound of 1, the V_i have l2 norms of about 1/4, and C has 0.8.
            return {"bound": {**{f"U{n}": level / 4 for n in range(1, degree + 1)}, "C": level}, "norm": "2"}
        if projection == "product":
            # As much as a single bound on the V_i allows: b (1 + b)^(k - 1), the ones being the residual form's.
            return {"bound": {"product": level * (1.0 + level) ** (degree - 1), "C": level}, "on": "product"}
        return {"bound": level, "norm": "2" if projection == "spectral" else "inf"}

    def entries(self) -> list[Entry]:
        """All runs."""
        return [entry for entries in self.stacks() for entry in entries]


def experiment_names() -> list[str]:
    """All experiments, the paper's first.

    >>> experiment_names()[:3]
    ['table-1', 'table-2', 'table-3']
    """
    found = [file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml")]

    def order(name: str) -> tuple[int, int, str]:
        word, _, number = name.partition("-")
        place = {"table": 0, "figure": 1}.get(word, 2)
        return place, int(number) if number.isdigit() else 0, name

    return sorted(found, key=order)


def find_experiment(name: str) -> Experiment:
    """The experiment of a name, or of a user's own TOML file.

    >>> find_experiment("figure-14").models
    ('ncp-4',)

    Raises:
        PolyboundError: there is none of that name, or the file is not one.
    """
    if name.endswith(".toml"):
        text, label = Path(name).read_text(encoding="utf-8"), Path(name).stem
    elif name in experiment_names():
        text, label = (_folder() / f"{name}.toml").read_text(encoding="utf-8"), name
    else:
        raise PolyboundError(f"no experiment is called {name!r}; there are {', '.join(experiment_names())}")
    try:
        content = tomllib.loads(text)
        return Experiment(**{"name": label, "title": label, **content})
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise PolyboundError(f"{name}: not an experiment ({error})") from error


def _folder() -> Any:
    return files("polybound.experiments") / "named"
