"""Vectors and matrices of python-flint's arb numbers, and the sets of inputs that a checked certificate is about.

An arb is a midpoint and a radius: it contains the real number that it stands for, whatever was rounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polybound.certificates.proofs.schema import RefusedError
from polybound.errors import PolyboundError
from polybound.models import Affine, Chain, Identity

try:
    import flint
except ImportError as error:  # pragma: no cover
    raise PolyboundError("the check needs python-flint: pip install 'polybound[check]'") from error

if TYPE_CHECKING:
    from polybound.certificates.proofs.enclosures import Enclosures

Arb = Any
Vector = list[Any]
Rows = list[Vector]

arb, arb_mat = flint.arb, flint.arb_mat

PRECISION = 106
"""Bits that the check computes with."""


def vector(values: Any) -> Vector:
    """Float64 numbers as exact arbs."""
    return [arb(float(value)) for value in values]


def zeros(n: int) -> Vector:
    """N times zero."""
    return [arb(0)] * n


def product(a: Rows, b: Rows) -> Rows:
    """The matrix product."""
    if not a or not b or not b[0]:
        return [zeros(len(b[0]) if b else 0) for _ in a]
    rows: Rows = (arb_mat(a) * arb_mat(b)).tolist()
    return rows


def transposed(a: Rows) -> Rows:
    """The transposed matrix."""
    return [list(column) for column in zip(*a, strict=True)]


def times(a: Rows, v: Vector) -> Vector:
    """A matrix times a vector."""
    return [row[0] for row in product(a, [[value] for value in v])] if a and v else zeros(len(a))


def exact_map(step: Affine) -> tuple[Rows, Vector]:
    """The matrix and the constant of an affine map, multiplied out in arbs."""
    if isinstance(step, Chain):
        matrix, constant = exact_map(step.maps[0])
        for part in step.maps[1:]:
            W, b = exact_map(part)
            matrix = product(W, matrix)
            constant = [u + v for u, v in zip(times(W, constant), b, strict=True)]
        return matrix, [value + arb(step.shift) for value in constant]
    if isinstance(step, Identity):
        return [[arb(int(i == j)) for j in range(step.inputs)] for i in range(step.outputs)], zeros(step.outputs)
    # A single map's matrix has its weights as entries: nothing is rounded in it.
    return [vector(row) for row in step.matrix().tolist()], vector(step.constant.tolist())


class Map:
    """An affine map in arbs, with its transpose and their absolute values at hand.

    Attributes:
        rows: the matrix W.
        constant: b.
    """

    def __init__(self, step: Affine) -> None:
        self.rows, self.constant = exact_map(step)
        self._matrix = arb_mat(self.rows)
        self._absolute = arb_mat([[abs(value) for value in row] for row in self.rows])
        self._transposed, self._absolute_transposed = self._matrix.transpose(), self._absolute.transpose()

    def __call__(self, x: Vector) -> Vector:
        """`W x + b`."""
        return [u + v for u, v in zip(_apply(self._matrix, x), self.constant, strict=True)]

    def reach(self, radius: Vector) -> Vector:
        """`|W| radius`."""
        return _apply(self._absolute, radius)

    def back(self, y: Vector, absolute: bool = False) -> Vector:
        """`W' y`, or `|W|' y`."""
        return _apply(self._absolute_transposed if absolute else self._transposed, y)


def _apply(matrix: Any, x: Vector) -> Vector:
    values: Vector = (matrix * arb_mat([[value] for value in x])).entries()
    return values


def psd_deficit(M: Rows) -> Arb:
    """An arb above some delta >= 0 with `M + delta I` positive semidefinite.

    For any matrix L, `M = L L' + E`, and what E lacks, by Gershgorin, is all that M can lack. L is M's approximate
    Cholesky factor, computed in float64; it need not be believed.
    """
    n = len(M)
    middle = np.array([[float(value.mid()) for value in row] for row in M])
    middle = middle / 2 + middle.T / 2
    size = float(np.abs(middle).max(initial=0.0))
    L: np.typing.NDArray[Any] = np.zeros((n, n))
    with np.errstate(all="ignore"):  # what overflows is not finite, and proves nothing
        for shift in (-1e-13, 1e-13, -1e-12, 1e-12, -1e-11, 1e-11, -1e-10, 1e-10, -1e-9, 1e-9):
            try:
                L = np.linalg.cholesky(middle + shift * size * np.eye(n))
                break
            except np.linalg.LinAlgError:
                continue
    rows = [vector(row) for row in L.tolist()]
    square = product(rows, transposed(rows))
    return dominance([[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(M, square, strict=True)])


def dominance(M: Rows) -> Arb:
    """The least delta >= 0 for which `M + delta I` is diagonally dominant, with a diagonal that is not negative."""
    worst = arb(0)
    for d, row in enumerate(M):
        off = sum((abs(value) for e, value in enumerate(row) if e != d), arb(0))
        worst = worst.max(off - row[d])
    return worst


def add(a: Vector, b: Vector) -> Vector:
    """The sum, entry by entry."""
    return [u + v for u, v in zip(a, b, strict=True)]


def mul(a: Vector, b: Vector) -> Vector:
    """The product, entry by entry."""
    return [u * v for u, v in zip(a, b, strict=True)]


def dot(a: Vector, b: Vector) -> Arb:
    """The inner product."""
    return sum((u * v for u, v in zip(a, b, strict=True)), arb(0))


def largest(values: Vector) -> Arb:
    """The largest of some numbers and zero."""
    largest = arb(0)
    for value in values:
        largest = largest.max(value)
    return largest


def radii(rows: Rows) -> Vector:
    """The l1 norm of each row."""
    return [sum((abs(v) for v in row), arb(0)) for row in rows]


def absolute(values: Vector) -> Vector:
    """Absolute values."""
    return [abs(value) for value in values]


def combine(A: Rows, a: Vector, B: Rows, b: Vector) -> Rows:
    """`diag(a) A + diag(b) B`."""
    return [[u * s + v * t for u, v in zip(x, y, strict=True)] for x, y, s, t in zip(A, B, a, b, strict=True)]


@dataclass(frozen=True)
class Box:
    """Points `c + r u` with u in [-1, 1]^n, by the sides of their box, float64 numbers."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def with_sides(self, sides: Iterable[tuple[int, float, float]]) -> Box:
        """The box with new sides in some coordinates, (coordinate, lower, upper) each, within the old ones."""
        lower, upper = list(self.lower), list(self.upper)
        for d, low, high in sides:
            if not self.lower[d] <= low <= high <= self.upper[d]:
                raise RefusedError("a box does not lie in the one before it")
            lower[d], upper[d] = low, high
        return Box(tuple(lower), tuple(upper))

    def centre(self) -> tuple[Vector, Vector]:
        """The centre c, halfway between the sides, and the radii r."""
        low, high = vector(self.lower), vector(self.upper)
        pairs = list(zip(low, high, strict=True))
        return [(a + b) / 2 for a, b in pairs], [(b - a) / 2 for a, b in pairs]

    def reach(self, owner: Enclosures, r: Vector) -> list[Vector]:
        """How far each unit of each factor moves, `|A_n| r`."""
        return [A.reach(r) for A in owner.A]

    def norms(self, owner: Enclosures, r: Vector) -> Vector:
        """The l_2 norm of all units of each factor, by the diagonals that dominate `A_n' A_n`."""
        squares = [v * v for v in r]
        return [dot(mu, squares).sqrt() for mu in owner.stretch]

    def across(self, rows: Rows) -> Vector:
        """How far each row, a linear form of u, moves: their l_1 norms."""
        return radii(rows)

    def stretched(self, rows: Rows) -> Arb:
        """The l_2 norm of all rows: the norm of the matrix times that of a corner of the cube."""
        return (_top(rows) * len(rows[0])).sqrt()

    def away(self, p: Vector, _on: list[int], /) -> Arb:
        """The largest `-p.u`, for u in the coordinates `on`: at a corner."""
        return sum(absolute(p), arb(0))


