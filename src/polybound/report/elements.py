"""What a report is made of, before it is drawn: tables and figures as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Figure", "Images", "Line", "Panel", "Section", "Table"]


@dataclass(frozen=True)
class Table:
    """Cells of text; `groups` are (first row, heading) pairs that part the rows. An `aside` is shown when asked for."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    groups: Sequence[tuple[int, str]] = ()
    bold: frozenset[tuple[int, int]] = frozenset()
    notes: Sequence[str] = ()
    aside: bool = False


@dataclass(frozen=True)
class Line:
    """A line of a panel; `spread` is one standard deviation at each point."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """A pair of axes."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Images:
    """A row of small pictures, each with a caption; pixels are (channels, height, width) bytes."""

    title: str
    pictures: Sequence[tuple[str, list[list[list[int]]]]]


@dataclass(frozen=True)
class Figure:
    """Panels, or rows of images, under one title."""

    title: str
    panels: Sequence[Panel] = ()
    images: Sequence[Images] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """All of one experiment."""

    name: str
    title: str
    parts: Sequence[Table | Figure] = field(default_factory=list)
    notes: Sequence[str] = ()
