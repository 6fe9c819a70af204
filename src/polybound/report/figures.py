"""Figures of experiments, with the paper's axes, and of any runs; `elements` says what a figure is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from polybound import evaluation
from polybound.attacks import parse_attack
from polybound.evaluation import ATTACK_COLUMNS, CLEAN, SEED_COLUMNS, Table, certified_radius_of
from polybound.experiments import Experiment, growth_studies, published_value, ratios, row_kind, studies
from polybound.report import labels
from polybound.report.elements import Figure, Images, Line, Panel
from polybound.report.labels import BOUND, METHODS, attack_label, dataset_label, model_label, place_label
from polybound.runs import LoadedModel

Point = tuple[float, float, float | None, str]
"""x, y, one standard deviation of y if it is known, and what is written beside it."""


def _lines(table: Table, free: Sequence[str], name: str, points: Callable[[Table], Iterable[Point]]) -> list[Line]:
    """A line for each configuration of a table, named by what differs if there are several.

    The points of one line differ in the columns `free`. All lines are of `name`; without one a single line, too, is
    named by its method.
    """
    parts = table.configurations(*free)
    alone = len(parts) == 1 and name
    names = [""] if alone else evaluation.labels([part.rows[0] for part in parts], (*free, *SEED_COLUMNS))
    found = []
    for more, part in zip(names, parts, strict=True):
        if made := list(points(part)):
            xs, ys, spread, texts = zip(*made, strict=True)
            label = ", ".join(filter(None, (name, more)))
            found.append(Line(label, xs, ys, () if None in spread else spread, texts if any(texts) else ()))
    return found


def _over(column: str) -> Callable[[Table], list[Point]]:
    """The points of a line over the values of a column."""
    return lambda part: [(float(x), cell.mean, cell.std, "") for x, cell in part.cells_by(column)]


def _against_clean(attacked: Mapping[str, Any], pattern: Mapping[str, float]) -> Callable[[Table], list[Point]]:
    """The points of a line of clean and attacked accuracies, from the tightest method to the loosest."""

    def points(part: Table) -> list[Point]:
        ordered = sorted(part.configurations(*ATTACK_COLUMNS), key=lambda one: labels.levels(one.rows[0]))
        cells = [(one.rows[0], one.where(attack=CLEAN).cell(), one.where(attacked).cell()) for one in ordered]
        return [(round(x.mean, 2), y.mean, y.std, labels.level_text(row, pattern)) for row, x, y in cells if x and y]

    return points


# Figures of experiments.


_X = {"bound": BOUND, "rank": "model.rank", "steps": "steps"}
_X_LABELS = {"bound": "bound", "rank": "hidden rank", "steps": "adversarial steps"}
_PUBLISHED_NOTES = {
    "bound": "Stars: the paper's values. Its tables give them for the best of its bounds without saying which; they "
    "are drawn at the best bound here.",
    "steps": "Stars: the paper's values for that attack, for the best of its bounds.",
}


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
    made = (_curve_panel(experiment, table, protocol, *pair) for protocol, pair in places)
    panels = [panel for panel in made if panel.lines]
    columns = len(pairs) if below else len(protocols)
    notes = [_PUBLISHED_NOTES[experiment.x]] if any(panel.published for panel in panels) else []
    return Figure(experiment.title, panels, notes=notes, columns=columns if len(panels) % columns == 0 else 0)


def _curve_panel(experiment: Experiment, table: Table, protocol: str, dataset: str, model: str | None) -> Panel:
    """A panel of curves; its lines are attacks or, without a model of its own, models and splits."""
    part = table.where(data=dataset, protocol=protocol)
    title = dataset_label(dataset)
    if model is None:
        several = len(experiment.splits) > 1
        chosen = [
            (model_label(one) + (f", {split}" if several else ""), part.where(model=one, split=split), one)
            for one, split in product(experiment.models, experiment.splits)
        ]
    else:
        title += f", {model_label(model)}"
        attacks = experiment.attacks or (CLEAN,)
        chosen = [(attack_label(attack), part.where(model=model, attack=attack), model) for attack in attacks]
    column = _X[experiment.x]
    lines, published = [], []
    for name, rows, of in chosen:
        known = rows
        if column == "steps":
            known = Table({**row, "steps": _steps(row["attack"])} for row in rows)
        known = known.only(lambda row: isinstance(row.get(column), int | float))
        free = (column, "epoch", *(["attack"] if column == "steps" else []))
        made = _lines(known, free, name, lambda part: _over(column)(part.best_epoch()))
        lines += made
        published += _published_marks(experiment, rows, made, dataset, of) if protocol != "sound" else []
    title += "" if protocol == "-" else f", {labels.PROTOCOLS[protocol]}"
    log, zero = experiment.x != "steps", experiment.x in ("bound", "steps")
    label = _X_LABELS[experiment.x]
    return Panel(title, label, "accuracy in %", lines, log_x=log, from_zero=zero, published=published)


def _steps(attack: str) -> int | None:
    return None if attack == CLEAN else getattr(parse_attack(attack), "steps", None)


def _published_marks(experiment: Experiment, rows: Table, lines: list[Line], dataset: str, model: str) -> list[Line]:
    """The paper's value of a line: at its highest point over the bounds, at the steps of the attack over the steps."""
    if len(lines) != 1 or experiment.x == "rank" or experiment.adversary is not None:
        return []
    (line,) = lines
    found = []
    for attack in rows.where(split="test").values("attack"):
        value = published_value(dataset_label(dataset), model_label(model), "projection", attack)
        x = line.x[max(range(len(line.y)), key=line.y.__getitem__)]
        if experiment.x == "steps":
            x = float(_steps(attack) or 0)
        if value is not None:
            found.append(Line(line.label, [x], [value.mean], [value.std], kind="marks"))
    return found


