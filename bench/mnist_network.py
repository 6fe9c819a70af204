"""A CCP of at least 98.9 % on MNIST, small enough to be evaluated encrypted: trained by a plain loop of its own.

    python bench/mnist_network.py mnist.safetensors

AdamW, cosine, label smoothing, random shifts, rotations and scalings of the images, and the mean of the last weights
(an exponential average), which is what is saved. The test split is looked at once, at the end.
"""

from __future__ import annotations

import argparse
import copy
import time

import torch
import torch.nn.functional as F

import polybound as pb


def distorted(x: torch.Tensor, shift: float, turn: float, zoom: float, generator: torch.Generator) -> torch.Tensor:
    """Images (batch, 1, 28, 28) moved by up to `shift` pixels, turned by up to `turn` radians, scaled by 1 +- zoom."""
    n = len(x)

    def uniform(size: float) -> torch.Tensor:
        return (torch.rand(n, generator=generator) * 2 - 1) * size

    angle, stretch, slant = uniform(turn), 1 + uniform(zoom), uniform(turn)
    move = 2 * shift / x.shape[-1]
    rows = [
        torch.stack([angle.cos() * stretch, -angle.sin() + slant, uniform(move)], 1),
        torch.stack([angle.sin(), angle.cos() * stretch, uniform(move)], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    # The background is -1, and what lies outside is 0 for grid_sample.
    return F.grid_sample(x + 1, grid, align_corners=False) - 1


def train(args: argparse.Namespace) -> pb.PolynomialNetwork:
    data = pb.data.load("mnist", "train")
    model = pb.CCP(784, args.rank, 10, degree=args.degree, shape=(1, 28, 28), seed=args.seed)
    mean = copy.deepcopy(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay)
    steps = args.epochs * (len(data.x) // args.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, args.learning_rate, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(args.seed)
    step, start = 0, time.time()
    for epoch in range(args.epochs):
        order = torch.randperm(len(data.x), generator=generator)
        total = 0.0
        for chosen in order[: len(order) // args.batch * args.batch].split(args.batch):
            x = distorted(data.x[chosen], args.shift, args.turn, args.zoom, generator)
            loss = F.cross_entropy(model(x), data.y[chosen], label_smoothing=0.1)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            step, total = step + 1, total + float(loss.detach())
            share = min(0.999, step / (step + 10))
            with torch.no_grad():
                for kept, now in zip(mean.parameters(), model.parameters(), strict=True):
                    kept.lerp_(now, 1 - share)
        print(
            f"epoch {epoch + 1}: loss {total / (len(order) // args.batch):.4f}, {time.time() - start:.0f} s", flush=True
        )
    return mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    for name, default in {"rank": 64, "degree": 4, "epochs": 80, "batch": 256, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    defaults = {"learning-rate": 1.5e-3, "weight-decay": 0.05, "shift": 1.5, "turn": 0.12, "zoom": 0.08}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = train(args)
    test = pb.data.load("mnist", "test")
    with torch.no_grad():
        right = int((model(test.x).argmax(1) == test.y).sum())
    norms = torch.stack([a.weight.abs().sum(-1).amax() for a in model.factors().A]).tolist()
    print(f"{right} of {len(test.y)} test images right; largest row-l1 norms {[round(n, 1) for n in norms]}")
    model.save(args.output)


if __name__ == "__main__":
    main()
