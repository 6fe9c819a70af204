"""Figures from an experiment's scores and studies, with the paper's axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from polybound.experiments.compare import DATASETS
from polybound.experiments.experiment import Experiment
from polybound.experiments.results import Average, Row, average, best
from polybound.experiments.studies import ratios, studies
from polybound.report.shapes import Figure, Images, Line, Panel
from polybound.report.words import MODELS, SOURCES, attack_label

__all__ = ["curves", "growth", "initial", "samples", "tradeoff"]


def _line(label: str, points: dict[float, Average]) -> Line:
    xs = sorted(points)
    return Line(label, xs, [points[x].mean for x in xs], [points[x].std for x in xs])


def curves(experiment: Experiment, rows: Sequence[Row]) -> Figure:
    """Accuracies over bounds, ranks or steps: a panel for each protocol, data set and, unless it has a line, model."""
    panels = []
    attacks = experiment.attacks or ("clean",)
    protocols = ("published", "sound") if experiment.attacks else ("-",)
    label = {"bound": "bound", "rank": "hidden rank", "steps": "adversarial steps"}[experiment.x]

    def points(part: Sequence[Row]) -> dict[float, Average]:
        found = {}
        for key in sorted({x for row in part if (x := _x(experiment, row)) is not None}):
            if top := best([row for row in part if _x(experiment, row) == key]):
                found[key] = top
        return found

    for protocol, dataset in product(protocols, experiment.datasets):
        suffix = "" if protocol == "-" else f", {SOURCES[protocol]}"
        name = DATASETS.get(dataset, dataset)
        part = [row for row in rows if row.dataset == dataset and row.protocol == protocol]
        log = experiment.x != "steps"
        if experiment.lines == "model":
            lines = []
            for model, split in product(experiment.models, experiment.splits):
                mine = [row for row in part if row.model == model and row.split == split]
                text = MODELS.get(model, model) + (f", {split}" if len(experiment.splits) > 1 else "")
                if mine:
                    lines.append(_line(text, points(mine)))
            panels.append(Panel(name + suffix, label, "accuracy in %", lines, log_x=log))
            continue
        for model in experiment.models:
            lines = []
            for attack in attacks:
                mine = [row for row in part if row.model == model and row.attack == attack]
                if mine:
                    lines.append(_line(attack_label(attack), points(mine)))
            panels.append(
                Panel(f"{name}, {MODELS.get(model, model)}{suffix}", label, "accuracy in %", lines, log_x=log)
            )
    return Figure(experiment.title, _drawn(panels))


def _drawn(panels: list[Panel]) -> list[Panel]:
    """The panels for which something was run."""
    return [panel for panel in panels if any(line.x for line in panel.lines)]


def _x(experiment: Experiment, row: Row) -> float | None:
    if experiment.x == "rank":
        return float(row.rank)
    if experiment.x == "steps":
        return float(row.attack.split("-")[2])
    return row.bound


def tradeoff(experiment: Experiment, rows: Sequence[Row]) -> Figure:
    """Clean accuracy on the x-axis, robust or certified accuracy on the y-axis, a line for each projection."""
    panels = []
    columns = [(attack, "accuracy under attack in %") for attack in experiment.attacks]
    columns += [(f"certified-{eps:g}", "certified accuracy in %") for eps in experiment.eps]
    for dataset, (attack, label) in product(experiment.datasets, columns):
        part = [row for row in rows if row.dataset == dataset]
        lines = []
        kinds = {name: [row for row in part if row.projection == name] for name in experiment.projections}
        if "certified" in experiment.methods:
            kinds["certified training"] = [row for row in part if row.method == "certified"]
        for projection, mine in kinds.items():
            clean, robust = average(mine, attack="clean"), average(mine, attack=attack, protocol="sound")
            bounds = sorted(set(clean) & set(robust), key=lambda bound: bound or 0.0)
            if bounds:
                x, y = [round(clean[bound].mean, 2) for bound in bounds], [robust[bound].mean for bound in bounds]
                lines.append(Line(projection, x, y, [robust[bound].std for bound in bounds]))
        title = f"{DATASETS.get(dataset, dataset)}, {attack_label(attack)}, sound protocol"
        panels.append(Panel(title, "clean accuracy in %", label, lines))
    return Figure(experiment.title, _drawn(panels))


def growth(experiment: Experiment, root: Path) -> Figure:
    """The ratio of the two bounds over the bounds, and both during training."""
    panels = []
    found = ratios(experiment, root)
    jobs = studies(experiment)
    for dataset, job in zip(experiment.datasets, jobs, strict=True):
        name = DATASETS.get(dataset, dataset)
        by_bound: dict[float, list[float]] = {}
        for row in found:
            if row["dataset"] == dataset:
                by_bound.setdefault(row["bound"], []).append(row["ratio"])
        xs = sorted(by_bound)
        line = Line("gamma/theta", xs, [sum(by_bound[x]) / len(by_bound[x]) for x in xs])
        panels.append(Panel(f"{name}, PN-4", "bound", "gamma / theta", [line], log_x=True))
        if job.done(root):
            result = job.result(root)
            epochs = list(range(len(result["theta"])))
            lines = [Line(key, epochs, result[key]) for key in ("gamma", "theta")]
            panels.append(Panel(f"{name}, PN-4 without regularisation", "epoch", "value", lines, log_y=True))
    return Figure(experiment.title, _drawn(panels))


def initial(experiment: Experiment, root: Path) -> Figure:
    """The ratio of the two bounds at random initialisation."""
    (job,) = studies(experiment)
    if not job.done(root):
        return Figure(experiment.title)
    result = job.result(root)
    panels = []
    for key, title, log in (("rank", "degree 10", True), ("degree", "rank 16", False)):
        xs = sorted(map(int, result[key]))
        means = [sum(result[key][str(x)]) / len(result[key][str(x)]) for x in xs]
        label = "hidden rank" if key == "rank" else "degree"
        panels.append(Panel(title, label, "gamma / theta", [Line("gamma/theta", xs, means)], log_x=log))
    return Figure(experiment.title, panels, notes=["Standard normal matrices, 784 features; mean over seeds."])


def samples(experiment: Experiment, root: Path) -> Figure:
    """A row of samples for each data set."""
    rows = []
    for dataset, job in zip(experiment.datasets, studies(experiment), strict=True):
        if job.done(root):
            pictures = [(f"{s['name']} ({s['label']})", s["pixels"]) for s in job.result(root)["samples"]]
            rows.append(Images(DATASETS.get(dataset, dataset), pictures))
    return Figure(experiment.title, images=rows)
