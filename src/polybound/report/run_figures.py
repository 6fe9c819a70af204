"""Figures of any run folders: accuracies over the bounds, clean against attacked accuracy, and the training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any

from polybound.evaluation import CLEAN, Row, Table, labels
from polybound.report.elements import Figure, Line, Panel
from polybound.report.labels import column_name, dataset_label, level_of, model_label, network_names
from polybound.runs import Loaded

__all__ = ["run_figures"]

MOST_LINES = 16
"""More lines than these nobody tells apart."""

Headings = Sequence[tuple[str, Table]]
"""The scores by what their runs have in common, each part with its heading."""

_COLUMN = ("attack", "protocol", "counted", "attack_seed")
_FREE = ("seed", "run", "weights", "correct", "per_class", "total", "available")
_BOUND = "method.bound"
_TOGETHER = ("data", "data.digest", "model", "model.rank")
_LEVELS = (_BOUND, "method.weight", "method.eps")


def run_figures(table: Table, headings: Headings, loaded: Sequence[Loaded]) -> list[Figure]:
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
        for column, mine in known.groups(*_COLUMN).items():
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
    columns = [column for column in table.groups(*_COLUMN) if column[0] != CLEAN]
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
    free = (*_LEVELS, *_COLUMN)
    parts = table.configurations(*free)
    names = labels([part.rows[0] for part in parts], (*free, *_FREE))
    lines = []
    for name, part in zip(names, parts, strict=True):
        points = []
        for one in part.configurations(*_COLUMN):
            clean, attacked = (
                one.where(attack=CLEAN).cell(),
                one.where(dict(zip(_COLUMN, column, strict=True))).cell(),
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


def _training(loaded: Sequence[Loaded]) -> Figure:
    """The loss over the epochs, a panel for each data set and model, a line for each run."""
    groups: dict[str, list[Loaded]] = {}
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


def _loss(name: str, one: Loaded) -> Line | None:
    history = [] if one.run is None else one.run.history()
    points = [(float(line["epoch"]), float(line["loss"])) for line in history if _is_loss(line)]
    return Line(name, [epoch for epoch, _ in points], [loss for _, loss in points]) if points else None


def _is_loss(line: dict[str, Any]) -> bool:
    value = line.get("loss")
    return "epoch" in line and isinstance(value, int | float) and isfinite(value) and value > 0


def _order(about: Row, name: str) -> tuple[str, float, str]:
    return str(about.get("method", "")), level_of(about)[0], name
