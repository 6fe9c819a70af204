"""Figures of experiments, with the paper's axes, and of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from polybound.attacks import parse_attack
from polybound.evaluation import ATTACK_COLUMNS, CLEAN, SEED_COLUMNS, Cell, Row, Table, certified_radius_of, labels
from polybound.experiments import Experiment, growth_studies, published_value, ratios, row_kind, studies
from polybound.report.elements import Figure, Images, Line, Panel
from polybound.report.labels import (
    METHODS,
    PROTOCOLS,
    attack_label,
    column_name,
    dataset_label,
    level_of,
    model_label,
    network_names,
)
from polybound.runs import LoadedModel

__all__ = ["curves", "growth", "initial", "run_figures", "samples", "tradeoff"]


_X = {"bound": "method.bound", "rank": "model.rank", "steps": "steps"}
_CERTIFIED = ("certified", "certified-projection")
_X_LABELS = {"bound": "bound", "rank": "hidden rank", "steps": "adversarial steps"}


def curves(experiment: Experiment, table: Table) -> Figure:
    """Accuracies over bounds, ranks or steps: a panel for each protocol, data set and, unless it has a line, model.

    Protocols stand below each other with a column for each data set and model; if that would be one column or more
    than four, they stand side by side.
    """
    protocols = ("published", "sound") if experiment.attacks else ("-",)
    models = [None] if experiment.lines == "model" else list(experiment.models)
    known = {key[:2] if experiment.lines == "attack" else key[:1] for key in table.groups("data", "model")}
    pairs = [
        (dataset, model)
        for dataset, model in product(experiment.datasets, models)
        if (dataset, model) in known or (dataset,) in known
    ]
    below = 1 < len(pairs) <= 4
    places = product(protocols, pairs) if below else ((protocol, pair) for pair in pairs for protocol in protocols)
    panels = _drawn([_curve_panel(experiment, table, protocol, *pair) for protocol, pair in places])
    columns = len(pairs) if below else len(protocols)
    notes = [_PUBLISHED_NOTES[experiment.x]] if any(panel.published for panel in panels) else []
    return Figure(experiment.title, panels, notes=notes, columns=columns if len(panels) % columns == 0 else 0)


_PUBLISHED_NOTES = {
    "bound": "Stars: the paper's values. Its tables give them for the best of its bounds without saying which; they "
    "are drawn at the best bound here.",
    "steps": "Stars: the paper's values for that attack, for the best of its bounds.",
}


def _curve_panel(experiment: Experiment, table: Table, protocol: str, dataset: str, model: str | None) -> Panel:
    """A panel of curves; its lines are attacks or, without a model of its own, models and splits."""
    part = table.where(data=dataset, protocol=protocol)
    suffix = "" if protocol == "-" else f", {PROTOCOLS[protocol]}"
    log = experiment.x != "steps"
    axes = {"log_x": log, "from_zero": experiment.x in ("bound", "steps")}
    if model is None:
        several = len(experiment.splits) > 1
        chosen = [
            (model_label(one) + (f", {split}" if several else ""), part.where(model=one, split=split), one)
            for one, split in product(experiment.models, experiment.splits)
        ]
        title = dataset_label(dataset) + suffix
    else:
        mine = part.where(model=model)
        attacks = experiment.attacks or ("clean",)
        chosen = [(attack_label(attack), mine.where(attack=attack), model) for attack in attacks]
        title = f"{dataset_label(dataset)}, {model_label(model)}{suffix}"
    lines, published = [], []
    for name, rows, of in chosen:
        made = _lines(experiment, rows, name)
        lines += made
        published += _published_marks(experiment, rows, made, dataset, of) if protocol != "sound" else []
    return Panel(title, _X_LABELS[experiment.x], "accuracy in %", lines, **axes, published=published)  # type: ignore[arg-type]


def _published_marks(experiment: Experiment, rows: Table, lines: list[Line], dataset: str, model: str) -> list[Line]:
    """The paper's value of a line: at its highest point over the bounds, at the steps of the attack over the steps."""
    if len(lines) != 1 or not lines[0].x or experiment.x == "rank" or experiment.adversary is not None:
        return []
    (line,) = lines
    found = []
    for attack in rows.where(split="test").values("attack"):
        value = published_value(dataset_label(dataset), model_label(model), "projection", attack)
        x = line.x[max(range(len(line.y)), key=line.y.__getitem__)]
        if experiment.x == "steps":
            x = float(_steps({"attack": attack}) or 0)
        if value is not None:
            found.append(Line(line.label, [x], [value.mean], [value.std], kind="marks"))
    return found


