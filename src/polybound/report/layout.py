"""From an experiment's scores to its tables and figures, in the paper's layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from polybound.experiments.compare import ATTACKS, DATASETS, EPOCHS, published, significance
from polybound.experiments.experiment import Experiment
from polybound.experiments.jobs import run_of
from polybound.experiments.results import Row, average, best
from polybound.experiments.search import resolve, search_job
from polybound.report.figures import curves, growth, initial, samples, tradeoff
from polybound.report.folders import bounds_table
from polybound.report.shapes import Figure, Section, Table
from polybound.report.words import METHODS, MODELS, SOURCES, attack_label

__all__ = ["section"]


def section(experiment: Experiment, rows: Sequence[Row], root: Path) -> Section:
    """Tables and figures of an experiment, from its scores and what else its folder holds."""
    experiment = resolve(experiment, root)
    parts: list[Table | Figure] = []
    if experiment.kind in ("accuracy", "search"):
        if experiment.layout == "table":
            parts += _tables(experiment, rows)
        elif experiment.layout == "chosen":
            parts.append(_chosen(experiment, rows))
        elif experiment.layout == "tradeoff":
            parts.append(tradeoff(experiment, rows))
        else:
            parts.append(curves(experiment, rows))
    if experiment.kind == "search":
        parts += _search(experiment, root)
    elif experiment.kind == "growth":
        parts.append(growth(experiment, root))
    elif experiment.kind == "initial":
        parts.append(initial(experiment, root))
    elif experiment.kind == "samples":
        parts.append(samples(experiment, root))
    if experiment.layout == "table":
        parts += _significances(experiment, rows)
        runs = {
            run.path: run for e in experiment.entries() if e.plan.seed == 0 and (run := run_of(e.plan, root)).finished
        }
        bounds = bounds_table([run for run in runs.values() if run.failure is None])
        parts += [replace(bounds, title="Bounds of the runs with seed 0", aside=True)] if bounds.rows else []
    title = f"{experiment.paper}: {experiment.title}" if experiment.paper else experiment.title
    return Section(experiment.name, title, parts, _warnings(experiment, rows))


def _warnings(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    """What must be said of every number: a cut schedule, few data, few seeds."""
    notes = []
    if epochs := sorted({row.epochs for row in rows if row.epochs < EPOCHS}):
        notes.append(f"Reduced schedule: {', '.join(map(str, epochs))} of {EPOCHS} epochs.")
    if samples := sorted({row.samples for row in rows if row.samples}):
        notes.append(f"Reduced data: {', '.join(map(str, samples))} training samples.")
    if experiment.limit:
        notes.append(f"Measured on the first {experiment.limit} images only.")
    if rows:
        notes.append(f"Mean and standard deviation over seeds{_seeds(rows)}, {_epochs(rows)}.")
    return notes


def _epochs(rows: Sequence[Row]) -> str:
    if all(row.epoch == row.epochs for row in rows):
        return "last epoch"
    after = ", ".join(map(str, sorted({row.epoch for row in rows})))
    return f"clean and under the published protocol after the best epoch measured (of {after}), else after the last"


def _seeds(rows: Sequence[Row]) -> str:
    """How many seeds the runs of these rows have: as many, or so many to so many."""
    found: dict[tuple[str, ...], set[int]] = {}
    for row in rows:
        found.setdefault((row.dataset, row.model, row.method, row.projection), set()).add(row.seed)
    counts = sorted({len(seeds) for seeds in found.values()})
    if not counts:
        return ""
    least = f"{counts[0]} to " if len(counts) > 1 else ""
    return f", {least}{counts[-1]} seed{'s' if counts[-1] > 1 else ''}"


def _columns(experiment: Experiment) -> list[str]:
    columns = list(experiment.methods)
    if experiment.kind == "search":
        columns.append("layerwise-projection")
    return columns + [f"{name}-denoising" for name in experiment.defences]


def _select(rows: Sequence[Row], column: str) -> list[Row]:
    """The rows of a column of a table."""
    if column.endswith("-denoising"):
        return [row for row in rows if row.method == "none" and row.defence == column.removesuffix("-denoising")]
    if column == "layerwise-projection":
        return [row for row in rows if row.projection == "searched"]
    return [row for row in rows if row.method == column and not row.defence and row.projection in ("", "single")]


def _tables(experiment: Experiment, rows: Sequence[Row]) -> list[Table | Figure]:
    """Published, reproduced and sound values of every method, below each other for each attack."""
    columns = _columns(experiment)
    attacks = [*(["clean"] if _shows_clean(experiment) else []), *experiment.attacks]
    found = {
        (DATASETS.get(d, d), MODELS.get(m, m)): [
            r for r in rows if r.dataset == d and r.model == m and r.split == "test" and r.attack in attacks
        ]
        for d, m in product(experiment.datasets, experiment.models)
    }
    found = {key: part for key, part in found.items() if part} or found
    header = ["attack", "value", *(METHODS.get(column, column) for column in columns)]
    cells: list[list[str]] = []
    groups: list[tuple[int, str]] = []
    bold: set[tuple[int, int]] = set()
    for (dataset, model), part in found.items():
        groups.append((len(cells), f"{dataset}, {model}{_seeds(part)}"))
        for attack in attacks:
            if line := _published_line(dataset, model, attack, columns):
                cells.append([attack_label(attack), "paper", *line])
            for protocol in ("-",) if attack == "clean" else ("published", "sound"):
                values = [best(_select(part, column), attack=attack, protocol=protocol) for column in columns]
                label = "here" if protocol == "-" else SOURCES[protocol]
                means = [value.mean for value in values if value is not None]
                for place, value in enumerate(values):
                    if value is not None and len(means) > 1 and value.mean == max(means):
                        bold.add((len(cells), place + 2))
                cells.append([attack_label(attack), label, *("" if value is None else str(value) for value in values)])
    notes = [
        "The value of the projection is the best of all bounds for each line on its own, as in the paper; "
        "honest-table has one bound for all lines."
    ]
    return [Table(experiment.title, header, cells, groups, frozenset(bold), notes)]


def _shows_clean(experiment: Experiment) -> bool:
    """The paper's tables of adversarial training and of further attacks leave the clean accuracy out."""
    if not experiment.published:
        return True
    return any(value.table == experiment.published and value.attack == "clean" for value in published())


