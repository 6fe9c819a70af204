"""The search for a bound of each matrix: Optuna proposes, stacks train, the worse part is pruned early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from polybound.errors import PolyboundError
from polybound.evaluation import read_scores
from polybound.experiments.experiment import Experiment
from polybound.experiments.jobs import Measurement, StackJob, StudyJob, run_of
from polybound.experiments.plan import Plan
from polybound.training.recipe import Recipe

__all__ = ["resolve", "search_job"]

NAMES = ("U1", "U2", "U3", "U4", "C")
BATCH = 15
SHORT = 0.3
KEPT = 0.25


def search_job(experiment: Experiment) -> StudyJob:
    """The search of an experiment."""
    options = dict(experiment.search)
    recipe = experiment.recipe_for("projection").as_dict()
    return StudyJob.of("search", search, **options, recipe=recipe, samples=experiment.samples, limit=experiment.limit)


def resolve(experiment: Experiment, root: Path) -> Experiment:
    """The experiment with what its search has found, if that is done."""
    if experiment.kind != "search" or not (job := search_job(experiment)).done(root):
        return experiment
    return replace(experiment, layerwise=job.result(root)["bounds"])


def search(options: Mapping[str, Any], root: Path, data_dir: Path | None) -> dict[str, Any]:
    """Find the bounds with the best accuracy under an attack, on a validation split.

    Points are proposed by the tree-structured Parzen estimator, fifteen at a time, and trained as one stack. All are
    trained on a shorter schedule first; the best quarter goes on to the whole one, the others are pruned.
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
    trials: list[dict[str, Any]] = []

    def measure(points: list[dict[str, float]], schedule: Recipe) -> list[float]:
        plans = tuple(
            Plan(
                options["dataset"],
                "pn-4",
                replace(schedule, bound=point),
                0,
                16,
                options["validation"],
                options["samples"],
            )
            for point in points
        )
        measured = Measurement((options["attack"],), ("validation",), options["protocol"], options["limit"] or None)
        StackJob(plans, (measured,)).carry_out(root, data_dir)
        key = {"split": "validation", "seed": 0, "limit": measured.limit, "defence": None}
        wanted = (options["attack"], options["protocol"])
        found = []
        for plan in plans:
            scores = {(s.attack, s.protocol): s.accuracy for s in read_scores(run_of(plan, root).path, key)}
            found.append(scores.get(wanted, 0.0))  # a run that failed has no score, and none could be worse
        return found

    short = _shortened(recipe)
    while len(trials) < options["points"]:
        asked = [study.ask() for _ in range(min(BATCH, options["points"] - len(trials)))]
        points = [{name: trial.suggest_categorical(name, values) for name in NAMES} for trial in asked]
        distinct = [dict(point) for point in {tuple(point.items()): point for point in points}.values()]
        first = dict(zip(map(_key, distinct), measure(distinct, short), strict=True))
        best = sorted(distinct, key=lambda point: -first[_key(point)])[: max(1, round(KEPT * len(distinct)))]
        final = dict(zip(map(_key, best), measure(best, recipe), strict=True))
        for trial, point in zip(asked, points, strict=True):
            key = _key(point)
            trial.report(first[key], 0)
            if key in final:
                study.tell(trial, final[key])
            else:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            trials.append({"bounds": point, "short": first[key], "full": final.get(key)})
    finished = [trial for trial in trials if trial["full"] is not None]
    winner = max(finished, key=lambda trial: trial["full"])
    return {"bounds": winner["bounds"], "accuracy": winner["full"], "trials": trials}


def _key(point: Mapping[str, float]) -> tuple[float, ...]:
    return tuple(point[name] for name in NAMES)


def _shortened(recipe: Recipe) -> Recipe:
    """A schedule with fewer epochs after the first projection; the trunk before it is the same."""
    left = max(1, round(SHORT * (recipe.epochs - recipe.start)))
    return replace(recipe, epochs=recipe.start + left)