def _lines(experiment: Experiment, table: Table, name: str) -> list[Line]:
    """A line over the x-axis for each configuration, named by what differs if there are several."""
    column = _X[experiment.x]
    free = (column, "epoch", *(["attack"] if experiment.x == "steps" else []))
    known = Table({**row, **({"steps": _steps(row)} if experiment.x == "steps" else {})} for row in table)
    known = known.only(lambda row: isinstance(row.get(column), int | float))
    parts = known.configurations(*free)
    names = [""] if len(parts) == 1 else labels([part.rows[0] for part in parts], (*free, *SEED_COLUMNS))
    lines = []
    for more, part in zip(names, parts, strict=True):
        points = part.best_epoch().cells_by(column)
        lines.append(_line(f"{name}, {more}" if more else name, points))
    return lines


def _steps(row: Row) -> int | None:
    return None if row["attack"] == "clean" else getattr(parse_attack(row["attack"]), "steps", None)


def _line(label: str, points: list[tuple[Any, Cell]]) -> Line:
    xs = [float(x) for x, _ in points]
    return Line(label, xs, [cell.mean for _, cell in points], [cell.std for _, cell in points])


def _drawn(panels: list[Panel]) -> list[Panel]:
    """The panels for which something was run."""
    return [panel for panel in panels if any(line.x for line in panel.lines)]


def tradeoff(experiment: Experiment, table: Table) -> Figure:
    """Clean accuracy on the x-axis, robust or certified accuracy on the y-axis, a line for each projection."""
    panels = []
    columns = [(attack, "accuracy under attack in %") for attack in experiment.attacks]
    proven = [(ball.eps, name) for name in table.values("attack") if (ball := certified_radius_of(name)) is not None]
    columns += [(name, "certified accuracy in %") for _, name in sorted(proven)]
    for dataset, (attack, label) in product(experiment.datasets, columns):
        part = table.where(data=dataset)
        lines = []
        kinds = {kind: part.only(lambda row, kind=kind: row_kind(row) == kind) for kind in experiment.projections}  # type: ignore[misc]
        kinds |= {METHODS[name]: part.where(method=name) for name in _CERTIFIED if name in experiment.methods}
        for kind, mine in kinds.items():
            lines += _tradeoff_lines(experiment, kind, mine, attack)
        title = f"{dataset_label(dataset)}, {attack_label(attack)}"
        panels.append(Panel(title, "clean accuracy in %", label, lines, scale="accuracy in %"))
    return Figure(experiment.title, _drawn(panels), notes=[_TEXTS_NOTE])


_TEXTS_NOTE = (
    "Sound protocol. At the points, where there is room: the bound; of layer-wise projections the factor of their "
    "pattern, of spectral and product projections the bound of C, and of certified training the radius that it was "
    "trained for."
)


def _tradeoff_lines(experiment: Experiment, kind: str, table: Table, attack: str) -> list[Line]:
    """A line over the bounds, or radii, for each configuration, named by what differs if there are several."""
    free = ("method.bound", "method.eps", "attack", "protocol", "counted")
    shown = table.only(lambda row: row["attack"] == "clean" or (row["attack"] == attack and row["protocol"] == "sound"))
    parts = shown.configurations(*free)
    names = [""] if len(parts) == 1 else labels([part.rows[0] for part in parts], (*free, *SEED_COLUMNS))
    lines = []
    for more, part in zip(names, parts, strict=True):
        if points := _pairs(part, attack):
            rows, xs, cells = zip(*points, strict=True)
            name = f"{kind}, {more}" if more else kind
            texts = [_level_text(row, experiment.layerwise) for row in rows]
            lines.append(Line(name, list(xs), [cell.mean for cell in cells], [cell.std for cell in cells], texts))
    return lines


def _pairs(table: Table, attack: str) -> list[tuple[Row, float, Cell]]:
    """Clean and robust accuracy of each configuration, from the tightest to the loosest."""
    points = []
    for part in table.configurations("attack", "protocol", "counted"):
        clean, robust = part.where(attack="clean").cell(), part.where(attack=attack, protocol="sound").cell()
        if clean is not None and robust is not None:
            points.append((part.rows[0], round(clean.mean, 2), robust))
    return sorted(points, key=lambda point: _level(point[0]))


def _level(row: Row) -> float:
    """How tight a method is: its bound, the last of its bounds, or its radius."""
    bound = row.get("method.bound", row.get("method.eps", 0.0))
    return float(list(bound.values())[-1]) if isinstance(bound, dict) else float(bound)


def _level_text(row: Row, pattern: Mapping[str, float]) -> str:
    """The bound or radius of a point; of a bound for each matrix the factor of the pattern, if it is a multiple."""
    bound = row.get("method.bound")
    if isinstance(bound, dict) and set(bound) == set(pattern):
        factors = {round(bound[name] / pattern[name], 6) for name in pattern}
        if len(factors) == 1:
            return f"{factors.pop():g}x"
    if isinstance(bound, dict) and "C" in bound:
        return f"{bound['C']:g}"
    return f"{_level(row):g}" if bound is not None else f"eps {_level(row):g}"


