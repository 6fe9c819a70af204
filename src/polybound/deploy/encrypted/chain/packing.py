"""How one image is computed: where everything lies in the slots, how often they are rotated, and the evaluation.

The pixels are n complex numbers, padded to n' (a power of two) and repeated `S / n'` times in the S slots, copy c
shifted by c D, where `D = R n' / S`. Row r of the R rows of all factors is summed up in the slots `s = r mod R`:

    sum_(e < D) diagonal_e * rotate(pixels, e),   diagonal_e[s] = W[s mod R, column(s + e)]

meets every column once in the S / R slots of a row, and rotations by R, 2 R, ..., S / 2 add these up. Row `i M + r` is
unit r of factor i (M: the rank, padded), so rotations by R / 2, ..., M bring factors together that are multiplied. The
products then repeat with period M, and the output map is again a sum over diagonals, after which *every* slot holds a
whole logit, that of class `s mod T`: there are no partial sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from polybound.deploy.encrypted.chain.polynomial import Array, Polynomial
from polybound.deploy.encrypted.engine import Engine, Step
from polybound.deploy.encrypted.noise import peaks
from polybound.errors import PolyboundError

ComplexArray = npt.NDArray[np.complex128]


@dataclass(frozen=True)
class Pairs:
    """Where an image lies: pixel j and pixel j + n are one complex number, and all of them are repeated.

    Attributes:
        columns: the number n' of complex numbers, padded.
        shift: D, by which each copy is shifted against the one before.
        count: ciphertexts of an image, shifted by one slot each.
    """

    columns: int
    shift: int
    count: int

    def public(self) -> dict[str, Any]:
        """What a client is told of it."""
        return asdict(self)

    def fits(self, shape: Sequence[int], slots: int) -> bool:
        """Whether images of this shape have room."""
        return 1 <= self.count <= 8 and (prod(shape) + 1) // 2 <= self.columns <= slots

    def column(self, slots: int) -> npt.NDArray[np.int64]:
        """The column that lies in each slot of the first ciphertext."""
        slot = np.arange(slots)
        return (slot + self.shift * (slot // self.columns)) % self.columns

    def place(self, image: Array, slots: int) -> ComplexArray:
        """The slots (ciphertexts, slots) of an image (features,)."""
        pairs, n = np.zeros(self.columns, dtype=np.complex128), (len(image) + 1) // 2
        pairs[:n] = image[:n]
        pairs[: len(image) - n] += 1j * image[n:]
        return np.stack([np.roll(pairs[self.column(slots)], -t) for t in range(self.count)])


@dataclass(frozen=True)
class ChainLayout:
    """The layout of one image and of all that is computed from it; made by `of`.

    Attributes:
        slots: number S of complex slots.
        uploads: ciphertexts of an image, shifted by one slot each.
        depth: of the tree of products; it has `2^depth` factors.
        pairs: the number n of complex numbers that hold the pixels: pixel j and pixel j + n.
        units: the rank M, padded.
        rows: the number R of rows of all factors.
        columns: the number n' of columns, padded.
        diagonals: the number D of diagonals of the factors' maps.
        copies: the number of slots that each row is summed up in.
        baby: rotations of the pixels (their number, counting none as one).
        giant: of partial sums.
        class_period: the number T of slots after which the logits repeat.
        out_diagonals: the number of diagonals of the output map.
        out_baby: how many of them come from rotations of the products; a power of two near the root.
        out_giant: how many rotations of partial sums there are in the output map (counting none as one).
    """

    slots: int
    uploads: int
    depth: int
    pairs: int
    units: int
    rows: int
    columns: int
    diagonals: int
    copies: int
    baby: int
    giant: int
    class_period: int
    out_diagonals: int
    out_baby: int
    out_giant: int

    @staticmethod
    def of(polynomial: Polynomial, slots: int, uploads: int, baby: int) -> ChainLayout | None:
        """The layout with these powers of two; None if rows and columns have no room, or rotations divide nothing."""
        depth, pairs = (polynomial.degree - 1).bit_length(), (polynomial.features + 1) // 2
        units, period = _padded(polynomial.rank), _padded(polynomial.classes)
        rows = units << depth
        columns = max(_padded(pairs), rows, slots // rows)
        diagonals, last = rows * columns // slots, min(units, period)
        if max(rows, period, columns) > slots or uploads * baby > diagonals:
            return None
        out_baby = 1 << (last.bit_length() // 2)
        return ChainLayout(
            slots, uploads, depth, pairs, units, rows, columns, diagonals, slots // rows, baby,
            diagonals // (uploads * baby), period, last, out_baby, last // out_baby,
        )  # fmt: skip

    @property
    def packing(self) -> Pairs:
        """Where the pixels lie."""
        return Pairs(self.columns, self.diagonals, self.uploads)

    @property
    def calmest(self) -> tuple[int, float]:
        """The slot of the first logit, and how much larger the errors of key switches are near it than in the mean.

        The other classes follow. Of windows of the slots that the logits are gathered from it is the calmest.
        """
        first, peak = _calmest(self.slots, self.class_period, min(self.slots, self.class_period + self.units))
        return first, max(1.0, peak)

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
    def steps(self) -> tuple[int, ...]:
        """All rotations that the server needs keys for."""
        first = [(self.uploads, self.baby), (self.uploads * self.baby, self.giant)]
        last = [(1, self.out_baby), (self.out_baby, self.out_giant)]
        turned = {step for step, times in (*first, *last) if times > 1}
        return tuple(sorted({*self.folds, *self.tree, *self.out_folds, *turned}))


def _padded(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << (n - 1).bit_length()


@lru_cache
def _calmest(slots: int, period: int, window: int) -> tuple[int, float]:
    """The first slot of the calmest window, a multiple of the period, and its highest peak."""
    height, starts = peaks(slots), np.arange(0, slots, period)
    worst = np.max([height[(starts + n) % slots] for n in range(window)], axis=0)
    best = int(np.argmin(worst))
    return int(starts[best]), float(worst[best])


# The network's weights as diagonals: plain numbers only, by the layout's formulas.


def factor_diagonals(layout: ChainLayout, polynomial: Polynomial) -> Iterator[tuple[int, int, int, ComplexArray]]:
    """The slots of the factors' weights: (giant step, ciphertext, baby step, slots), the largest giant step first.

    Partial sum g is rotated by `g uploads baby` after it was formed, so its weights are rotated back by as much.
    """
    # The maps as complex numbers whose real part, with the packed pixels, is `W x / 2`.
    n, rows = layout.pairs, np.zeros((layout.rows, layout.columns), dtype=np.complex128)
    for i, W in enumerate(polynomial.W):
        block = rows[i * layout.units : i * layout.units + polynomial.rank]
        block[:, :n] = W[:, :n] / 2
        block[:, : polynomial.features - n] -= 1j * W[:, n:] / 2
    column, slot = layout.packing.column(layout.slots), np.arange(layout.slots)
    stride = layout.uploads * layout.baby
    for g in reversed(range(layout.giant)):
        for b in range(layout.baby):
            for t in range(layout.uploads):
                e = t + layout.uploads * b + stride * g
                diagonal = rows[slot % layout.rows, column[(slot + e) % layout.slots]]
                yield g, t, b * layout.uploads, np.roll(diagonal, stride * g)


def factor_constants(layout: ChainLayout, polynomial: Polynomial) -> Array:
    """The factors' constants in their slots; one for the factors that fill up the tree."""
    values = np.zeros((1 << layout.depth, layout.units))
    values[: polynomial.degree, : polynomial.rank] = polynomial.b
    values[polynomial.degree :, : polynomial.rank] = 1.0
    return np.resize(values.ravel(), layout.slots)


