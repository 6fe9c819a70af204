"""Where the entries of a value lie in the slots of some ciphertexts, and matrices from one layout to another.

An entry's address is made of the bits of its place in an image, in any order: the lower bits of an address are the
slot, the higher ones the number of the ciphertext. So bits that a pooling will sum over can lie in the number of the
ciphertext, where a sum is an addition; in the highest bit of the slot, where it is one rotation. Values that need
fewer slots than there are repeat with a period; those of an input may repeat inside as well, so that three channels lie
below as many as a convolution makes of them.

A matrix is a sum over *diagonals*, weights of all entries with one distance between the slot that is read and the slot
that is written: `y = sum_d w_d * rotated(x, d)`. With `d = g m + b`, the rotations by b (baby steps) serve all, and
what has the same g is rotated together (giant steps), from the largest to the smallest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from polybound.deploy.encrypted.graph.entries import Array, Bit, Ints, Pattern

REPEATED: Bit = (-1, 0)
"""A bit of the slot that can be anything: the values repeat."""


@dataclass(frozen=True)
class Layout:
    """Addresses of the entries of a value.

    Attributes:
        shape: of the value.
        low: the bits of the slot, lowest first; None is a bit that is always zero, `REPEATED` one that does not matter.
        high: the bits of the ciphertext's number.
        folded: bits that were summed over; entries with such a bit are not there.
    """

    shape: tuple[int, ...]
    low: tuple[Bit | None, ...]
    high: tuple[Bit, ...] = ()
    folded: tuple[Bit, ...] = ()

    def public(self) -> dict[str, Any]:
        """What a client is told of it, besides the shape."""
        return {"low": self.low, "high": self.high}

    def fits(self, shape: Sequence[int], slots: int) -> bool:
        """Whether each bit of a place in images of this shape is there once, and has room."""
        bits = [bit for bit in (*self.low, *self.high) if bit is not None and bit[0] >= 0]
        wanted = [(axis, bit) for axis, n in enumerate(shape) for bit in range((n - 1).bit_length())]
        return self.period <= slots and len(self.high) <= 4 and sorted(bits) == wanted

    @cached_property
    def address(self) -> Ints:
        """The address of every entry, `ciphertext * period + slot`; -1 for those that are not there."""
        grid = np.zeros(self.shape, dtype=np.int64)
        for axis in range(len(self.shape)):
            grid = grid + self.part(axis).reshape(-1, *(1,) * (len(self.shape) - axis - 1))
        return np.maximum(grid.ravel(), -1)

    def part(self, axis: int | None) -> Ints:
        """The part of an address that a place on an axis gives, below zero for places that are not there; None: all."""
        if axis is None:
            return self.address
        places = np.arange(self.shape[axis])
        part = np.zeros(len(places), dtype=np.int64)
        for position, bit in enumerate((*self.low, *self.high)):
            if bit is not None and bit[0] == axis:
                part |= (places >> bit[1] & 1) << position
        for gone, number in self.folded:
            if gone == axis:
                part[places >> number & 1 == 1] = -(2**40)
        return part

    @property
    def period(self) -> int:
        """After how many slots the values repeat."""
        return 1 << len(self.low)

    @property
    def count(self) -> int:
        """The number of ciphertexts."""
        return 1 << len(self.high)

    @cached_property
    def repeats(self) -> Ints:
        """What the bits that do not matter add to a slot: all their combinations."""
        found = np.zeros(1, dtype=np.int64)
        for position, bit in enumerate(self.low):
            if bit == REPEATED:
                found = np.concatenate([found, found + (1 << position)])
        return found

    def place(self, values: Array, slots: int) -> Array:
        """The slots (..., ciphertexts, slots) of values (..., size)."""
        there = self.address >= 0
        found = np.zeros((*values.shape[:-1], self.count * self.period), dtype=values.dtype)
        for more in self.repeats:
            found[..., self.address[there] + more] = values[..., there]
        found = found.reshape(*values.shape[:-1], self.count, self.period)
        return np.tile(found, (1,) * (found.ndim - 1) + (slots // self.period,))

    def fold(self, bits: Sequence[Bit]) -> tuple[Layout, list[Fold]]:
        """The layout after sums over these bits, and how they are made: those of ciphertexts first."""
        low, high, steps = list(self.low), list(self.high), list[Fold]()
        for position in reversed(range(len(high))):
            if high[position] in bits:
                steps.append(Fold(0, 1 << position))
                del high[position]
        for position in reversed(range(len(low))):
            if low[position] in bits:
                steps.append(Fold(1 << position, 0))
                low[position] = None
        while low and low[-1] is None:
            low.pop()
        return Layout(self.shape, tuple(low), tuple(high), (*self.folded, *bits)), steps


@dataclass(frozen=True)
class Fold:
    """One sum over a bit: of slots `step` apart, or of ciphertexts whose numbers are `apart` apart."""

    step: int
    apart: int


def layouts_for(shape: Sequence[int], slots: int, repeats: int = 0) -> list[Layout]:
    """The layouts of a value that are worth a trial: places, channels above them, and some phases at the top.

    Places may have gaps, as poolings leave them, or channels in the place of these gaps: a map that follows a pooling
    then reads and writes places that are equally far apart.

    Args:
        shape: of the value.
        slots: of a ciphertext.
        repeats: up to this number of bits, channels may repeat, while there are no more than four ciphertexts.
    """
    bits, width = [(n - 1).bit_length() for n in shape], (slots - 1).bit_length()
    if len(shape) == 1:
        orders: list[list[Bit | None]] = [[(0, bit) for bit in range(bits[0])]]
    else:
        orders = []
        channels = [(0, bit) for bit in range(bits[0])]
        axes = range(len(shape) - 1, 0, -1)
        choices = [(phases, 0, False) for phases in range(min(4, 1 + max(bits[1:])))]
        for phases, gaps, filled in [*choices, (0, 1, False), (0, 2, False), (0, 1, True), (0, 2, True)]:
            low, above = list[Bit | None](), list(channels)
            for axis in axes:
                low += [above.pop() if filled and above else None for _ in range(gaps)]
                low += [(axis, bit) for bit in range(min(phases, bits[axis]), bits[axis])]
            if gaps and len(low) + len(above) > width:
                continue
            top = [(axis, bit) for bit in range(phases - 1, -1, -1) for axis in axes if bit < bits[axis]]
            for more in range(repeats + 1):
                if not more or len(low) + len(above) + more + len(top) <= width + 2:
                    orders.append([*low, *above, *[REPEATED] * more, *top])
    found = [
        Layout(tuple(shape), tuple(order[:width]), tuple(bit for bit in order[width:] if bit is not None))
        for order in orders
        if REPEATED not in order[width:]
    ]
    return list(dict.fromkeys(found))


@dataclass(frozen=True, eq=False)
class Reach:
    """Which diagonals a matrix between two layouts has: each once.

    Attributes:
        source: the layout of its columns.
        target: of its rows.
        distance: rotations from the slot that is read to the one that is written.
        read: the ciphertext that is read.
        write: the ciphertext that is written.
    """

    source: Layout
    target: Layout
    distance: Ints
    read: Ints
    write: Ints

    @property
    def modulus(self) -> int:
        """Distances that differ by it are the same."""
        return min(self.source.period, self.target.period)

    @property
    def folds(self) -> list[int]:
        """Rotations that add up partial sums, where the target repeats more often than the source."""
        steps, step = [], self.target.period
        while step < self.source.period:
            steps.append(step)
            step *= 2
        return steps

    def split(self, stride: int, offset: int) -> tuple[Ints, Ints]:
        """The giant and the baby step of every diagonal, `d = stride giant + baby`, `-offset <= baby`."""
        shifted = self.distance + offset
        return shifted // stride % max(1, self.modulus // stride), shifted % stride - offset

    @staticmethod
    def of(patterns: Sequence[Pattern], source: Layout, target: Layout) -> Reach:
        """The diagonals of all entries whose places on every axis are in the axis' pattern."""
        # An address is a sum over the axes, and so is the difference of two.
        keys = np.zeros(1, dtype=np.int64)
        width = 4 * max(source.period, target.period)
        for pattern in patterns:
            rows, columns = np.nonzero(pattern.table)
            to, at = target.part(pattern.axis)[rows], source.part(pattern.axis)[columns]
            there = at >= 0
            to, at = to[there], at[there]
            distance = at % source.period - (to % target.period & ~int(source.repeats[-1]))
            key = (to // target.period * source.count + at // source.period) * width + distance
            keys = np.unique((keys[:, None] + np.unique(key)).ravel())
        keys = (keys[:, None] - (target.repeats & ~int(source.repeats[-1]))).ravel()
        distance = (keys + width // 2) % width - width // 2
        ciphertexts = (keys - distance) // width
        key = ciphertexts * width + distance % min(source.period, target.period)
        key = np.unique(key)
        distance, ciphertexts = key % width, key // width
        return Reach(source, target, distance, ciphertexts % source.count, ciphertexts // source.count)


@dataclass(frozen=True, eq=False)
class Diagonals(Reach):
    """A matrix between layouts, entry by entry: distance, read and write are not each once.

    Attributes:
        row: the slot of the target that an entry is for.
        column: the slot that it reads.
        weight: its value.
    """

    row: Ints
    column: Ints
    weight: Array

    @staticmethod
    def from_entries(rows: Ints, columns: Ints, values: Array, source: Layout, target: Layout) -> Diagonals:
        """The diagonals of entries: rows of the target, columns of the source."""
        copies = target.repeats
        out = (target.address[rows][:, None] + copies).ravel()
        at, values = source.address[columns].repeat(len(copies)), values.repeat(len(copies))
        row = out % target.period
        column = at % source.period + (row & int(source.repeats[-1]))
        distance = (column - row) % min(source.period, target.period)
        read, write = at // source.period, out // target.period
        return Diagonals(source, target, distance, read, write, row, column, values)

    @cached_property
    def reach(self) -> Reach:
        """Which diagonals there are."""
        table = np.zeros(self.target.count * self.source.count * self.modulus, dtype=bool)
        table[(self.write * self.source.count + self.read) * self.modulus + self.distance] = True
        key = np.flatnonzero(table)
        both = key // self.modulus
        return Reach(self.source, self.target, key % self.modulus, both % self.source.count, both // self.source.count)

    def weights(self, stride: int, offset: int, slots: int) -> Iterator[tuple[int, int, int, int, Array]]:
        """The slots of the weights: (written, giant, read, baby, slots), from the largest giant step to the smallest.

        They are rotated back by the giant step, which comes after them.
        """
        if not len(self.weight):
            return
        giant, baby = self.split(stride, offset)
        # A slot that is written: the row's, or, where partial sums are added up later, where it is read.
        partial = self.source.period > self.target.period
        slot = (self.column - giant * stride - baby) % self.source.period if partial else self.row
        low, most = int(baby.min(initial=0)), int(giant.max(initial=0))
        span = int(baby.max(initial=0)) - low + 1
        key = ((self.write * (most + 1) + most - giant) * self.source.count + self.read) * span + baby - low
        order = np.argsort(key, kind="stable")
        starts = np.flatnonzero(np.diff(key[order], prepend=-1))
        for part in np.split(order, starts[1:]):
            first = part[0]
            found = np.zeros(max(self.source.period, self.target.period))
            found[slot[part]] = self.weight[part]
            found = np.roll(np.tile(found, slots // len(found)), stride * int(giant[first]))
            yield int(self.write[first]), int(giant[first]), int(self.read[first]), int(baby[first]), found
