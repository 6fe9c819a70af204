"""What experiments found: chosen bounds, scores as one flat table, and studies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import torch

from polybound import evaluation
from polybound.data import load, missing
from polybound.errors import PolyboundError, check_int, existing_folder, require
from polybound.evaluation import CLEAN, EvaluationSpec, MixedError, Row, Table, certified_radius_of, read_table
from polybound.experiments.experiment import Experiment
from polybound.experiments.jobs import StackJob, StudyJob, covers, digests
from polybound.models import CCP
from polybound.runs import DataSpec, ModelSpec, Run, Spec, is_run, load_models
from polybound.theory import gamma, theta
from polybound.training import Plain, Recipe, fit

# The search for a bound of each matrix: Optuna proposes, stacks train, the worse part is pruned early.


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
    optuna = require("optuna", "experiments", "the search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=BATCH)
    study, states = optuna.create_study(direction="maximize", sampler=sampler), optuna.trial.TrialState
    recipe, values = Recipe.from_options(options["recipe"]), [float(value) for value in options["values"]]
    data = DataSpec.of(options["dataset"], data_dir, samples=options["samples"], held_out=options["validation"])
    limit, attack, protocol = (options[name] for name in ("limit", "attack", "protocol"))
    wanted = EvaluationSpec((attack,), protocol, limit=limit or None), "validation"

    def measure(points: Sequence[Mapping[str, float]], schedule: Recipe, seed: int = 0) -> list[float]:
        """Train points as one stack; their accuracies, 0 for a run that failed."""
        recipes = [replace(schedule, method=replace(schedule.method, **{"bound": dict(point)})) for point in points]
        specs = tuple(Spec(data, ModelSpec("pn-4"), one, seed) for one in recipes)
        StackJob(specs, (wanted,)).run(root, data_dir)
        asked = {"split": "validation", "attack": attack, "protocol": protocol, "counted": "robust"}
        tables = (Run.of(spec, root).table().where(asked, defence="", attack_seed=0) for spec in specs)
        cells = [table.only(lambda row: covers(row, limit)).cell() for table in tables]
        return [0.0 if cell is None else cell.mean / 100 for cell in cells]

    # The epochs before the first projection are those of the whole schedule.
    begins = recipe.method.begins
    short = recipe.replace({"epochs": begins + max(1, round(SHORT * (recipe.epochs - begins)))})
    random = Random(0)  # noqa: S311 (not for secrets)
    trials: dict[tuple[float, ...], dict[str, Any]] = {}
    total = min(options["points"], len(values) ** len(NAMES))
    while len(trials) < total:
        count = min(BATCH, total - len(trials))
        asked: dict[tuple[float, ...], Any] = {}
        while len(asked) < count:
            trial = study.ask()
            key = tuple(trial.suggest_categorical(name, values) for name in NAMES)
            if key in asked or key in trials:  # a random point in the place of one that is repeated
                study.tell(trial, state=states.FAIL)
                study.enqueue_trial({name: random.choice(values) for name in NAMES})
            else:
                asked[key] = trial
        points = {key: dict(zip(NAMES, key, strict=True)) for key in asked}
        first = dict(zip(asked, measure(list(points.values()), short), strict=True))
        best = sorted(asked, key=lambda key: -first[key])[: max(1, round(KEPT * count))]
        final = dict(zip(best, measure([points[key] for key in best], recipe), strict=True))
        for key, trial in asked.items():
            trial.report(first[key], 0)
            if key in final:
                study.tell(trial, final[key])
            else:
                study.tell(trial, state=states.PRUNED)
            trials[key] = {"bounds": points[key], "short": first[key], "full": final.get(key), "mean": None}
    whole = [trial for trial in trials.values() if trial["full"] is not None]
    finalists = sorted(whole, key=lambda trial: -trial["full"])[: options["finalists"]]
    bounds = [trial["bounds"] for trial in finalists]
    again = [measure(bounds, recipe, seed) for seed in range(1, options["seeds"])]
    for trial, *others in zip(finalists, *again, strict=True):
        trial["mean"] = fmean([trial["full"], *others])
    winner = max(finalists, key=lambda trial: trial["mean"])
    return {"bounds": winner["bounds"], "accuracy": winner["mean"], "trials": list(trials.values())}


def runs_of(
    experiment: Experiment, root: Path, data_dir: Path | None = None, scores: Table | None = None
) -> list[tuple[Spec, Run]]:
    """The runs of an experiment with their folders, which may not exist, also those that its search led to.

    The digest of a data set is that of the files on this machine, or the only one that the scores have. Without either
    it has no runs.

    Args:
        experiment: whose runs.
        root: folder of the run folders.
        data_dir: where the data lies.
        scores: of runs whose folders are not there.
    """
    here = digests(data_dir)
    stored = {name: part.values("data.digest") for (name,), part in (scores or Table()).groups("data").items()}
    only = {name: str(found[0]) for name, found in stored.items() if len(found) == 1}
    specs = resolve(experiment, root, data_dir, report=True).specs(lambda name: here(name) or only.get(name, ""))
    return [(spec, Run.of(spec, root)) for spec in {spec.address: spec for spec in specs if spec.data.digest}.values()]


def absent_data(names: Iterable[str], data_dir: Path | None = None) -> set[str]:
    """The data sets, of these, whose files are not on this machine, or not whole."""
    here = digests(data_dir)
    return {name for name in names if not here(name) or missing(name, data_dir)}


def experiment_scores(
    experiment: Experiment, root: Path, scores: Table | None = None, data_dir: Path | None = None
) -> Table:
    """The scores of an experiment's runs, counted as the paper counts or, under the sound protocol, honestly.

    Other experiments share the runs, and may have left scores of other attacks and splits in their folders.

    Args:
        experiment: whose runs.
        root: folder of the run folders.
        scores: of runs whose folders are not there; where a folder has the same score, that counts.
        data_dir: where the data lies.
    """
    known = (scores or Table()).only(lambda row: "method" in row)
    kept = {key[0]: part for key, part in known.groups("run").items()}
    found: list[Row] = []
    for spec, run in runs_of(experiment, root, data_dir, known):
        asked: dict[tuple[object, ...], Row] = {}
        for source in (kept.get(spec.address, Table()), Table() if trouble_with(run) else run.table()):
            once: dict[tuple[object, ...], Row] = {}
            for row in source.only(partial(_asks, experiment, spec)):
                what = tuple(row[name] for name in ("epoch", "split", "attack", "protocol", "defence"))
                first = once.setdefault(what, row)
                if first["correct"] != row["correct"]:
                    counts = f"{first['correct']} and {row['correct']} of {row['total']}"
                    raise MixedError(f"run {row['run']} has two scores under {row['attack']}: {counts} images right")
            asked |= once
        found += asked.values()
    return Table(found)


def _asks(experiment: Experiment, spec: Spec, row: Row) -> bool:
    """Whether an experiment shows a score of one of its runs."""
    ball = certified_radius_of(row["attack"])
    if ball is None:
        asked = row["attack"] in (CLEAN, *experiment.attacks)
    else:
        asked = ball.norm == "inf" and ball.eps in experiment.eps
    last = row["epoch"] == spec.recipe.epochs
    after = last or (row["epoch"] in experiment.earlier_epochs() and row["protocol"] != "sound")
    images = covers(row, experiment.limit) and row["split"] in experiment.splits
    defences = ("", *experiment.defences) if spec.recipe.method.name == "none" else ("",)
    defence = row["defence"] in defences and row["attack_seed"] == 0
    counted = asked and row["counted"] == evaluation.paper_counts(row["attack"], row["protocol"])
    return after and images and defence and counted


def skipped_runs(experiment: Experiment, root: Path, data_dir: Path | None = None) -> dict[str, str]:
    """The runs of an experiment that are there, but whose scores are not shown, with the reason."""
    here = [run for _, run in runs_of(experiment, root, data_dir) if is_run(run.path)]
    return {str(run.path): why for run in here if (why := trouble_with(run))}


def trouble_with(run: Run) -> str:
    """Why a run has no scores to show: it failed, is not finished, or its files do not fit each other; "" if it has."""
    try:
        run.table()
        return run.failure or ("" if run.finished() else "not trained to the end")
    except PolyboundError as error:
        return str(error).removeprefix(f"{run.path}: ")


def read_runs(where: str | Path | Sequence[str | Path]) -> tuple[Table, dict[str, str]]:
    """All scores of a folder of runs, or of several run folders, and what could not be read, with the reason.

    Raises:
        PolyboundError: there is no such folder.
    """
    folders = [where] if isinstance(where, str | Path) else where
    loaded, skipped = load_models([existing_folder(folder) for folder in folders])
    return Table(row for one in loaded if one.run is not None for row in one.run.table()), skipped


def read_scores(file: Path) -> Table:
    """The table of a CSV file of scores. A row that says how its network was trained is checked against its address.

    Raises:
        PolyboundError: there is no such file, it holds no scores, or a column of a run was changed or removed.
    """
    if not file.is_file():
        raise PolyboundError(f"{file}: no such file")
    parts = ("data", "model", "method", "adversary", "optimiser", "schedule", "loss", "seed")
    known: dict[str, dict[str, Any]] = {}

    def checked(row: Row) -> Row:
        """A row with all columns of its run's spec, which must have the address that the row has."""
        mine = {name: row[name] for name in row if name in parts or "." in name}
        if not mine:
            return row  # of a network that is no run
        key = str(mine)
        if key not in known:
            spec = Spec.from_columns(mine)
            known[key] = {**spec.columns(), "run": spec.address}
        if row.get("run") != (address := known[key]["run"]):
            raise PolyboundError(f"how run {row.get('run')} was trained was changed: its address would be {address}")
        if "epoch" not in row:
            raise PolyboundError(f"not a file of scores: run {row['run']} has no epoch")
        check_int("epoch", row["epoch"])
        return {**row, **known[key]}

    try:
        return Table(map(checked, read_table(file.read_text(encoding="utf-8"))))
    except (PolyboundError, UnicodeDecodeError) as error:
        raise PolyboundError(f"{file}: {error}") from None


