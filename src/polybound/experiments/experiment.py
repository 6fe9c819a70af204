"""Experiments by name: what to train, what to measure, how to show it. Each is a small TOML file in `named/`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from polybound.attacks import parse_attack, parse_attacks
from polybound.defences import canonical_defence
from polybound.errors import ArgumentError, PolyboundError, check_choice, check_int, check_number
from polybound.models import paper_rank
from polybound.registry import Registry
from polybound.runs import DataSpec, ModelSpec, Spec
from polybound.training import METHODS, Method, Plain, Projected, Recipe

BOUNDS = (100000.0, 1000.0, 100.0, 20.0, 10.0, 5.0, 2.0, 1.5, 1.2, 1.0, 0.8, 0.6, 0.4, 0.2)
"""The bounds of the paper's sweeps."""

PROJECTIONS = ("single", "layer-wise", "spectral", "product")
SEARCH = ("dataset", "values", "points", "finalists", "seeds", "validation", "attack", "protocol")

Kind = Literal["accuracy", "search", "growth", "initial", "samples"]


@dataclass(frozen=True)
class Experiment:
    """A table or figure: the runs it needs, the measurements on them, and its layout.

    Attributes:
        name: what it is called.
        title: one line for its heading.
        paper: where it is in the paper; empty if it is not in the paper.
        kind: "accuracy" (train and evaluate), "search" (find layer-wise bounds first), "growth" (theta and gamma of
            trained models and during training), "initial" (the same at initialisation) or "samples" (of the data).
        layout: "table", "curves", "chosen" (one bound for each row, chosen on validation) or "tradeoff".
        published: name of the table in the paper's source, to compare with.
        datasets: data sets.
        models: models of the paper, or registered ones.
        methods: training methods.
        options: of the methods, by name; a list stands for several runs.
        adversary: attack, protocol and start of adversarial training, for all methods.
        recipe: options of the optimiser and the schedule that differ from the paper's.
        recipes: the same for some of the methods, by name; they win.
        attacks: attacks on the test split, by any of their names; kept as canonical ones, "fgsm-8/255" as a decimal.
        bounds: of the projections.
        projections: kinds of projection: "single" (one bound for the l_inf norms of all matrices, as in the paper),
            "layer-wise" (`layerwise` times the bound), "spectral" (l2 norms; of pn-4 and pn-10 a quarter of the bound,
            but for C) or "product" (the norm of the product).
        ranks: hidden ranks, one for each run; each model's own by default.
        parameters: others of the models, by the model's name: `{polynet = {width = 16}}`.
        layerwise: a bound for each matrix by name, as a search found them.
        search: options of the search.
        found: the bounds that the search found when it was last carried out, for reports without its folder.
        defences: denoisers to put in front of the plain models; kept as canonical names.
        splits: what to evaluate on.
        eps: radii to certify, if any.
        x: what the x-axis of a curve is: "bound", "rank" or "steps".
        lines: what tells lines apart: "attack" or "model".
        seeds: how many.
        validation: share of train held out.
        samples: how many training samples to use; 0 for all.
        measure_every: in tables and curves, measure under the published protocol also every this many epochs after the
            first projection; as in the paper, the best epoch counts. 0 for the last epoch alone.
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
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    adversary: str | Mapping[str, Any] | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    attacks: tuple[str, ...] = ()
    bounds: tuple[float, ...] = BOUNDS
    projections: tuple[str, ...] = ("single",)
    ranks: tuple[int, ...] = ()
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    layerwise: Mapping[str, float] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    found: Mapping[str, float] = field(default_factory=dict)
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
        hints = get_type_hints(Experiment)
        for entry in fields(self):
            if isinstance(value := getattr(self, entry.name), list):
                object.__setattr__(self, entry.name, value := tuple(value))
            if not _fits(value, hints[entry.name]):
                raise PolyboundError(f"{entry.name} of an experiment cannot be {value!r}")
        if not 0.0 < self.budget <= 1.0:
            raise ArgumentError("budget", f"must be a share of the epochs, above 0 and at most 1, got {self.budget:g}")
        if unknown := set(self.projections) - set(PROJECTIONS):
            raise PolyboundError(f"there is no projection called {min(unknown)!r}")
        for name, least in {"seeds": 1, "samples": 0, "limit": 0, "measure_every": 0}.items():
            check_int(name, getattr(self, name), least)
        for method in (*self.methods, *self.options, *self.recipes):
            METHODS.find(method)
        # One name for one thing: scores are kept and looked for under canonical names alone.
        object.__setattr__(self, "attacks", tuple(attack.name for attack in parse_attacks(self.attacks)))
        object.__setattr__(self, "defences", tuple(map(canonical_defence, self.defences)))
        if len(set(self.defences)) < len(self.defences):
            raise PolyboundError("a defence is given twice")
        if "attack" in self.search:
            object.__setattr__(self, "search", {**self.search, "attack": parse_attack(self.search["attack"]).name})
        for split in self.splits:
            check_choice("a split", split, ("test", "train", *(["validation"] if self.validation else [])))
        for eps in self.eps:
            check_number("eps", eps)
        if self.kind == "search" and (lacking := [name for name in SEARCH if name not in self.search]):
            raise PolyboundError(f"a search needs {', '.join(lacking)}")

    def changed(self, **changes: Any) -> Experiment:
        """Replace some fields; arguments that are None change nothing."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def recipe_for(self, method: Method) -> Recipe:
        """The paper's recipe for a method, with the experiment's options, its schedule scaled by the budget."""
        options = {**self.recipe, **self.recipes.get(method.name, {})}
        return Recipe.from_options({"method": method, "adversary": self.adversary, **options}).scaled(self.budget)

    def projected(self, **options: Any) -> Projected:
        """A projection with this experiment's options."""
        return Projected(**{**self.options.get("projection", {}), **options})

    def earlier_epochs(self) -> tuple[int, ...]:
        """The epochs before the last after which to measure too.

        There are none where one network has all values: the best epoch of each value is chosen on the test split.
        """
        if not self.measure_every or self.layout in ("chosen", "tradeoff"):
            return ()
        recipe = self.recipe_for(self.projected())
        step = max(1, round(self.measure_every * self.budget))
        return tuple(range(recipe.method.begins + step, recipe.epochs, step))

    def stacks(self, digest: Callable[[str], str]) -> Iterator[list[Spec]]:
        """The runs that train together: all bounds of a data set, model, rank, projection and seed.

        Where there are no bounds to stack, it is the seeds; but for convolutions, which gain nothing from it, and deep
        networks, which have no stacks. What has no bound at all trains with the bounds, if it can: it shares its first
        half with them, and all of it with those that never bind.

        Args:
            digest: gives the digest of a data set by its name.
        """
        if self.kind in ("initial", "samples"):
            return  # nothing to train
        widths = [(model, rank) for model in self.models for rank in self.ranks or (paper_rank(model),)]
        for dataset, (model, rank) in product(self.datasets, widths):
            data = DataSpec(dataset, digest(dataset), self.samples, self.validation)
            for together in self._groups(model):
                specs = [
                    Spec(data, ModelSpec(model, rank, self.parameters.get(model, {})), self.recipe_for(one), seed)
                    for seed in range(self.seeds)
                    for one in together
                ]
                size = len(specs) if len(together) == 1 and model != "pn-conv" else len(together)
                size = size if rank else 1
                yield from (specs[first : first + size] for first in range(0, len(specs), size))

    def _groups(self, model: str) -> list[list[Method]]:
        """All methods of a model, in groups that train together."""
        groups = [group for method in self.methods for group in self.alternatives(method, model)]
        plain = next((group for group in groups if isinstance(group[0], Plain)), None)
        projected = (group for group in groups if isinstance(group[0], Projected))
        bounded = next((group for group in projected if group[0].kind == "single"), None)  # type: ignore[attr-defined]
        if plain is None or bounded is None or self.defences:  # which are put before plain models alone
            return groups
        if replace(self.recipe_for(plain[0]), method=bounded[0]) != self.recipe_for(bounded[0]):
            return groups
        return [plain + bounded if group is bounded else group for group in groups if group is not plain]

    def alternatives(self, name: str, model: str) -> Iterator[list[Method]]:
        """All that a method's name stands for here, in groups that train together."""
        options = self.options.get(name, {})
        if name == Projected.name:
            for kind in self.projections:
                yield [self.projected(**self._constraint(kind, bound, model)) for bound in self.bounds]
            if self.kind == "search" and self.layerwise:
                yield [self.projected(bound=dict(self.layerwise))]
            return
        several = {key: value if isinstance(value, list | tuple) else [value] for key, value in options.items()}
        for values in product(*several.values()):
            yield [METHODS.build({"name": name, **dict(zip(several, values, strict=True))})]

    def _constraint(self, kind: str, level: float, model: str) -> dict[str, Any]:
        """The options of a projection; levels of different kinds are about equally tight."""
        degree = 10 if model == "pn-10" else 4
        if kind == "layer-wise":
            return {"bound": {name: value * level for name, value in self.layerwise.items()}}
        if kind == "spectral" and model in ("pn-4", "pn-10"):
            # Trained with a single bound of 1, the V_i have l2 norms of about 1/4, and C has 0.8.
            return {"bound": {**{f"U{n}": level / 4 for n in range(1, degree + 1)}, "C": level}, "norm": "2"}
        if kind == "product":
            # As much as a single bound on the V_i allows: b (1 + b)^(k - 1), the ones being the residual form's.
            return {"bound": {"product": level * (1.0 + level) ** (degree - 1), "C": level}, "on": "product"}
        return {"bound": level, "norm": "2" if kind == "spectral" else "inf"}

    def specs(self, digest: Callable[[str], str]) -> list[Spec]:
        """All runs."""
        return [spec for specs in self.stacks(digest) for spec in specs]


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the kind that a field is annotated with."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return value in inner
    if kind is UnionType:
        return any(_fits(value, one) for one in inner)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if kind is tuple:
        return isinstance(value, tuple) and all(_fits(entry, inner[0]) for entry in value)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(_fits(entry, inner[1]) for entry in value.values())
    return kind is Any or isinstance(value, kind)


