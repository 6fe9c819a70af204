"""What u ranges over in `x = c + r * u`, the cube or the unit ball, and how far linear forms of u move there."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from polybound.certificates.network import Network
from polybound.models import Windowed
from polybound.theory import ULP

__all__ = ["BALL", "CUBE", "Region", "length", "widths"]


class Region(ABC):
    """A set of u; every method returns upper bounds over it."""

    @abstractmethod
    def reach(self, net: Network, r: Tensor) -> list[Tensor]:
        """How far each unit of each factor, `A_n (r * u)`, moves: (boxes, units) each, for radii (boxes, features)."""

    @abstractmethod
    def norms(self, net: Network, r: Tensor) -> list[Tensor]:
        """The l_2 norms of `A_n (r * u)`: (boxes,) each."""

    @abstractmethod
    def radius(self, slope: Tensor) -> Tensor:
        """How far linear forms of u move, one for each unit: (boxes, units), for slopes (boxes, n, units)."""

    @abstractmethod
    def stretched(self, slope: Tensor) -> Tensor:
        """The l_2 norm of all these forms: (boxes,)."""


class _Cube(Region):
    """u in [-1, 1]^n."""

    def reach(self, net: Network, r: Tensor) -> list[Tensor]:
        return [A.linear(r) for A in net.absolute_A]

    def norms(self, net: Network, r: Tensor) -> list[Tensor]:
        # What underflows among the squares of r is multiplied by mu.
        return [(r.square() @ mu + (mu.sum() + 1.0) * 2.0**-1000).sqrt() for mu in net.stretch]

    def radius(self, slope: Tensor) -> Tensor:
        return widths(slope)

    def stretched(self, slope: Tensor) -> Tensor:
        return _largest(slope, slope.shape[1])


class _Ball(Region):
    r"""`||u||_2 <= 1`.

    A linear form `a.u` moves by `||a||_2`, and `||A (r * u)||_2` is at most the spectral norm of A times the largest
    radius. Rounded up, sums of squares scaled by their largest entries so that none underflows.
    """

    def reach(self, net: Network, r: Tensor) -> list[Tensor]:
        return [_window_lengths(A, r) if isinstance(A, Windowed) else _lengths(r, A.weight.T) for A in net.absolute_A]

    def norms(self, net: Network, r: Tensor) -> list[Tensor]:
        uniform = [r.amax(-1) * top for top in net.norms_A]
        weighted = [(r * mu.sqrt()).amax(-1) for mu in net.stretch]
        return [torch.minimum(a, b) * (1 + 16 * ULP) for a, b in zip(uniform, weighted, strict=True)]

    def radius(self, slope: Tensor) -> Tensor:
        return length(slope, dim=1)

    def stretched(self, slope: Tensor) -> Tensor:
        return _largest(slope, 1)


CUBE: Region = _Cube()
BALL: Region = _Ball()


def widths(slope: Tensor) -> Tensor:
    """How far a linear form of u in [-1, 1]^n moves, for every unit: the l1 norms of its columns."""
    radius: Tensor = torch.linalg.vector_norm(slope, 1, dim=1)
    return radius


def length(vectors: Tensor, dim: int = -1) -> Tensor:
    """The l_2 norms along a dimension, rounded up.

    >>> import torch
    >>> 0 <= float(length(torch.tensor([3e-200, 4e-200], dtype=torch.float64))) / 5e-200 - 1 < 1e-14
    True
    """
    if not vectors.shape[dim]:
        return vectors.sum(dim)
    largest = vectors.abs().amax(dim, keepdim=True).clamp_min(2.0**-900)
    norm: Tensor = torch.linalg.vector_norm(vectors / largest, 2, dim=dim)
    return norm * largest.squeeze(dim) * (1 + (vectors.shape[dim] + 16) * ULP)


def _lengths(r: Tensor, At: Tensor) -> Tensor:
    """The l_2 norms of the columns of `r * At`, for radii (boxes, features): (boxes, units)."""
    features = len(At)
    largest = r.amax(-1, keepdim=True).clamp_min(2.0**-900)
    part = (r / largest).square()
    top = At.amax(0).clamp_min(2.0**-900)
    norm = (part @ (At / top).square()).sqrt() * (1 + (features + 16) * ULP)
    # What underflowed among the squares, of numbers that are at most 1.
    return (norm + features * 2.0**-530) * largest * top


def _window_lengths(A: Windowed, r: Tensor) -> Tensor:
    """The same of a map that is kept window by window."""
    each = [length(A.weight * seen.unsqueeze(-1), dim=1) for seen in A.windows.seen(r)]
    return torch.stack(each).transpose(1, 2).flatten(1)


def _largest(slope: Tensor, square: float) -> Tensor:
    """An upper bound of `||slope^T u||_2` where `||u||_2^2 <= square`: (boxes,).

    The Gram matrix `g = slope^T slope`, divided by its trace, has `lambda_max^4 <= ||g^4||_F`. Everything in it is at
    most 1, and rounding adds at most `gamma_n` to g (in any norm, since `|| |slope|^T |slope| ||_2` is at most the
    trace) and `gamma_m` to each of its squares: less than what is added here to the fourth power.
    """
    n, units = slope.shape[1:]
    gram = slope.transpose(1, 2) @ slope
    trace = slope.square().sum((1, 2))
    g = (gram + gram.transpose(1, 2)) / (2 * trace.clamp_min(2.0**-900)).unsqueeze(-1).unsqueeze(-1)
    squared = g @ g
    fourth: Tensor = torch.linalg.vector_norm(squared @ squared.transpose(1, 2), dim=(1, 2))
    top = (fourth + 32 * (n + units + 8) * ULP).sqrt().sqrt()
    return (top * trace * square).sqrt() * (1 + (n * units + 32) * ULP) + 2.0**-440
