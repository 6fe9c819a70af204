"""The demo: what a bound buys, in a few seconds on the built-in digits."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch
from rich.progress import MofNCompleteColumn

from polybound.attacks import PGD
from polybound.certificates import PreparedNetwork, certify
from polybound.cli.commands import hint, progress_bar
from polybound.cli.tables import print_wrapped, show_table
from polybound.constraints import Projection
from polybound.data import Dataset, load_digits
from polybound.errors import PolyboundError
from polybound.evaluation import evaluate
from polybound.models import PolynomialNetwork, paper_model, stack
from polybound.report import check_figure_file
from polybound.seeds import check_seed
from polybound.theory import gamma, lipschitz, rademacher, theta
from polybound.training import fit

__all__ = ["run_demo"]

RUNS = ("plain", "projected")
LEARNING_RATE, BATCH_SIZE = 0.04, 32
RADII = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35)
SHOWN = (0.2, 0.3)
"""The radii of the table; the plot has all of `RADII`."""
BUDGET = 0.0
"""Seconds of branch and bound for an image: without it, what is proven does not depend on the machine's speed."""


@dataclass(frozen=True)
class Payoff:
    """What both networks are worth on the test images.

    Attributes:
        images: how many test images.
        clean: accuracy by run.
        pgd: accuracy under PGD, for each of `RADII`, by run.
        certified: share of images that are proven, for each of `RADII`, by run.
    """

    images: int
    clean: dict[str, float] = field(default_factory=dict)
    pgd: dict[str, list[float]] = field(default_factory=dict)
    certified: dict[str, list[float]] = field(default_factory=dict)


