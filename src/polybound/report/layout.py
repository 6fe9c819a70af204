"""From an experiment's scores to its tables and figures, in the paper's layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from polybound.evaluation import Cell, Row, Table, labels, value_label
from polybound.experiments import (
    ATTACKS,
    EPOCHS,
    Experiment,
    paper_method,
    published,
    resolve,
    row_kind,
    runs_of,
    search_job,
    significance,
)
from polybound.report.elements import Figure, Section
from polybound.report.elements import Table as Shown
from polybound.report.figures import curves, growth, initial, samples, tradeoff
from polybound.report.labels import METHODS, PROTOCOLS, attack_label, cell_text, dataset_label, model_label
from polybound.report.run_report import bounds_table
from polybound.runs import subjects_of

__all__ = ["section"]

BOUND = "method.bound"


def section(experiment: Experiment, table: Table, root: Path, data_dir: Path | None = None) -> Section:
    """Tables and figures of an experiment, from its scores and what else its folder holds."""
    experiment = resolve(experiment, root, data_dir, report=True)
    parts: list[Shown | Figure] = []
    if experiment.kind in ("accuracy", "search"):
        parts.append(_LAYOUTS[experiment.layout](experiment, table))
    if experiment.kind == "search":
        parts += _search(experiment, root, data_dir)
    elif experiment.kind == "growth":
        parts.append(growth(experiment, root, data_dir))
    elif experiment.kind == "initial":
        parts.append(initial(experiment, root))
    elif experiment.kind == "samples":
        parts.append(samples(experiment, root, data_dir))
    if experiment.layout == "table":
        parts += [*_significances(experiment, table), *_bounds(experiment, root, data_dir)]
    title = f"{experiment.paper}: {experiment.title}" if experiment.paper else experiment.title
    return Section(experiment.name, title, parts, _warnings(table))


def _bounds(experiment: Experiment, root: Path, data_dir: Path | None) -> list[Shown]:
    loaded, _ = subjects_of([run.path for spec, run in runs_of(experiment, root, data_dir) if spec.seed == 0])
    bounds = bounds_table(loaded)
    return [replace(bounds, title="Bounds of the runs with seed 0", aside=True)] if bounds.rows else []


def _warnings(table: Table) -> list[str]:
    """What must be said of every number: a cut schedule, few data, few images, how many seeds, which epoch."""
    notes = []
    if epochs := sorted(epochs for epochs in table.values("schedule.epochs") if epochs < EPOCHS):
        notes.append(f"Reduced schedule: {', '.join(map(str, epochs))} of {EPOCHS} epochs.")
    if samples := sorted(filter(None, table.values("data.samples"))):
        notes.append(f"Reduced data: {', '.join(map(str, samples))} training samples.")
    if limits := sorted({(row["total"], row["available"]) for row in table if row["total"] < row["available"]}):
        notes.append(f"Measured on the first {', '.join(f'{n:,} of {all_:,}' for n, all_ in limits)} images only.")
    if table.rows:
        images = ", ".join(f"{n:,}" for n in sorted({row["total"] for row in table}))
        notes.append(f"Mean and standard deviation over seeds{_seeds(table)}, {images} images, {_epochs(table)}.")
    return notes


def _epochs(table: Table) -> str:
    after = sorted(table.values("epoch"))
    if all(row["epoch"] == row["schedule.epochs"] for row in table):
        return "last epoch"
    listed = ", ".join(map(str, after))
    return f"clean and under the published protocol after the best epoch measured (of {listed}), else after the last"


def _seeds(table: Table) -> str:
    """How many seeds the runs of these rows have: as many, or so many to so many."""
    seeds: dict[tuple[str, ...], set[int]] = {}
    for row in table:
        seeds.setdefault((row["data"], row["model"], paper_method(row)), set()).add(row["seed"])
    counts = sorted({len(mine) for mine in seeds.values()})
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
        shown = labels([rows[0] for rows in variants.values()], _unlike_methods(mine)) if len(variants) > 1 else [""]
        for label, rows in zip(shown, list(variants.values()) or [[]], strict=True):
            heading = ", ".join(filter(None, (METHODS.get(name, name), label.partition(", ")[2])))
            found.append((name, heading, Table(rows)))
    return found


def _unlike_methods(table: Table) -> list[str]:
    return [name for row in table for name in row if not name.startswith(("method.", "adversary"))]


def _best(table: Table, **wanted: object) -> Cell | None:
    """The best bound after the best epoch, as the paper takes both."""
    return table.where(wanted).best_epoch().best(BOUND)


def _table(experiment: Experiment, table: Table) -> Shown:
    """Published, reproduced and sound values of every method, below each other for each attack."""
    columns = _columns(experiment, table.where(split="test"))
    attacks = [*(["clean"] if _shows_clean(experiment) else []), *experiment.attacks]
    header = ["attack", "value", *(label for _, label, _ in columns)]
    cells: list[list[str]] = []
    groups: list[tuple[int, str]] = []
    bold: set[tuple[int, int]] = set()
    for dataset, model in _shown(experiment, table):
        part = table.where(data=dataset, model=model, split="test")
        names = dataset_label(dataset), model_label(model)
        groups.append((len(cells), f"{', '.join(names)}{_seeds(part)}"))
        for attack in attacks:
            if line := _published_line(*names, attack, [name for name, _, _ in columns]):
                cells.append([attack_label(attack), "paper", *line])
            for protocol in ("-",) if attack == "clean" else ("published", "sound"):
                wanted = {"data": dataset, "model": model, "attack": attack, "protocol": protocol}
                values = [_best(rows, **wanted) for _, _, rows in columns]
                bold |= {(len(cells), place + 2) for place in _highest(values)}
                label = "here" if protocol == "-" else PROTOCOLS[protocol]
                cells.append([attack_label(attack), label, *map(cell_text, values)])
    return Shown(experiment.title, header, cells, groups, frozenset(bold), _table_notes(cells))


def _shown(experiment: Experiment, table: Table) -> list[tuple[str, str]]:
    """The data sets and models for which something was run; all, if nothing was."""
    every = list(product(experiment.datasets, experiment.models))
    return [pair for pair in every if table.where(data=pair[0], model=pair[1]).rows] or every


def _highest(values: Sequence[Cell | None]) -> list[int]:
    means = [value.mean for value in values if value is not None]
    if len(means) < 2:
        return []
    return [place for place, value in enumerate(values) if value is not None and value.mean == max(means)]


def _table_notes(cells: Sequence[Sequence[str]]) -> list[str]:
    notes = []
    if any("(" in cell for row in cells if row[1] != "paper" for cell in row[2:]):
        notes.append(
            "In brackets the bound, which is the best of all for each line on its own, as in the paper; "
            "honest-table has one bound for all lines."
        )
    if any(cell.endswith("*") for row in cells for cell in row[2:]):
        notes.append("* The best of the epochs measured, for each seed on its own, as in the paper.")
    return notes


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
        value = found.get((dataset, model, column, ATTACKS.get(attack, attack)))
        line.append("" if value is None else f"{value.mean:.2f} ± {value.std:.2f}")
    return line if any(line) else []


def _significances(experiment: Experiment, table: Table) -> list[Shown]:
    """Projection against none, paired by seed."""
    cells = []
    for dataset, model, attack in product(experiment.datasets, experiment.models, experiment.attacks):
        part = table.where(data=dataset, model=model, attack=attack, protocol="sound", defence="", split="test")
        single = part.only(lambda row: row_kind(row) == "single")
        top = single.best(BOUND)
        if top is None or len(top.seeds) < 2:
            continue
        bound = top.chosen[1] if top.chosen is not None else single.rows[0][BOUND]
        result = significance(single.where({BOUND: bound}), part.where(method="none"))
        if result.p == result.p:
            names = (dataset_label(dataset), model_label(model), attack_label(attack))
            numbers = (value_label(bound), f"{result.difference:+.1f}", str(result.seeds), f"{result.p:.2g}")
            cells.append([*names, *numbers])
    if not cells:
        return []
    header = ["data set", "model", "attack", "bound", "difference", "seeds", "p"]
    note = (
        "Points by which the projection, at the bound that is the best of its line, is ahead of no projection: mean "
        "over the seeds that both have, and p-value of a paired t-test. As the bound was chosen on the same images, "
        "p is smaller than for one chosen beforehand."
    )
    return [Shown("Projection against none, sound protocol", header, cells, notes=[note], aside=True)]


def _chosen(experiment: Experiment, table: Table) -> Shown:
    """One model a line, whose bound or weight has the best mean validation accuracy over clean and all attacks."""
    header = ["method", "bound or weight", "clean", *map(attack_label, experiment.attacks)]
    columns = [("clean", "-"), *((attack, "sound") for attack in experiment.attacks)]
    cells: list[list[str]] = []
    groups = []
    for dataset, model in product(experiment.datasets, experiment.models):
        part = table.where(data=dataset, model=model)
        if not part.rows:
            continue
        groups.append((len(cells), f"{dataset_label(dataset)}, {model_label(model)}{_seeds(part)}"))
        for method in experiment.methods:
            if found := _choice(part.only(lambda row, name=method: paper_method(row) == name), columns):  # type: ignore[misc]
                level, values = found
                cells.append([METHODS.get(method, method), level, *map(cell_text, values)])
    note = (
        f"One bound or weight a line, chosen on a validation split ({100 * experiment.validation:g} % of train): the "
        "best mean accuracy over clean images and all attacks. Sound protocol, last epoch, test split."
    )
    return Shown(experiment.title, header, cells, groups, notes=[note])


def _choice(table: Table, columns: Sequence[tuple[str, str]]) -> tuple[str, list[Cell | None]] | None:
    """The alternative of a method that is best on validation: its bound or weight, and its values on test."""
    score_columns = ("split", "attack", "protocol", "counted", "total", "available", "held_out", "attack_seed")
    best: tuple[float, Table] | None = None
    for part in table.configurations(*score_columns):
        found = [part.where(split="validation", attack=a, protocol=p).cell() for a, p in columns]
        total = sum(cell.mean for cell in found if cell is not None)
        if any(found) and (best is None or total > best[0]):
            best = total, part
    if best is None:
        return None
    first = best[1].rows[0]
    level = first.get(BOUND, first.get("method.weight"))
    values = [best[1].where(split="test", attack=a, protocol=p).cell() for a, p in columns]
    return "" if level is None else value_label(level), values


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
    return [Shown("The search", header, cells, notes=[note])]


_LAYOUTS: dict[str, Callable[[Experiment, Table], Shown | Figure]] = {
    "table": _table,
    "chosen": _chosen,
    "tradeoff": tradeoff,
    "curves": curves,
}
