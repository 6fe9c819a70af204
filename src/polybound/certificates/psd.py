"""Proofs that a symmetric matrix is positive semidefinite, or how little it lacks."""

from __future__ import annotations

import torch
from torch import Tensor

from polybound.theory.rounding import ULP

__all__ = ["defect", "dominating_diagonal"]


def defect(M: Tensor) -> Tensor:
    """A number delta >= 0 with `M + delta I` positive semidefinite, proven; infinity where the proof fails.

    If the Cholesky decomposition of a symmetric float64 matrix runs to its end, then `R^T R = M + E` with
    `|E| <= gamma_(n+1) |R^T| |R|`, in whatever order its sums are taken, and so `||E||_2 <= gamma_(n+1) / (1 -
    gamma_(n+1)) tr(M)` (Rump, 2006). Four times that is returned.

    Args:
        M: (*batch, n, n), exactly symmetric; only its lower triangle is read.
    """
    n = M.shape[-1]
    _, failed = torch.linalg.cholesky_ex(M)
    trace = M.diagonal(dim1=-2, dim2=-1).sum(-1)
    return torch.where((failed == 0) & torch.isfinite(trace), trace * (2 * (n + 8) * ULP) + 2.0**-900, torch.inf)


def dominating_diagonal(At: Tensor, steps: int = 60) -> Tensor:
    """A diagonal that dominates a Gram matrix: mu >= 0 with `diag(mu) - A^T A` positive semidefinite, of small sum.

    For a scaling s > 0 of the coordinates, `mu = s lambda_max(diag(s)^-1/2 A^T A diag(s)^-1/2)` will do; the scaling
    is moved towards where the leading eigenvectors are large, which lowers `sum(mu)` by a quarter to a third on
    trained networks. Whatever comes out of that is proven afterwards, by Cholesky, and widened until the proof
    succeeds.

    Args:
        At: (features, units).
        steps: how often the scaling is moved.
    """
    features, units = At.shape
    gram = At @ At.T
    # The computed Gram matrix is off by at most gamma_units |A^T| |A|, whose row sums bound its spectral norm.
    absolute = At.abs()
    off = float((absolute @ absolute.sum(0)).max()) * (units + features + 8) * ULP + 2.0**-900
    s = torch.ones(features, dtype=At.dtype)
    best, least = s, torch.inf
    few = min(8, units, features)
    for t in range(steps):
        K = At / s.sqrt().unsqueeze(1)
        values, vectors = torch.linalg.eigh(K.T @ K if units <= features else K @ K.T)
        top = float(values[-1])
        if not top > 0.0:
            break
        if float(s.sum()) * top < least:
            least, best = float(s.sum()) * top, s * top
        leading = K @ vectors[:, -few:] if units <= features else vectors[:, -few:]
        mass = (leading / leading.norm(dim=0).clamp_min(2.0**-500)).square() @ torch.softmax(
            (values[-few:] / top - 1) * 30, 0
        )
        mass = mass * features
        s = s / s.mean() * torch.exp((0.5 / (1 + t / 30)) * (mass - s) / (mass + s))
        s = s.clamp_min(1e-6)
    floor = float(best.max()) * 1e-12 + off
    margin = 1e-9
    for _ in range(40):
        mu = best * (1 + margin) + floor
        short = float(defect(torch.diag(mu) - gram))
        if short < torch.inf:
            return (mu + short + off) * (1 + 4 * ULP)
        margin *= 4
    return torch.full_like(s, float(absolute.sum(1).max()) * float(absolute.sum(0).max())) * (1 + 1e-9)