def run_demo(bound: float, epochs: int, seed: int, plot: Path | None, save: Path | None, as_json: bool) -> None:
    """Train a plain and a projected network, attack and certify both, and show what came out."""
    if not (bound > 0 and isfinite(bound)):
        raise PolyboundError(f"the bound of the projected network must be a number above 0, got {bound:g}")
    if plot is not None:
        check_figure_file(plot)
    check_seed(seed)
    models, constants = _train(bound, epochs, seed)
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        for index, name in enumerate(RUNS):
            models.run(index).save(save / f"{name}.safetensors")
    payoff = _measure(models, load_digits("test"))
    bounds = _bounds(models)
    if as_json:
        print(json.dumps(_facts(bound, epochs, seed, payoff, bounds), indent=2))
    else:
        _show(payoff, bounds, bound, epochs, seed)
    if plot is not None:
        _draw(plot, payoff, constants, bound, epochs // 2)
    if save is not None:
        hint(f"next: polybound certify {save / 'projected.safetensors'} --dataset digits --eps {SHOWN[0]}")


def _train(bound: float, epochs: int, seed: int) -> tuple[PolynomialNetwork, list[list[float]]]:
    """Both networks as one stack, with no bound on the first, and their Lipschitz bounds after each epoch."""
    train = load_digits("train")
    one = paper_model("pn-4", shape=train.shape, classes=train.classes, seed=seed)
    models = stack([one, one])
    projection = Projection(models, bound=[inf, bound])
    constants: list[list[float]] = []
    with progress_bar(MofNCompleteColumn()) as progress:
        task = progress.add_task("training a plain and a projected PN-4", total=epochs)

        def measure(epoch: int, _loss: object) -> None:
            if epoch >= epochs // 2:
                projection.apply_()  # what is measured are projected weights, not those a few steps later
            constants.append(torch.as_tensor(lipschitz(models).value).tolist())
            progress.update(task, completed=epoch + 1)

        fit(
            models,
            train,
            method="projection",
            bound=[inf, bound],
            recipe="paper",
            epochs=epochs,
            start=epochs // 2,
            learning_rate=LEARNING_RATE,
            milestones=(),
            batch_size=BATCH_SIZE,
            seed=seed,
            on_epoch=measure,
            verbose=False,
        )
    return models, constants


def _measure(models: PolynomialNetwork, test: Dataset) -> Payoff:
    """Accuracy of both networks: clean, under PGD, and proven."""
    attacks = [PGD(radius, 20) for radius in RADII]
    attacked = evaluate(models, test, attacks, names=RUNS)
    payoff = Payoff(len(test))
    with progress_bar(MofNCompleteColumn()) as progress:
        task = progress.add_task("certifying both", total=len(RUNS) * len(RADII))
        for index, name in enumerate(RUNS):
            payoff.clean[name] = attacked.find("clean", run=name).accuracy
            payoff.pgd[name] = [attacked.find(attack.name, run=name).accuracy for attack in attacks]
            payoff.certified[name] = []
            network, left = PreparedNetwork(models.run(index)), torch.arange(len(test))
            for radius in RADII:
                # What is not proven in a small ball is not in a larger one: only the others are looked at.
                if len(left):
                    found = certify(network, test.x[left], test.y[left], radius, domain=test.domain, budget=BUDGET)
                    left = left[[status == "verified" for status in found.status]]
                payoff.certified[name].append(len(left) / len(test))
                progress.advance(task)
    return payoff


def _bounds(models: PolynomialNetwork) -> dict[str, list[float]]:
    """The bounds of both networks, by name."""
    found = {
        "lipschitz row-wise": lipschitz(models).value,
        "lipschitz paper": lipschitz(models, method="paper").value,
        "rademacher": rademacher(models, len(load_digits("train")), formula="sharper").value,
        "theta": theta(models),
        "gamma": gamma(models),
    }
    return {name: torch.as_tensor(value).tolist() for name, value in found.items()}


def _facts(bound: float, epochs: int, seed: int, payoff: Payoff, bounds: dict[str, list[float]]) -> dict[str, Any]:
    """Everything that came out, for JSON; a list has one value for each run, or for each radius."""
    asked = {"bound": bound, "epochs": epochs, "seed": seed, "runs": list(RUNS), "images": payoff.images}
    final = {"test accuracy": [payoff.clean[name] for name in RUNS], **bounds}
    return asked | {"final": final, "eps": list(RADII), "pgd": payoff.pgd, "certified": payoff.certified}


_LABELS = {
    "lipschitz row-wise": "Lipschitz constant, row-wise bound",
    "lipschitz paper": "Lipschitz constant, Theorem 2",
    "rademacher": "Rademacher complexity",
    "theta": "norm of the product of all factors",
}


def _show(payoff: Payoff, bounds: dict[str, list[float]], bound: float, epochs: int, seed: int) -> None:
    """The payoff first, then the bounds that it comes from."""
    rows = [_share("test accuracy", payoff.clean)]
    for radius in SHOWN:
        place = RADII.index(radius)
        rows.append(_share(f"accuracy under PGD, eps {radius:g}", _at(payoff.pgd, place)))
        rows.append(_share(f"proven accuracy, eps {radius:g}", _at(payoff.certified, place)))
    for name, label in _LABELS.items():
        plain, projected = bounds[name]
        rows.append([label, _number(plain), _number(projected), f"{_number(plain / projected)} times less"])
    title = f"PN-4 on digits: plain, and with row-l1 norms <= {bound:g} from epoch {epochs // 2 + 1} of {epochs} on"
    show_table(["", *RUNS, "change"], rows, title=title)
    place = RADII.index(SHOWN[0])
    pgd = [f"{100 * payoff.pgd[name][place]:.0f} %" for name in RUNS]
    proven = f"{100 * payoff.certified[RUNS[1]][place]:.0f} %"
    print_wrapped(
        f"Let every pixel, of a range of 2, move by {SHOWN[0]:g}: an attack leaves {pgd[0]} to the plain network, and "
        f"{pgd[1]} to the projected one; {proven} are proven: no attack, known or unknown, changes the answer."
    )
    print_wrapped(
        f"All of the {payoff.images} test images, l_inf balls within [-1, 1], PGD of 20 steps, seed {seed}. "
        "Bound, schedule and eps were chosen by looking at these images."
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _at(values: dict[str, list[float]], place: int) -> dict[str, float]:
    return {name: values[name][place] for name in RUNS}


def _share(label: str, shares: dict[str, float]) -> list[str]:
    plain, projected = (100 * shares[name] for name in RUNS)
    return [label, f"{plain:.1f} %", f"{projected:.1f} %", f"{projected - plain:+.1f} points"]


def _draw(path: Path, payoff: Payoff, constants: list[list[float]], bound: float, start: int) -> None:
    try:
        from polybound.report import draw_demo
    except PolyboundError:
        hint("no plot: matplotlib is not installed (pip install 'polybound[plot]')")
        return
    curves = {
        name: {"pgd": [payoff.clean[name], *payoff.pgd[name]], "proven": [payoff.clean[name], *payoff.certified[name]]}
        for name in RUNS
    }
    draw_demo(path, (0.0, *RADII), curves, constants, bound, start)
    hint(f"plot: {path}")
