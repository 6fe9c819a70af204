"""Figures as files, with matplotlib: those of a report, adversarial examples, and the demo's curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, PercentFormatter, StrMethodFormatter
from torch import Tensor

from polybound.errors import PolyboundError, writable_file
from polybound.evaluation import Evaluation
from polybound.report.elements import COLOURS, PLACES, Figure, Line, Panel, Range, markers_every, place_texts, style

FIGURE_ENDINGS = (".png", ".svg", ".pdf", ".jpg")


def check_figure_file(path: Path) -> None:
    """Refuse, before hours of work are spent on it, a file that no figure can be written to.

    >>> check_figure_file(Path("plot.gif"))
    Traceback (most recent call last):
    polybound.errors.PolyboundError: plot.gif: a figure's name must end in .png, .svg, .pdf or .jpg
    """
    if path.suffix.lower() not in FIGURE_ENDINGS:
        *most, last = FIGURE_ENDINGS
        raise PolyboundError(f"{path}: a figure's name must end in {', '.join(most)} or {last}")
    writable_file(path)


MARKERS, DASHES = ("o", "s", "^", "D", "v", "P"), ("-", "--", "-.", ":")
STAR: Any = {"marker": "*", "markersize": 11, "markerfacecolor": "white", "linestyle": ""}
"""How the paper's values look."""


def draw(figure: Figure, *paths: Path) -> None:
    """Draw a figure of a report to one or more files, of the kinds that their suffixes say."""
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        canvas = _pictures(figure) if figure.images else _panels(figure)
        FigureCanvasAgg(canvas)
        for path in paths:
            # The same figure is the same file, whenever it is drawn.
            about = {"Date": None} if path.suffix == ".svg" else {"Software": None}
            canvas.savefig(path, dpi=144, metadata=about)


