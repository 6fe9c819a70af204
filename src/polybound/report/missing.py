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
from polybound.report.labels import METHODS, dataset_label, model_label

__all__ = ["missing_parts", "missing_values"]

NO_DATA = "the data set was not on the machine that made this report"
NOT_RUN = "no network was trained for it with this schedule"


def missing_parts(experiment: Experiment, table: Table, data_dir: Path | None = None) -> list[tuple[str, str]]:
    """The data sets and models without any score, as (what, why); with how many published values they have."""
    if experiment.kind not in ("accuracy", "search"):
        return []
    pairs = product(experiment.datasets, experiment.models)
    lacking = [(data, model) for data, model in pairs if not table.where(data=data, model=model).rows]
    absent = absent_data([data for data, _ in lacking], data_dir)
    found = []
    for dataset in dict.fromkeys(data for data, _ in lacking):
        models = [model_label(model) for data, model in lacking if data == dataset]
        count = _published_values(experiment, dataset_label(dataset), models)
        why = NO_DATA if dataset in absent else NOT_RUN
        what = f"{dataset_label(dataset)}: {', '.join(models)}"
        found.append((what, f"{why}; {count} published values" if count else why))
    return found


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
    """All published values that were not run, each counted once, by data set, model and reason; None if all were.

    Args:
        run: the keys of the values that were.
        experiments: those of the report.
        data_dir: where the data lies.
    """
    names = {label: name for name, label in DATASETS.items()}
    absent = absent_data(names.values(), data_dir)
    tables = {experiment.published for experiment in experiments}
    found: dict[tuple[str, str, str], list[Published]] = {}
    for value in {value.key: value for value in published() if value.key not in run}.values():
        inside = any(other.table in tables for other in published() if other.key == value.key)
        why = NO_DATA if names[value.dataset] in absent else NOT_RUN
        why = why if inside or why == NO_DATA else f"{_paper_tables()[value.table]} is not part of this report"
        found.setdefault((value.dataset, value.model, why), []).append(value)
    rows = []
    for (dataset, model, why), values in found.items():
        methods = dict.fromkeys(METHODS.get(value.method, value.method) for value in values)
        rows.append([f"{dataset}, {model}", str(len(values)), ", ".join(methods), why])
    header = ["not run", "values", "methods", "why"]
    return Shown("What is missing, and why", header, rows, name="missing") if rows else None


@cache
def _paper_tables() -> dict[str, str]:
    """The paper's names of its tables, by how its source calls them."""
    known = map(find_experiment, experiment_names())
    return {experiment.published: experiment.paper for experiment in known if experiment.published}