EXPERIMENTS: Registry[Any] = Registry("experiment")
"""The TOML files of all experiments by name."""


def register_experiment(name: str, file: str | Path) -> None:
    """Make a TOML file known as an experiment of this name; it may lie in a package of one's own."""
    EXPERIMENTS.add(name, Path(file))


def _order(name: str) -> tuple[int, int, str]:
    """The paper's tables first, then its figures, by their numbers."""
    word, _, number = name.partition("-")
    return {"table": 0, "figure": 1}.get(word, 2), int(number) if number.isdigit() else 0, name


_NAMED = {file.name.removesuffix(".toml"): file for file in (files("polybound.experiments") / "named").iterdir()}
for _name in sorted(_NAMED, key=_order):
    EXPERIMENTS.add(_name, _NAMED[_name])


def experiment_names() -> tuple[str, ...]:
    """All experiments, the paper's first.

    >>> experiment_names()[:3]
    ('table-1', 'table-2', 'table-3')
    """
    return EXPERIMENTS.names()


def find_experiment(name: str) -> Experiment:
    """The experiment of a name, or of a user's own TOML file.

    >>> find_experiment("figure-14").models
    ('ncp-4',)

    Raises:
        PolyboundError: no experiment has this name, or the file is not an experiment.
    """
    own = name.endswith(".toml") and name not in EXPERIMENTS.entries
    file, label = (Path(name), Path(name).stem) if own else (EXPERIMENTS.find(name), name)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        return Experiment(**{"name": label, "title": label, **content})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise PolyboundError(f"{name}: not an experiment ({error})") from error