@dataclass(frozen=True)
class Ball:
    """Points `c + r u` with `||u||_2 <= 1`, and `low <= u <= high` where the domain cuts it."""

    x: tuple[float, ...]
    r: tuple[float, ...]
    low: Vector
    high: Vector

    @staticmethod
    def within(
        x: tuple[float, ...], r: tuple[float, ...], domain: tuple[tuple[float, ...], tuple[float, ...]] | None
    ) -> Ball:
        """A ball in a domain, sides for each feature."""
        low, high = ([arb(side) for _ in x] for side in (-1, 1))
        if domain is not None:
            for d, (value, radius) in enumerate(zip(x, r, strict=True)):
                if radius > 0:
                    low[d] = low[d].max((arb(domain[0][d]) - arb(value)) / arb(radius))
                    high[d] = high[d].min((arb(domain[1][d]) - arb(value)) / arb(radius))
        return Ball(x, r, low, high)

    def centre(self) -> tuple[Vector, Vector]:
        """The centre and the radii, as they were asked."""
        return vector(self.x), vector(self.r)

    def reach(self, owner: Enclosures, r: Vector) -> list[Vector]:
        """The l_2 norms of the scaled rows."""
        return [self.across([[a * b for a, b in zip(row, r, strict=True)] for row in A.rows]) for A in owner.A]

    def norms(self, owner: Enclosures, r: Vector) -> Vector:
        """The l_2 norms, by spectral norms and by the diagonals that dominate `A_n' A_n`."""
        if owner.tops is None:
            raise RefusedError("a ball needs the norms of the factors' maps")
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
        """The largest `-p.u`: a split `p = -a + (p + a)`, a over the ball, the rest over the limits; any a will do."""
        low, high = [self.low[d] for d in on], [self.high[d] for d in on]
        a = vector(_shares([float(v.mid()) for v in p], low, high))
        rest = [u + v for u, v in zip(p, a, strict=True)]
        over = sum(((-v * s).max(-v * t) for v, s, t in zip(rest, low, high, strict=True)), arb(0))
        return _length(p).min(_length(a) + over)


Place = Box | Ball
"""A set of points; its methods bound what linear forms of u do there."""


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