def tradeoff(experiment: Experiment, table: Table) -> Figure:
    """Clean accuracy on the x-axis, robust or certified accuracy on the y-axis, a line for each projection."""
    columns = [(attack, "accuracy under attack in %") for attack in experiment.attacks]
    proven = [(ball.eps, name) for name in table.values("attack") if (ball := certified_radius_of(name)) is not None]
    columns += [(name, "certified accuracy in %") for _, name in sorted(proven)]
    panels = []
    for dataset, (attack, label) in product(experiment.datasets, columns):
        attacked = {"attack": attack, "protocol": "sound"}
        part = table.where(data=dataset).only(
            lambda row: row["attack"] == CLEAN or (row["attack"] == attack and row["protocol"] == "sound")  # noqa: B023
        )
        kinds = {kind: part.only(lambda row, kind=kind: row_kind(row) == kind) for kind in experiment.projections}  # type: ignore[misc]
        certified = [name for name in ("certified", "certified-projection") if name in experiment.methods]
        kinds |= {METHODS[name]: part.where(method=name) for name in certified}
        free = (BOUND, "method.eps", "attack", "protocol", "counted")
        points = _against_clean(attacked, experiment.layerwise)
        lines = [line for kind, mine in kinds.items() for line in _lines(mine, free, kind, points)]
        title = f"{dataset_label(dataset)}, {attack_label(attack)}"
        panels.append(Panel(title, "clean accuracy in %", label, lines, scale="accuracy in %"))
    note = (
        "Sound protocol. At the points, where there is room: the bound; of layer-wise projections the factor of their "
        "pattern, of spectral and product projections the bound of C, and of certified training the radius that it "
        "was trained for."
    )
    return Figure(experiment.title, [panel for panel in panels if panel.lines], notes=[note])


def growth(experiment: Experiment, root: Path, data_dir: Path | None = None) -> Figure:
    """The ratio of the two bounds over the bounds, and both during training."""

    def means(part: Table) -> list[Point]:
        ratio = {bound: fmean(row["ratio"] for row in rows) for (bound,), rows in part.groups(BOUND).items()}
        return [(bound, ratio[bound], None, "") for bound in sorted(ratio)]

    panels = []
    found = Table(ratios(experiment, root, data_dir)).only(lambda row: isinstance(row.get(BOUND), float))
    jobs = {(spec.data.name, spec.model.name): job for spec, job in growth_studies(experiment, data_dir)}
    for dataset, model in product(experiment.datasets, experiment.models):
        name = place_label(dataset, model)
        lines = _lines(found.where(data=dataset, model=model), (BOUND, "ratio"), "gamma/theta", means)
        panels.append(Panel(name, "bound", "gamma / theta", lines, log_x=True))
        job = jobs.get((dataset, model))
        if job is not None and job.done(root):
            result = job.result(root)
            epochs = list(range(len(result["theta"])))
            lines = [Line(key, epochs, result[key]) for key in ("gamma", "theta")]
            panels.append(Panel(f"{name} without regularisation", "epoch", "value", lines, log_y=True))
    note = "Of trained networks, mean over seeds; during training, of one network."
    return Figure(experiment.title, [panel for panel in panels if panel.lines], notes=[note])


