"""What a report is made of, before it is drawn: tables and figures as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from polybound.evaluation import Cell, Difference
from polybound.evaluation import Table as Scores
from polybound.experiments import Comparison, Experiment, Published
from polybound.report.labels import cell_text

__all__ = ["SYMBOLS", "Figure", "Images", "Line", "Panel", "Part", "Section", "Table", "Value"]

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
        notes: what a reader needs to know.
        aside: whether it is an addition to the table before it.
        verdicts: by (row, column): "met", "missed", "not published", "not judged" or "not run".
        comparisons: what the verdicts "met" and "missed" follow from.
        name: what its files are called, after the name of the section; "" for the section's first.
        lead: how many columns say what a row is.
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
        return [list(map(_text, row)) for row in self.rows]

    def marked(self, row: int, column: int, text: str, before: str = "**", after: str = "**") -> str:
        """The text of a cell, in bold if it is, with the sign of its verdict."""
        verdict = self.verdicts.get((row, column), "")
        shown = f"{before}{text}{after}" if (row, column) in self.bold else text
        return verdict if verdict == "not run" else f"{shown} {SYMBOLS.get(verdict, '')}".rstrip()

    def quotes(self, row: int) -> bool:
        """Whether a row has the paper's values."""
        return any(isinstance(value, Published) for value in self.rows[row])


def _text(value: Value) -> str:
    if value is None or isinstance(value, Cell):
        return cell_text(value)
    if isinstance(value, Published):
        return f"{value.mean:.2f} ± {value.std:.2f}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
        hints: what a page says of each point when asked.
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


@dataclass(frozen=True)
class Figure:
    """Panels, or rows of images, under one title; `columns` panels stand side by side, by default as many as fit."""

    title: str
    panels: Sequence[Panel] = ()
    images: Sequence[Images] = ()
    notes: Sequence[str] = ()
    columns: int = 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it."""
        return not self.panels and not self.images

    @property
    def labels(self) -> list[str]:
        """The names of all lines, in the order of their styles; guides have none."""
        lines = [line for panel in self.panels for line in panel.lines]
        return list(dict.fromkeys(line.label for line in lines if line.kind != "guide"))


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
class Part:
    """An experiment, its scores, and what is shown of them."""

    experiment: Experiment
    scores: Scores
    section: Section