# Studies, which neither train nor evaluate runs: norms while training and at initialisation, samples of the data.


RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DEGREES = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16)


def studies(experiment: Experiment, data_dir: Path | None = None) -> list[StudyJob]:
    """The studies of an experiment, of the data sets that are known on this machine."""
    if experiment.kind == "growth":
        return [job for _, job in growth_studies(experiment, data_dir)]
    if experiment.kind == "initial":
        return [StudyJob.of("initial", initial, seeds=max(10, experiment.seeds))]
    if experiment.kind == "samples":
        known = digests(data_dir)
        return [StudyJob.of("samples", samples, dataset=name, digest=known(name)) for name in experiment.datasets]
    return []


def growth_studies(experiment: Experiment, data_dir: Path | None = None) -> list[tuple[Spec, StudyJob]]:
    """The studies of training without regularisation, each with what is trained; of data sets that are here."""
    known, recipe = digests(data_dir), experiment.recipe_for(Plain())
    pairs = product(experiment.datasets, experiment.models)
    specs = [Spec(DataSpec(name, known(name), experiment.samples), ModelSpec(model), recipe) for name, model in pairs]
    return [(spec, StudyJob.of("growth", growth, spec=spec.as_dict())) for spec in specs if spec.data.digest]


def growth(options: Mapping[str, Any], _root: Path, data_dir: Path | None) -> dict[str, list[float]]:
    """Theta and gamma after every epoch of training without regularisation."""
    spec = Spec.from_dict(options["spec"])
    data = spec.data.load("train", data_dir)
    model = spec.model.build(data, seed=spec.seed)
    found: dict[str, list[float]] = {"theta": [theta(model).item()], "gamma": [gamma(model).item()]}

    def note(_epoch: int, _losses: torch.Tensor) -> None:
        found["theta"].append(theta(model).item())
        found["gamma"].append(gamma(model).item())

    fit(model, data, spec.recipe, seed=spec.seed, on_epoch=note)
    return found