def growth(experiment: Experiment, root: Path, data_dir: Path | None = None) -> Figure:
    """The ratio of the two bounds over the bounds, and both during training."""
    panels = []
    found = Table(ratios(experiment, root, data_dir))
    jobs = {(spec.data.name, spec.model.name): job for spec, job in growth_studies(experiment, data_dir)}
    for dataset, model in product(experiment.datasets, experiment.models):
        name = f"{dataset_label(dataset)}, {model_label(model)}"
        lines = _ratio_lines(found.where(data=dataset, model=model))
        panels.append(Panel(name, "bound", "gamma / theta", lines, log_x=True))
        job = jobs.get((dataset, model))
        if job is not None and job.done(root):
            result = job.result(root)
            epochs = list(range(len(result["theta"])))
            lines = [Line(key, epochs, result[key]) for key in ("gamma", "theta")]
            panels.append(Panel(f"{name} without regularisation", "epoch", "value", lines, log_y=True))
    note = "Of trained networks, mean over seeds; during training, of one network."
    return Figure(experiment.title, _drawn(panels), notes=[note])


def _ratio_lines(table: Table) -> list[Line]:
    """gamma/theta over the bounds, a line for each configuration; only seeds are averaged."""
    known = table.only(lambda row: isinstance(row.get("method.bound"), float))
    parts = known.configurations("method.bound", "ratio")
    free = ("method.bound", "ratio", *SEED_COLUMNS)
    names = [""] if len(parts) == 1 else labels([part.rows[0] for part in parts], free)
    lines = []
    for more, part in zip(names, parts, strict=True):
        by_bound = {key[0]: fmean(row["ratio"] for row in rows) for key, rows in part.groups("method.bound").items()}
        xs = sorted(by_bound)
        lines.append(Line(f"gamma/theta, {more}" if more else "gamma/theta", xs, [by_bound[x] for x in xs]))
    return lines


def initial(experiment: Experiment, root: Path, data_dir: Path | None = None) -> Figure:
    """The ratio of the two bounds at random initialisation."""
    notes = ["Standard normal matrices, 784 features; mean over seeds."]
    (job,) = studies(experiment, data_dir)
    if not job.done(root):
        return Figure(experiment.title, notes=notes)
    result = job.result(root)
    panels = []
    for key, title, log in (("rank", "degree 10", True), ("degree", "rank 16", False)):
        xs = sorted(map(int, result[key]))
        means = [fmean(result[key][str(x)]) for x in xs]
        label = "hidden rank" if key == "rank" else "degree"
        panels.append(Panel(title, label, "gamma / theta", [Line("gamma/theta", xs, means)], log_x=log))
    return Figure(experiment.title, panels, notes=notes)


def samples(experiment: Experiment, root: Path, data_dir: Path | None = None) -> Figure:
    """A row of samples for each data set."""
    rows = []
    for dataset, job in zip(experiment.datasets, studies(experiment, data_dir), strict=True):
        if job.done(root):
            pictures = [(f"{s['name']} ({s['label']})", s["pixels"]) for s in job.result(root)["samples"]]
            rows.append(Images(dataset_label(dataset), pictures))
    return Figure(experiment.title, images=rows)


# Figures of any run folders: accuracies over the bounds, clean against attacked accuracy, and the training.


MOST_LINES = 16
"""More lines than these nobody tells apart."""

Headings = Sequence[tuple[str, Table]]
"""The scores by what their runs have in common, each part with its heading."""

_FREE = (*SEED_COLUMNS, "total", "available")
_BOUND = "method.bound"
_TOGETHER = ("data", "data.digest", "model", "model.rank")
_LEVELS = (_BOUND, "method.weight", "method.eps")


def run_figures(table: Table, headings: Headings, loaded: Sequence[LoadedModel]) -> list[Figure]:
    """The figures for which there is something to draw.

    Args:
        table: the scores of all runs.
        headings: the same, by data set, model and what else the runs of a part have in common.
        loaded: the runs.
    """
    made = [_over_bounds(headings), _trade_off(table, headings), _training(loaded)]
    return [figure for figure in made if not figure.empty]


