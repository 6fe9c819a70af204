"""A picture of attacks: clean, perturbed and difference images, with what the network says to each."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from polybound.errors import PolyboundError
from polybound.evaluation import Evaluation, Examples
from polybound.report.figure_files import check_figure_file

__all__ = ["draw_attacks"]

RIGHT, WRONG = "#0072B2", "#D55E00"


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