def initial(options: Mapping[str, Any], _root: Path, _data_dir: Path | None) -> dict[str, Any]:
    """gamma/theta of networks with standard normal matrices: over the rank at degree 10, over the degree at rank 16."""

    def ratio(rank: int, degree: int) -> list[float]:
        found = []
        for seed in range(options["seeds"]):
            model = CCP(784, rank, 10, degree, form="product", seed=seed)
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                model.U.normal_(generator=generator)
            found.append((gamma(model) / theta(model)).item())
        return found

    return {
        "rank": {str(rank): ratio(rank, 10) for rank in RANKS},
        "degree": {str(degree): ratio(16, degree) for degree in DEGREES},
    }


def samples(options: Mapping[str, Any], _root: Path, data_dir: Path | None) -> dict[str, Any]:
    """The first image of each of the first ten classes, as bytes."""
    data = load(options["dataset"], "test", data_dir=data_dir)
    found = []
    for label in range(min(10, data.classes)):
        places = (data.y == label).nonzero().flatten()
        if len(places):
            low, high = data.domain
            pixels = ((data.x[places[0]] - low) * (255 / (high - low))).round().to(torch.uint8)
            found.append({"label": label, "name": data.class_names[label], "pixels": pixels.tolist()})
    return {"shape": list(data.shape), "samples": found}


def ratios(experiment: Experiment, root: Path, data_dir: Path | None = None) -> list[dict[str, Any]]:
    """gamma/theta of the trained runs, with the columns of their specs."""
    loaded, _ = load_models([run.path for _, run in runs_of(experiment, root, data_dir)])
    return [{**one.about, "ratio": (gamma(one.model) / theta(one.model)).item()} for one in loaded]
