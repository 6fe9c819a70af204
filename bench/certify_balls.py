"""Certificates of l_2 balls: three PN-4 networks on Fashion-MNIST in [-1, 1], one core.

The package's plain network and the one with bound 1, and a third that is trained here with the spectral projection
(norm "2", bound 1), in half a minute, unless a file of an earlier run has it. For each network and radius: the images
that are classified right, what AutoAttack leaves of them, how many are verified, falsified and left open, how many the
first stage and the global Lipschitz certificate `margin / (sqrt(2) L)` verify, and the time of the verifier.
Of AutoAttack, its two gradient attacks; `--attack "autoattack-{eps}:norm=2"` takes all four, and ten times as long.

    python bench/certify_balls.py --images 100
    python bench/certify_balls.py --images 50 --network pn-4 --eps 0.1 --attack "apgdt-100:eps={eps}:norm=2"
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

import polybound as pb

EPS = (0.25, 0.5, 1.0)
ATTACKS = ("autoattack-{eps}:norm=2:version=apgd",)
HEADER = ("network", "eps", "right", "attacked", "verified", "falsified", "undecided", "first", "lipschitz", "ms")


def spectral_network(path: Path | None) -> pb.PolynomialNetwork:
    """PN-4 with weights of spectral norm at most 1, from a file or trained and kept there."""
    if path is not None and path.exists():
        return pb.load(path)
    train = pb.data.load("fashion-mnist", "train")
    model = pb.paper_model("pn-4", shape=train.shape, seed=0)
    pb.fit(
        model,
        train,
        "paper",
        method="projection",
        norm="2",
        bound=1.0,
        epochs=40,
        learning_rate=0.0025,
        milestones=(25,),
    )
    if path is not None:
        model.save(path)
    return model


def left_by(
    attacks: list[str], model: pb.PolynomialNetwork, data: pb.data.Dataset, x: Tensor, y: Tensor, eps: float
) -> Tensor:
    """Which images no attack gets wrong."""
    left = model(x).argmax(1) == y
    for name in attacks:
        found = pb.attacks.parse_attack(name.format(eps=eps))(model, x, y, domain=data.domain)
        left = left & (model(found).argmax(1) == y)
    return left


def main() -> None:
    """Print a row for each network and radius."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--eps", type=float, action="append")
    parser.add_argument("--attack", action="append", help="names of attacks, {eps} in the place of the radius")
    parser.add_argument("--spectral", type=Path, help="where the spectral network is, or is to be kept")
    parser.add_argument("--network", action="append", choices=("pn-4", "pn-4-bound-1", "spectral"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    test = pb.data.load("fashion-mnist", "test")
    x, y = test.x[: options.images], test.y[: options.images]
    print("| " + " | ".join(HEADER) + " |")
    print("| --- " * len(HEADER) + "|")
    for name in options.network or ("pn-4", "pn-4-bound-1", "spectral"):
        model = spectral_network(options.spectral) if name == "spectral" else pb.example(name)
        net = pb.certificates.PreparedNetwork(model)
        _ = net.stretch, net.norms_S, net.norms_A  # once for a model
        for eps in options.eps or EPS:
            right = int((model(x).argmax(1) == y).sum())
            begun = time.process_time()
            found = pb.certify(net, x, y, eps, norm="2", domain=test.domain, budget=1.0)
            taken = 1000 * (time.process_time() - begun) / len(x)
            others = [
                pb.certify(net, x, y, eps, norm="2", domain=test.domain, method=method).count("verified")
                for method in ("first", "lipschitz")
            ]
            left = int(left_by(options.attack or list(ATTACKS), model, test, x, y, eps).sum())
            # Of the images that are classified right.
            counts = [found.count("verified"), found.stage.count("attack"), found.count("undecided")]
            cells = [name, eps, right, left, *counts, *others, f"{taken:.0f}"]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
