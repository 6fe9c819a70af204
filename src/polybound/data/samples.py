"""What a source of data hands over: arrays as they are in its files, and the carving of splits from them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from polybound.errors import PolyboundError

__all__ = ["TEST_SHARE", "Samples", "carve", "hold_out"]

TEST_SHARE = 0.2  # of data that come without an official test split


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and labels of one split, not yet scaled.

    Attributes:
        x: inputs, (samples, *shape): bytes, or float32 that are in [-1, 1] already.
        y: labels, (samples,), from 0 on.
        class_names: one name for each class.
        groups: what each sample belongs to, if those of one group must stay on one side of a split.
        note: see Dataset.
    """

    x: npt.NDArray[np.uint8] | npt.NDArray[np.float32]
    y: npt.NDArray[np.int64]
    class_names: tuple[str, ...]
    groups: npt.NDArray[np.int64] | None = None
    note: str = ""

    def __getitem__(self, chosen: npt.NDArray[np.intp]) -> Samples:
        groups = None if self.groups is None else self.groups[chosen]
        return replace(self, x=self.x[chosen], y=self.y[chosen], groups=groups)


def carve(samples: Samples, share: float, seed: int) -> tuple[Samples, Samples]:
    """Divide samples into what is left and a carved part, stratified by class.

    Of each class the same share is carved, rounded such that the sum is right, and never all of it. If samples have
    groups, whole groups are carved, so the shares are only as near as groups allow. Equal seeds give equal splits, with
    any version of any library.

    Args:
        samples: what to divide.
        share: the carved part of it, above 0 and below 1.
        seed: another one carves another part.

    Returns:
        What is left, and the carved part; both in the order of samples.
    """
    if not 0 < share < 1:
        raise PolyboundError(f"a share of samples must lie between 0 and 1, got {share:g}")
    if samples.groups is None:
        chosen = _carve_samples(samples.y, share, seed)
    else:
        chosen = _carve_groups(samples.y, samples.groups, share, seed)
    if not chosen.any() or chosen.all():
        raise PolyboundError(f"{len(chosen)} samples are too few to carve {share:g} of them")
    return samples[np.flatnonzero(~chosen)], samples[np.flatnonzero(chosen)]


def hold_out(samples: Samples, split: str, note: str) -> Samples:
    """One side of samples without an official test split. The test side is always the same: there is no seed."""
    train, test = carve(samples, TEST_SHARE, seed=0)
    return replace(train if split == "train" else test, note=note)


def _carve_samples(y: npt.NDArray[np.int64], share: float, seed: int) -> npt.NDArray[np.bool_]:
    classes, members, sizes = np.unique(y, return_inverse=True, return_counts=True)
    counts = np.floor(sizes * share).astype(np.int64)
    # The largest remainders are rounded up, such that the carved part is as large as asked for.
    missing = round(len(y) * share) - int(counts.sum())
    counts[np.argsort(counts - sizes * share, kind="stable")[: max(missing, 0)]] += 1
    counts = np.minimum(counts, sizes - 1)
    order = np.argsort(_shuffled(np.arange(len(y)), seed), kind="stable")
    chosen = np.zeros(len(y), dtype=bool)
    for index in range(len(classes)):
        chosen[order[members[order] == index][: counts[index]]] = True
    return chosen


def _carve_groups(
    y: npt.NDArray[np.int64], groups: npt.NDArray[np.int64], share: float, seed: int
) -> npt.NDArray[np.bool_]:
    carved: list[int] = []
    for label in np.unique(y):
        ids, sizes = np.unique(groups[y == label], return_counts=True)
        if len(ids) < 2:
            continue
        order = np.argsort(_shuffled(ids, seed), kind="stable")[:-1]  # at least one group is left
        target, got, mine = sizes.sum() * share, 0, []
        for position in order:
            if abs(got + sizes[position] - target) <= abs(got - target):
                mine.append(int(ids[position]))
                got += int(sizes[position])
        carved += mine or [int(ids[np.argmin(sizes)])]
    return np.isin(groups, carved)


def _shuffled(values: npt.NDArray[np.signedinteger], seed: int) -> npt.NDArray[np.uint64]:
    """A pseudo-random key for each value: the finaliser of splitmix64, whose numbers no library can change."""
    with np.errstate(over="ignore"):
        keys = values.astype(np.uint64) + np.uint64(seed % 2**64) * np.uint64(0xBF58476D1CE4E5B9)
        keys = (keys + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
        return keys ^ (keys >> np.uint64(31))
