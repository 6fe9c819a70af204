"""What a report is made of, before it is drawn: tables and figures as plain data, and how lines are told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import hypot, isfinite, log10
from typing import Literal

from polybound.evaluation import Cell, Difference
from polybound.evaluation import Table as Scores
from polybound.experiments import Comparison, Experiment, Published
from polybound.report.labels import cell_text

Value = str | int | float | Cell | Published | Difference | None
"""What a cell of a table holds."""

SYMBOLS = {"met": "✓", "missed": "✗", "not published": "○", "not judged": "?", "not run": ""}
"""The sign of each verdict; the notes of a table say what they mean."""


@dataclass(frozen=True)
class Table:
    """Cells with their values, which become text when the table is shown.

    Attributes:
        title: its heading.
        header: a name for each column.
        rows: the cells.
        groups: (first row, heading) pairs that part the rows.
        bold: (row, column) of the cells in bold; the notes say what bold means.
        notes: sentences below it.
        aside: whether it is an addition to the table before it.
        verdicts: by (row, column): "met", "missed", "not published", "not judged" or "not run".
        comparisons: the comparisons behind the verdicts "met" and "missed".
        name: of its files, after the name of the section; "" for the section's first.
        lead: number of columns that name a row.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Value]]
    groups: Sequence[tuple[int, str]] = ()
    bold: frozenset[tuple[int, int]] = frozenset()
    notes: Sequence[str] = ()
    aside: bool = False
    verdicts: Mapping[tuple[int, int], str] = field(default_factory=dict)
    comparisons: Sequence[Comparison] = ()
    name: str = ""
    lead: int = 1

    @property
    def texts(self) -> list[list[str]]:
        """The cells as text, without the signs of their verdicts."""

        def text(value: Value) -> str:
            if value is None or isinstance(value, Cell):
                return cell_text(value)
            if isinstance(value, Published):
                return f"{value.mean:.2f} ± {value.std:.2f}"
            return f"{value:.4g}" if isinstance(value, float) else str(value)

        return [list(map(text, row)) for row in self.rows]

    def marked(self, row: int, column: int, text: str, opening: str = "**", closing: str = "**") -> str:
        """The text of a cell, in bold if it is, with the sign of its verdict."""
        verdict = self.verdicts.get((row, column), "")
        shown = f"{opening}{text}{closing}" if (row, column) in self.bold else text
        return verdict if verdict == "not run" else f"{shown} {SYMBOLS.get(verdict, '')}".rstrip()

    def quotes(self, row: int) -> bool:
        """Whether a row has the paper's values."""
        return any(isinstance(value, Published) for value in self.rows[row])


@dataclass(frozen=True)
class Line:
    """A line of a panel.

    Attributes:
        label: its name; lines of the same name look the same in all panels of a figure.
        x: where its points are.
        y: how high they are.
        spread: one standard deviation at each point.
        texts: what is written at each point, where there is room for it.
        kind: "line", or "marks" for points that no line joins, or "guide" for a thin line without points.
        hints: what the page shows of each point under the pointer.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()
    texts: Sequence[str] = ()
    kind: Literal["line", "marks", "guide"] = "line"
    hints: Sequence[str] = ()


@dataclass(frozen=True)
class Panel:
    """A pair of axes.

    Attributes:
        title: above it.
        x_label: of the x-axis; panels of a figure with the same one have the same range.
        y_label: of the y-axis.
        lines: what was measured.
        log_x: whether the x-axis is logarithmic.
        log_y: whether the y-axis is.
        scale: panels of a figure with the same one have the same y-axis; that of the label by default.
        from_zero: whether the y-axis begins at 0.
        published: the paper's values, each as marks with the label of the line that they belong to.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    scale: str = ""
    from_zero: bool = False
    published: Sequence[Line] = ()


@dataclass(frozen=True)
class Images:
    """A row of small pictures, each with a caption; pixels are (channels, height, width) bytes."""

    title: str
    pictures: Sequence[tuple[str, list[list[list[int]]]]]


Range = tuple[float, float]
"""The low and the high end of an axis."""


