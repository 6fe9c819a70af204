"""Proofs that a symmetric matrix is positive semidefinite, or how little it lacks."""

from __future__ import annotations

import torch
from torch import Tensor

from polybound.theory import ULP

__all__ = ["defect", "dominating_diagonal", "dominating_gram", "searchable"]


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


def searchable(M: Tensor) -> Tensor:
    """The matrices, with zeros for those so large that a search for eigenvalues overflows; it proves nothing anyway."""
    fine = M.abs().amax((-2, -1), keepdim=True) < 2.0**250
    return M if bool(fine.all()) else torch.where(fine, M, 0.0)


def dominating_diagonal(At: Tensor, steps: int = 40) -> Tensor:
    """A diagonal that dominates a Gram matrix: mu >= 0 with `diag(mu) - A^T A` positive semidefinite, of small sum.

    For a scaling s > 0 of the coordinates, `mu = s lambda_max(diag(s)^-1/2 A^T A diag(s)^-1/2)` will do; the scaling is
    moved towards where the leading eigenvectors are large, which lowers `sum(mu)` by a quarter to a third on trained
    networks. Whatever comes out of that is proven afterwards, by Cholesky, and widened until the proof succeeds.

    Args:
        At: (features, units).
        steps: how often the scaling is moved.
    """
    absolute = At.abs()
    worst = float(absolute.sum(1).max()) * float(absolute.sum(0).max())
    return _proven(_scaled(searchable(At), steps), At @ At.T, _off(absolute @ absolute.sum(0), At.shape[1]), worst)


def dominating_gram(gram: Tensor, rows: Tensor, units: int, steps: int = 40) -> Tensor:
    """The same from the Gram matrix, which is smaller than A where there are more units than features.

    Args:
        gram: `A^T A` as computed in float64, (features, features).
        rows: the row sums of `|A^T| |A|`, (features,).
        units: how many products each entry is a sum of.
        steps: how often the scaling is moved.
    """
    return _proven(_scaled_gram(searchable(gram), steps), gram, _off(rows, units), float(rows.max()))


def _off(rows: Tensor, units: int) -> float:
    """How far a computed Gram matrix is off: at most gamma_units |A^T| |A|, whose row sums bound its spectral norm."""
    return float(rows.max()) * (units + len(rows) + 8) * ULP + 2.0**-900


def _proven(best: Tensor, gram: Tensor, off: float, worst: float) -> Tensor:
    """A diagonal near the one that was found, widened until it is proven; `worst` bounds the Gram matrix's norm."""
    floor = float(best.max()) * 1e-12 + off
    for margin in (1e-9, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 1.0):
        mu = best * (1 + margin) + floor
        short = float(defect(torch.diag(mu) - gram))
        if short < torch.inf:
            return (mu + short + off) * (1 + 4 * ULP)
    # ||A||_2^2 <= ||A||_1 ||A||_inf, and no more than the largest row sum of |A^T| |A|.
    return torch.full_like(best, worst * (1 + 1e-9) + off)


def _scaled(At: Tensor, steps: int) -> Tensor:
    """The search for that diagonal: subspace iterations, while the scaling moves. Proves nothing."""
    features, units = At.shape
    s = torch.ones(features, dtype=At.dtype)
    few = min(8, units, features)
    basis = torch.randn(units, few, generator=torch.Generator().manual_seed(0), dtype=At.dtype)
    best, least = s * float(At.square().sum()), torch.inf
    for t in range(steps):
        K = At / s.sqrt().unsqueeze(1)
        for _ in range(3 if 0 < t < steps - 1 else 20):
            basis = torch.linalg.qr(K.T @ (K @ basis)).Q
        moved = K @ basis
        values, turn = torch.linalg.eigh(moved.T @ moved)
        top = float(values[-1])
        if not top > 0.0:
            break
        if float(s.sum()) * top * (1 + 1e-3) < least:
            least, best = float(s.sum()) * top, s * top
        leading = moved @ turn / values.clamp_min(2.0**-500).sqrt()
        s = _moved(s, leading, values, t)
    return best


def _scaled_gram(gram: Tensor, steps: int) -> Tensor:
    """The same search with the Gram matrix."""
    features = len(gram)
    s = torch.ones(features, dtype=gram.dtype)
    basis = torch.randn(features, min(8, features), generator=torch.Generator().manual_seed(0), dtype=gram.dtype)
    best, least = s * float(gram.diagonal().sum()), torch.inf
    for t in range(steps):
        root = s.sqrt().unsqueeze(1)
        for _ in range(3 if 0 < t < steps - 1 else 20):
            basis = torch.linalg.qr(gram @ (basis / root) / root).Q
        values, turn = torch.linalg.eigh(basis.T @ (gram @ (basis / root) / root))
        top = float(values[-1])
        if not top > 0.0:
            break
        if float(s.sum()) * top * (1 + 1e-3) < least:
            least, best = float(s.sum()) * top, s * top
        s = _moved(s, basis @ turn, values, t)
    return best


def _moved(s: Tensor, leading: Tensor, values: Tensor, t: int) -> Tensor:
    """The scaling, moved towards where the leading eigenvectors are large."""
    mass = leading.square() @ torch.softmax((values / values[-1] - 1) * 30, 0) * len(s)
    s = s / s.mean() * torch.exp((0.5 / (1 + t / 30)) * (mass - s) / (mass + s))
    return s.clamp_min(1e-6)