def _panels(figure: Figure) -> Canvas:
    """All panels, and one legend for them below."""
    columns = figure.per_row
    rows = max(1, -(-len(figure.panels) // columns))
    width = {1: 5.6, 2: 4.6, 3: 4.0}.get(columns, 3.4)
    canvas = Canvas(figsize=(width * columns, 2.9 * rows + 0.3), layout="constrained")
    places = canvas.subplots(rows, columns, squeeze=False).flatten()
    numbers = {label: number for label, (number, _) in figure.styles.items()}
    for axes, panel in zip(places, figure.panels, strict=False):
        _panel(axes, panel, *figure.limits(panel), numbers)
    for axes in places[len(figure.panels) :]:
        axes.set_axis_off()
    handles = []
    for label, (number, joined) in figure.styles.items():
        colour, marker, dash = style(number)
        look = {"color": COLOURS[colour][0], "marker": MARKERS[marker], "markersize": 4, "label": _plain(label)}
        handles.append(Line2D([], [], linestyle=DASHES[dash] if joined else "", **look))  # type: ignore[arg-type]
    if any(panel.published for panel in figure.panels):
        handles.append(Line2D([], [], markeredgecolor="#444444", label="the paper", **STAR))
    if handles:
        side_by_side = min(len(handles), 2 * columns if columns < 3 else 6)
        canvas.legend(handles=handles, loc="outside lower center", ncols=side_by_side, frameon=False, fontsize=8)
    return canvas


def _panel(axes: Any, panel: Panel, x_range: Range, y_range: Range, numbers: Mapping[str, int]) -> None:
    for line, places in zip(panel.lines, place_texts(panel, x_range, y_range), strict=True):
        if line.kind == "guide":
            axes.plot(line.x, line.y, color="#888888", linewidth=0.8, linestyle="-", zorder=1)
        else:
            _line(axes, line, places, numbers[line.label])
    for line in panel.published:
        axes.plot(line.x, line.y, zorder=4, markeredgecolor=COLOURS[style(numbers[line.label])[0]][0], **STAR)
    axes.set_title(_plain(panel.title), fontsize=9)
    axes.set(xlabel=_plain(panel.x_label), ylabel=_plain(panel.y_label, 40), xlim=x_range, ylim=y_range)
    points = sorted({x for line in panel.lines for x in line.x})
    # The ticks of a logarithmic axis are numbers in full, and of x the points themselves if they are few and near.
    for name, log, ends, known in (("x", panel.log_x, x_range, points), ("y", panel.log_y, y_range, [])):
        if log:
            near = ends[1] < 200 * ends[0]
            axes.set(**{f"{name}scale": "log", f"{name}lim": ends})
            axis = getattr(axes, f"{name}axis")
            few = near and 1 < len(known) <= 8
            axis.set_major_locator(FixedLocator(known) if few else LogLocator(subs=(1.0, 2.0, 5.0) if near else (1.0,)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.25)


def _line(axes: Any, line: Line, places: Sequence[str], number: int) -> None:
    """A line or marks, with texts at the points; one standard deviation is a band along a line, a bar at a mark."""
    colour_number, marker, dash = style(number)
    colour, marks = COLOURS[colour_number][0], line.kind == "marks"
    every = None if marks else markers_every(len(line.x), number)
    look = {"color": colour, "marker": MARKERS[marker], "linestyle": "" if marks else DASHES[dash], "markevery": every}
    axes.plot(line.x, line.y, markersize=4, zorder=3, **look)
    if any(line.spread) and marks:
        bar = {"ecolor": colour, "elinewidth": 0.8, "alpha": 0.5}
        axes.errorbar(line.x, line.y, yerr=line.spread, linestyle="", zorder=2, **bar)
    elif any(line.spread):
        middle, spread = np.array(line.y), np.array(line.spread)
        axes.fill_between(line.x, middle - spread, middle + spread, color=colour, alpha=0.15, linewidth=0)
    for x, y, text, place in zip(line.x, line.y, line.texts, places, strict=False):
        if place:
            right, up = PLACES[place]
            sides = {"ha": ("center", "left", "right")[right], "va": ("center", "bottom", "top")[up]}
            offset = {"xytext": (3 * right, 3 * up), "textcoords": "offset points"}
            axes.annotate(_plain(text, 20), (x, y), fontsize=7, color=colour, zorder=5, **offset, **sides)


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


# A picture of attacks: clean, perturbed and difference images, with the predicted classes.

RIGHT, WRONG = "#0072B2", "#D55E00"


def draw_attacks(path: str | PathLike[str], result: Evaluation, count: int = 8) -> None:
    """Draw `count` images that the first run classifies right, and for each attack what becomes of them.

    Each attack has two rows: the perturbed images, and what was added, on a scale of its own that the row names.

    Args:
        path: the file.
        result: an evaluation that kept examples.
        count: number of images.
    """
    check_figure_file(Path(path))
    kept = result.examples
    if kept is None or not kept.adversarial:
        raise PolyboundError("a picture needs an attack and images: evaluate(..., keep=100)")
    if kept.x.ndim != 4 or kept.x.shape[1] not in (1, 3):
        raise PolyboundError(f"only images can be drawn, not inputs of shape {tuple(kept.x.shape[1:])}")
    # Images that are classified right as they are, of each class the first; then more of them, then others.
    right = (kept.clean[0] == kept.y).nonzero().flatten().tolist()
    first = sorted({int(kept.y[i]): i for i in reversed(right)}.values())
    chosen = list(dict.fromkeys([*first, *right, *range(len(kept.y))]))[:count]
    low, high = float(kept.x.min()), float(kept.x.max())

    def show(axes: Any, image: Tensor, prediction: Tensor, label: Tensor) -> None:
        """An image, its predicted class above it: wrong ones in another colour, and in bold for those who see none."""
        scaled = ((image.float() - low) / max(high - low, 1e-12)).clamp(0, 1)
        axes.imshow(scaled.permute(1, 2, 0).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
        colour, weight = (RIGHT, "normal") if prediction == label else (WRONG, "bold")
        axes.set_title(result.class_names[int(prediction)], color=colour, fontsize=7.5, weight=weight, pad=3)

    def name(axes: Any, text: str) -> None:
        axes.set_ylabel(text, rotation=0, horizontalalignment="right", verticalalignment="center")

    with mpl.rc_context({"font.size": 8}):
        rows = 1 + 2 * len(kept.adversarial)
        canvas = Canvas(figsize=(1.05 * count + 1.5, 1.22 * rows + 0.3), layout="constrained")
        FigureCanvasAgg(canvas)
        panels = canvas.subplots(rows, count, squeeze=False)
        for axes in panels.flatten():
            axes.set(xticks=[], yticks=[])
        name(panels[0][0], "clean")
        for axes, index in zip(panels[0], chosen, strict=False):
            show(axes, kept.x[index], kept.clean[0, index], kept.y[index])
        for key, above, below in zip(kept.adversarial, panels[1::2], panels[2::2], strict=True):
            attacked, predictions = kept.adversarial[key][0], kept.predictions[key][0]
            reach = max(float((attacked[chosen] - kept.x[chosen]).abs().max()), 1e-12)
            name(above[0], f"{key[0]}\n{key[1]}")
            name(below[0], f"difference\nup to {reach:.2g}")
            for index, upper, lower in zip(chosen, above, below, strict=False):
                show(upper, attacked[index], predictions[index], kept.y[index])
                change = (attacked[index] - kept.x[index]).float().mean(0)
                lower.imshow(change.numpy(), cmap="RdBu_r", vmin=-reach, vmax=reach)
        canvas.savefig(path, dpi=144)


# The demo's plot.


# Okabe and Ito's palette; without colour the networks are told apart by their dashes and markers.
STYLES: dict[str, dict[str, str]] = {
    "plain": {"color": WRONG, "linestyle": "--", "marker": "s"},
    "projected": {"color": RIGHT, "linestyle": "-", "marker": "o"},
}


def draw_demo(
    path: Path,
    radii: Sequence[float],
    curves: Mapping[str, Mapping[str, Sequence[float]]],
    constants: Sequence[Sequence[float]],
    bound: float,
    start: int,
) -> None:
    """Accuracy under attack and proven accuracy over eps, and the Lipschitz bound over the epochs, for both networks.

    Args:
        path: the file.
        radii: the values of eps, from 0 on.
        curves: by network: "pgd" and "proven", the shares at each eps.
        constants: for each epoch the Lipschitz bounds of both.
        bound: of the projection.
        start: the epoch, from 0, that it begins with.
    """
    check_figure_file(path)
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        canvas = Canvas(figsize=(11, 3.8), layout="constrained")
        FigureCanvasAgg(canvas)
        left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
        for index, (name, look) in enumerate(STYLES.items()):
            # A band for each network: an attack's accuracy above, the proven one below, the truth in between.
            pgd, proven = curves[name]["pgd"], curves[name]["proven"]
            left.fill_between(radii, proven, pgd, color=look["color"], alpha=0.2, linewidth=0)
            left.plot(radii, pgd, color=look["color"], linestyle=":", linewidth=1.5, label=f"{name}, under PGD")
            left.plot(radii, proven, linewidth=1.8, markersize=4, label=f"{name}, proven", **look)
            values = [each[index] for each in constants]
            epochs, dash = range(1, len(constants) + 1), look["linestyle"]
            right.plot(epochs, values, label=name, linewidth=1.8, color=look["color"], linestyle=dash)
        title = "test images that stay right when every pixel may move by eps"
        left.set(title=title, xlabel="eps, of pixels from -1 to 1", xlim=(0, max(radii)), ylim=(0, 1))
        left.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        left.legend(frameon=False, loc="upper right")
        right.axvline(start + 1, color="0.6", linewidth=0.8)
        right.set(title="proven Lipschitz constant, l_inf", xlabel="epoch", yscale="log")
        right.legend(frameon=False, loc="lower left")
        place, offset = (start + 1, 0.6), {"xytext": (8, 0), "textcoords": "offset points"}
        words = f"row-l1 norms\nof all matrices\n<= {bound:g} from here"
        right.annotate(words, place, xycoords=right.get_xaxis_transform(), color="0.35", va="center", **offset)
        for axes in (left, right):
            axes.grid(alpha=0.25)
        canvas.savefig(path, dpi=144)
