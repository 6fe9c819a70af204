"""What an experiment of the paper has and a report has not, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from polybound.evaluation import Table
from polybound.experiments import Experiment, absent_data, published
from polybound.report.labels import dataset_label, model_label

__all__ = ["missing_parts"]

NO_DATA = "the data set was not on the machine that made this report"
NOT_RUN = "no network was trained for it with this schedule"


def missing_parts(experiment: Experiment, table: Table, data_dir: Path | None = None) -> list[tuple[str, str]]:
    """The data sets and models without any score, as (what, why); with how many published values they have.

    >>> from polybound.experiments import find_experiment
    >>> missing_parts(find_experiment("figure-14"), Table(), Path("/nowhere"))
    [('K-MNIST: NCP-4', 'the data set was not on the machine that made this report')]
    """
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
