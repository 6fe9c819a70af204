"""Figures with matplotlib: adversarial examples and the demo's curves; which files a figure can be written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from polybound.errors import PolyboundError, writable_file
from polybound.evaluation import Evaluation, Examples

__all__ = ["FIGURE_ENDINGS", "check_figure_file", "draw_attacks", "draw_demo"]


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


RIGHT, WRONG = "#0072B2", "#D55E00"


# A picture of attacks: clean, perturbed and difference images, with what the network says to each.


def draw_attacks(path: str | PathLike[str], result: Evaluation, count: int = 8) -> None:
    """Draw `count` images that the first run classifies right, and for each attack what becomes of them.

    Each attack has two rows: the perturbed images, and what was added, on a scale of its own that the row names.

    Args:
        path: where to.
        result: an evaluation that kept examples.
        count: number of images.
    """
    check_figure_file(Path(path))
    kept = result.examples
    if kept is None or not kept.adversarial:
        raise PolyboundError("a picture needs an attack and images: evaluate(..., keep=100)")
    if kept.x.ndim != 4 or kept.x.shape[1] not in (1, 3):
        raise PolyboundError(f"only images can be drawn, not inputs of shape {tuple(kept.x.shape[1:])}")
    chosen = _choice(kept, count)
    attacks = list(kept.adversarial)
    rows = 1 + 2 * len(attacks)
    with mpl.rc_context({"font.size": 8}):
        figure = Figure(figsize=(1.05 * count + 1.5, 1.22 * rows + 0.3), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(rows, count, squeeze=False)
        low, high = float(kept.x.min()), float(kept.x.max())
        for column, index in enumerate(chosen):
            label = int(kept.y[index])
            _image(panels[0][column], kept.x[index], low, high)
            _caption(panels[0][column], result, int(kept.clean[0, index]), label)
            for i, key in enumerate(attacks):
                attacked = kept.adversarial[key][0]
                change = attacked[chosen] - kept.x[chosen]
                reach = max(float(change.abs().max()), 1e-12)
                _image(panels[1 + 2 * i][column], attacked[index], low, high)
                _caption(panels[1 + 2 * i][column], result, int(kept.predictions[key][0, index]), label)
                _difference(panels[2 + 2 * i][column], attacked[index] - kept.x[index], reach)
                if column == 0:
                    _row(panels[1 + 2 * i][0], f"{key[0]}\n{key[1]}")
                    _row(panels[2 + 2 * i][0], f"difference\nup to {reach:.2g}")
        _row(panels[0][0], "clean")
        figure.savefig(path, dpi=144)


def _choice(kept: Examples, count: int) -> list[int]:
    """Images that are classified right as they are: of each class the first, then more."""
    right = (kept.clean[0] == kept.y).nonzero().flatten().tolist()
    by_class = {int(kept.y[i]): i for i in reversed(right)}  # the first of a class wins
    first = sorted(by_class.values())
    rest = [i for i in right if i not in set(first)]
    chosen = (first + rest)[:count]
    if len(chosen) < count:
        chosen += [i for i in range(len(kept.y)) if i not in set(chosen)][: count - len(chosen)]
    return chosen


def _image(axes: Any, image: Tensor, low: float, high: float) -> None:
    shown = ((image.float() - low) / max(high - low, 1e-12)).clamp(0, 1)
    axes.imshow(shown.permute(1, 2, 0).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])


def _difference(axes: Any, change: Tensor, reach: float) -> None:
    axes.imshow(change.float().mean(0).numpy(), cmap="RdBu_r", vmin=-reach, vmax=reach)
    axes.set(xticks=[], yticks=[])


def _caption(axes: Any, result: Evaluation, prediction: int, label: int) -> None:
    """What the network says, in the colour of right or wrong; wrong ones also in bold, for those who see no colour."""
    right = prediction == label
    weight = "normal" if right else "bold"
    axes.set_title(result.class_names[prediction], color=RIGHT if right else WRONG, fontsize=7.5, weight=weight, pad=3)


def _row(axes: Any, text: str) -> None:
    axes.set_ylabel(text, rotation=0, horizontalalignment="right", verticalalignment="center")


# The demo's plot.


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
