"""Vectors and matrices of python-flint's arb numbers, as the checker needs them.

An arb is a midpoint and a radius: it contains the real number that it stands for, whatever was rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polybound.errors import PolyboundError
from polybound.models import Affine, Chain, Identity

try:
    import flint
except ImportError as error:  # pragma: no cover
    raise PolyboundError("the check needs python-flint: pip install 'polybound[check]'") from error

__all__ = [
    "Arb",
    "Map",
    "Rows",
    "Vector",
    "absolute",
    "add",
    "arb",
    "combine",
    "dominance",
    "dot",
    "lack",
    "largest",
    "mul",
    "product",
    "radii",
    "times",
    "transposed",
    "vector",
    "zeros",
]

Arb = Any
Vector = list[Any]
Rows = list[Vector]

arb, arb_mat = flint.arb, flint.arb_mat
flint.ctx.prec = 106


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

    def spread(self, radius: Vector) -> Vector:
        """`|W| radius`."""
        return _apply(self._absolute, radius)

    def back(self, y: Vector, absolute: bool = False) -> Vector:
        """`W' y`, or `|W|' y`."""
        return _apply(self._absolute_transposed if absolute else self._transposed, y)


def _apply(matrix: Any, x: Vector) -> Vector:
    values: Vector = (matrix * arb_mat([[value] for value in x])).entries()
    return values


def lack(M: Rows) -> Arb:
    """An arb above some delta >= 0 with `M + delta I` positive semidefinite.

    For any matrix L, `M = L L' + E`, and what E lacks, by Gershgorin, is all that M can lack. L is M's approximate
    Cholesky factor, computed in float64; it need not be believed.
    """
    n = len(M)
    middle = np.array([[float(value.mid()) for value in row] for row in M])
    size = float(np.abs(middle).max(initial=0.0))
    L = np.zeros((n, n))
    for shift in (1e-13, 1e-12, 1e-11, 1e-10, 1e-9):
        try:
            L = np.linalg.cholesky((middle + middle.T) / 2 - shift * size * np.eye(n))
            break
        except np.linalg.LinAlgError:
            try:
                L = np.linalg.cholesky((middle + middle.T) / 2 + shift * size * np.eye(n))
                break
            except np.linalg.LinAlgError:
                continue
    rows = [vector(row) for row in L.tolist()]
    square = product(rows, transposed(rows))
    return dominance([[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(M, square, strict=True)])


def dominance(M: Rows) -> Arb:
    """What M lacks of being diagonally dominant with a non-negative diagonal."""
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
