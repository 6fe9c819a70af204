"""The entries of affine maps that nobody wrote out: found by applying the maps to a few vectors.

A map between images connects places that are near each other. So places that are far apart are probed together: their
results do not overlap. A 3x3 convolution of 32 channels takes 9 times 32 vectors, whatever the image's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from polybound.models import Affine

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

Maps = tuple[Affine, ...]
"""Maps one after another, in float64; constants are kept elsewhere."""

Bit = tuple[int, int]
"""(axis, bit of a place on it)."""

_BATCH = 2**22
"""Numbers of the results of one batch of probes."""


def apply(maps: Maps, x: torch.Tensor) -> torch.Tensor:
    """`W_n ... W_1 x`."""
    for step in maps:
        x = step.linear(x)
    return x


def transposed(maps: Maps, y: torch.Tensor) -> torch.Tensor:
    """`W_1^T ... W_n^T y`."""
    for step in reversed(maps):
        y = step.adjoint(y)
    return y


def summed_bits(maps: Maps, shape: Sequence[int]) -> tuple[Bit, ...]:
    """The bits of a place in an image on which a map does not depend: it sees sums over them.

    Poolings are such maps. With z = W^T r for random r, columns of W are equal where z is, with probability one. Places
    that an image of another size than a power of two lacks count as zeros.
    """
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(1, maps[-1].outputs, generator=generator, dtype=torch.float64)
    grid = transposed(maps, z).reshape(tuple(shape)).numpy()
    close = 1e-9 * np.abs(grid).max()
    found = []
    for axis, n in enumerate(shape):
        for bit in range((n - 1).bit_length()):
            high = np.flatnonzero(np.arange(n) >> bit & 1)
            # A column without its partner is the partner's, whose slot holds a zero.
            if np.allclose(grid.take(high, axis), grid.take(high - (1 << bit), axis), rtol=0, atol=close):
                found.append((axis, bit))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Pattern:
    """Which places on an axis a map connects.

    Attributes:
        axis: its number, on both sides; None stands for the whole vectors.
        table: (places in the result, places in the source).
    """

    axis: int | None
    table: npt.NDArray[np.bool_]


def patterns_of(maps: Maps, kept: npt.NDArray[np.bool_], shape: Sequence[int], result: Sequence[int]) -> list[Pattern]:
    """The patterns of a map: for each axis, if both sides are images of as many axes, else one of all entries.

    Args:
        maps: the map.
        kept: the entries of the source that count.
        shape: of the source.
        result: the shape of the result.
    """
    absolute = tuple(step.absolute() for step in maps)
    if len(shape) != len(result) or len(shape) == 1:
        rows = _rows(absolute, kept)
        return [Pattern(None, rows > 0)]
    grid, found = torch.from_numpy(kept.reshape(tuple(shape)).astype(np.float64)), []
    for axis, n in enumerate(shape):
        probes = torch.zeros(n, *shape, dtype=torch.float64)
        for place in range(n):
            probes[place].select(axis, place).copy_(grid.select(axis, place))
        reached = apply(absolute, probes.reshape(n, -1)).reshape(n, *result)
        others = [1 + other for other in range(len(shape)) if other != axis]
        found.append(Pattern(axis, (reached.amax(others) > 0).T.numpy()))
    return found


def _rows(maps: Maps, kept: npt.NDArray[np.bool_]) -> Array:
    """The whole matrix, zero at columns that do not count: from the side that has fewer entries."""
    inputs, outputs, columns = maps[0].inputs, maps[-1].outputs, np.flatnonzero(kept)
    if outputs <= len(columns):
        whole = np.concatenate(
            [transposed(maps, part).numpy() for part in torch.split(torch.eye(outputs, dtype=torch.float64), 64)]
        )
        return np.asarray(whole * kept)
    whole = np.zeros((outputs, inputs))
    for part in np.array_split(columns, len(columns) // 64 + 1):
        probes = torch.zeros(len(part), inputs, dtype=torch.float64)
        probes[torch.arange(len(part)), torch.from_numpy(part)] = 1.0
        whole[:, part] = apply(maps, probes).T.numpy()
    return whole


def entries_of(
    maps: Maps, kept: npt.NDArray[np.bool_], patterns: Sequence[Pattern], shape: Sequence[int], result: Sequence[int]
) -> tuple[Ints, Ints, Array]:
    """The rows, columns and values of a map's entries that are not zero."""
    if patterns[0].axis is None:
        whole = _rows(maps, kept)
        rows, columns = np.nonzero(whole)
        return rows.astype(np.int64), columns.astype(np.int64), whole[rows, columns]
    grid = kept.reshape(tuple(shape))
    owners = [_owners(pattern.table) for pattern in patterns]
    probes: list[Array] = []
    sources: list[Ints] = []
    found: list[tuple[Ints, Ints, Array]] = []

    def flush() -> None:
        if not probes:
            return
        values = apply(maps, torch.from_numpy(np.stack(probes))).numpy()
        for row, source in zip(values, sources, strict=True):
            there = np.flatnonzero((row != 0) & (source >= 0))
            found.append((there, source[there], row[there]))
        probes.clear()
        sources.clear()

    for choice in product(*owners):
        source = np.zeros(result, dtype=np.int64)
        chosen = np.ones(shape, dtype=bool)
        for axis, owner in enumerate(choice):
            sides = [1] * len(shape)
            sides[axis] = -1
            source = source * shape[axis] + np.where(owner < 0, -(2**40), owner).reshape(sides)
            member = np.zeros(shape[axis], dtype=bool)
            member[owner[owner >= 0]] = True
            chosen &= member.reshape(sides)
        probes.append((chosen & grid).ravel().astype(np.float64))
        sources.append(source.ravel())
        if len(probes) * prod(result) > _BATCH:
            flush()
    flush()
    if not found:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
    return tuple(np.concatenate(part) for part in zip(*found, strict=True))  # type: ignore[return-value]


def _owners(table: npt.NDArray[np.bool_]) -> list[Ints]:
    """Places in groups whose results do not overlap: for each group, the place that every result is of, or -1."""
    groups: list[Ints] = []
    for place in np.flatnonzero(table.any(0)):
        rows = table[:, place]
        for owner in groups:
            if (owner[rows] < 0).all():
                owner[rows] = place
                break
        else:
            owner = np.full(len(table), -1, dtype=np.int64)
            owner[rows] = place
            groups.append(owner)
    return groups
