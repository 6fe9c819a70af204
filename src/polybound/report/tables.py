"""The paper's tables with published, reproduced and sound values; and which values are missing, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from itertools import product
from pathlib import Path

from polybound.evaluation import Cell, Row, Table, labels
from polybound.experiments import (
    DATASETS,
    Comparison,
    Experiment,
    Published,
    absent_data,
    experiment_names,
    find_experiment,
    judge,
    paper_method,
    published,
    published_value,
)
from polybound.report.differences import BOUND
from polybound.report.elements import Table as Shown
from polybound.report.elements import Value
from polybound.report.labels import METHODS, PROTOCOLS, attack_label, dataset_label, model_label

__all__ = ["highest", "missing_parts", "missing_values", "paper_table", "seeds_text"]


_VERDICTS = {"within": "met", "off": "missed"}


def seeds_text(table: Table) -> str:
    """How many seeds the numbers made of these rows have: as many, or so many to so many.

    Of a method's bounds those with the most seeds count, as they alone compete for the best.
    """
    most: dict[tuple[str, ...], int] = {}
    for part in table.groups("data", "model", "method", BOUND).values():
        seeds: dict[tuple[str, ...], set[int]] = {}
        for row in part:
            seeds.setdefault((row["data"], row["model"], paper_method(row)), set()).add(row["seed"])
        for key, mine in seeds.items():
            most[key] = max(most.get(key, 0), len(mine))
    counts = sorted(set(most.values()))
    if not counts:
        return ""
    least = f"{counts[0]} to " if len(counts) > 1 else ""
    return f", {least}{counts[-1]} seed{'s' if counts[-1] > 1 else ''}"


def _columns(experiment: Experiment, table: Table) -> list[tuple[str, str, Table]]:
    """The columns of a table: the paper's name of each, its heading, and its rows.

    Where a method has several options other than its bound, each has a column of its own.
    """
    suffix = "" if experiment.adversary is None else "+at"
    names = ["at" if suffix and name == "none" else f"{name}{suffix}" for name in experiment.methods]
    names += ["layerwise-projection"] if experiment.kind == "search" else []
    names += [f"{name}-denoising" for name in experiment.defences]
    found: list[tuple[str, str, Table]] = []
    for name in names:
        mine = table.only(lambda row, name=name: paper_method(row) == name)  # type: ignore[misc]
        variants: dict[str, list[Row]] = {}
        for row in mine:
            fixed = {key: row[key] for key in row if key.startswith(("method.", "adversary")) and key != BOUND}
            variants.setdefault(str(sorted(fixed.items())), []).append(row)
        firsts = [rows[0] for rows in variants.values()]
        shown = labels(firsts, _unlike_methods(mine), method=False) if len(variants) > 1 else [""]
        for label, rows in zip(shown, list(variants.values()) or [[]], strict=True):
            heading = ", ".join(filter(None, (METHODS.get(name, name), label)))
            found.append((name, heading, Table(rows)))
    return found


def _unlike_methods(table: Table) -> list[str]:
    return [name for row in table for name in row if not name.startswith(("method.", "adversary"))]


def paper_table(experiment: Experiment, table: Table) -> Shown:
    """Published, reproduced and sound values of every method, below each other for each attack."""
    made = _Rows(experiment, table.where(split="test"))
    for dataset, model in _shown(experiment, table):
        made.add_group(dataset, model)
    header = ["attack", "value", *(label for _, label, _ in made.columns)]
    return Shown(
        experiment.title,
        header,
        made.cells,
        made.groups,
        frozenset(made.bold),
        made.notes(),
        verdicts=made.verdicts,
        comparisons=made.comparisons,
        lead=2,
    )


class _Rows:
    """The rows of a table while they are made, with what is said of their cells."""

    def __init__(self, experiment: Experiment, table: Table) -> None:
        self.experiment, self.table = experiment, table
        self.columns = _columns(experiment, table)
        self.attacks = [*(["clean"] if _shows_clean(experiment) else []), *experiment.attacks]
        self.cells: list[list[Value]] = []
        self.groups: list[tuple[int, str]] = []
        self.bold: set[tuple[int, int]] = set()
        self.verdicts: dict[tuple[int, int], str] = {}
        self.comparisons: list[Comparison] = []

    def add_group(self, dataset: str, model: str) -> None:
        """The rows of a data set and a model."""
        seeds = seeds_text(self.table.where(data=dataset, model=model))
        self.groups.append((len(self.cells), f"{dataset_label(dataset)}, {model_label(model)}{seeds}"))
        for attack in self.attacks:
            values = [
                published_value(dataset_label(dataset), model_label(model), name, attack) for name, _, _ in self.columns
            ]
            if any(values):
                self.cells.append([attack_label(attack), "paper", *values])
            for protocol in ("-",) if attack == "clean" else ("published", "sound"):
                wanted = {"data": dataset, "model": model, "attack": attack, "protocol": protocol}
                self._add_row(wanted, values if protocol != "sound" else [None] * len(values))

    def _add_row(self, wanted: dict[str, str], values: Sequence[Published | None]) -> None:
        parts = [rows.where(wanted) for _, _, rows in self.columns]
        found = [part.best_epoch().best(BOUND) for part in parts]  # as the paper takes both
        number, protocol = len(self.cells), wanted["protocol"]
        self.bold |= {(number, place + 2) for place in highest(found)}
        for place, (value, cell, part) in enumerate(zip(values, found, parts, strict=True)):
            self.verdicts[number, place + 2] = self._verdict(value, cell, part, protocol)
        label = "here" if protocol == "-" else PROTOCOLS[protocol]
        self.cells.append([attack_label(wanted["attack"]), label, *found])

    def _verdict(self, value: Published | None, cell: Cell | None, rows: Table, protocol: str) -> str:
        if cell is None:
            return "not run"
        if value is None:
            return "not published"
        found = judge(value, cell, rows, protocol)
        self.comparisons.append(found)
        return _VERDICTS.get(found.verdict, "not judged")

    def notes(self) -> list[str]:
        """What bold, brackets, stars and verdicts mean, as far as they occur."""
        cells = [cell for row in self.cells for cell in row if isinstance(cell, Cell)]
        notes = []
        if self.bold:
            notes.append("Bold: the highest mean of its line, among the methods that were run.")
        if met := [name for name in _MEANINGS if name in self.verdicts.values()]:
            notes.append(" ".join(_MEANINGS[name] for name in met))
        if any(cell.chosen is not None for cell in cells):
            notes.append(
                "In brackets the bound, which is the best of all for each line on its own, as in the paper; "
                "honest-table has one bound for all lines."
            )
        if any(isinstance(cell.epoch, str) for cell in cells):
            notes.append("* The best of the epochs measured, for each seed on its own, as in the paper.")
        return notes


_MEANINGS = {
    "met": "✓ met: within max(3 points, 2 published standard deviations) of the paper's value.",
    "missed": "✗ missed: further from it.",
    "not published": "○ not published: the paper has no such value.",
    "not judged": "? not judged: a shorter schedule, fewer or other data, or another recipe than the paper's.",
    "not run": "Not run: there is no such network among these scores.",
}


def _shown(experiment: Experiment, table: Table) -> list[tuple[str, str]]:
    """The data sets and models for which something was run; all, if nothing was."""
    every = list(product(experiment.datasets, experiment.models))
    return [pair for pair in every if table.where(data=pair[0], model=pair[1]).rows] or every


def highest(values: Sequence[Cell | None]) -> list[int]:
    """The places of the highest mean, to the two digits that are shown, if there is one to be higher than."""
    means = [round(value.mean, 2) for value in values if value is not None]
    if len(means) < 2:
        return []
    return [place for place, value in enumerate(values) if value is not None and round(value.mean, 2) == max(means)]


def _shows_clean(experiment: Experiment) -> bool:
    """The paper's tables of adversarial training and of further attacks leave the clean accuracy out."""
    if not experiment.published:
        return True
    return any(value.table == experiment.published and value.attack == "clean" for value in published())


