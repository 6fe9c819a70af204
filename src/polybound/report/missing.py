"""What an experiment of the paper has and a report has not, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from itertools import product
from pathlib import Path

from polybound.evaluation import Table
from polybound.experiments import (
    DATASETS,
    Experiment,
    Published,
    absent_data,
    experiment_names,
    find_experiment,
    published,
)
from polybound.report.elements import Table as Shown
from polybound.report.elements import Value
from polybound.report.labels import METHODS, dataset_label, model_label

__all__ = ["missing_parts", "missing_values"]

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
