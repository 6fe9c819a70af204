"""The data of a figure as a CSV file, from which the figure can be drawn again."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from polybound.errors import PolyboundError, reason
from polybound.report.elements import Figure, Line, Panel

__all__ = ["figure_to_csv", "read_figure"]

_COLUMNS = ("panel", "line", "kind", "x_name", "x", "y_name", "y", "std", "text")
_LOG = " (logarithmic)"
_KINDS: dict[str, Literal["line", "marks", "guide"]] = {"line": "line", "marks": "marks", "guide": "guide"}


def figure_to_csv(figure: Figure) -> str:
    r"""A row for each point. The kind of a line is "line", "marks", "guide" or, for the paper's values, "paper".

    >>> figure_to_csv(Figure("F", [Panel("P", "bound", "y", [Line("a", [1.0], [2.5])], log_x=True)])).splitlines()[1]
    'P,a,line,bound (logarithmic),1.0,y,2.5,,'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for panel in figure.panels:
        names = panel.x_label + _LOG * panel.log_x, panel.y_label + _LOG * panel.log_y
        lines = [*((line, line.kind) for line in panel.lines), *((line, "paper") for line in panel.published)]
        for line, kind in lines:
            spread: Sequence[float | str] = [float(std) for std in line.spread] or [""] * len(line.x)
            texts = line.texts or line.hints or [""] * len(line.x)
            for x, y, std, text in zip(line.x, line.y, spread, texts, strict=True):
                numbers = [names[0], float(x), names[1], float(y)]
                writer.writerow([panel.title, line.label, kind, *numbers, std, text])
    return out.getvalue()


def read_figure(file: Path, title: str) -> Figure:
    """The figure that `figure_to_csv` wrote.

    Raises:
        PolyboundError: the file is no such figure.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))
        panels = dict.fromkeys(row["panel"] for row in rows)
        return Figure(title, [_read_panel([row for row in rows if row["panel"] == name]) for name in panels])
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise PolyboundError(f"{file}: not the data of a figure ({reason(error)})") from None


def _read_panel(rows: list[dict[str, str]]) -> Panel:
    x_name, y_name = rows[0]["x_name"], rows[0]["y_name"]
    keys = dict.fromkeys((row["line"], row["kind"]) for row in rows)
    lines, published = [], []
    for label, kind in keys:
        mine = [row for row in rows if (row["line"], row["kind"]) == (label, kind)]
        known = [row["std"] for row in mine]
        spread = [float(std) for std in known] if all(known) else []
        texts = [row["text"] for row in mine] if any(row["text"] for row in mine) else []
        points = [float(row["x"]) for row in mine], [float(row["y"]) for row in mine]
        if kind == "paper":
            published.append(Line(label, *points, spread, texts, "marks"))
        else:
            lines.append(Line(label, *points, spread, texts, _KINDS[kind]))
    return Panel(
        rows[0]["panel"],
        x_name.removesuffix(_LOG),
        y_name.removesuffix(_LOG),
        lines,
        log_x=x_name.endswith(_LOG),
        log_y=y_name.endswith(_LOG),
        published=published,
    )