# What an experiment of the paper has and a report has not, with the reason.


NO_DATA = "the data set was not on the machine that made this report"
NOT_RUN = "no network was trained or measured for it with this schedule"


def missing_parts(experiment: Experiment, table: Table, data_dir: Path | None = None) -> list[tuple[str, str]]:
    """The data sets, models and methods without any score, as (what, why); with how many published values they have."""
    if experiment.kind not in ("accuracy", "search"):
        return []
    pairs = product(experiment.datasets, experiment.models)
    lacking = [(data, model) for data, model in pairs if not table.where(data=data, model=model).rows]
    absent = absent_data({data for data, _ in lacking} - set(table.values("data")), data_dir)
    found = []
    for dataset in dict.fromkeys(data for data, _ in lacking):
        models = [model_label(model) for data, model in lacking if data == dataset]
        count = _published_values(experiment, dataset_label(dataset), models)
        why = NO_DATA if dataset in absent else NOT_RUN
        what = f"{dataset_label(dataset)}: {', '.join(models)}"
        found.append((what, f"{why}; {count} published values" if count else why))
    run = {row["method"] for row in table}
    others = [name for name in experiment.methods if run and name not in run and experiment.layout != "table"]
    return [*found, *((METHODS.get(name, name), NOT_RUN) for name in others)]


