"""What a checked certificate is about, in ball arithmetic: a box, or an l_2 ball within a domain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polybound.certificates.arb_algebra import (
    Arb,
    Rows,
    Vector,
    absolute,
    arb,
    dot,
    largest,
    product,
    radii,
    transposed,
    vector,
)
from polybound.errors import PolyboundError

if TYPE_CHECKING:
    from polybound.certificates.enclosures import Enclosures

__all__ = ["Ball", "Box", "Place", "RefusedError"]


class RefusedError(PolyboundError):
    """A certificate is not proven."""


class Place(ABC):
    """A set of points `c + r u`; the methods bound what linear forms of u do there."""

    @abstractmethod
    def centre(self) -> tuple[Vector, Vector]:
        """The centre c and the radii r."""

    @abstractmethod
    def spread(self, owner: Enclosures, r: Vector) -> list[Vector]:
        """How far each unit of each factor moves."""

    @abstractmethod
    def norms(self, owner: Enclosures, r: Vector) -> Vector:
        """The l_2 norm of all units of each factor."""

    @abstractmethod
    def across(self, rows: Rows) -> Vector:
        """How far each row, a linear form of u, moves."""

    @abstractmethod
    def stretched(self, rows: Rows) -> Arb:
        """The l_2 norm of all of them."""

    @abstractmethod
    def away(self, p: Vector, on: list[int], /) -> Arb:
        """The largest `-p.u`, for u in the coordinates `on`."""


@dataclass(frozen=True)
class Box(Place):
    """Sides of a box, float64 numbers."""

    lower: list[float]
    upper: list[float]

    def with_sides(self, sides: list[list[float]]) -> Box:
        """The same box with other sides, [coordinate, lower, upper] each; they must lie within the old ones."""
        lower, upper = list(self.lower), list(self.upper)
        for coordinate, low, high in sides:
            d = int(coordinate)
            if not self.lower[d] <= low <= high <= self.upper[d]:
                raise RefusedError("a box does not lie in the one before it")
            lower[d], upper[d] = low, high
        return Box(lower, upper)

    def centre(self) -> tuple[Vector, Vector]:
        """Halfway between the sides."""
        low, high = vector(self.lower), vector(self.upper)
        pairs = list(zip(low, high, strict=True))
        return [(a + b) / 2 for a, b in pairs], [(b - a) / 2 for a, b in pairs]

    def spread(self, owner: Enclosures, r: Vector) -> list[Vector]:
        """`|A_n| r`."""
        return [A.spread(r) for A in owner.A]

    def norms(self, owner: Enclosures, r: Vector) -> Vector:
        """By the diagonals that dominate `A_n' A_n`."""
        squares = [v * v for v in r]
        return [dot(mu, squares).sqrt() for mu in owner.stretch]

    def across(self, rows: Rows) -> Vector:
        """Their l_1 norms."""
        return radii(rows)

    def stretched(self, rows: Rows) -> Arb:
        """The norm of the matrix times that of a corner of the cube."""
        return (_top(rows) * len(rows[0])).sqrt()

    def away(self, p: Vector, _on: list[int], /) -> Arb:
        """At a corner."""
        return sum(absolute(p), arb(0))


@dataclass(frozen=True)
class Ball(Place):
    """`sum_d ((x'_d - x_d) / r_d)^2 <= 1`, with `low <= u <= high` where the domain cuts it."""

    x: list[float]
    r: list[float]
    low: Vector
    high: Vector

    @staticmethod
    def within(x: list[float], r: list[float], domain: list[list[float]] | None) -> Ball:
        """A ball in a domain, sides for each feature."""
        low, high = ([arb(side) for _ in x] for side in (-1, 1))
        if domain is not None:
            for d, (value, radius) in enumerate(zip(x, r, strict=True)):
                if radius > 0:
                    low[d] = low[d].max((arb(domain[0][d]) - arb(value)) / arb(radius))
                    high[d] = high[d].min((arb(domain[1][d]) - arb(value)) / arb(radius))
        return Ball(x, r, low, high)

    def centre(self) -> tuple[Vector, Vector]:
        """As they were asked."""
        return vector(self.x), vector(self.r)

    def spread(self, owner: Enclosures, r: Vector) -> list[Vector]:
        """The l_2 norms of the scaled rows."""
        return [self.across([[a * b for a, b in zip(row, r, strict=True)] for row in A.rows]) for A in owner.A]

    def norms(self, owner: Enclosures, r: Vector) -> Vector:
        """By spectral norms, and by the diagonals that dominate `A_n' A_n`."""
        widest = largest(r)
        weighted = [largest([m.sqrt() * v for m, v in zip(mu, r, strict=True)]) for mu in owner.stretch]
        return [(top * widest).min(other) for top, other in zip(owner.tops, weighted, strict=True)]

    def across(self, rows: Rows) -> Vector:
        """Their l_2 norms."""
        return [_length(row) for row in rows]

    def stretched(self, rows: Rows) -> Arb:
        """The norm of the matrix."""
        return _top(rows).sqrt()

    def away(self, p: Vector, on: list[int], /) -> Arb:
        """By a split `p = -a + (p + a)`: `||a||_2` over the ball, the rest over the limits. Any a proves a bound."""
        low, high = [self.low[d] for d in on], [self.high[d] for d in on]
        a = vector(_shares([float(v.mid()) for v in p], low, high))
        rest = [u + v for u, v in zip(p, a, strict=True)]
        over = sum(((-v * s).max(-v * t) for v, s, t in zip(rest, low, high, strict=True)), arb(0))
        return _length(p).min(_length(a) + over)


def _shares(p: list[float], low: Vector, high: Vector) -> list[float]:
    """`lam u` where `u = clamp(-p / lam)` has length 1, nearly, by bisection; proves nothing."""
    sides = [(float(s.mid()), float(t.mid())) for s, t in zip(low, high, strict=True)]

    def clamped(lam: float) -> list[float]:
        return [min(max(-v / lam, s), t) for v, (s, t) in zip(p, sides, strict=True)]

    least, most = 0.0, sum(v * v for v in p) ** 0.5
    if most == 0.0:
        return [0.0] * len(p)
    for _ in range(50):
        lam = (least + most) / 2
        least, most = (lam, most) if sum(u * u for u in clamped(lam)) > 1.0 else (least, lam)
    return [most * u for u in clamped(most)]


def _length(row: Vector) -> Arb:
    # A ball about a square near zero may hold negative numbers, which have no root.
    return sum((v * v for v in row), arb(0)).abs_upper().sqrt()


def _top(rows: Rows) -> Arb:
    """A bound of the largest eigenvalue of `B B'`: the fourth root of `||(B B')^4||_F`."""
    gram = product(rows, transposed(rows))
    square = product(gram, gram)
    fourth = product(square, square)
    return sum((value * value for row in fourth for value in row), arb(0)).sqrt().sqrt().sqrt()
