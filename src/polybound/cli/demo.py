"""`polybound demo`: what a bound buys, in a few seconds on the built-in digits."""

from __future__ import annotations

import json
from math import inf, isfinite
from pathlib import Path
from typing import Any

import polybound as pb
from polybound.cli.commands import app, command, hint, progress
from polybound.cli.options import NETWORKS, AsJson, option
from polybound.cli.tables import print_wrapped, show_table
from polybound.errors import PolyboundError

RUNS = ("plain", "projected")
LEARNING_RATE, BATCH_SIZE = 0.04, 32
RADII = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35)
SHOWN = (0.2, 0.3)
"""The radii of the table; the plot has all of `RADII`."""
BUDGET = 0.0
"""Seconds of branch and bound for an image: without it, what is proven does not depend on the machine's speed."""


@command(
    app,
    "polybound demo",
    "polybound demo --bound 0.8 --epochs 100",
    "polybound demo --json --no-plot",
    panel=NETWORKS,
    stopped="nothing was kept; the same command starts again",
)
def demo(
    bound: float = option("Bound of the projected model's row-l1 norms.", default=1.0),
    epochs: int = option("Epochs; projections begin halfway.", default=60, min=2),
    seed: int = option("Seed of the initial weights and of the batches.", default=0, min=0),
    output: Path = option("The plot.", "--output", "-o", default=Path("polybound-demo.png")),
    no_plot: bool = option("Draw no plot, which needs matplotlib.", "--no-plot", default=False),
    save: Path | None = option("Folder to save both models in."),
    as_json: AsJson = False,
) -> None:
    """Train a plain and a projected PN-4 on the built-in digits; attack and certify both."""
    from polybound.seeds import check_seed

    if not (bound > 0 and isfinite(bound)):
        raise PolyboundError(f"the bound of the projected network must be a number above 0, got {bound:g}")
    draw_demo = None
    if not no_plot:
        try:
            draw_demo = pb.report.draw_demo
            pb.report.check_figure_file(output)
        except PolyboundError:
            if draw_demo is not None:
                raise
            hint("no plot: matplotlib is not installed (pip install 'polybound[plot]')")
    check_seed(seed)
    models, constants = _train(bound, epochs, seed)
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        for index, name in enumerate(RUNS):
            models.run(index).save(save / f"{name}.safetensors")
    found = _measure(models)
    if as_json:
        asked = {"bound": bound, "epochs": epochs, "seed": seed, "runs": list(RUNS), "images": found["images"]}
        final = {"test accuracy": [found["clean"][name] for name in RUNS], **found["bounds"]}
        proven = {"pgd": found["pgd"], "certified": found["certified"]}
        print(json.dumps(asked | {"final": final, "eps": list(RADII), **proven}, indent=2))
    else:
        _show(found, bound, epochs, seed)
    if draw_demo is not None:
        curves = {}
        for name in RUNS:
            clean = found["clean"][name]
            curves[name] = {"pgd": [clean, *found["pgd"][name]], "proven": [clean, *found["certified"][name]]}
        draw_demo(output, (0.0, *RADII), curves, constants, bound, epochs // 2)
        hint(f"plot: {output}")
    if save is not None:
        hint(f"next: polybound certify {save / 'projected.safetensors'} --dataset digits --eps {SHOWN[0]}")


def _train(bound: float, epochs: int, seed: int) -> tuple[pb.PolynomialNetwork, list[list[float]]]:
    """Both networks as one stack, with no bound on the first, and their Lipschitz bounds after each epoch."""
    train = pb.data.load_digits("train")
    one = pb.paper_model("pn-4", shape=train.shape, classes=train.classes, seed=seed)
    models = pb.stack([one, one])
    projection = pb.Projection(models, bound=[inf, bound])
    constants: list[list[float]] = []
    with progress("training a plain and a projected PN-4", epochs) as step:

        def measure(epoch: int, _loss: object) -> None:
            if epoch >= epochs // 2:
                projection.apply_()  # what is measured are projected weights, not those a few steps later
            constants.append(pb.lipschitz(models).value.tolist())  # type: ignore[union-attr]
            step(epoch + 1)

        pb.fit(
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


def _measure(models: pb.PolynomialNetwork) -> dict[str, Any]:
    """The number of test "images", the "clean" accuracy by run, and the "bounds" of both networks by name.

    Also, by run for each of `RADII`, the accuracy under "pgd" and the share of images that is "certified".
    """
    import torch

    test = pb.data.load_digits("test")
    attacks = [pb.PGD(radius, 20) for radius in RADII]
    attacked = pb.evaluate(models, test, attacks, names=RUNS)
    certified: dict[str, list[float]] = {name: [] for name in RUNS}
    with progress("certifying both", len(RUNS) * len(RADII)) as step:
        for index, name in enumerate(RUNS):
            network, left = pb.certificates.PreparedNetwork(models.run(index)), torch.arange(len(test))
            for radius in RADII:
                # What is not proven in a small ball is not in a larger one: only the others are looked at.
                if len(left):
                    x, y = test.x[left], test.y[left]
                    status = pb.certify(network, x, y, radius, domain=test.domain, budget=BUDGET).status
                    left = left[[one == "verified" for one in status]]
                certified[name].append(len(left) / len(test))
                step(sum(map(len, certified.values())))
    bounds: dict[str, Any] = {
        "lipschitz row-wise": pb.lipschitz(models).value,
        "lipschitz paper": pb.lipschitz(models, method="paper").value,
        "rademacher": pb.rademacher(models, len(pb.data.load_digits("train")), formula="sharper").value,
        "theta": pb.theta(models),
        "gamma": pb.gamma(models),
    }
    return {
        "images": len(test),
        "clean": {name: attacked.find("clean", run=name).accuracy for name in RUNS},
        "pgd": {name: [attacked.find(one.name, run=name).accuracy for one in attacks] for name in RUNS},
        "certified": certified,
        "bounds": {name: value.tolist() for name, value in bounds.items()},
    }


_LABELS = {
    "lipschitz row-wise": "Lipschitz constant, row-wise bound",
    "lipschitz paper": "Lipschitz constant, Theorem 2",
    "rademacher": "Rademacher complexity",
    "theta": "norm of the product of all factors",
}


def _show(found: dict[str, Any], bound: float, epochs: int, seed: int) -> None:
    """Print the accuracies first, then the bounds that they come from."""
    shares = {"test accuracy": [found["clean"][name] for name in RUNS]}
    for radius in SHOWN:
        for key, label in (("pgd", "accuracy under PGD"), ("certified", "proven accuracy")):
            shares[f"{label}, eps {radius:g}"] = [found[key][name][RADII.index(radius)] for name in RUNS]
    rows = [
        [label, f"{100 * plain:.1f} %", f"{100 * projected:.1f} %", f"{100 * (projected - plain):+.1f} points"]
        for label, (plain, projected) in shares.items()
    ]
    for name, label in _LABELS.items():
        plain, projected = found["bounds"][name]
        numbers = [
            f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (plain, projected, plain / projected)
        ]
        rows.append([label, *numbers[:2], f"{numbers[2]} times less"])
    title = f"PN-4 on digits: plain, and with row-l1 norms <= {bound:g} from epoch {epochs // 2 + 1} of {epochs} on"
    show_table(["", *RUNS, "change"], rows, title=title)
    pgd = [f"{100 * share:.0f} %" for share in shares[f"accuracy under PGD, eps {SHOWN[0]:g}"]]
    proven = f"{100 * shares[f'proven accuracy, eps {SHOWN[0]:g}'][1]:.0f} %"
    print_wrapped(
        f"Let every pixel, of a range of 2, move by {SHOWN[0]:g}: an attack leaves {pgd[0]} to the plain network, and "
        f"{pgd[1]} to the projected one; {proven} are proven: no attack, known or unknown, changes the answer."
    )
    print_wrapped(
        f"All of the {found['images']} test images, l_inf balls within [-1, 1], PGD of 20 steps, seed {seed}. "
        "Bound, schedule and eps were chosen by looking at these images."
    )
