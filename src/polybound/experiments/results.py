"""The scores of experiments and of folders of runs, as one flat table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from polybound.data import missing
from polybound.errors import PolyboundError
from polybound.evaluation import CLEAN, MixedError, Row, Table, certified_radius_of, paper_counts, read_table
from polybound.experiments.digests import digests
from polybound.experiments.experiment import Experiment
from polybound.experiments.jobs import covers
from polybound.experiments.search import resolve
from polybound.registry import check_whole
from polybound.runs import Run, Spec, find_runs, is_run

__all__ = ["absent_data", "experiment_scores", "read_runs", "read_scores", "runs_of", "skipped_runs"]


def runs_of(
    experiment: Experiment, root: Path, data_dir: Path | None = None, stored: Mapping[str, str] | None = None
) -> list[tuple[Spec, Run]]:
    """The runs of an experiment, those that its search led to included, with their folders, which may not exist.

    Of a data set that is not on this machine and whose digest is not stored, nothing is known, and there are no runs.

    Args:
        experiment: whose runs.
        root: folder of the run folders.
        data_dir: where the data lies.
        stored: digests of data sets by name, for those that are not there.
    """
    here, other = digests(data_dir), stored or {}
    specs = resolve(experiment, root, data_dir, report=True).specs(lambda name: here(name) or other.get(name, ""))
    return [(spec, Run.of(spec, root)) for spec in specs if spec.data.digest]


def absent_data(names: Iterable[str], data_dir: Path | None = None) -> set[str]:
    """The data sets, of these, whose files are not on this machine, or not whole."""
    return {name for name in names if _is_absent(name, data_dir)}


def _is_absent(name: str, data_dir: Path | None) -> bool:
    try:
        return missing(name, data_dir) or not digests(data_dir)(name)
    except (PolyboundError, OSError):
        return True


def _stored_digests(scores: Table) -> dict[str, str]:
    """The digests of the data sets of scores, unless there are several of one name."""
    found = {name: part.values("data.digest") for (name,), part in scores.groups("data").items()}
    return {str(name): str(values[0]) for name, values in found.items() if len(values) == 1}


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
    runs = runs_of(experiment, root, data_dir, _stored_digests(known))
    for spec, run in {spec.address: (spec, run) for spec, run in runs}.values():
        asked: dict[tuple[object, ...], Row] = {}
        for source in (kept.get(spec.address, Table()), Table() if trouble_with(run) else run.table()):
            asked |= _once(row for row in source if _asks(experiment, spec, row))
        found += asked.values()
    return Table(found)


def _once(rows: Iterable[Row]) -> dict[tuple[object, ...], Row]:
    """The rows of a run by what they are of; two that say different things are refused."""
    found: dict[tuple[object, ...], Row] = {}
    for row in rows:
        first = found.setdefault(_what(row), row)
        if first["correct"] != row["correct"]:
            counts = f"{first['correct']} and {row['correct']} of {row['total']}"
            raise MixedError(f"run {row['run']} has two scores under {row['attack']}: {counts} images right")
    return found


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
    counted = asked and row["counted"] == paper_counts(row["attack"], row["protocol"])
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
    """The table of a CSV file of scores. A row that says how its network was trained is checked against its address.

    Raises:
        PolyboundError: there is none, it is not one, or a column of a run was changed or taken away.
    """
    if not file.is_file():
        raise PolyboundError(f"{file}: no such file")
    known: dict[str, dict[str, Any]] = {}
    try:
        return Table([_checked(row, known) for row in read_table(file.read_text(encoding="utf-8"))])
    except (PolyboundError, UnicodeDecodeError) as error:
        raise PolyboundError(f"{file}: {error}") from None


def _checked(row: Row, known: dict[str, dict[str, Any]]) -> Row:
    """A row with all columns of its run's spec, which must have the address that the row has."""
    mine = {name: row[name] for name in row if name in _OF_THE_SPEC or "." in name}
    if not mine:
        return row  # of a network that is no run
    key = str(mine)
    if key not in known:
        spec = Spec.from_columns(mine)
        known[key] = {**spec.columns(), "run": spec.address}
    if row.get("run") != known[key]["run"]:
        raise PolyboundError(
            f"how run {row.get('run')} was trained was changed: its address would be {known[key]['run']}"
        )
    if "epoch" not in row:
        raise PolyboundError(f"not a file of scores: run {row['run']} has no epoch")
    check_whole("epoch", row["epoch"])
    return {**row, **known[key]}


_OF_THE_SPEC = ("data", "model", "method", "adversary", "optimiser", "schedule", "loss", "seed")
