"""Figures from an experiment's scores and studies, with the paper's axes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from polybound.attacks import parse_attack
from polybound.evaluation import Cell, Row, Table, certified_name, labels
from polybound.experiments import Experiment, growth_studies, ratios, row_kind, studies
from polybound.report.elements import Figure, Images, Line, Panel
from polybound.report.labels import METHODS, PROTOCOLS, attack_label, dataset_label, model_label

__all__ = ["curves", "growth", "initial", "samples", "tradeoff"]

_X = {"bound": "method.bound", "rank": "model.rank", "steps": "steps"}
_CERTIFIED = ("certified", "certified-projection")
_OF_THE_SEED = ("seed", "run", "weights", "correct", "per_class")
_X_LABELS = {"bound": "bound", "rank": "hidden rank", "steps": "adversarial steps"}


def curves(experiment: Experiment, table: Table) -> Figure:
    """Accuracies over bounds, ranks or steps: a panel for each protocol, data set and, unless it has a line, model."""
    panels = []
    protocols = ("published", "sound") if experiment.attacks else ("-",)
    label, log = _X_LABELS[experiment.x], experiment.x != "steps"
    for protocol, dataset in product(protocols, experiment.datasets):
        suffix = "" if protocol == "-" else f", {PROTOCOLS[protocol]}"
        part = table.where(data=dataset, protocol=protocol)
        if experiment.lines == "model":
            chosen = list(product(experiment.models, experiment.splits))
            lines = [
                line
                for model, split in chosen
                for line in _lines(
                    experiment,
                    part.where(model=model, split=split),
                    model_label(model) + (f", {split}" if len(experiment.splits) > 1 else ""),
                )
            ]
            panels.append(Panel(dataset_label(dataset) + suffix, label, "accuracy in %", lines, log_x=log))
            continue
        for model in experiment.models:
            lines = [
                line
                for attack in experiment.attacks or ("clean",)
                for line in _lines(experiment, part.where(model=model, attack=attack), attack_label(attack))
            ]
            title = f"{dataset_label(dataset)}, {model_label(model)}{suffix}"
            panels.append(Panel(title, label, "accuracy in %", lines, log_x=log))
    return Figure(experiment.title, _drawn(panels))


def _lines(experiment: Experiment, table: Table, name: str) -> list[Line]:
    """A line over the x-axis for each configuration, named by what differs if there are several."""
    column = _X[experiment.x]
    free = (column, "epoch", *(["attack"] if experiment.x == "steps" else []))
    known = Table({**row, **({"steps": _steps(row)} if experiment.x == "steps" else {})} for row in table)
    known = known.only(lambda row: isinstance(row.get(column), int | float))
    parts = known.configurations(*free)
    names = [""] if len(parts) == 1 else labels([part.rows[0] for part in parts], (*free, *_OF_THE_SEED))
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
    columns += [(certified_name(eps), "certified accuracy in %") for eps in experiment.eps]
    for dataset, (attack, label) in product(experiment.datasets, columns):
        part = table.where(data=dataset)
        lines = []
        kinds = {kind: part.only(lambda row, kind=kind: row_kind(row) == kind) for kind in experiment.projections}  # type: ignore[misc]
        kinds |= {METHODS[name]: part.where(method=name) for name in _CERTIFIED if name in experiment.methods}
        for kind, mine in kinds.items():
            lines += _tradeoff_lines(kind, mine, attack)
        title = f"{dataset_label(dataset)}, {attack_label(attack)}, sound protocol"
        panels.append(Panel(title, "clean accuracy in %", label, lines))
    return Figure(experiment.title, _drawn(panels))


def _tradeoff_lines(kind: str, table: Table, attack: str) -> list[Line]:
    """A line over the bounds, or radii, for each configuration, named by what differs if there are several."""
    free = ("method.bound", "method.eps", "attack", "protocol", "counted")
    shown = table.only(lambda row: row["attack"] == "clean" or (row["attack"] == attack and row["protocol"] == "sound"))
    parts = shown.configurations(*free)
    names = [""] if len(parts) == 1 else labels([part.rows[0] for part in parts], (*free, *_OF_THE_SEED))
    lines = []
    for more, part in zip(names, parts, strict=True):
        if points := _pairs(part, attack):
            xs, cells = zip(*points, strict=True)
            name = f"{kind}, {more}" if more else kind
            lines.append(Line(name, list(xs), [cell.mean for cell in cells], [cell.std for cell in cells]))
    return lines


def _pairs(table: Table, attack: str) -> list[tuple[float, Cell]]:
    """Clean and robust accuracy of each configuration, from the tightest to the loosest."""
    points = []
    for part in table.configurations("attack", "protocol", "counted"):
        clean, robust = part.where(attack="clean").cell(), part.where(attack=attack, protocol="sound").cell()
        if clean is not None and robust is not None:
            points.append((_level(part.rows[0]), round(clean.mean, 2), robust))
    return [(x, cell) for _, x, cell in sorted(points, key=lambda point: point[0])]


def _level(row: Row) -> float:
    """How tight a method is: its bound, the last of its bounds, or its radius."""
    bound = row.get("method.bound", row.get("method.eps", 0.0))
    return float(list(bound.values())[-1]) if isinstance(bound, dict) else float(bound)


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
    return Figure(experiment.title, _drawn(panels))


def _ratio_lines(table: Table) -> list[Line]:
    """gamma/theta over the bounds, a line for each configuration; only seeds are averaged."""
    known = table.only(lambda row: isinstance(row.get("method.bound"), float))
    parts = known.configurations("method.bound", "ratio")
    free = ("method.bound", "ratio", *_OF_THE_SEED)
    names = [""] if len(parts) == 1 else labels([part.rows[0] for part in parts], free)
    lines = []
    for more, part in zip(names, parts, strict=True):
        by_bound = {key[0]: fmean(row["ratio"] for row in rows) for key, rows in part.groups("method.bound").items()}
        xs = sorted(by_bound)
        lines.append(Line(f"gamma/theta, {more}" if more else "gamma/theta", xs, [by_bound[x] for x in xs]))
    return lines


def initial(experiment: Experiment, root: Path) -> Figure:
    """The ratio of the two bounds at random initialisation."""
    (job,) = studies(experiment)
    if not job.done(root):
        return Figure(experiment.title)
    result = job.result(root)
    panels = []
    for key, title, log in (("rank", "degree 10", True), ("degree", "rank 16", False)):
        xs = sorted(map(int, result[key]))
        means = [fmean(result[key][str(x)]) for x in xs]
        label = "hidden rank" if key == "rank" else "degree"
        panels.append(Panel(title, label, "gamma / theta", [Line("gamma/theta", xs, means)], log_x=log))
    return Figure(experiment.title, panels, notes=["Standard normal matrices, 784 features; mean over seeds."])


def samples(experiment: Experiment, root: Path, data_dir: Path | None = None) -> Figure:
    """A row of samples for each data set."""
    rows = []
    for dataset, job in zip(experiment.datasets, studies(experiment, data_dir), strict=True):
        if job.done(root):
            pictures = [(f"{s['name']} ({s['label']})", s["pixels"]) for s in job.result(root)["samples"]]
            rows.append(Images(dataset_label(dataset), pictures))
    return Figure(experiment.title, images=rows)
