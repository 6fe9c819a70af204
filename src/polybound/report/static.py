"""Figures as PNG and SVG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from polybound.report.elements import Figure, Panel

__all__ = ["STYLES", "draw"]

# Okabe and Ito's palette; markers and dashes tell lines apart without colour too.
STYLES = (
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "--"),
    ("#009E73", "^", "-."),
    ("#CC79A7", "D", ":"),
    ("#E69F00", "v", "-"),
    ("#56B4E9", "P", "--"),
)

_SETTINGS: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


def draw(figure: Figure, *paths: Path) -> None:
    """Draw a figure to one or more files, of the kinds that their suffixes say."""
    with mpl.rc_context(_SETTINGS):
        canvas = _pictures(figure) if figure.images else _panels(figure)
        FigureCanvasAgg(canvas)
        for path in paths:
            canvas.savefig(path, dpi=144)


def _panels(figure: Figure) -> Canvas:
    count = max(1, len(figure.panels))
    columns = 2 if count == 4 else min(3, count)
    rows = -(-count // columns)
    canvas = Canvas(figsize=(4.2 * columns, 3.1 * rows), layout="constrained")
    axes = canvas.subplots(rows, columns, squeeze=False).flatten()
    for place, panel in zip(axes, figure.panels, strict=False):
        _panel(place, panel)
    for place in axes[len(figure.panels) :]:
        place.set_axis_off()
    return canvas


def _panel(axes: Any, panel: Panel) -> None:
    for line, (colour, marker, dash) in zip(panel.lines, STYLES * 3, strict=False):
        few = len(line.x) <= 30
        axes.plot(
            line.x, line.y, label=line.label, color=colour, marker=marker if few else "", linestyle=dash, markersize=4
        )
        if line.spread and any(line.spread):
            low = [y - s for y, s in zip(line.y, line.spread, strict=True)]
            high = [y + s for y, s in zip(line.y, line.spread, strict=True)]
            axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.title.set_fontsize(9)
    if panel.log_x:
        axes.set_xscale("log")
        values = sorted({x for line in panel.lines for x in line.x})
        if values and values[-1] < 50 * values[0] and len(values) <= 8:
            # Within a decade or two, the ticks of a logarithmic axis are crowded: those of the points say more.
            axes.set_xticks(values, labels=[f"{x:g}" for x in values])
            axes.minorticks_off()
    if panel.log_y:
        axes.set_yscale("log")
    if "accuracy in %" in panel.y_label and panel.x_label in ("bound", "adversarial steps"):
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    if panel.lines:
        axes.legend(frameon=False, fontsize=8)


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
            axes.set_title(caption, fontsize=6.5)
        places[0].text(
            -0.12, 0.5, row.title, transform=places[0].transAxes, ha="right", va="center", fontsize=8, weight="bold"
        )
    return canvas
