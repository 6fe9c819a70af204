"""Training for certificates: cross-entropy of the margins' lower bounds, against plain training, on MNIST in [0, 1].

For a sample with label y the loss is the cross-entropy of the logits `-(g_j - eps ||dg_j/dx||_1)` over all classes j,
0 for y itself, with `g_j = f_y - f_j`: the first-order part of the certificate, whose gradient is in closed form. The
remainder of second order is left to the certificate.

    python bench/certify_training.py --eps 0.05 --epochs 3
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import polybound as pb
from certify_mnist import SHAPE, unit


def lower_margins(model: pb.CCP, x: Tensor, y: Tensor, eps: float) -> Tensor:
    """`g_j - eps ||dg_j/dx||_1` for all classes, (batch, classes)."""
    factors = model.factors()
    h = [a(x) for a in factors.A]
    products = [h[0]]
    for factor in h[1:]:
        products.append(factor * products[-1])
    C = factors.C.matrix()
    w = C[y].unsqueeze(1) - C
    beta = factors.C.constant
    margin = (w * products[-1].unsqueeze(1)).sum(-1) + beta[y].unsqueeze(1) - beta
    slope, lam = torch.zeros(()), w
    for n in reversed(range(model.degree)):
        before = products[n - 1].unsqueeze(1) if n else 1.0
        slope = slope + factors.A[n].adjoint(lam * before)
        lam = lam * h[n].unsqueeze(1)
    return margin - eps * slope.abs().sum(-1)


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
        worst = lower_margins(model, x[rows], y[rows], radius) if eps else None
        loss = F.cross_entropy(model(x[rows]) if worst is None else -worst, y[rows])
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
