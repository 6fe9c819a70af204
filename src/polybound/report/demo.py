"""The demo's plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from polybound.report.figure_files import check_figure_file

__all__ = ["draw_demo"]

# Okabe and Ito's palette; without colour the networks are told apart by their dashes and markers.
STYLES: dict[str, dict[str, str]] = {
    "plain": {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    "projected": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
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
        path: where to.
        radii: the values of eps, from 0 on.
        curves: by network: "pgd" and "proven", the shares at each eps.
        constants: for each epoch the Lipschitz bounds, one for each network.
        bound: of the projection.
        start: the epoch, from 0, that it begins with.
    """
    check_figure_file(path)
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 3.8), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_accuracies(left, radii, curves)
        _draw_constants(right, constants, bound, start)
        figure.savefig(path, dpi=144)


def _draw_accuracies(axes: Any, radii: Sequence[float], curves: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """A band for each network: an attack's accuracy above, the proven one below, the truth in between."""
    for name, style in STYLES.items():
        pgd, proven = curves[name]["pgd"], curves[name]["proven"]
        colour, marker = style["color"], style["marker"]
        axes.fill_between(radii, proven, pgd, color=colour, alpha=0.2, linewidth=0)
        axes.plot(radii, pgd, color=colour, linestyle=":", linewidth=1.5, label=f"{name}, under PGD")
        line = {"color": colour, "linestyle": style["linestyle"], "marker": marker, "markersize": 4}
        axes.plot(radii, proven, linewidth=1.8, label=f"{name}, proven", **line)
    axes.set(
        title="test images that stay right when every pixel may move by eps",
        xlabel="eps, of pixels from -1 to 1",
        xlim=(0, max(radii)),
        ylim=(0, 1),
    )
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="upper right")


def _draw_constants(axes: Any, constants: Sequence[Sequence[float]], bound: float, start: int) -> None:
    """The proven Lipschitz constants after each epoch, and where the projection begins."""
    epochs = range(1, len(constants) + 1)
    for index, (name, style) in enumerate(STYLES.items()):
        values = [each[index] for each in constants]
        axes.plot(epochs, values, label=name, linewidth=1.8, color=style["color"], linestyle=style["linestyle"])
    axes.axvline(start + 1, color="0.6", linewidth=0.8)
    axes.set(title="proven Lipschitz constant, l_inf", xlabel="epoch", yscale="log")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="lower left")
    axes.annotate(
        f"row-l1 norms\nof all matrices\n<= {bound:g} from here",
        (start + 1, 0.6),
        (8, 0),
        axes.get_xaxis_transform(),
        "offset points",
        color="0.35",
        verticalalignment="center",
    )
