"""The demo's plot."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

__all__ = ["draw_demo"]

# Okabe and Ito's palette, told apart without colour by their dashes too.
STYLES = {"plain": {"color": "#D55E00", "linestyle": "--"}, "projected": {"color": "#0072B2", "linestyle": "-"}}


def draw_demo(path: Path, history: dict[str, list[list[float]]], bound: float, start: int) -> None:
    """Accuracy, the norm of the product and the Lipschitz bound over the epochs, for both models."""
    panels = (
        ("test accuracy", "test accuracy", False),
        ("theta", "norm of the product of all factors", True),
        ("lipschitz row-wise", "proven Lipschitz constant, l_inf", True),
    )
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 3.4), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, (key, title, logarithmic) in zip(figure.subplots(1, 3), panels, strict=True):
            for index, (name, style) in enumerate(STYLES.items()):
                values = [epoch[index] for epoch in history[key]]
                axes.plot(range(1, len(values) + 1), values, label=name, linewidth=1.8, **style)
            axes.axvline(start + 1, color="0.6", linewidth=0.8)
            axes.set(title=title, xlabel="epoch")
            axes.grid(alpha=0.25)
            if logarithmic:
                axes.set_yscale("log")
            else:
                axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        accuracies, products, _ = figure.axes
        accuracies.set_ylim(0.6, 1.0)
        accuracies.legend(frameon=False, loc="lower right")
        note = f"row-l1 norms\nof all matrices\n<= {bound:g} from here"
        products.annotate(
            note,
            (start + 1, 0.5),
            (-8, 0),
            products.get_xaxis_transform(),
            "offset points",
            color="0.35",
            horizontalalignment="right",
            verticalalignment="center",
        )
        figure.savefig(path, dpi=144)
