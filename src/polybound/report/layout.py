"""From an experiment's scores to its tables and figures, in the paper's layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

from polybound.evaluation import Cell, Table, difference
from polybound.experiments import (
    EPOCHS,
    Experiment,
    paper_method,
    resolve,
    row_kind,
    runs_of,
    search_job,
)
from polybound.report.differences import best_bound, chosen_on_validation
from polybound.report.elements import Figure, Section, Value
from polybound.report.elements import Table as Shown
from polybound.report.figure_data import read_figure
from polybound.report.figures import curves, growth, initial, samples, tradeoff
from polybound.report.labels import METHODS, PROTOCOLS, attack_label, dataset_label, model_label
from polybound.report.missing import missing_parts
from polybound.report.paper_table import paper_table, seeds_text
from polybound.report.run_report import bounds_table
from polybound.runs import subjects_of

__all__ = ["section"]


def section(
    experiment: Experiment, table: Table, root: Path, data_dir: Path | None = None, figures: Path | None = None
) -> Section:
    """Tables and figures of an experiment, from its scores and what else its folder holds.

    What is drawn from weights or studies that are not there is drawn from `figures`, a folder with the data of figures,
    if it has them.
    """
    experiment = resolve(experiment, root, data_dir, report=True)
    parts: list[Shown | Figure] = []
    if experiment.kind in ("accuracy", "search"):
        parts.append(_LAYOUTS[experiment.layout](experiment, table))
    if experiment.kind == "search":
        parts += _search(experiment, root, data_dir)
    elif experiment.kind in _STUDIES:
        made = _STUDIES[experiment.kind](experiment, root, data_dir)
        file = figures / f"{experiment.name}.csv" if figures is not None else None
        if file is not None and file.is_file() and made.empty:
            made = replace(read_figure(file, experiment.title), notes=made.notes)
        parts.append(made)
    if experiment.layout == "table":
        parts += [*_significances(experiment, table), *_bounds(experiment, root, data_dir)]
    title = f"{experiment.paper}: {experiment.title}" if experiment.paper else experiment.title
    lacking = missing_parts(experiment, table, data_dir)
    notes = _warnings(table) + ([] if experiment.kind == "growth" else _averaging(table))
    protocols = [name for name in PROTOCOLS if name in table.values("protocol")]
    return Section(experiment.name, title, parts, notes, lacking, protocols)


def _bounds(experiment: Experiment, root: Path, data_dir: Path | None) -> list[Shown]:
    loaded, _ = subjects_of([run.path for spec, run in runs_of(experiment, root, data_dir) if spec.seed == 0])
    bounds = bounds_table(loaded)
    return [replace(bounds, title="Bounds of the runs with seed 0", aside=True, name="bounds")] if bounds.rows else []


def _warnings(table: Table) -> list[str]:
    """What must be said of every number: a cut schedule, few data, few images."""
    notes = []
    if epochs := sorted(epochs for epochs in table.values("schedule.epochs") if epochs < EPOCHS):
        notes.append(f"Reduced schedule: {', '.join(map(str, epochs))} of {EPOCHS} epochs.")
    if samples := sorted(filter(None, table.values("data.samples"))):
        notes.append(f"Reduced data: {', '.join(map(str, samples))} training samples.")
    if limits := sorted({(row["total"], row["available"]) for row in table if row["total"] < row["available"]}):
        notes.append(f"Measured on the first {', '.join(f'{n:,} of {all_:,}' for n, all_ in limits)} images only.")
    return notes


def _averaging(table: Table) -> list[str]:
    """Of how many seeds and images the numbers are means, and after which epoch."""
    if not table.rows:
        return []
    images = ", ".join(f"{n:,}" for n in sorted({row["total"] for row in table}))
    return [f"Mean and standard deviation over seeds{seeds_text(table)}, {images} images, {_epochs(table)}."]


def _epochs(table: Table) -> str:
    after = sorted(table.values("epoch"))
    if all(row["epoch"] == row["schedule.epochs"] for row in table):
        return "last epoch"
    listed = ", ".join(map(str, after))
    return f"clean and under the published protocol after the best epoch measured (of {listed}), else after the last"


def _significances(experiment: Experiment, table: Table) -> list[Shown]:
    """Projection against none, paired by seed."""
    cells: list[list[Value]] = []
    for dataset, model, attack in product(experiment.datasets, experiment.models, experiment.attacks):
        part = table.where(data=dataset, model=model, attack=attack, protocol="sound", defence="", split="test")
        top = best_bound(part.only(lambda row: row_kind(row) == "single"))
        found = None if top is None else difference(top[0], part.where(method="none"))
        if top is not None and found is not None and found.p == found.p:
            names = (dataset_label(dataset), model_label(model), attack_label(attack))
            cells.append([*names, top[1], found, len(found.seeds), f"{found.p:.2g}"])
    if not cells:
        return []
    header = ["data set", "model", "attack", "bound", "difference", "seeds", "p"]
    note = (
        "Points by which the projection, at the bound that is the best of its line, is ahead of no projection: mean "
        "over the seeds that both have, its 95 % interval, and the p-value of a paired t-test. As the bound was chosen "
        "on the same images, p is smaller than for one chosen beforehand."
    )
    return [
        Shown("Projection against none, sound protocol", header, cells, notes=[note], aside=True, name="significance")
    ]


def _chosen(experiment: Experiment, table: Table) -> Shown:
    """One model a line, whose bound or weight has the best mean validation accuracy over clean and all attacks."""
    header = ["method", "bound or weight", "clean", *map(attack_label, experiment.attacks)]
    columns = [("clean", "-"), *((attack, "sound") for attack in experiment.attacks)]
    cells: list[list[Value]] = []
    groups = []
    for dataset, model in product(experiment.datasets, experiment.models):
        part = table.where(data=dataset, model=model)
        if not part.rows:
            continue
        groups.append((len(cells), f"{dataset_label(dataset)}, {model_label(model)}{seeds_text(part)}"))
        for method in experiment.methods:
            mine = part.only(lambda row, name=method: paper_method(row) == name)  # type: ignore[misc]
            if found := chosen_on_validation(mine, columns):
                values = [found[0].where(attack=attack, protocol=protocol).cell() for attack, protocol in columns]
                cells.append([METHODS.get(method, method), found[1], *values])
    note = (
        f"One bound or weight a line, chosen on a validation split ({100 * experiment.validation:g} % of train): the "
        "best mean accuracy over clean images and all attacks. Sound protocol, last epoch, test split."
    )
    verdicts = {
        (row, column): "not published"
        for row, line in enumerate(cells)
        for column, value in enumerate(line)
        if isinstance(value, Cell)
    }
    meaning = "○ not published: the paper chooses the best bound for each attack on its own, on the test split."
    return Shown(experiment.title, header, cells, groups, notes=[note, meaning], verdicts=verdicts)


def _search(experiment: Experiment, root: Path, data_dir: Path | None) -> list[Shown | Figure]:
    job = search_job(experiment, data_dir)
    if not job.done(root):
        return []
    result = job.result(root)
    measures = ("mean", "full", "short")  # the finalists, then what was trained to the end, then the rest
    trials = sorted(
        result["trials"], key=lambda trial: [-1.0 if trial[name] is None else trial[name] for name in measures]
    )[::-1]
    names = list(result["bounds"])

    def percent(share: float | None) -> str:
        return "" if share is None else f"{100 * share:.2f}"

    cells = [
        [*(f"{trial['bounds'][name]:g}" for name in names), *(percent(trial[name]) for name in reversed(measures))]
        for trial in trials[:10]
    ]
    pruned = sum(trial["full"] is None for trial in trials)
    note = (
        f"The ten best of {len(trials)} points, {pruned} of them pruned after a shorter schedule; accuracy in % under "
        f"{attack_label(experiment.search['attack'])} on a validation split, {experiment.search['protocol']} protocol."
    )
    header = [*names, "shorter schedule", "whole schedule", f"mean of {experiment.search['seeds']} seeds"]
    return [Shown("The search", header, cells, notes=[note], aside=True, name="search")]


_STUDIES: dict[str, Callable[[Experiment, Path, Path | None], Figure]] = {
    "growth": growth,
    "initial": initial,
    "samples": samples,
}
_LAYOUTS: dict[str, Callable[[Experiment, Table], Shown | Figure]] = {
    "table": paper_table,
    "chosen": _chosen,
    "tradeoff": tradeoff,
    "curves": curves,
}