def _over_bounds(headings: Headings) -> Figure:
    """Accuracies over the bounds of projections, where there are several."""
    panels = []
    for heading, part in headings:
        known = part.only(lambda row: isinstance(row.get(_BOUND), int | float))
        if len(known.values(_BOUND)) < 2:
            continue
        lines = []
        for column, mine in known.groups(*ATTACK_COLUMNS).items():
            lines += _bound_lines(column_name(*column), mine)
        panels += _in_parts(heading, "bound", "accuracy in %", lines, log_x=True, from_zero=True)
    return Figure("Accuracy over the bounds", panels, notes=["Mean over seeds; the bars are standard deviations."])


def _bound_lines(name: str, table: Table) -> list[Line]:
    parts = table.configurations(_BOUND)
    names = [""] if len(parts) == 1 else labels([part.rows[0] for part in parts], (_BOUND, *_FREE))
    lines = []
    for more, part in zip(names, parts, strict=True):
        points = part.cells_by(_BOUND)
        values = [float(bound) for bound, _ in points], [cell.mean for _, cell in points]
        label = f"{name}: {more}" if more else name
        lines.append(Line(label, *values, [cell.std for _, cell in points]))
    return lines


def _trade_off(table: Table, headings: Headings) -> Figure:
    """Clean against attacked accuracy of all configurations, a panel for each attack and heading."""
    panels = []
    columns = [column for column in table.groups(*ATTACK_COLUMNS) if column[0] != CLEAN]
    for heading, part in headings:
        for column in columns:
            lines = _points(part, column)
            if sum(len(line.x) for line in lines) > 1:
                title = f"{heading}: {column_name(*column)}"
                panels += _in_parts(title, "clean accuracy in %", "accuracy under attack in %", lines)
    note = "A point is a configuration, mean over its seeds. At the points, where there is room: the bound or weight."
    return Figure("Clean accuracy against accuracy under attack", panels, notes=[note])


def _points(table: Table, column: tuple[Any, ...]) -> list[Line]:
    """A line for each method, and each other difference, from the smallest to the largest bound, weight or radius."""
    free = (*_LEVELS, *ATTACK_COLUMNS)
    parts = table.configurations(*free)
    names = labels([part.rows[0] for part in parts], (*free, *_FREE))
    lines = []
    for name, part in zip(names, parts, strict=True):
        points = []
        for one in part.configurations(*ATTACK_COLUMNS):
            clean, attacked = (
                one.where(attack=CLEAN).cell(),
                one.where(dict(zip(ATTACK_COLUMNS, column, strict=True))).cell(),
            )
            if clean is not None and attacked is not None:
                points.append((*level_of(one.rows[0]), clean.mean, attacked.mean))
        points.sort()
        xs, ys = [x for _, _, x, _ in points], [y for _, _, _, y in points]
        lines += [Line(name, xs, ys, texts=[text for _, text, _, _ in points])] if points else []
    return lines


def _in_parts(title: str, x_label: str, y_label: str, lines: Sequence[Line], **axes: Any) -> list[Panel]:
    """A panel, or several if there are more lines than one can tell apart."""
    size = -(-len(lines) // max(1, -(-len(lines) // MOST_LINES)))
    parts = [lines[first : first + size] for first in range(0, len(lines), size)] if lines else []
    numbers = [f" ({n} of {len(parts)})" if len(parts) > 1 else "" for n in range(1, len(parts) + 1)]
    return [Panel(title + more, x_label, y_label, part, **axes) for more, part in zip(numbers, parts, strict=True)]


def _training(loaded: Sequence[LoadedModel]) -> Figure:
    """The loss over the epochs, a panel for each data set and model, a line for each run."""
    groups: dict[str, list[LoadedModel]] = {}
    for one in loaded:
        if one.run is not None:
            groups.setdefault(json.dumps([one.about.get(name) for name in _TOGETHER]), []).append(one)
    panels = []
    for mine in groups.values():
        named = sorted(zip(network_names(mine), mine, strict=True), key=lambda pair: _order(pair[1].about, pair[0]))
        lines = [line for name, one in named if (line := _loss(name, one)) is not None]
        title = f"{dataset_label(mine[0].about['data'])}, {model_label(mine[0].about['model'])}"
        panels += _in_parts(title, "epoch", "loss", lines, log_y=True)
    return Figure("The loss during training", panels, notes=["As the method defines it, with its penalties."])


def _loss(name: str, one: LoadedModel) -> Line | None:
    history = [] if one.run is None else one.run.history()
    points = [(float(line["epoch"]), float(line["loss"])) for line in history if _is_loss(line)]
    return Line(name, [epoch for epoch, _ in points], [loss for _, loss in points]) if points else None


def _is_loss(line: dict[str, Any]) -> bool:
    value = line.get("loss")
    return "epoch" in line and isinstance(value, int | float) and isfinite(value) and value > 0


def _order(about: Row, name: str) -> tuple[str, float, str]:
    return str(about.get("method", "")), level_of(about)[0], name
