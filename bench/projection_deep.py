"""Projection on a deep network: accuracy, accuracy under PGD and the Lipschitz bounds, over bounds of all maps.

    python bench/projection_deep.py                 # Fashion-MNIST, some minutes on one core
    python bench/projection_deep.py --samples 2000 --epochs 4 --images 200

A PolyNet of width 8 with two product blocks is trained by Muon along one cycle. From half of the epochs on, every map
(the kernels with their biases, the scales of normalisations over their fixed deviations, the head) is projected onto
the ball of its l_inf operator norm after every step. Prints a row of Markdown for each bound.
"""

from __future__ import annotations

import argparse
import time
from math import inf

import torch

import polybound as pb


def main() -> None:
    """Train and measure for each bound."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--bounds", type=float, nargs="+", default=[inf, 4.0, 2.0, 1.0])
    parser.add_argument("--samples", type=int, default=10000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--images", type=int, default=1000, help="of the test split, for the accuracies")
    parser.add_argument("--attack", default="pgd-0.1-20-0.01")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    train, test = (pb.data.load(given.dataset, split) for split in ("train", "test"))
    print(f"| bound | clean | {given.attack} | Lipschitz, composed | by intervals | s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for bound in given.bounds:
        net = pb.PolyNet(train.shape, width=8, blocks=(1, 1), seed=given.seed)
        begin = time.process_time()
        recipe = pb.Recipe.from_options(
            {"optimiser": "muon", "learning_rate": 0.02, "schedule": "one-cycle", "rise": 0.2, "batch_size": 128},
            method="projection",
            bound=bound if bound < inf else 1e30,
            every=1,
            epochs=given.epochs,
        )
        pb.fit(net, train.subset(given.samples), recipe, seed=given.seed, verbose=False)
        seconds = time.process_time() - begin
        if not pb.Projection(net, bound).contains():
            raise AssertionError("a norm is above its bound")
        scores = pb.evaluate(net, test.subset(given.images), [given.attack], protocol="sound").scores.rows
        clean, attacked = (100 * row["correct"] / row["total"] for row in scores[:2])
        lipschitz = [float(pb.lipschitz(net, "inf", method=method)) for method in ("paper", "local")]
        name = "none" if bound == inf else f"{bound:g}"
        shown = " | ".join(f"{value:.2g}" for value in lipschitz)
        print(f"| {name} | {clean:.1f} | {attacked:.1f} | {shown} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
