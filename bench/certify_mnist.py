"""The tables of docs/certificates.md: networks trained on MNIST in [0, 1], certified at several radii on one core.

    python bench/certify_mnist.py --models ccp4-88 ccp4-97 --images 1000
    python bench/certify_mnist.py --models ccp4-97 --images 200 --methods auto first crown interval

Trains what is not yet in `--folder` (half a minute each; the convolutional one takes minutes), prints the tables in
Markdown and appends every row to `certificates.jsonl` in that folder. Times are CPU time of this process divided by
the number of images, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import polybound as pb
from polybound.certificates.network import PreparedNetwork
from polybound.data import Dataset

SHAPE = (1, 28, 28)
MODELS: dict[str, tuple[Callable[[], pb.PolynomialNetwork], dict[str, Any]]] = {
    "ccp4-88": (
        lambda: pb.CCP(784, 100, 10, 4, shape=SHAPE, seed=0),
        {"epochs": 3, "learning_rate": 0.001, "milestones": ()},
    ),
    "ccp4-97": (
        lambda: pb.CCP(784, 100, 10, 4, shape=SHAPE, seed=0),
        {"epochs": 20, "learning_rate": 0.02, "milestones": (15,)},
    ),
    "ccp10": (
        lambda: pb.CCP(784, 50, 10, 10, shape=SHAPE, seed=0),
        {"epochs": 20, "learning_rate": 0.01, "milestones": (15,)},
    ),
    "ccp10-64": (
        lambda: pb.CCP(784, 64, 10, 10, shape=SHAPE, seed=0),
        {"epochs": 20, "learning_rate": 0.01, "milestones": (15,)},
    ),
    "ncp4": (
        lambda: pb.NCP(784, 100, 10, 4, shape=SHAPE, seed=0),
        {"epochs": 20, "learning_rate": 0.02, "milestones": (15,)},
    ),
    "conv": (
        lambda: pb.ConvCCP(SHAPE, 4, 10, 4, 7, pre=3, pool=(2, 3), seed=0),
        {"epochs": 6, "learning_rate": 0.02, "milestones": (4,)},
    ),
}


def unit(data: Dataset) -> Dataset:
    """The same images, scaled from [-1, 1] to [0, 1]: exact in float32."""
    return replace(data, x=(data.x + 1) / 2, domain=(0.0, 1.0))


def trained(name: str, folder: Path, data_dir: Path | None) -> pb.PolynomialNetwork:
    file = folder / f"{name}.safetensors"
    if not file.exists():
        make, recipe = MODELS[name]
        model = make()
        pb.fit(model, unit(pb.data.load("mnist", "train", data_dir=data_dir)), "paper", **recipe)
        model.save(file)
    return pb.load(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["ccp4-88", "ccp4-97"], choices=list(MODELS))
    parser.add_argument("--eps", nargs="+", type=float, default=[0.005, 0.01, 0.02, 0.026, 0.04, 0.05])
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--methods", nargs="+", default=["auto"])
    parser.add_argument("--budget", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, default=Path("certify-mnist"))
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    test = unit(pb.data.load("mnist", "test", data_dir=options.data_dir))
    x, y = test.x[: options.images], test.y[: options.images]
    for name in options.models:
        model = trained(name, options.folder, options.data_dir)
        net = PreparedNetwork(model)
        _ = net.stretch, net.norms_S
        print(f"\n{name}: {100 * float(pb.accuracy(model, test)):.2f} % of all test images, first {len(x)} below\n")
        heads = [
            "eps",
            "method",
            "correct",
            "verified",
            "falsified",
            "undecided",
            "decided",
            "mean ms",
            "longest s",
            "mean margin",
        ]
        print(f"| {' | '.join(heads)} |\n| {' | '.join('---' for _ in heads)} |", flush=True)
        for eps in options.eps:
            reference: torch.Tensor | None = None  # margins are compared where the first method verified
            for method in options.methods:
                begun = time.process_time()
                found = pb.certify(net, x, y, eps, domain=(0.0, 1.0), method=method, budget=options.budget)
                mean = 1000 * (time.process_time() - begun) / len(x)
                right = [i for i, stage in enumerate(found.stage) if stage != "clean"]
                row = {"model": name, "eps": eps, "method": method, "images": len(x), "correct": len(right)}
                row |= {status: found.count(status) for status in ("verified", "falsified", "undecided")}
                row["falsified"] -= len(x) - len(right)
                row |= {"mean ms": mean, "longest s": float(found.seconds.max()), "rungs": found.summary()["rungs"]}
                row["rung seconds"] = found.cost
                if reference is None:
                    reference = found.margin > 0
                row["margin"] = float(found.margin[reference].mean()) if reference.any() else float("nan")
                decided = 100 * (1 - row["undecided"] / len(right))
                counts = " | ".join(str(row[key]) for key in ("correct", "verified", "falsified", "undecided"))
                print(
                    f"| {eps:g} | {method} | {counts} | {decided:.1f} % | {mean:.1f} | {row['longest s']:.2f} | "
                    f"{row['margin']:.3f} |",
                    flush=True,
                )
                with (options.folder / "certificates.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
