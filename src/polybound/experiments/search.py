"""The search for a bound of each matrix: Optuna proposes, stacks train, the worse part is pruned early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from polybound.errors import PolyboundError
from polybound.experiments.experiment import Experiment
from polybound.experiments.jobs import Measurement, StackJob, StudyJob, covers
from polybound.runs import DataSpec, ModelSpec, Run, Spec
from polybound.training import Recipe

__all__ = ["resolve", "search_job"]

NAMES = ("U1", "U2", "U3", "U4", "C")
BATCH = 15
SHORT = 0.3
KEPT = 0.25


def search_job(experiment: Experiment) -> StudyJob:
    """The search of an experiment."""
    options = dict(experiment.search)
    recipe = experiment.recipe_for(experiment.projected()).as_dict()
    return StudyJob.of("search", search, **options, recipe=recipe, samples=experiment.samples, limit=experiment.limit)


def resolve(experiment: Experiment, root: Path, *, report: bool = False) -> Experiment:
    """The experiment with the bounds that its search found; for a report without one, with those it is known for."""
    if experiment.kind != "search":
        return experiment
    if (job := search_job(experiment)).done(root):
        return replace(experiment, layerwise=job.result(root)["bounds"])
    return replace(experiment, layerwise=experiment.found) if report and experiment.found else experiment


def search(options: Mapping[str, Any], root: Path, data_dir: Path | None) -> dict[str, Any]:
    """Find the bounds with the best accuracy under an attack, on a validation split.

    Points are proposed by the tree-structured Parzen estimator, fifteen new ones at a time, and trained as one stack.
    All are trained on a shorter schedule first; the best quarter goes on to the whole one, the others are pruned. As
    seeds may differ by more than points do, the `finalists` are trained with all `seeds`, and the best mean wins.
    """
    try:
        import optuna
    except ImportError:
        raise PolyboundError("the search needs Optuna: pip install 'polybound[experiments]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=BATCH)
    )
    recipe = Recipe.of(options["recipe"])
    values = [float(value) for value in options["values"]]
    generator = Random(0)  # noqa: S311 (not for secrets)
    trials: dict[tuple[float, ...], dict[str, Any]] = {}
    data = DataSpec.of(options["dataset"], data_dir, samples=options["samples"], held_out=options["validation"])

    def measure(points: list[dict[str, float]], schedule: Recipe, seed: int = 0) -> list[float]:
        recipes = [replace(schedule, method=replace(schedule.method, **{"bound": point})) for point in points]
        specs = tuple(Spec(data, ModelSpec("pn-4"), recipe, seed) for recipe in recipes)
        wanted = Measurement((options["attack"],), ("validation",), options["protocol"], options["limit"] or None)
        StackJob(specs, (wanted,)).carry_out(root, data_dir)
        return [_accuracy(Run.of(spec, root), options) for spec in specs]

    def ask(count: int) -> dict[tuple[float, ...], Any]:
        """New points with their trials; instead of a point that was proposed before there is a random one."""
        asked: dict[tuple[float, ...], Any] = {}
        while len(asked) < count:
            trial = study.ask()
            key = tuple(trial.suggest_categorical(name, values) for name in NAMES)
            if key in asked or key in trials:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                study.enqueue_trial({name: generator.choice(values) for name in NAMES})
            else:
                asked[key] = trial
        return asked

    short = _shortened(recipe)
    total = min(options["points"], len(values) ** len(NAMES))
    while len(trials) < total:
        asked = ask(min(BATCH, total - len(trials)))
        first = dict(zip(asked, measure([_point(key) for key in asked], short), strict=True))
        best = sorted(asked, key=lambda key: -first[key])[: max(1, round(KEPT * len(asked)))]
        final = dict(zip(best, measure([_point(key) for key in best], recipe), strict=True))
        for key, trial in asked.items():
            trial.report(first[key], 0)
            if key in final:
                study.tell(trial, final[key])
            else:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            trials[key] = {"bounds": _point(key), "short": first[key], "full": final.get(key), "mean": None}
    whole = [trial for trial in trials.values() if trial["full"] is not None]
    finalists = sorted(whole, key=lambda trial: -trial["full"])[: options["finalists"]]
    again = [measure([trial["bounds"] for trial in finalists], recipe, seed) for seed in range(1, options["seeds"])]
    for trial, *others in zip(finalists, *again, strict=True):
        trial["mean"] = fmean([trial["full"], *others])
    winner = max(finalists, key=lambda trial: trial["mean"])
    return {"bounds": winner["bounds"], "accuracy": winner["mean"], "trials": list(trials.values())}


def _point(key: tuple[float, ...]) -> dict[str, float]:
    return dict(zip(NAMES, key, strict=True))


def _accuracy(run: Run, options: Mapping[str, Any]) -> float:
    """The accuracy that a search compares; 0 for a run that failed, which has no score."""
    attack, protocol = options["attack"], options["protocol"]
    wanted = {"split": "validation", "attack": attack, "protocol": protocol, "defence": "", "attack_seed": 0}
    found = run.table().where(wanted, counted="robust").only(lambda row: covers(row, options["limit"]))
    return max((row["correct"] / row["total"] for row in found), default=0.0)


def _shortened(recipe: Recipe) -> Recipe:
    """A schedule with fewer epochs after the first projection; the epochs before it are the same."""
    begins = recipe.method.begins
    left = max(1, round(SHORT * (recipe.epochs - begins)))
    return recipe.changed({"epochs": begins + left})
