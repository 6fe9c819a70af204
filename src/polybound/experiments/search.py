"""The search for a bound of each matrix: Optuna proposes, stacks train, the worse part is pruned early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from polybound.errors import PolyboundError
from polybound.experiments.digests import digests
from polybound.experiments.experiment import Experiment
from polybound.experiments.jobs import Measurement, StackJob, StudyJob, covers
from polybound.runs import DataSpec, ModelSpec, Run, Spec
from polybound.training import Recipe

__all__ = ["resolve", "search_job"]

NAMES = ("U1", "U2", "U3", "U4", "C")
BATCH = 15
SHORT = 0.3
KEPT = 0.25


def search_job(experiment: Experiment, data_dir: Path | None = None) -> StudyJob:
    """The search of an experiment, on the data as they lie in a folder."""
    options = dict(experiment.search)
    recipe = experiment.recipe_for(experiment.projected()).as_dict()
    options |= {"recipe": recipe, "samples": experiment.samples, "limit": experiment.limit}
    return StudyJob.of("search", search, **options, digest=digests(data_dir)(options["dataset"]))


def resolve(experiment: Experiment, root: Path, data_dir: Path | None = None, *, report: bool = False) -> Experiment:
    """The experiment with what its search has found; for a report without that search, with what it once found."""
    if experiment.kind != "search":
        return experiment
    if (job := search_job(experiment, data_dir)).done(root):
        return replace(experiment, layerwise=job.result(root)["bounds"])
    return replace(experiment, layerwise=experiment.found) if report and experiment.found else experiment


def search(options: Mapping[str, Any], root: Path, data_dir: Path | None) -> dict[str, Any]:
    """Find the bounds with the best accuracy under an attack, on a validation split.

    Points are proposed by the tree-structured Parzen estimator, fifteen new ones at a time, and trained as one stack.
    All are trained on a shorter schedule first; the best quarter goes on to the whole one, the others are pruned. As
    seeds may differ by more than points do, the `finalists` are trained with all `seeds`, and the best mean wins.
    """
    work = _Search(options, root, data_dir)
    total = min(options["points"], len(work.values) ** len(NAMES))
    while len(work.trials) < total:
        work.try_points(min(BATCH, total - len(work.trials)))
    whole = [trial for trial in work.trials.values() if trial["full"] is not None]
    finalists = sorted(whole, key=lambda trial: -trial["full"])[: options["finalists"]]
    bounds = [trial["bounds"] for trial in finalists]
    again = [work.measure(bounds, work.recipe, seed) for seed in range(1, options["seeds"])]
    for trial, *others in zip(finalists, *again, strict=True):
        trial["mean"] = fmean([trial["full"], *others])
    winner = max(finalists, key=lambda trial: trial["mean"])
    return {"bounds": winner["bounds"], "accuracy": winner["mean"], "trials": list(work.trials.values())}


class _Search:
    """The state of a search: what Optuna was told, and all points that were tried."""

    def __init__(self, options: Mapping[str, Any], root: Path, data_dir: Path | None) -> None:
        try:
            import optuna
        except ImportError:
            raise PolyboundError("the search needs Optuna: pip install 'polybound[experiments]'") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=BATCH)
        self.study, self.states = optuna.create_study(direction="maximize", sampler=sampler), optuna.trial.TrialState
        self.options, self.root, self.data_dir = options, root, data_dir
        self.recipe = Recipe.of(options["recipe"])
        self.values = [float(value) for value in options["values"]]
        self.random = Random(0)  # noqa: S311 (not for secrets)
        self.trials: dict[tuple[float, ...], dict[str, Any]] = {}
        share = options["validation"]
        self.data = DataSpec.of(options["dataset"], data_dir, samples=options["samples"], held_out=share)

    def measure(self, points: Sequence[Mapping[str, float]], schedule: Recipe, seed: int = 0) -> list[float]:
        """Train points as one stack; their accuracies."""
        recipes = [replace(schedule, method=replace(schedule.method, **{"bound": dict(point)})) for point in points]
        specs = tuple(Spec(self.data, ModelSpec("pn-4"), recipe, seed) for recipe in recipes)
        limit, attack = self.options["limit"] or None, self.options["attack"]
        wanted = Measurement((attack,), ("validation",), self.options["protocol"], limit)
        StackJob(specs, (wanted,)).carry_out(self.root, self.data_dir)
        return [_accuracy(Run.of(spec, self.root), self.options) for spec in specs]

    def try_points(self, count: int) -> None:
        """Try so many new points, and tell Optuna what came out."""
        asked = self._ask(count)
        first = dict(zip(asked, self.measure([_point(key) for key in asked], _shortened(self.recipe)), strict=True))
        best = sorted(asked, key=lambda key: -first[key])[: max(1, round(KEPT * count))]
        final = dict(zip(best, self.measure([_point(key) for key in best], self.recipe), strict=True))
        for key, trial in asked.items():
            trial.report(first[key], 0)
            if key in final:
                self.study.tell(trial, final[key])
            else:
                self.study.tell(trial, state=self.states.PRUNED)
            self.trials[key] = {"bounds": _point(key), "short": first[key], "full": final.get(key), "mean": None}

    def _ask(self, count: int) -> dict[tuple[float, ...], Any]:
        """New points with their trials; instead of a point that was proposed before there is a random one."""
        asked: dict[tuple[float, ...], Any] = {}
        while len(asked) < count:
            trial = self.study.ask()
            key = tuple(trial.suggest_categorical(name, self.values) for name in NAMES)
            if key in asked or key in self.trials:
                self.study.tell(trial, state=self.states.FAIL)
                self.study.enqueue_trial({name: self.random.choice(self.values) for name in NAMES})
            else:
                asked[key] = trial
        return asked


def _point(key: tuple[float, ...]) -> dict[str, float]:
    return dict(zip(NAMES, key, strict=True))


def _accuracy(run: Run, options: Mapping[str, Any]) -> float:
    """What a search goes by; a run that failed has no score, and none could be worse."""
    attack, protocol = options["attack"], options["protocol"]
    wanted = {"split": "validation", "attack": attack, "protocol": protocol, "defence": "", "attack_seed": 0}
    cell = run.table().where(wanted, counted="robust").only(lambda row: covers(row, options["limit"])).cell()
    return 0.0 if cell is None else cell.mean / 100


def _shortened(recipe: Recipe) -> Recipe:
    """A schedule with fewer epochs after the first projection; the epochs before it are the same."""
    begins = recipe.method.begins
    left = max(1, round(SHORT * (recipe.epochs - begins)))
    return recipe.changed({"epochs": begins + left})
