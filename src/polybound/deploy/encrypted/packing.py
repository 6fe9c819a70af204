"""Images to slots, and the network's weights to diagonals: plain numbers only, by the layout's formulas."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from polybound.deploy.encrypted.layout import Layout
from polybound.deploy.encrypted.polynomial import Array, Polynomial

__all__ = ["ComplexArray", "constants", "factor_diagonals", "output_constants", "output_diagonals", "pack"]

ComplexArray = npt.NDArray[np.complex128]


def pack(layout: Layout, image: Array) -> list[ComplexArray]:
    """The slots of an image's ciphertexts: pixel j and pixel j + n are one complex number."""
    pairs = np.zeros(layout.columns, dtype=np.complex128)
    n = layout.pairs
    pairs[:n] = image[:n]
    pairs[: layout.features - n] += 1j * image[n:]
    slots = pairs[layout.column()]
    return [np.roll(slots, -t) for t in range(layout.uploads)]


def _rows(layout: Layout, polynomial: Polynomial) -> ComplexArray:
    """The factors' maps as (rows, columns) complex numbers, whose real part with the packed pixels is `W x / 2`."""
    n, d = layout.pairs, layout.features
    rows = np.zeros((layout.rows, layout.columns), dtype=np.complex128)
    for i, W in enumerate(polynomial.W):
        block = rows[i * layout.units : i * layout.units + polynomial.rank]
        block[:, :n] = W[:, :n] / 2
        block[:, : d - n] -= 1j * W[:, n:] / 2
    return rows


def factor_diagonals(layout: Layout, polynomial: Polynomial) -> Iterator[list[list[ComplexArray]]]:
    """The slots of the factors' weights, giant step by giant step, each (baby, uploads).

    Partial sum g is rotated by `g uploads baby` after it was formed, so its weights are rotated back by as much.
    """
    rows, column, slot = _rows(layout, polynomial), layout.column(), np.arange(layout.slots)
    stride = layout.uploads * layout.baby
    for g in range(layout.giant):
        partial = []
        for b in range(layout.baby):
            shifts = [t + layout.uploads * b + stride * g for t in range(layout.uploads)]
            diagonals = [rows[slot % layout.rows, column[(slot + e) % layout.slots]] for e in shifts]
            partial.append([np.roll(diagonal, stride * g) for diagonal in diagonals])
        yield partial


def constants(layout: Layout, polynomial: Polynomial) -> Array:
    """The factors' constants in their slots; one for the factors that fill up the tree."""
    values = np.zeros((1 << layout.depth, layout.units))
    values[: polynomial.degree, : polynomial.rank] = polynomial.b
    values[polynomial.degree :, : polynomial.rank] = 1.0
    return np.resize(values.ravel(), layout.slots)


def output_diagonals(layout: Layout, polynomial: Polynomial) -> Iterator[list[Array]]:
    """The slots of the output map's weights, giant step by giant step."""
    C = np.zeros((layout.class_period, layout.units))
    C[: polynomial.classes, : polynomial.rank] = polynomial.C
    slot = np.arange(layout.slots)
    for g in range(layout.out_giant):
        shifts = [b + layout.out_baby * g for b in range(layout.out_baby)]
        diagonals = [C[slot % layout.class_period, (slot + e) % layout.units] for e in shifts]
        yield [np.roll(diagonal, layout.out_baby * g) for diagonal in diagonals]


def output_constants(layout: Layout, polynomial: Polynomial) -> Array:
    """The output map's constants in their slots."""
    values = np.zeros(layout.class_period)
    values[: polynomial.classes] = polynomial.beta
    return np.resize(values, layout.slots)
