"""Symmetric matrices: proofs that they are positive semidefinite, and lower bounds of quadratics over [-1, 1]^n."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from polybound.theory import ULP

# Lower bounds of `G.u + u'Hu/2`.


def minorant(G: Tensor, H: Tensor, mu: Tensor, deficit: Tensor, v: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    r"""The separable lower bound that the shift mu and the point v prove.

    With `M = H + diag(mu)` and `(u - v)'M(u - v) >= -deficit ||u - v||^2`, for all u in [-1, 1]^n,

        G.u + u'Hu/2 >= -v'Mv/2 + (G + Mv).u - sum_d mu_d u_d^2 / 2 - 2 n deficit:

    `base + sum_d (p_d u_d - mu_d u_d^2 / 2)`. Every v proves a bound, and the minimiser of the convex problem
    `G.u + u'Mu/2` proves the best. No solver need be trusted. Returns base, (problems,), and p, (problems, n).

    Args:
        G: (problems, n).
        H: (problems, n, n).
        mu: (problems, n).
        deficit: (problems,), as `psd_deficit` gives it.
        v: (problems, n), in [-1, 1].
        size: the sum of the absolute values of H, (problems,).
    """
    n = G.shape[-1]
    Hv = (H @ v.unsqueeze(-1)).squeeze(-1)
    Mv = Hv + mu * v
    # |M| |v| <= |M| 1 bounds what the products with v round off, p and base together.
    off = (size + mu.abs().sum(-1) + G.abs().sum(-1)) * (4 * (n + 8) * ULP)
    base = -0.5 * (v * Mv).sum(-1) - 2 * n * deficit - off
    return base, G + Mv


def least_separable(base: Tensor, p: Tensor, mu: Tensor) -> Tensor:
    """The least value of `base + sum_d (p_d u_d - mu_d u_d^2 / 2)` for u in [-1, 1]^n, rounded down: (problems,)."""
    size = p.abs()
    # A coordinate's parabola opens downwards (mu >= 0) with its least value at an end, or upwards.
    inside = (mu < 0) & (size < -mu)
    least = torch.where(inside, p.square() / (2 * mu).clamp_max(-(2.0**-900)), -size - mu / 2)
    off = (size + mu.abs()).sum(-1) * ((p.shape[-1] + 16) * ULP)
    return base + least.sum(-1) - off - base.abs() * ULP


def absolute_rows(H: Tensor) -> Tensor:
    """The l_1 norms of the rows, (problems, n), without a copy of H."""
    rows: Tensor = torch.linalg.vector_norm(H, 1, dim=-1)
    return rows


def diagonally_dominant(H: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The shift mu that makes H diagonally dominant, and so positive semidefinite: `mu_d = sum_(e != d) |H_de| - H_dd`.

    Returns mu and the row sums of |H|, rounded up, (problems, n) each, and the sum of |H| as computed, (problems,).
    """
    n = H.shape[-1]
    diagonal = H.diagonal(dim1=-2, dim2=-1)
    sums = absolute_rows(H)
    rows = sums * (1 + (n + 8) * ULP)
    # Rounded up: the rows' sum by its own rounding, the subtraction by another.
    mu = (rows - diagonal.abs() - diagonal) + rows * (4 * ULP)
    return mu, rows, sums.sum(-1)


def descend(G: Tensor, H: Tensor, mu: Tensor, rows: Tensor, v: Tensor, steps: int) -> Tensor:
    """Some projected steps on `G.u + u'(H + diag(mu))u/2`, each coordinate with a step length of its own.

    `H + diag(mu) <= diag(rows + |mu|)` for the row sums of |H|, so that the value never rises.
    """
    scale = (rows + mu.abs()).clamp_min(2.0**-900)
    for _ in range(steps):
        slope = G + (H @ v.unsqueeze(-1)).squeeze(-1) + mu * v
        v = (v - slope / scale).clamp(-1.0, 1.0)
    return v