def _published_values(experiment: Experiment, dataset: str, models: Sequence[str]) -> int:
    """How many values the experiment's own table has for these."""
    return sum(
        bool(experiment.published)
        and (value.table, value.dataset) == (experiment.published, dataset)
        and value.model in models
        for value in published()
    )


def missing_values(
    run: Collection[tuple[str, str, str, str]], experiments: Sequence[Experiment], data_dir: Path | None = None
) -> Shown | None:
    """All published values that were not run, each counted once, by data set and reason; None if all were.

    Args:
        run: the keys of the values that were.
        experiments: those of the report.
        data_dir: where the data lies.
    """
    names = {label: name for name, label in DATASETS.items()}
    measured = {names[key[0]] for key in run}
    absent = absent_data(set(names.values()) - measured, data_dir)
    tables = {experiment.published for experiment in experiments}
    found: dict[tuple[str, str], list[Published]] = {}
    for value in {value.key: value for value in published() if value.key not in run}.values():
        inside = any(other.table in tables for other in published() if other.key == value.key)
        why = NO_DATA if names[value.dataset] in absent else NOT_RUN
        why = why if inside or why == NO_DATA else f"{_paper_tables()[value.table]} is not part of this report"
        found.setdefault((value.dataset, why), []).append(value)
    rows: list[list[Value]] = [[f"{d}: {_models(values)}", len(values), why] for (d, why), values in found.items()]
    header = ["not run", "published values", "why"]
    return Shown("What is missing, and why", header, rows, name="missing") if rows else None


def _models(values: Sequence[Published]) -> str:
    """The models of some values, each with the methods, unless these are all that the paper has for it."""
    found = []
    for model in dict.fromkeys(value.model for value in values):
        methods = {value.method for value in values if value.model == model}
        every = dict.fromkeys(v.method for v in published() if (v.dataset, v.model) == (values[0].dataset, model))
        names = [METHODS.get(name, name) for name in every if name in methods]
        found.append(model if len(methods) == len(every) else f"{model} ({', '.join(names)})")
    return ", ".join(found)


@cache
def _paper_tables() -> dict[str, str]:
    """The paper's names of its tables, by how its source calls them."""
    known = map(find_experiment, experiment_names())
    return {experiment.published: experiment.paper for experiment in known if experiment.published}
