r"""Midpoint-radius arithmetic on whole tensors, which the check of deep networks computes with.

A value is a float64 tensor m and a radius r for each entry: the real number lies in `[m - r, m + r]`. Radii are rounded
upwards by factors that are larger than what any of these lines rounds.

What is trusted: float64 of IEEE 754 in PyTorch, where a sum, a product, a quotient or a root is off by at most `u =
2^-53` of itself, and by `2^-1022` where it underflows; and that a matrix product or a convolution adds the products of
its definition, in any order, so that n of them are off by at most `gamma_n = n u / (1 - n u)` of the sum of their
absolute values. A fast algorithm that adds and subtracts other numbers (Strassen's, Winograd's) is none of these;
PyTorch has none for float64 on CPUs. Of each map, n is its `terms`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from polybound.certificates.proofs.schema import RefusedError
from polybound.models import Affine

U = 2.0**-52
"""Twice the unit roundoff."""

LEAST = 2.0**-980
"""More than 2^40 roundings lose where they underflow."""

MORE = 1 + 2.0**-40
"""More than a thousand roundings change a sum of numbers that are not negative."""


def off(terms: int) -> float:
    """More than `gamma_n` twice."""
    return (terms + 8) * 2 * U


def up_sum(values: Tensor, dim: int = -1) -> Tensor:
    """At least the sums of numbers that are not negative."""
    return values.sum(dim) * (MORE + off(values.shape[dim])) + LEAST


@dataclass(frozen=True, eq=False)
class MidRad:
    """Numbers that lie within `rad` of `mid`; both are finite."""

    mid: Tensor
    rad: Tensor

    def __post_init__(self) -> None:
        if not bool((self.mid.abs() + self.rad).isfinite().all()):
            raise RefusedError("a proof's numbers leave the range of float64")

    @staticmethod
    def exact(values: Tensor | float) -> MidRad:
        """The numbers themselves."""
        mid = torch.as_tensor(values, dtype=torch.float64)
        return MidRad(mid, torch.zeros_like(mid))

    @staticmethod
    def between(lower: Tensor, upper: Tensor) -> MidRad:
        """Numbers between two float64 numbers."""
        mid = lower + (upper - lower) / 2
        rad = _up(torch.maximum(upper - mid, mid - lower))
        return MidRad(mid, torch.where(upper > lower, rad, 0.0))

    @property
    def lower(self) -> Tensor:
        """Float64 numbers that are not above."""
        return torch.where(self.rad > 0, -_up(self.rad - self.mid), self.mid)

    @property
    def upper(self) -> Tensor:
        """Float64 numbers that are not below."""
        return torch.where(self.rad > 0, _up(self.mid + self.rad), self.mid)

    @property
    def largest(self) -> Tensor:
        """At least the absolute values."""
        return (self.mid.abs() + self.rad) * MORE

    def __neg__(self) -> MidRad:
        return MidRad(-self.mid, self.rad)

    def __add__(self, other: MidRad | Tensor | float) -> MidRad:
        other = other if isinstance(other, MidRad) else MidRad.exact(other)
        mid = self.mid + other.mid
        return MidRad(mid, (self.rad + other.rad + U * mid.abs()) * MORE + LEAST)

    def __mul__(self, other: MidRad | Tensor | float) -> MidRad:
        other = other if isinstance(other, MidRad) else MidRad.exact(other)
        mid = self.mid * other.mid
        rad = self.mid.abs() * other.rad + self.rad * other.mid.abs() + self.rad * other.rad
        return MidRad(mid, (rad + U * mid.abs()) * MORE + LEAST)

    def looser(self, by: Tensor | float) -> MidRad:
        """With a larger radius."""
        return MidRad(self.mid, (self.rad + by) * MORE)

    def through(self, move: Callable[[Tensor], Tensor], absolute: Callable[[Tensor], Tensor], terms: int) -> MidRad:
        """Through a linear map `y_i = sum_j w_ij x_j`.

        Args:
            move: computes it, with at most `terms` roundings of every product.
            absolute: the same with `|w_ij|`.
            terms: of the map.
        """
        # |W| r + gamma |W| |m|: the second term twice, which is more than what computing it loses.
        rad = absolute((self.rad + off(terms) * self.mid.abs()) * MORE + LEAST)
        return MidRad(move(self.mid), rad * (MORE + off(terms)) + LEAST)

    def times(self, matrix: Tensor) -> MidRad:
        """`x W` for an exact matrix, (n, m)."""
        return self.through(lambda t: t @ matrix, lambda t: t @ matrix.abs(), len(matrix))

    def sum(self) -> MidRad:
        """The sum over the last dimension."""
        return self.through(lambda t: t.sum(-1), lambda t: t.sum(-1), self.mid.shape[-1])


def _up(values: Tensor) -> Tensor:
    return torch.nextafter(values + LEAST, torch.full_like(values, torch.inf))


def choose(mask: Tensor, one: MidRad, other: MidRad) -> MidRad:
    """One where the mask is set, the other where it is not."""
    return MidRad(torch.where(mask, one.mid, other.mid), torch.where(mask, one.rad, other.rad))


def linear(part: Affine, value: MidRad) -> MidRad:
    """`W x` of a single map, for x (rows, inputs)."""
    return value.through(part.linear, part.absolute().linear, part.terms)


def parts_of(step: Affine) -> tuple[tuple[Affine, ...], float]:
    """The single maps of a chain, whose product would be rounded, and its shift."""
    return getattr(step, "maps", (step,)), getattr(step, "shift", 0.0)


def pull(step: Affine, form: MidRad) -> tuple[MidRad, MidRad]:
    """A form of a map's value, (1, outputs), as a form of its source and a constant."""
    maps, shift = parts_of(step)
    constant = form.sum() * shift
    for part in reversed(maps):
        constant = constant + (form * part.constant).sum()
        form = form.through(part.adjoint, part.absolute().adjoint, part.terms)
    return form, constant