def _published_line(dataset: str, model: str, attack: str, columns: Sequence[str]) -> list[str]:
    """The paper's values of a line; empty if there are none."""
    found = {(value.dataset, value.model, value.method, value.attack): value for value in published()}
    line = []
    for column in columns:
        value = found.get((dataset, model, {"none+at": "at"}.get(column, column), ATTACKS.get(attack, attack)))
        line.append("" if value is None else f"{value.mean:.2f} ± {value.std:.2f}")
    return line if any(line) else []


def _significances(experiment: Experiment, rows: Sequence[Row]) -> list[Table]:
    """Projection against none, paired by seed."""
    cells = []
    for dataset, model, attack in product(experiment.datasets, experiment.models, experiment.attacks):
        part = [r for r in rows if (r.dataset, r.model, r.attack, r.protocol) == (dataset, model, attack, "sound")]
        top = best(_select(part, "projection"), attack=attack, protocol="sound")
        if top is None or top.seeds < 2:
            continue
        ours = [row for row in _select(part, "projection") if row.bound == top.bound]
        result = significance(ours, _select(part, "none"))
        if result.p == result.p:
            names = (DATASETS.get(dataset, dataset), MODELS.get(model, model), attack_label(attack))
            numbers = (f"{top.bound:g}", f"{result.difference:+.1f}", str(result.seeds), f"{result.p:.2g}")
            cells.append([*names, *numbers])
    if not cells:
        return []
    header = ["data set", "model", "attack", "bound", "difference", "seeds", "p"]
    note = (
        "Points by which the projection, at the bound that is the best of its line, is ahead of no projection: mean "
        "over the seeds that both have, and p-value of a paired t-test. As the bound was chosen on the same images, "
        "p is smaller than for one chosen beforehand."
    )
    return [Table("Projection against none, sound protocol", header, cells, notes=[note], aside=True)]


def _chosen(experiment: Experiment, rows: Sequence[Row]) -> Table:
    """One model a line, whose bound or weight has the best mean validation accuracy over clean and all attacks."""
    header = ["method", "bound or weight", "clean", *map(attack_label, experiment.attacks)]
    cells: list[list[str]] = []
    groups = []
    for dataset, model in product(experiment.datasets, experiment.models):
        part = [row for row in rows if row.dataset == dataset and row.model == model]
        if not part:
            continue
        groups.append((len(cells), f"{DATASETS.get(dataset, dataset)}, {MODELS.get(model, model)}{_seeds(part)}"))
        for method in experiment.methods:
            mine = _select(part, method)
            columns = [("clean", "-"), *((attack, "sound") for attack in experiment.attacks)]
            totals: dict[float | None, float] = {}
            for attack, protocol in columns:
                for bound, value in average(mine, attack=attack, protocol=protocol, split="validation").items():
                    totals[bound] = totals.get(bound, 0.0) + value.mean
            if not totals:
                continue
            bound = max(totals, key=lambda name: totals[name])
            values = [average(mine, attack=a, protocol=p, split="test", bound=bound).get(bound) for a, p in columns]
            label = "" if bound is None else f"{bound:g}"
            cells.append([METHODS[method], label, *("" if value is None else str(value) for value in values)])
    note = (
        f"One bound or weight a line, chosen on a validation split ({100 * experiment.validation:g} % of train): the "
        "best mean accuracy over clean images and all attacks. Sound protocol, last epoch, test split."
    )
    return Table(experiment.title, header, cells, groups, notes=[note])


def _search(experiment: Experiment, root: Path) -> list[Table | Figure]:
    job = search_job(experiment)
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
    return [Table("The search", header, cells, notes=[note])]