def spectral_shift(H: Tensor, pattern: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The least multiple (nearly) of a positive pattern that makes H positive semidefinite when added to its diagonal.

    The multiple is a guess; that it suffices is proven.

    Returns:
        mu: the multiple of the pattern, (problems, n).
        deficit: (problems,), see `psd_deficit`.
        mass: where the leading eigenvectors of what is shifted are large, (problems, n), with sum 1.
    """
    scale = pattern.sqrt()
    scaled = searchable(H / scale.unsqueeze(-1) / scale.unsqueeze(-2))
    if H.shape[-1] <= _SMALL:
        least, size, mass = _leading(*torch.linalg.eigh(scaled))
    else:
        least, size, mass = least_eigenvalues(lambda v: (scaled @ v.unsqueeze(-1)).squeeze(-1), pattern)
    mu = torch.zeros_like(pattern)
    deficit = torch.full_like(least, torch.inf)
    for more in (1e-10, 1e-3, 1e-2, 0.1):
        rows = torch.nonzero(deficit == torch.inf).squeeze(-1)
        if not len(rows):
            break
        mu[rows] = pattern[rows] * (least + more * size)[rows].unsqueeze(-1)
        M = H[rows]
        M.diagonal(dim1=1, dim2=2).add_(mu[rows])
        deficit[rows] = psd_deficit(M)
    return mu, deficit, mass


_SMALL = 96
"""Up to this size all eigenvalues are computed; above it, the least are approached by Lanczos' iteration."""


def _leading(values: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The least eigenvalue's opposite, the largest size of one, and the mass of `spectral_shift`."""
    least, size = -values[:, 0], values.abs().amax(-1)
    few = values[:, :6]
    least_size = 2.0**-500 if values.dtype == torch.float64 else 2.0**-100
    nearness = torch.softmax(-30 * (few - few[:, :1]) / size.clamp_min(least_size).unsqueeze(-1), -1)
    return least, size, (vectors[..., : few.shape[-1]].square() @ nearness.unsqueeze(-1)).squeeze(-1)


def least_eigenvalues(
    apply: Callable[[Tensor], Tensor], like: Tensor, steps: int = 24
) -> tuple[Tensor, Tensor, Tensor]:
    """Guesses by Lanczos' iteration: the least eigenvalue less its error, negated, the largest size, and the mass.

    Args:
        apply: symmetric matrices times vectors, (problems, n).
        like: a tensor of that shape and precision.
        steps: at most.
    """
    steps, generator = min(steps, like.shape[-1]), torch.Generator().manual_seed(0)
    v = torch.randn(like.shape, generator=generator, dtype=like.dtype)
    basis = [v / v.norm(dim=-1, keepdim=True)]
    T = like.new_zeros(len(like), steps, steps)
    length = torch.zeros_like(v[:, 0])
    for t in range(steps):
        v = apply(basis[t])
        T[:, t, t] = (v * basis[t]).sum(-1)
        span = torch.stack(basis, -1)
        for _ in range(2):  # twice is enough to stay orthogonal
            v = v - (span @ (span.transpose(1, 2) @ v.unsqueeze(-1))).squeeze(-1)
        length = v.norm(dim=-1)
        if t + 1 < steps:
            T[:, t, t + 1] = T[:, t + 1, t] = length
            basis.append(v / length.clamp_min(2.0**-500 if v.dtype == torch.float64 else 2.0**-100).unsqueeze(-1))
    values, vectors = (part.to(T.dtype) for part in torch.linalg.eigh(searchable(T.double())))
    # An eigenvalue of H lies within this distance of the least value found.
    values[:, 0] -= length * vectors[:, -1, 0].abs()
    return _leading(values, torch.stack(basis, -1) @ vectors)


# Proofs that a matrix is positive semidefinite.


def psd_deficit(M: Tensor) -> Tensor:
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
    networks. The result is then proven, by Cholesky, and widened until the proof succeeds.

    Args:
        At: (features, units).
        steps: how often the scaling is moved.
    """
    absolute = At.abs()
    worst = float(absolute.sum(1).max()) * float(absolute.sum(0).max())
    off = _off(absolute @ absolute.sum(0), At.shape[1])
    return _proven(_scaled(searchable(At), steps, gram=False), At @ At.T, off, worst)


def dominating_gram(gram: Tensor, rows: Tensor, units: int, steps: int = 40) -> Tensor:
    """The dominating diagonal of a Gram matrix, which is smaller than A if there are more units than features.

    Args:
        gram: `A^T A` as computed in float64, (features, features).
        rows: the row sums of `|A^T| |A|`, (features,).
        units: how many products each entry is a sum of.
        steps: how often the scaling is moved.
    """
    return _proven(_scaled(searchable(gram), steps, gram=True), gram, _off(rows, units), float(rows.max()))


def _off(rows: Tensor, units: int) -> float:
    """How far a computed Gram matrix is off: at most gamma_units |A^T| |A|, whose row sums bound its spectral norm."""
    return float(rows.max()) * (units + len(rows) + 8) * ULP + 2.0**-900


def _proven(best: Tensor, gram: Tensor, off: float, worst: float) -> Tensor:
    """A diagonal near the one that was found, widened until it is proven; `worst` bounds the Gram matrix's norm."""
    floor = float(best.max()) * 1e-12 + off
    for margin in (1e-9, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 1.0):
        mu = best * (1 + margin) + floor
        short = float(psd_deficit(torch.diag(mu) - gram))
        if short < torch.inf:
            return (mu + short + off) * (1 + 4 * ULP)
    # ||A||_2^2 <= ||A||_1 ||A||_inf, and no more than the largest row sum of |A^T| |A|.
    return torch.full_like(best, worst * (1 + 1e-9) + off)


def _scaled(M: Tensor, steps: int, gram: bool) -> Tensor:
    """The search for that diagonal: subspace iterations, while the scaling moves. Proves nothing.

    Args:
        M: A^T, (features, units), or `A^T A`.
        steps: how often the scaling is moved.
        gram: which of them it is.
    """
    s = torch.ones(len(M), dtype=M.dtype)
    basis = torch.randn(M.shape[1], min(8, *M.shape), generator=torch.Generator().manual_seed(0), dtype=M.dtype)
    best, least = s * float(M.diagonal().sum() if gram else M.square().sum()), torch.inf
    for t in range(steps):
        root = s.sqrt().unsqueeze(1)
        K = M if gram else M / root
        for _ in range(3 if 0 < t < steps - 1 else 20):
            moved = K @ (basis / root) / root if gram else K.T @ (K @ basis)
            basis = torch.linalg.qr(moved).Q
        moved = K @ (basis / root) / root if gram else K @ basis
        values, turn = torch.linalg.eigh((basis if gram else moved).T @ moved)
        top = float(values[-1])
        if not top > 0.0:
            break
        if float(s.sum()) * top * (1 + 1e-3) < least:
            least, best = float(s.sum()) * top, s * top
        leading = basis @ turn if gram else moved @ turn / values.clamp_min(2.0**-500).sqrt()
        s = _moved(s, leading, values, t)
    return best


def _moved(s: Tensor, leading: Tensor, values: Tensor, t: int) -> Tensor:
    """The scaling, moved towards where the leading eigenvectors are large."""
    mass = leading.square() @ torch.softmax((values / values[-1] - 1) * 30, 0) * len(s)
    s = s / s.mean() * torch.exp((0.5 / (1 + t / 30)) * (mass - s) / (mass + s))
    return s.clamp_min(1e-6)