@dataclass(frozen=True)
class Figure:
    """Panels, or rows of images, under one title; `draw` makes files of it with matplotlib, `page` a part of the page.

    Attributes:
        title: its heading.
        panels: pairs of axes.
        images: rows of small pictures, in place of panels.
        notes: sentences below it.
        columns: how many panels stand side by side at most; 0 for as many as look best.
    """

    title: str
    panels: Sequence[Panel] = ()
    images: Sequence[Images] = ()
    notes: Sequence[str] = ()
    columns: int = 0

    @property
    def per_row(self) -> int:
        """How many panels stand side by side: so that the last row is full, or else at least that no panel is alone.

        >>> [Figure("", [Panel("", "", "", [])] * count).per_row for count in (1, 2, 3, 4, 5, 6, 7, 8, 13)]
        [1, 2, 3, 2, 3, 3, 4, 2, 5]
        """
        count = max(1, len(self.panels))
        full = [columns for columns in (3, 2, 4) if count % columns == 0]
        pairs = [columns for columns in (3, 4, 5) if count % columns != 1]
        return min(self.columns or (count if count < 3 else [*full, *pairs, 3][0]), count)

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it."""
        return not self.panels and not self.images

    @property
    def styles(self) -> dict[str, tuple[int, bool]]:
        """By the name of a line the number of its style, and whether its points are joined; guides have none."""
        lines = [line for panel in self.panels for line in panel.lines if line.kind != "guide"]
        kinds = {line.label: line.kind for line in lines}
        return {label: (number, kind != "marks") for number, (label, kind) in enumerate(kinds.items())}

    def limits(self, panel: Panel) -> tuple[Range, Range]:
        """The ranges of a panel's axes, with a margin: they hold all points of the panels that share an axis with it.

        >>> panel = Panel("", "x", "y", [Line("a", [0.0, 1.0], [10.0, 30.0])], from_zero=True)
        >>> Figure("", [panel]).limits(panel)
        ((-0.04, 1.04), (-1.2, 31.2))
        """
        xs: list[float] = []
        ys = [0.0] if panel.from_zero else []
        for other in self.panels:
            for line in (*other.lines, *other.published):
                if (other.x_label, other.log_x) == (panel.x_label, panel.log_x):
                    xs += line.x
                if (other.scale or other.y_label, other.log_y) == (panel.scale or panel.y_label, panel.log_y):
                    spread = line.spread or [0.0] * len(line.y)
                    ys += [y + sign * s for y, s in zip(line.y, spread, strict=True) for sign in (-1, 1)]
        return _with_margin(xs, panel.log_x), _with_margin(ys, panel.log_y)


def _with_margin(values: Sequence[float], log: bool) -> Range:
    known = [float(value) for value in values if isfinite(value) and (value > 0 or not log)]
    low, high = (min(known), max(known)) if known else (1.0, 10.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # as good as one value
        room = max(1.0, 0.01 * abs(low))
        low, high = (low / 2, high * 2) if log else (low - room, high + room)
    room = (high / low) ** 0.05 if log else 0.04 * (high - low)
    return (low / room, high * room) if log else (low - room, high + room)


# How lines look: told apart by colour, and without it by marker and dash.


# Okabe and Ito's palette, on white and, brighter where it needs to be, on black.
COLOURS = (
    ("#0072B2", "#4DABE8"),
    ("#D55E00", "#FF8A3D"),
    ("#009E73", "#2CC79A"),
    ("#B0578A", "#E29AC2"),
    ("#B57B00", "#F0B73A"),
    ("#3B8FBF", "#8CCBF2"),
)


def style(number: int) -> tuple[int, int, int]:
    """The numbers of a line's colour, of its marker (of six) and of its dash (of four); 24 markers and dashes differ.

    >>> style(0), style(6)
    ((0, 0, 0), (0, 0, 2))
    """
    return number % len(COLOURS), number % 6, (number + number // 12) % 4


def markers_every(points: int, number: int) -> tuple[int, int]:
    """The first point of a line that has a marker, and the distance to the next: a long line has few of them.

    >>> markers_every(30, 1), markers_every(100, 1)
    ((0, 1), (5, 16))
    """
    step = points // 6 if points > 30 else 1
    return 5 * number % step, step


PLACES = {"top center": (0, 1), "bottom center": (0, -1), "middle right": (1, 0), "middle left": (-1, 0)}
PLACES |= {"top right": (1, 1), "bottom right": (1, -1), "top left": (-1, 1), "bottom left": (-1, -1)}
"""Plotly's names of the places around a point, with their directions."""


def place_texts(panel: Panel, x_range: Range, y_range: Range) -> list[list[str]]:
    """For each point of each line the place of its text, so that none lies over a text, point or line; "" without room.

    Sizes are those of a panel of 330 x 240 pixels with letters of 10 pixels.
    """

    def share(value: float, ends: Range, log: bool) -> float:
        low, high, value = map(log10, (*ends, value)) if log else (*ends, value)
        return (value - low) / (high - low)

    def around(x: float, y: float, half_width: float, half_height: float) -> tuple[float, float, float, float]:
        return x - half_width, y - half_height, x + half_width, y + half_height

    spots = [
        [(330 * share(x, x_range, panel.log_x), 240 * share(y, y_range, panel.log_y)) for x, y in zip(line.x, line.y)]  # noqa: B905
        for line in panel.lines
    ]
    taken = [around(x, y, 3.0, 3.0) for points in spots for x, y in points]
    for line, points in zip(panel.lines, spots, strict=True):
        for (x0, y0), (x1, y1) in pairwise(points) if line.kind != "marks" else ():
            count = 1 + int(hypot(x1 - x0, y1 - y0) / 3.0)
            steps = [step / count for step in range(1, count)]
            taken += [around(x0 + step * (x1 - x0), y0 + step * (y1 - y0), 0.5, 0.5) for step in steps]

    def place(text: str, x: float, y: float) -> str:
        half_width, half_height = 3.1 * len(text), 6.0
        for name, (right, up) in PLACES.items() if text else ():
            reach = 3.0 if right and up else 4.0
            middle = x + right * (half_width + reach), y + up * (half_height + reach)
            left, bottom, end, top = box = around(*middle, half_width, half_height)
            inside = left >= 0 and bottom >= 0 and end <= 330 and top <= 240
            if inside and not any(left < e and b < end and bottom < t and d < top for b, d, e, t in taken):
                taken.append(box)
                return name
        return ""

    texts = [line.texts or [""] * len(points) for line, points in zip(panel.lines, spots, strict=True)]
    pairs = zip(texts, spots, strict=True)
    return [[place(text, *spot) for text, spot in zip(mine, points, strict=True)] for mine, points in pairs]


# What a report is made of.


@dataclass(frozen=True)
class Section:
    """All of one experiment; `missing` has what was not run, each with the reason, `protocols` what attacks clip to."""

    name: str
    title: str
    parts: Sequence[Table | Figure] = field(default_factory=list)
    notes: Sequence[str] = ()
    missing: Sequence[tuple[str, str]] = ()
    protocols: Sequence[str] = ()


@dataclass(frozen=True)
class ExperimentResult:
    """An experiment, its scores, and what is shown of them."""

    experiment: Experiment
    scores: Scores
    section: Section