class MidRads:
    """The algebra: where values lie, (1, size), when inputs lie in boxes or are points."""

    def affine(self, step: Affine, value: MidRad) -> MidRad:
        """`W x + b`."""
        maps, shift = parts_of(step)
        for part in maps:
            value = linear(part, value) + part.constant
        return value + shift if shift else value

    def sum(self, values: Sequence[MidRad]) -> MidRad:
        """The sum."""
        return reduce(MidRad.__add__, values)

    def product(self, left: MidRad, right: MidRad) -> MidRad:
        """Between the least and the largest product of ends; a square is not negative."""
        ends = [a * b for a in (left.lower, left.upper) for b in (right.lower, right.upper)]
        least, most = -_up(-reduce(torch.minimum, ends)), _up(reduce(torch.maximum, ends))
        if left is right:
            inside = (left.lower < 0) & (left.upper > 0)
            least = torch.where(inside, 0.0, -_up(-torch.minimum(ends[0], ends[3]))).clamp_min(0.0)
        return MidRad.between(least, most)


def psd_deficit(M: Tensor, error: float) -> float:
    """Some delta >= 0 with `M + E + delta I` positive semidefinite, for every symmetric E of norm at most `error`.

    For any matrix L, `M = L L' + R`, and what R lacks, at most its Frobenius norm, is all that M can lack. L is an
    approximate factor; it need not be believed. `L L'` is computed up to `gamma_n |L| |L|'`, of norm `gamma_n |L|_F^2`.

    Args:
        M: (n, n), exactly symmetric.
        error: norm of what M is off.
    """
    size, L = float(M.diagonal().abs().sum()), torch.zeros_like(M)
    for shift in (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9):
        found, info = torch.linalg.cholesky_ex(M + shift * size * torch.eye(len(M), dtype=M.dtype))
        if int(info) == 0 and bool(found.isfinite().all()):
            L = found
            break
    rest = M - L @ L.T
    lost = float(length(rest.flatten(), 0)) * MORE + off(len(M)) * float(up_sum(L.square().flatten())) * MORE
    return (lost + error) * MORE + LEAST


def length(values: Tensor, dim: int) -> Tensor:
    """At least the l_2 norms."""
    # A square that underflows is of a number below 2^-490.
    return values.square().sum(dim).sqrt() * (MORE + off(values.shape[dim])) + values.shape[dim] * 2.0**-480
