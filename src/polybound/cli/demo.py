"""The demo: what a bound does to a polynomial network, in a few seconds on the built-in digits."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn
from rich.table import Table
from torch import Tensor

from polybound.cli.progress import progress_bar
from polybound.constraints import Projection
from polybound.data import load_digits
from polybound.errors import PolyboundError
from polybound.models import paper_model, stack
from polybound.theory import gamma, lipschitz, rademacher, theta
from polybound.training import accuracy, fit

__all__ = ["run_demo"]

LEARNING_RATE = 0.02
RUNS = ("plain", "projected")


def run_demo(bound: float, epochs: int, seed: int, plot: Path | None, save: Path | None, as_json: bool) -> None:
    """Train both models as one stack, with no bound on the first, and show what came out."""
    if plot is not None and not plot.parent.is_dir():
        raise PolyboundError(f"{plot.parent}: no such folder for the plot")
    train, test = load_digits("train"), load_digits("test")
    one = paper_model("pn-4", shape=train.shape, classes=train.classes, seed=seed)
    models = stack([one, one])
    projection = Projection(models, bound=[float("inf"), bound])
    history: dict[str, list[list[float]]] = defaultdict(list)

    def measure(epoch: int, loss: Tensor) -> None:
        if epoch >= epochs // 2:
            projection.apply_()  # what is measured are projected weights, not those a few steps later
        values = {
            "training loss": loss,
            "test accuracy": accuracy(models, test),
            "theta": theta(models),
            "gamma": gamma(models),
            "rademacher": rademacher(models, len(train), formula="sharper").value,
            "lipschitz paper": lipschitz(models, method="paper").value,
            "lipschitz row-wise": lipschitz(models, method="rowwise").value,
        }
        for name, value in values.items():
            history[name].append(torch.as_tensor(value).tolist())
        progress.update(task, completed=epoch + 1)

    console = Console(stderr=True)
    with progress_bar(MofNCompleteColumn()) as progress:
        task = progress.add_task("training plain and projected PN-4", total=epochs)
        fit(
            models,
            train,
            method="projection",
            bound=[float("inf"), bound],
            epochs=epochs,
            learning_rate=LEARNING_RATE,
            milestones=(),
            start=epochs // 2,
            seed=seed,
            on_epoch=measure,
        )

    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        for index, name in enumerate(RUNS):
            models.run(index).save(save / f"{name}.safetensors")
    final = {name: values[-1] for name, values in history.items()}
    if as_json:
        print(
            json.dumps({"bound": bound, "epochs": epochs, "seed": seed, "runs": list(RUNS), "final": final}, indent=2)
        )
    else:
        _show(final, bound, epochs, seed)
    if plot is not None:
        _draw(plot, dict(history), bound, epochs, console)


ROWS = {
    "test accuracy": "test accuracy",
    "theta": "theta, norm of the product",
    "gamma": "gamma, product of the norms",
    "rademacher": "Rademacher complexity",
    "lipschitz paper": "Lipschitz, Theorem 2",
    "lipschitz row-wise": "Lipschitz, row-wise",
}


def _show(final: dict[str, list[float]], bound: float, epochs: int, seed: int) -> None:
    view = Table(
        title=f"PN-4 on digits: plain, and with row-l1 norms <= {bound:g} from epoch {epochs // 2 + 1} on",
        title_justify="left",
        caption=f"one seed ({seed}), last of {epochs} epochs, inputs in [-1, 1]; l_inf norms, proven upper bounds",
        caption_justify="left",
        header_style="bold",
    )
    view.add_column("")
    for name in (*RUNS, "change"):
        view.add_column(name, justify="right")
    for key, label in ROWS.items():
        plain, projected = final[key]
        if key == "test accuracy":
            change = f"{100 * (projected - plain):+.1f} points"
            view.add_row(label, f"{100 * plain:.1f} %", f"{100 * projected:.1f} %", change)
        else:
            view.add_row(label, f"{plain:,.3g}", f"{projected:,.3g}", f"{plain / projected:,.1f} times less")
    Console().print(view)


def _draw(path: Path, history: dict[str, list[list[float]]], bound: float, epochs: int, console: Console) -> None:
    try:
        from polybound.report import draw_demo
    except PolyboundError:
        console.print("no plot: matplotlib is not installed (pip install 'polybound\\[plot]')")
        return
    draw_demo(path, history, bound, start=epochs // 2)
    console.print(f"plot: {path}")