def output_diagonals(layout: ChainLayout, polynomial: Polynomial) -> Iterator[tuple[int, int, int, Array]]:
    """The slots of the output map's weights, as those of the factors."""
    C = np.zeros((layout.class_period, layout.units))
    C[: polynomial.classes, : polynomial.rank] = polynomial.C
    slot = np.arange(layout.slots)
    for g in reversed(range(layout.out_giant)):
        for b in range(layout.out_baby):
            diagonal = C[slot % layout.class_period, (slot + b + layout.out_baby * g) % layout.units]
            yield g, 0, b, np.roll(diagonal, layout.out_baby * g)


class ChainEvaluation:
    """A chain with its weights encoded.

    Args:
        layout: the layout.
        polynomial: the network.
        weights: binary logarithm of the scale of the factors' maps.
        output: of the scale of the output map.
        primes: the number of data primes.
        engine: the engine that encodes.
    """

    def __init__(
        self, layout: ChainLayout, polynomial: Polynomial, weights: float, output: float, primes: int, engine: Engine
    ) -> None:
        self.layout, self.primes = layout, primes

        def encoded(diagonals: Iterator[tuple[int, int, int, Any]], scale: float, left: int) -> list[Step]:
            steps: dict[int, list[tuple[int, int, Any]]] = {}
            for giant, read, baby, slots in diagonals:
                plain = engine.encode(slots, 2.0**scale, left)
                steps.setdefault(giant, []).extend([] if plain is None else [(read, baby, plain)])
            if not any(steps.values()):
                raise PolyboundError("the network's weights are zero, or too small to count: it is constant")
            return list(steps.items())

        self._weights = encoded(factor_diagonals(layout, polynomial), weights, primes)
        self._constants = factor_constants(layout, polynomial)
        self._output = encoded(output_diagonals(layout, polynomial), output, primes - layout.depth)

    def __call__(self, engine: Engine, inputs: Sequence[Any], done: Callable[[int], None]) -> list[Any]:
        """The ciphertext of the logits, without their constants."""
        layout = self.layout

        def babies(value: Any, step: int, times: int) -> dict[int, Any]:
            turned = {0: value}
            for n in range(1, times):
                turned[n * step] = engine.rotate(turned[(n - 1) * step], step)
            return turned

        def folded(value: Any, steps: Sequence[int]) -> Any:
            for step in steps:
                value = engine.add(value, engine.rotate(value, step))
            return value

        # All factors `W_i x + b_i`, row i M + r in the slots `s = i M + r mod R`. One key serves all giant steps.
        pixels = {t: babies(one, layout.uploads, layout.baby) for t, one in enumerate(inputs)}
        values = folded(engine.total(self._weights, pixels, layout.uploads * layout.baby), layout.folds)
        values = engine.shift(engine.add(values, engine.conjugate(values)), self._constants)

        # The product of all factors of each unit, r in the slots `s = r mod M`.
        for n, step in enumerate(layout.tree, 1):
            values = engine.rescaled(engine.product(values, engine.rotate(values, step)), self.primes - n)

        # The logits, that of class o in the slots `s = o mod T`.
        products = {0: babies(values, 1, layout.out_baby)}
        logits = folded(engine.total(self._output, products, layout.out_baby), layout.out_folds)
        if self.primes > layout.depth + 1:
            logits = engine.rescaled(logits, 1)
        done(1)
        return [logits]
