"""The scores of experiments and of folders of runs, as one flat table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polybound.errors import PolyboundError
from polybound.evaluation import CLEAN, Row, Table, certified_name, paper_counts, read_table
from polybound.experiments.digests import digests
from polybound.experiments.experiment import Experiment
from polybound.experiments.jobs import covers
from polybound.experiments.search import resolve
from polybound.runs import Run, Spec, find_runs, is_run

__all__ = ["experiment_scores", "read_runs", "read_scores", "runs_of", "skipped_runs"]


def runs_of(experiment: Experiment, root: Path, data_dir: Path | None = None) -> list[tuple[Spec, Run]]:
    """The runs of an experiment, those that its search led to included, with their folders, which may not exist.

    Of a data set that is not on this machine nothing is known, and there are no runs.
    """
    specs = resolve(experiment, root, data_dir, report=True).specs(digests(data_dir))
    return [(spec, Run.of(spec, root)) for spec in specs if spec.data.digest]


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
    kept = {key[0]: part for key, part in (scores or Table()).groups("run").items()}
    found: list[Row] = []
    for spec, run in {spec.address: (spec, run) for spec, run in runs_of(experiment, root, data_dir)}.values():
        mine = [*([] if trouble_with(run) else run.table()), *kept.get(spec.address, ())]
        asked = {_what(row): row for row in reversed(mine) if _asks(experiment, spec, row)}
        found += reversed(asked.values())
    return Table(found)


def skipped_runs(experiment: Experiment, root: Path, data_dir: Path | None = None) -> dict[str, str]:
    """The runs of an experiment that are there, but whose scores are not shown, with the reason."""
    found = {run.path: trouble_with(run) for _, run in runs_of(experiment, root, data_dir) if is_run(run.path)}
    return {str(path): why for path, why in found.items() if why}


def trouble_with(run: Run) -> str:
    """Why a run has no scores to show: it failed, is not finished, or its files do not fit each other; "" if it has."""
    try:
        run.table()
        return run.failure or ("" if run.finished() else "not trained to the end")
    except PolyboundError as error:
        return str(error).removeprefix(f"{run.path}: ")


def _what(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("epoch", "split", "attack", "protocol", "defence"))


def _asks(experiment: Experiment, spec: Spec, row: Row) -> bool:
    """Whether an experiment shows a score of one of its runs."""
    attacks = {CLEAN, *experiment.attacks, *map(certified_name, experiment.eps)}
    last = row["epoch"] == spec.recipe.epochs
    after = last or (row["epoch"] in experiment.earlier_epochs() and row["protocol"] != "sound")
    images = covers(row, experiment.limit) and row["split"] in experiment.splits
    defences = ("", *experiment.defences) if spec.recipe.method.name == "none" else ("",)
    defence = row["defence"] in defences and row["attack_seed"] == 0
    counted = row["attack"] in attacks and row["counted"] == paper_counts(row["attack"], row["protocol"])
    return after and images and defence and counted


def read_runs(where: str | Path | Sequence[str | Path]) -> tuple[Table, dict[str, str]]:
    """All scores of a folder of runs, or of several run folders, and what could not be read, with the reason.

    Raises:
        PolyboundError: there is no such folder.
    """
    folders = [Path(where)] if isinstance(where, str | Path) else [Path(path) for path in where]
    table, skipped = Table(), {}
    for folder in folders:
        if not folder.is_dir():
            raise PolyboundError(f"{folder}: no such folder")
        for run in find_runs(folder) or [Run(folder)]:
            try:
                run.model()
                table += run.table()
            except PolyboundError as error:
                skipped[str(run.path)] = str(error).removeprefix(f"{run.path}: ")
    return table, skipped


def read_scores(file: Path) -> Table:
    """The table of a CSV file of scores.

    Raises:
        PolyboundError: there is none, or it is not one.
    """
    if not file.is_file():
        raise PolyboundError(f"{file}: no such file")
    try:
        return read_table(file.read_text(encoding="utf-8"))
    except (PolyboundError, UnicodeDecodeError) as error:
        raise PolyboundError(f"{file}: {error}") from None
