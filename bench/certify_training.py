"""Training for certificates: cross-entropy of the margins' lower bounds, against plain training, on MNIST in [0, 1].

The loss is that of `method="certified"`, but trained by Adam, with a radius that grows: the first-order part of the
certificate. The remainder of second order is left to the certificate.

    python bench/certify_training.py --eps 0.05 --epochs 3
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F

import polybound as pb
from certify_mnist import SHAPE, unit
from polybound.training.methods import lower_margins


def train(data: pb.data.Dataset, eps: float, epochs: int, rank: int) -> pb.CCP:
    torch.manual_seed(0)
    model = pb.CCP(784, rank, 10, 4, shape=SHAPE, seed=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = data.x.flatten(1), data.y
    steps = epochs * (len(x) // 128)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * min(1.0, 2 * (1 - step / steps))
        rows = torch.randint(0, len(x), (128,))
        radius = eps * min(1.0, 2 * step / steps)  # from plain training to the full radius
        inputs = x[rows].requires_grad_(eps > 0)
        logits = model(inputs)
        loss = F.cross_entropy(-lower_margins(logits, inputs, y[rows], radius) if eps else logits, y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eps", nargs="+", type=float, default=[0.0, 0.05, 0.1])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = unit(pb.data.load("mnist", "train", data_dir=options.data_dir))
    test = unit(pb.data.load("mnist", "test", data_dir=options.data_dir))
    print("| trained for | clean, all test images | certified at 0.02 | 0.05 | 0.1 | undecided at 0.1 |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for eps in options.eps:
        model = train(data, eps, options.epochs, options.rank)
        clean = 100 * float(pb.accuracy(model, test))
        x, y = test.x[: options.images], test.y[: options.images]
        found = [pb.certify(model, x, y, r, domain=(0.0, 1.0), budget=0.5) for r in (0.02, 0.05, 0.1)]
        shares = " | ".join(f"{100 * f.count('verified') / len(x):.1f} %" for f in found)
        print(f"| {eps:g} | {clean:.2f} % | {shares} | {found[-1].count('undecided')} |", flush=True)


if __name__ == "__main__":
    main()
