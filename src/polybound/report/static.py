"""Figures as PNG and SVG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from polybound.report.axes import Axis, axes_of, columns_of
from polybound.report.elements import Figure, Line, Panel
from polybound.report.placing import PLACES, place_texts
from polybound.report.styles import COLOURS, PAPER_MARKER, markers_every, style

__all__ = ["draw"]

_SETTINGS: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


def draw(figure: Figure, *paths: Path) -> None:
    """Draw a figure to one or more files, of the kinds that their suffixes say."""
    with mpl.rc_context(_SETTINGS):
        canvas = _pictures(figure) if figure.images else _panels(figure)
        FigureCanvasAgg(canvas)
        for path in paths:
            # The same figure is the same file, whenever it is drawn.
            about = {"Date": None} if path.suffix == ".svg" else {"Software": None}
            canvas.savefig(path, dpi=144, metadata=about)


def _panels(figure: Figure) -> Canvas:
    count, columns = max(1, len(figure.panels)), columns_of(figure)
    rows = -(-count // columns)
    width = {1: 5.6, 2: 4.6, 3: 4.0}.get(columns, 3.4)
    canvas = Canvas(figsize=(width * columns, 2.9 * rows + 0.3), layout="constrained")
    places = canvas.subplots(rows, columns, squeeze=False).flatten()
    numbers = {label: number for number, label in enumerate(figure.labels)}
    for place, panel, axes in zip(places, figure.panels, axes_of(figure), strict=False):
        _panel(place, panel, *axes, numbers)
    for place in places[len(figure.panels) :]:
        place.set_axis_off()
    _legend(canvas, figure, columns)
    return canvas


def _panel(place: Any, panel: Panel, x_axis: Axis, y_axis: Axis, numbers: dict[str, int]) -> None:
    texts = place_texts(panel, x_axis, y_axis)
    for line, where in zip(panel.lines, texts, strict=True):
        if line.kind == "guide":
            place.plot(line.x, line.y, color="#888888", linewidth=0.8, linestyle="-", zorder=1)
        else:
            _line(place, line, where, numbers[line.label])
    for line in panel.published:
        colour = COLOURS[style(numbers[line.label]).colour][0]
        look = {"marker": PAPER_MARKER, "markersize": 11, "markerfacecolor": "white", "markeredgecolor": colour}
        place.plot(line.x, line.y, linestyle="", zorder=4, **look)
    place.set_title(_plain(panel.title), fontsize=9)
    place.set(xlabel=_plain(panel.x_label), ylabel=_plain(panel.y_label, 40))
    for name, axis in (("x", x_axis), ("y", y_axis)):
        getattr(place, f"set_{name}scale")("log" if axis.log else "linear")
        values, words = [tick for tick, _ in axis.ticks], [text for _, text in axis.ticks]
        getattr(place, f"set_{name}ticks")(values, labels=words)
        getattr(place, f"set_{name}lim")(axis.low, axis.high)
    place.minorticks_off()
    place.grid(alpha=0.25)


def _line(place: Any, line: Line, where: list[str], number: int) -> None:
    look = style(number)
    colour, joined = COLOURS[look.colour][0], line.kind != "marks"
    about = {"marker": look.marker, "markevery": markers_every(len(line.x), number) if joined else None}
    place.plot(line.x, line.y, color=colour, linestyle=look.dash if joined else "", markersize=4, zorder=3, **about)
    if line.spread and any(line.spread):
        _spread(place, line, colour)
    for x, y, text, name in zip(line.x, line.y, line.texts, where, strict=False):
        if name:
            right, up = PLACES[name]
            sides = {
                "ha": {0: "center", 1: "left", -1: "right"}[right],
                "va": {0: "center", 1: "bottom", -1: "top"}[up],
            }
            offset = {"xytext": (3 * right, 3 * up), "textcoords": "offset points"}
            place.annotate(_plain(text, 20), (x, y), fontsize=7, color=colour, zorder=5, **offset, **sides)


def _spread(place: Any, line: Line, colour: str) -> None:
    """A band along a line; a bar at each point where no line joins them."""
    if line.kind == "marks":
        place.errorbar(
            line.x, line.y, yerr=line.spread, linestyle="", ecolor=colour, elinewidth=0.8, alpha=0.5, zorder=2
        )
        return
    low = [y - s for y, s in zip(line.y, line.spread, strict=True)]
    high = [y + s for y, s in zip(line.y, line.spread, strict=True)]
    place.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)


def _legend(canvas: Canvas, figure: Figure, columns: int) -> None:
    """One legend for all panels, below them."""
    kinds = {line.label: line.kind for panel in figure.panels for line in panel.lines}
    handles = []
    for number, label in enumerate(figure.labels):
        look = style(number)
        dash = "" if kinds[label] == "marks" else look.dash
        colour = COLOURS[look.colour][0]
        about: Any = {"color": colour, "marker": look.marker, "linestyle": dash, "markersize": 4}
        handles.append(Line2D([], [], label=_plain(label), **about))
    if any(panel.published for panel in figure.panels):
        star: Any = {"marker": PAPER_MARKER, "markersize": 11, "markerfacecolor": "white", "markeredgecolor": "#444444"}
        handles.append(Line2D([], [], linestyle="", label="the paper", **star))
    if handles:
        side_by_side = min(len(handles), 2 * columns if columns < 3 else 6)
        canvas.legend(handles=handles, loc="outside lower center", ncols=side_by_side, frameon=False, fontsize=8)


def _plain(text: str, longest: int = 60) -> str:
    """A text in which matplotlib finds no formula, and that leaves room for the figure."""
    short = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return " ".join(short.split()).replace("$", r"\$")


def _pictures(figure: Figure) -> Canvas:
    columns = max(len(row.pictures) for row in figure.images)
    canvas = Canvas(figsize=(1.15 * columns + 1.2, 1.35 * len(figure.images)), layout="constrained")
    grid = canvas.subplots(len(figure.images), columns, squeeze=False)
    for places, row in zip(grid, figure.images, strict=True):
        for axes in places:
            axes.set_axis_off()
        for axes, (caption, pixels) in zip(places, row.pictures, strict=False):
            image = np.array(pixels, dtype=np.uint8).transpose(1, 2, 0)
            axes.imshow(image, cmap="gray", vmin=0, vmax=255)
            axes.set_title(_plain(caption, 20), fontsize=6.5)
        about = {"ha": "right", "va": "center", "fontsize": 8, "weight": "bold"}
        places[0].text(-0.12, 0.5, _plain(row.title, 20), transform=places[0].transAxes, **about)
    return canvas
