"""Where everything lies in the slots of one image's ciphertexts, and how often they are rotated.

The pixels are n complex numbers, padded to n' (a power of two) and repeated `S / n'` times in the S slots, copy c
shifted by c D, where `D = R n' / S`. Row r of the R rows of all factors is summed up in the slots `s = r mod R`:

    sum_(e < D) diagonal_e * rotate(pixels, e),   diagonal_e[s] = W[s mod R, column(s + e)]

meets every column once in the S / R slots of a row, and rotations by R, 2 R, ..., S / 2 add these up. Row `i M + r` is
unit r of factor i (M: the rank, padded), so rotations by R / 2, ..., M bring factors together that are multiplied. The
products then repeat with period M, and the output map is again a sum over diagonals, after which *every* slot holds a
whole logit, that of class `s mod T`: there are no partial sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from polybound.deploy.encrypted.polynomial import Array, Polynomial


@dataclass(frozen=True)
class Layout:
    """The layout of one image.

    Attributes:
        features: number d of pixels.
        classes: number of logits.
        rank: number of units.
        depth: of the tree of products; it has `2^depth` factors.
        slots: number S of complex slots.
        uploads: ciphertexts of an image, shifted by one slot each.
        baby: rotations of the pixels (their number, counting none as one).
    """

    features: int
    classes: int
    rank: int
    depth: int
    slots: int
    uploads: int
    baby: int

    def fits(self) -> bool:
        """Whether the sizes make sense, rows and columns have room, and the rotations divide the diagonals."""
        sizes = (self.features, self.classes, self.rank, self.slots, self.uploads, self.baby)
        if min(sizes) < 1 or not 0 <= self.depth < 8 or any(n & (n - 1) for n in sizes[3:]):
            return False
        if max(self.rows, self.class_period) > self.slots:
            return False
        return self.columns <= self.slots and self.uploads * self.baby <= self.diagonals

    @property
    def pairs(self) -> int:
        """The number n of complex numbers that hold the pixels: pixel j and pixel j + n."""
        return (self.features + 1) // 2

    @property
    def units(self) -> int:
        """The rank M, padded."""
        return _padded(self.rank)

    @property
    def rows(self) -> int:
        """The number R of rows of all factors."""
        return self.units << self.depth

    @property
    def columns(self) -> int:
        """The number n' of columns, padded."""
        return max(_padded(self.pairs), self.rows, self.slots // self.rows)

    @property
    def diagonals(self) -> int:
        """The number D of diagonals of the factors' maps."""
        return self.rows * self.columns // self.slots

    @property
    def copies(self) -> int:
        """The number of slots that each row is summed up in."""
        return self.slots // self.rows

    @property
    def giant(self) -> int:
        """The number of rotations of partial sums (counting none as one)."""
        return self.diagonals // (self.uploads * self.baby)

    @property
    def class_period(self) -> int:
        """The number T of slots after which the logits repeat."""
        return _padded(self.classes)

    @property
    def first(self) -> int:
        """The slot of the first logit; those of the other classes follow."""
        return self._window[0]

    @property
    def peak(self) -> float:
        """How much larger the errors of key switches are near the logits' slots than in the mean; as variances."""
        return max(1.0, self._window[1])

    @property
    def _window(self) -> tuple[int, float]:
        # The output map gathers from as many slots after a logit's own as there are units.
        return _calmest(self.slots, self.class_period, min(self.slots, self.class_period + self.units))

    @property
    def out_diagonals(self) -> int:
        """The number of diagonals of the output map."""
        return min(self.units, self.class_period)

    @property
    def out_baby(self) -> int:
        """How many of them come from rotations of the products; a power of two near the root."""
        return 1 << (self.out_diagonals.bit_length() // 2)

    @property
    def out_giant(self) -> int:
        """How many rotations of partial sums there are in the output map (counting none as one)."""
        return self.out_diagonals // self.out_baby

    @property
    def folds(self) -> list[int]:
        """The steps that add up the copies of the rows."""
        return [self.rows << n for n in range(self.copies.bit_length() - 1)]

    @property
    def tree(self) -> list[int]:
        """The steps that bring factors together, one a level."""
        return [self.rows >> (n + 1) for n in range(self.depth)]

    @property
    def out_folds(self) -> list[int]:
        """The steps that add up what is left of the output map where the rank is above the classes."""
        return [self.class_period << n for n in range((self.units // self.out_diagonals).bit_length() - 1)]

    @property
    def steps(self) -> list[int]:
        """All rotations that the server needs keys for."""
        first = [(self.uploads, self.baby), (self.uploads * self.baby, self.giant)]
        last = [(1, self.out_baby), (self.out_baby, self.out_giant)]
        turned = {step for step, times in (*first, *last) if times > 1}
        return sorted({*self.folds, *self.tree, *self.out_folds, *turned})

    def column(self) -> npt.NDArray[np.int64]:
        """The column that lies in each slot of the first ciphertext."""
        slot = np.arange(self.slots)
        return (slot + self.diagonals * (slot // self.columns)) % self.columns


@lru_cache
def peaks(slots: int) -> npt.NDArray[np.float64]:
    """How much the error of a key switch is larger in a slot than in the mean of all: a ratio of variances.

    SEAL's digits lie between 0 and q_i, not around 0. Their mean adds `(1 + X + ... + X^(N-1)) e(X) q_i / 2` to the
    error, which at the root of unity z of a slot is `2 / (1 - z)` times e(z): large where z is near 1.
    """
    ring = 2 * slots
    exponents = np.array([pow(3, slot, 2 * ring) for slot in range(slots)])
    return 0.25 + 0.75 / (ring * np.sin(np.pi * exponents / (2 * ring)) ** 2)


def _padded(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << (n - 1).bit_length()


@lru_cache
def _calmest(slots: int, period: int, window: int) -> tuple[int, float]:
    """The first slot of the calmest window, a multiple of the period, and its highest peak."""
    height = peaks(slots)
    starts = np.arange(0, slots, period)
    worst = np.zeros(len(starts))
    for n in range(window):
        np.maximum(worst, height[(starts + n) % slots], out=worst)
    best = int(np.argmin(worst))
    return int(starts[best]), float(worst[best])


# Images to slots, and the network's weights to diagonals: plain numbers only, by the layout's formulas.


ComplexArray = npt.NDArray[np.complex128]


def pack(layout: Layout, image: Array) -> list[ComplexArray]:
    """The slots of an image's ciphertexts: pixel j and pixel j + n are one complex number."""
    pairs = np.zeros(layout.columns, dtype=np.complex128)
    n = layout.pairs
    pairs[:n] = image[:n]
    pairs[: layout.features - n] += 1j * image[n:]
    slots = pairs[layout.column()]
    return [np.roll(slots, -t) for t in range(layout.uploads)]


def factor_diagonals(layout: Layout, polynomial: Polynomial) -> Iterator[list[list[ComplexArray]]]:
    """The slots of the factors' weights, giant step by giant step, each (baby, uploads).

    Partial sum g is rotated by `g uploads baby` after it was formed, so its weights are rotated back by as much.
    """
    # The maps as complex numbers whose real part, with the packed pixels, is `W x / 2`.
    n, rows = layout.pairs, np.zeros((layout.rows, layout.columns), dtype=np.complex128)
    for i, W in enumerate(polynomial.W):
        block = rows[i * layout.units : i * layout.units + polynomial.rank]
        block[:, :n] = W[:, :n] / 2
        block[:, : layout.features - n] -= 1j * W[:, n:] / 2
    column, slot = layout.column(), np.arange(layout.slots)
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
