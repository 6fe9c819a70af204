"""A campaign against certificates: random networks, random inputs; whatever is verified is attacked in every way.

Counts (model, input, eps) cases. Of each verified one all corners (up to eight inputs, else random ones), random
points, a grid (up to three inputs) and signed gradient steps by autograd, which share no code with the certificates,
are tried; of l_2 balls, points of the sphere and of the inside, and projected gradient steps, all within the domain.
Every proven margin must lie below every value seen, and every counterexample must be one. Ends with a line of JSON.

    python bench/certify_soundness.py --cases 100000
    python bench/certify_soundness.py --cases 100000 --norm 2
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import Counter
from fractions import Fraction

import torch
from torch import Tensor

import polybound as pb
from polybound.certificates import Network

F64 = torch.float64
METHODS = {
    "inf": ("auto",) * 6 + ("first", "crown", "zonotope", "interval"),
    "2": ("auto",) * 6 + ("second", "second", "first", "lipschitz"),
}


def random_model(generator: torch.Generator) -> pb.PolynomialNetwork:
    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    kind = pick(0, 2)
    classes, degree = pick(2, 4), pick(2, 10)
    if kind == 0:
        form = ("residual", "product")[pick(0, 1)]
        model: pb.PolynomialNetwork = pb.CCP(pick(1, 8), pick(1, 6), classes, degree, form, dtype=F64)
    elif kind == 1:
        model = pb.NCP(pick(1, 8), pick(1, 6), classes, degree, dtype=F64)
    else:
        degree = pick(2, 5)
        pool = (pick(1, degree),) if pick(0, 1) else ()
        pre = (None, 3)[pick(0, 1)]
        model = pb.ConvCCP((1, pick(2, 4), pick(2, 4)), pick(1, 2), classes, degree, 3, pre=pre, pool=pool, dtype=F64)
    scale = (0.1, 0.3, 0.5, 0.8)[pick(0, 3)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=F64))
    return model


def least_margins(model: pb.PolynomialNetwork, x: Tensor, y: Tensor, eps: float, generator: torch.Generator) -> Tensor:
    """The least margin that any search finds, for each input."""
    lower, upper = (x - eps).clamp(-1, 1), (x + eps).clamp(-1, 1)
    images, d = x.shape
    parts = [torch.rand(64, d, generator=generator, dtype=F64)]
    if d <= 8:
        parts.append(torch.tensor(list(itertools.product([0.0, 1.0], repeat=d)), dtype=F64))
    else:
        parts.append(torch.randint(0, 2, (256, d), generator=generator).to(F64))
    if d <= 3:
        steps = {1: 501, 2: 31, 3: 11}[d]
        parts.append(torch.cartesian_prod(*[torch.linspace(0, 1, steps, dtype=F64)] * d).reshape(-1, d))
    share = torch.cat(parts)
    points = lower.unsqueeze(1) + (upper - lower).unsqueeze(1) * share
    best = margins(model, points.reshape(-1, d), y.repeat_interleave(len(share))).reshape(images, -1).amin(1)
    z = lower + (upper - lower) * torch.rand(x.shape, generator=generator, dtype=F64)
    for step in (1.0, 0.5, 0.5, 0.25, 0.25, 0.1, 0.1, 0.05, 0.02):
        z = z.detach().requires_grad_()
        value = margins(model, z, y)
        best = torch.minimum(best, value.detach())
        slope = torch.autograd.grad(value.sum(), z)[0]
        z = torch.minimum(torch.maximum(z - step * (upper - lower) * slope.sign(), lower), upper)
    return torch.minimum(best, margins(model, z, y)).detach()


def least_in_balls(model: pb.PolynomialNetwork, x: Tensor, y: Tensor, eps: float, generator: torch.Generator) -> Tensor:
    """The least margin that any search finds in the l_2 balls within the domain, for each input."""
    images, d = x.shape
    u = torch.randn(images, 192, d, generator=generator, dtype=F64)
    u = u / u.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    axes = torch.cat([torch.eye(d, dtype=F64), -torch.eye(d, dtype=F64)]).expand(images, -1, -1)
    length = torch.rand(images, 192, 1, generator=generator, dtype=F64)
    # x lies in the domain, so that clamping goes nearer to it.
    points = (x.unsqueeze(1) + eps * torch.cat([u, axes, u * length], 1)).clamp(-1, 1)
    at = y.repeat_interleave(points.shape[1])
    best = margins(model, points.reshape(-1, d), at).detach().reshape(images, -1).amin(1)
    z = points[:, 0]
    for step in (1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.1, 0.1, 0.05, 0.02):
        z = z.detach().requires_grad_()
        value = margins(model, z, y)
        best = torch.minimum(best, value.detach())
        slope = torch.autograd.grad(value.sum(), z)[0]
        away = z - x - step * eps * slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-300)
        away = (x + away).clamp(-1, 1) - x
        z = x + away * (eps / away.norm(dim=1, keepdim=True).clamp_min(eps))
    return torch.minimum(best, margins(model, z, y).detach())


def holds(x: Tensor, point: Tensor, eps: float, norm: str) -> bool:
    """Whether a point lies in the ball and in the domain, in rational arithmetic."""
    away = [Fraction(a) - Fraction(b) for a, b in zip(point.tolist(), x.tolist(), strict=True)]
    near = sum(a * a for a in away) <= Fraction(eps) ** 2 if norm == "2" else max(map(abs, away)) <= Fraction(eps)
    return near and bool((point.abs() <= 1).all())


def margins(model: pb.PolynomialNetwork, x: Tensor, y: Tensor) -> Tensor:
    logits = model(x)
    label = y.unsqueeze(1)
    return (logits.gather(1, label) - logits.scatter(1, label, -torch.inf)).amin(1)


def campaign(cases: int, images: int, budget: float, seed: int, norm: str = "inf") -> Counter[str]:
    """Counts of cases, statuses, models and degrees; of "WRONG" ones, if there are any."""
    counts: Counter[str] = Counter()
    while counts["cases"] < cases:
        generator = torch.Generator().manual_seed(seed)
        model = random_model(generator)
        method = METHODS[norm][seed % len(METHODS[norm])]
        eps = (0.01, 0.03, 0.1, 0.3)[int(torch.randint(0, 4, (1,), generator=generator))]
        x = torch.rand(images, model.features, generator=generator, dtype=F64) * 2 - 1
        if norm == "2":
            eps = 3 * eps
            x = torch.where(torch.rand(x.shape, generator=generator) < 0.2, x.sign(), x)
        y = model(x).argmax(1)
        # Convolutions in both of their forms, window by window and as matrices.
        convolutional = isinstance(model, pb.ConvCCP)
        net = Network(model, by_windows=True if convolutional and seed % 2 else None)
        found = pb.certify(net, x, y, eps, norm=norm, method=method, budget=budget)
        least = (least_in_balls if norm == "2" else least_margins)(model, x, y, eps, generator)
        size = 1e-11 * (1 + model(x).detach().abs().amax(1))  # of the float64 forward pass that judges
        for i, status in enumerate(found.status):
            counts[status] += 1
            wrong = float(found.margin[i]) > float(least[i]) + float(size[i])
            wrong |= status == "verified" and float(least[i]) < -float(size[i])
            point = found.counterexample[i]
            if point is not None:
                value = float(margins(model, point.unsqueeze(0), y[i : i + 1]).detach())
                wrong |= not holds(x[i], point, eps, norm) or value > float(size[i])
            if wrong:
                counts["WRONG"] += 1
                print(f"WRONG: seed {seed}, input {i}, {method}, eps {eps}: {status}, {found.margin[i]}, {least[i]}")
        counts["cases"] += images
        counts[f"models {type(model).__name__}"] += 1
        counts[f"cases of degree {model.degree}"] += images
        seed += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--images", type=int, default=50, help="inputs of each model")
    parser.add_argument("--budget", type=float, default=0.02, help="seconds of branch and bound for each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--norm", choices=sorted(METHODS), default="inf")
    options = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.process_time()
    counts = campaign(options.cases, options.images, options.budget, options.seed, options.norm)
    print(json.dumps(dict(counts) | {"cpu seconds": round(time.process_time() - begun)}))


if __name__ == "__main__":
    main()