def initial(experiment: Experiment, root: Path, data_dir: Path | None = None) -> Figure:
    """The ratio of the two bounds at random initialisation."""
    notes = ["Standard normal matrices, 784 features; mean over seeds."]
    (job,) = studies(experiment, data_dir)
    if not job.done(root):
        return Figure(experiment.title, notes=notes)
    result = job.result(root)
    panels = []
    for key, title, label in (("rank", "degree 10", "hidden rank"), ("degree", "rank 16", "degree")):
        xs = sorted(map(int, result[key]))
        means = [fmean(result[key][str(x)]) for x in xs]
        panels.append(Panel(title, label, "gamma / theta", [Line("gamma/theta", xs, means)], log_x=key == "rank"))
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
"""The most lines of a panel: more cannot be told apart."""


def run_figures(table: Table, headings: Sequence[tuple[str, Table]], loaded: Sequence[LoadedModel]) -> list[Figure]:
    """The figures for which there is something to draw, of all scores, and of those under each heading."""
    over_bounds, against = [], []
    columns = table.groups(*ATTACK_COLUMNS)
    for heading, part in headings:
        known = part.only(lambda row: isinstance(row.get(BOUND), int | float))
        lines = [
            line
            for column, mine in known.groups(*ATTACK_COLUMNS).items()
            for line in _lines(mine, (BOUND,), labels.column_name(*column), _over(BOUND))
        ]
        if len(known.values(BOUND)) > 1:
            over_bounds += _in_parts(heading, "bound", "accuracy in %", lines, log_x=True, from_zero=True)
        for column in columns:
            points = _against_clean(dict(zip(ATTACK_COLUMNS, column, strict=True)), {})
            lines = _lines(part, (BOUND, "method.weight", "method.eps", *ATTACK_COLUMNS), "", points)
            if column[0] != CLEAN and sum(len(line.x) for line in lines) > 1:
                title = f"{heading}: {labels.column_name(*column)}"
                against += _in_parts(title, "clean accuracy in %", "accuracy under attack in %", lines)
    point = "A point is a configuration, mean over its seeds. At the points, where there is room: the bound or weight."
    made = [
        Figure("Accuracy over the bounds", over_bounds, notes=["Mean over seeds; the bars are standard deviations."]),
        Figure("Clean accuracy against accuracy under attack", against, notes=[point]),
        Figure("The loss during training", _losses(loaded), notes=["As the method defines it, with its penalties."]),
    ]
    return [figure for figure in made if not figure.empty]


def _losses(loaded: Sequence[LoadedModel]) -> list[Panel]:
    """The loss over the epochs, a panel for each data set and model, a line for each run."""
    groups: dict[str, list[LoadedModel]] = {}
    for one in loaded:
        if one.run is not None:
            together = [one.about.get(name) for name in ("data", "data.digest")]
            together += [value for name, value in one.about.items() if name.startswith("model")]
            groups.setdefault(json.dumps(together), []).append(one)
    panels = []
    for mine in groups.values():
        lines = []
        named = zip(labels.network_names(mine), mine, strict=True)
        for name, one in sorted(
            named, key=lambda of: (str(of[1].about.get("method")), labels.levels(of[1].about), of[0])
        ):
            history = [] if one.run is None else one.run.history()
            known = [line for line in history if "epoch" in line and isinstance(line.get("loss"), int | float)]
            points = [(float(line["epoch"]), float(line["loss"])) for line in known]
            points = [(epoch, loss) for epoch, loss in points if isfinite(loss) and loss > 0]
            lines += [Line(name, [x for x, _ in points], [y for _, y in points])] if points else []
        title = place_label(mine[0].about["data"], mine[0].about["model"])
        panels += _in_parts(title, "epoch", "loss", lines, log_y=True)
    return panels


def _in_parts(title: str, x_label: str, y_label: str, lines: Sequence[Line], **axes: Any) -> list[Panel]:
    """A panel, or several if there are more lines than one can tell apart."""
    count = -(-len(lines) // MOST_LINES)
    size = -(-len(lines) // max(1, count))
    titles = [f"{title} ({n + 1} of {count})" if count > 1 else title for n in range(count)]
    return [Panel(name, x_label, y_label, lines[n * size :][:size], **axes) for n, name in enumerate(titles)]
