"""Lower bounds of a quadratic over the cube [-1, 1]^n, each with its proof."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polybound.certificates.psd import defect, searchable
from polybound.theory import ULP

__all__ = ["Separable", "absolute_rows", "diagonally_dominant", "minorant", "spectral_shift"]


@dataclass(frozen=True, eq=False)
class Separable:
    """`G.u + u'Hu/2 >= base + sum_d (p_d u_d - mu_d u_d^2 / 2)` for all u in [-1, 1]^n; one row a problem.

    Attributes:
        base: (problems,), rounded down.
        p: (problems, n).
        mu: (problems, n).
        v: the point at which the convex part was linearised; its signs are a corner to try.
    """

    base: Tensor
    p: Tensor
    mu: Tensor
    v: Tensor

    def lower(self) -> Tensor:
        """The least value of the right side, rounded down."""
        size = self.p.abs()
        # A coordinate's parabola opens downwards (mu >= 0) with its least value at an end, or upwards.
        inside = (self.mu < 0) & (size < -self.mu)
        least = torch.where(inside, self.p.square() / (2 * self.mu).clamp_max(-(2.0**-900)), -size - self.mu / 2)
        off = (size + self.mu.abs()).sum(-1) * ((self.p.shape[-1] + 16) * ULP)
        return self.base + least.sum(-1) - off - self.base.abs() * ULP


def minorant(G: Tensor, H: Tensor, mu: Tensor, lack: Tensor, v: Tensor) -> Separable:
    r"""The separable lower bound that the shift mu and the point v prove.

    With `M = H + diag(mu)` and `(u - v)'M(u - v) >= -lack ||u - v||^2`,

        G.u + u'Hu/2 >= -v'Mv/2 + (G + Mv).u - sum_d mu_d u_d^2 / 2 - 2 n lack:

    every v proves a bound, and the minimiser of the convex problem `G.u + u'Mu/2` proves the best. No solver need be
    trusted.

    Args:
        G: (problems, n).
        H: (problems, n, n).
        mu: (problems, n).
        lack: (problems,), as `defect` gives it.
        v: (problems, n), in [-1, 1].
    """
    n = G.shape[-1]
    Hv = (H @ v.unsqueeze(-1)).squeeze(-1)
    Mv = Hv + mu * v
    # |M| |v| <= |M| 1 bounds what the products with v round off, p and base together.
    off = (absolute_rows(H).sum(-1) + mu.abs().sum(-1) + G.abs().sum(-1)) * (4 * (n + 8) * ULP)
    base = -0.5 * (v * Mv).sum(-1) - 2 * n * lack - off
    return Separable(base, G + Mv, mu, v)


def absolute_rows(H: Tensor) -> Tensor:
    """The l_1 norms of the rows, (problems, n), without a copy of H."""
    rows: Tensor = torch.linalg.vector_norm(H, 1, dim=-1)
    return rows


def diagonally_dominant(H: Tensor) -> tuple[Tensor, Tensor]:
    """The shift mu that makes H diagonally dominant, and so positive semidefinite: `mu_d = sum_(e != d) |H_de| - H_dd`.

    Returns mu (problems, n) and the row sums of |H| (problems, n).
    """
    n = H.shape[-1]
    diagonal = H.diagonal(dim1=-2, dim2=-1)
    rows = absolute_rows(H) * (1 + (n + 8) * ULP)
    # Rounded up: the rows' sum by its own rounding, the subtraction by another.
    mu = (rows - diagonal.abs() - diagonal) + rows * (4 * ULP)
    return mu, rows


def descend(G: Tensor, H: Tensor, mu: Tensor, rows: Tensor, v: Tensor, steps: int) -> Tensor:
    """Some projected steps on `G.u + u'(H + diag(mu))u/2`, each coordinate with a step length of its own.

    `H + diag(mu) <= diag(rows + |mu|)` for the row sums of |H|, so that the value never rises.
    """
    scale = (rows + mu.abs()).clamp_min(2.0**-900)
    for _ in range(steps):
        slope = G + (H @ v.unsqueeze(-1)).squeeze(-1) + mu * v
        v = (v - slope / scale).clamp(-1.0, 1.0)
    return v


@dataclass(frozen=True, eq=False)
class Shift:
    """A diagonal that makes H positive semidefinite, proven but for `lack` (see `defect`).

    Attributes:
        mu: (problems, n).
        lack: (problems,).
        mass: where the leading eigenvectors of what is shifted are large, (problems, n), with sum 1.
    """

    mu: Tensor
    lack: Tensor
    mass: Tensor


def spectral_shift(H: Tensor, pattern: Tensor) -> Shift:
    """The least multiple (nearly) of a positive pattern that makes H positive semidefinite when added to its diagonal.

    The multiple is a guess; that it suffices is proven.
    """
    scale = pattern.sqrt()
    scaled = searchable(H / scale.unsqueeze(-1) / scale.unsqueeze(-2))
    values, vectors = torch.linalg.eigh(scaled) if H.shape[-1] <= _SMALL else _lanczos(scaled)
    least, size = -values[:, 0], values.abs().amax(-1)
    few = values[:, :6]
    nearness = torch.softmax(-30 * (few - few[:, :1]) / size.clamp_min(2.0**-500).unsqueeze(-1), -1)
    mass = (vectors[..., : few.shape[-1]].square() @ nearness.unsqueeze(-1)).squeeze(-1)
    mu = torch.zeros_like(pattern)
    lack = torch.full_like(least, torch.inf)
    for more in (1e-10, 1e-3, 1e-2, 0.1):
        rows = torch.nonzero(lack == torch.inf).squeeze(-1)
        if not len(rows):
            break
        mu[rows] = pattern[rows] * (least + more * size)[rows].unsqueeze(-1)
        lack[rows] = defect(H[rows] + torch.diag_embed(mu[rows]))
    return Shift(mu, lack, mass)


_SMALL = 96
"""Up to this size all eigenvalues are computed; above it, the least are approached by Lanczos' iteration."""


def _lanczos(H: Tensor, steps: int = 24) -> tuple[Tensor, Tensor]:
    """Approximate eigenvalues, rising, and eigenvectors in the columns; the least value less its error."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(H.shape[:-1], generator=generator, dtype=H.dtype)
    basis = [v / v.norm(dim=-1, keepdim=True)]
    T = H.new_zeros(len(H), steps, steps)
    length = torch.zeros_like(v[:, 0])
    for t in range(steps):
        v = (H @ basis[t].unsqueeze(-1)).squeeze(-1)
        T[:, t, t] = (v * basis[t]).sum(-1)
        span = torch.stack(basis, -1)
        for _ in range(2):  # twice is enough to stay orthogonal
            v = v - (span @ (span.transpose(1, 2) @ v.unsqueeze(-1))).squeeze(-1)
        length = v.norm(dim=-1)
        if t + 1 < steps:
            T[:, t, t + 1] = T[:, t + 1, t] = length
            basis.append(v / length.clamp_min(2.0**-500).unsqueeze(-1))
    values, vectors = torch.linalg.eigh(T)
    # An eigenvalue of H lies within this distance of the least value found.
    values[:, 0] -= length * vectors[:, -1, 0].abs()
    return values, torch.stack(basis, -1) @ vectors
