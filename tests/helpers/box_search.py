"""Search by brute force for extreme values of a network over a box, judged in rational arithmetic."""

import itertools
from fractions import Fraction

import torch

from helpers.networks import F64
from polybound.certificates.proofs.exact import exact_logits


def points_in(model, lower, upper, weights, seed, count=150):
    """Points of the box [lower, upper], (features,): corners, a grid, random ones, and where gradients lead."""
    generator = torch.Generator().manual_seed(seed)
    d = len(lower)
    shares = [torch.rand(count, d, generator=generator, dtype=F64)]
    if d <= 7:
        shares.append(torch.tensor(list(itertools.product([0.0, 1.0], repeat=d)), dtype=F64))
    else:
        shares.append(torch.randint(0, 2, (count, d), generator=generator).to(F64))
    if d <= 4:
        steps = {1: 201, 2: 21, 3: 9, 4: 5}[d]
        shares.append(torch.cartesian_prod(*[torch.linspace(0, 1, steps, dtype=F64)] * d).reshape(-1, d))
    points = [(lower + (upper - lower) * torch.cat(shares)).clamp(lower, upper)]
    for row, sign in itertools.product(weights, (1.0, -1.0)):
        z = points[0][:8]
        for step in (1.0, 0.5, 0.5, 0.25, 0.1, 0.05, 0.02):
            z = z.detach().requires_grad_()
            slope = torch.autograd.grad((model(z) @ row).sum(), z)[0]
            z = (z - sign * step * (upper - lower) * slope.sign()).clamp(lower, upper)
            points.append(z.detach())
    return torch.cat(points)


def exact_values(model, x, weights, constant):
    """`weights f(x) + constant` as fractions, row by row."""
    logits = exact_logits(model.factors().double(), x)
    rows = zip(weights.tolist(), constant.tolist(), strict=True)
    return [sum((Fraction(w) * f for w, f in zip(row, logits, strict=True)), Fraction(b)) for row, b in rows]


def inside(x, lower, upper):
    """Whether a float64 point lies in a box whose sides are numbers or fractions."""
    return all(a <= Fraction(v) <= b for v, a, b in zip(x.tolist(), lower, upper, strict=True))
