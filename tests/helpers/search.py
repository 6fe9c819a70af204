"""Search by brute force for extreme values of a network over a box or an l_2 ball, judged in rational arithmetic."""

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


def in_ball(point, x, r, least, most):
    """Whether a float64 point lies in the true ball and the domain, in rational arithmetic."""
    total = Fraction(0)
    for v, c, e, low, high in zip(*(t.tolist() for t in (point, x, r, least, most)), strict=True):
        away = Fraction(v) - Fraction(c)
        if not low <= v <= high or (e == 0 and away != 0):
            return False
        total += (away / Fraction(e)) ** 2 if e else 0
    return total <= 1


def points_in_ball(model, x, r, least, most, weights, seed, count=400):
    """Points of a ball within a domain: directions on the sphere, random ones, and where gradients lead."""
    generator = torch.Generator().manual_seed(seed)
    d = len(x)
    u = torch.randn(count, d, generator=generator, dtype=F64)
    u = torch.cat([u, torch.eye(d, dtype=F64), -torch.eye(d, dtype=F64)])
    if d == 2:
        angle = torch.linspace(0, 2 * torch.pi, 721, dtype=F64)
        u = torch.cat([u, torch.stack([angle.cos(), angle.sin()], 1)])
    u = u / u.norm(dim=1, keepdim=True)
    u = torch.cat([u, u[:count] * torch.rand(count, 1, generator=generator, dtype=F64), torch.zeros(1, d, dtype=F64)])
    found = [u]
    for row in weights:
        z = u[:12]
        for step in (1.0, 1.0, 0.5, 0.5, 0.25, 0.1, 0.05, 0.02):
            at = z.detach().requires_grad_()
            slope = torch.autograd.grad((model((x + r * at).clamp(least, most)) @ row).sum(), at)[0]
            z = z - step * slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-300)
            z = z / z.norm(dim=1, keepdim=True).clamp_min(1.0)
            found.append(z.detach())
    # A little smaller, so that rounding leaves most of them inside; the domain holds x, so that clamping does as well.
    return (x + r * torch.cat(found) * (1 - 2.0**-45)).clamp(least, most)
