"""Data in memory: data sets scaled to [-1, 1], and the carving of splits from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polybound.errors import PolyboundError

TEST_SHARE = 0.2  # of data that come without an official test split


@dataclass(frozen=True)
class Identity:
    """The samples that a `Dataset` holds and the content they come from; `load` makes it and `subset` carries it on.

    Attributes:
        content: digest of the whole content, of all splits.
        split: "train", "validation" or "test".
        held_out: share of train that is carved off as validation split; 0 if none is, and for test.
        seed: of the carving; 0 without one.
        subsets: sizes of the subsets that were taken, one of the other.
    """

    content: str
    split: str
    held_out: float = 0.0
    seed: int = 0
    subsets: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        """The digest that scores and specs have: that of the content, if split, share and number tell the samples.

        Another seed of the carving, or a subset of a subset, has a digest of its own.
        """
        if not self.seed and len(self.subsets) < 2:
            return self.content
        return hashlib.sha256(repr((self.content, self.seed, self.subsets[:-1])).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """The samples in words."""
        carved = f", {self.held_out:g} held out by seed {self.seed}" if self.held_out else ""
        subsets = "".join(f", a subset of {size:,}" for size in self.subsets)
        return f"{self.split} of {self.content}{carved}{subsets}"


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Inputs and labels of one split.

    Attributes:
        name: name of the data set.
        split: "train", "validation" or "test".
        x: inputs, (samples, *shape), float32.
        y: labels, (samples,), int64.
        class_names: one name for each class.
        domain: the smallest and largest value an input entry can have.
        scaling: factor and offset that made inputs of raw values, `input = factor * raw + offset`; None if unknown.
        note: what a reader of results must know of this split, such as that it is not an official one; often empty.
        groups: what each sample belongs to, (samples,), if those of one group must stay on one side of a split.
    """

    name: str
    split: str
    x: Tensor
    y: Tensor
    class_names: tuple[str, ...]
    domain: tuple[float, float] = (-1.0, 1.0)
    scaling: tuple[float, float] | None = field(default=None, kw_only=True)
    note: str = ""
    known: Mapping[int, Identity] = field(default_factory=dict, repr=False)  # by the checksum that it is true for
    groups: Tensor | None = field(default=None, kw_only=True)

    @property
    def identity(self) -> Identity:
        """The identity of these samples.

        `load` and `subset` set it. Arrays that come from elsewhere, were replaced or written into, are content of their
        own: then it has a hash of x, y, class names and domain. Each look compares a checksum of the arrays.

        Example:
            >>> data = Dataset("two", "train", torch.zeros(2, 3), torch.tensor([0, 1]), ("no", "yes"))
            >>> data.digest == replace(data, note="mine").digest, data.digest == replace(data, x=data.x + 1).digest
            (True, False)
        """
        checksum = _checksum(self)
        if checksum not in self.known:
            content = content_digest(self.x, self.y, self.class_names, self.domain)
            object.__setattr__(self, "known", {**self.known, checksum: Identity(content, self.split)})
        return self.known[checksum]

    @property
    def digest(self) -> str:
        """16 hex digits of the identity: those of the whole content, of all splits, for what `load` gives."""
        return self.identity.digest

    @property
    def held_out(self) -> float:
        """The share of train that was carved off as validation split; 0 if none was, and always 0 for test."""
        return self.identity.held_out

    def with_identity(self, identity: Identity) -> Dataset:
        """The same samples, known to be these of some content; for what loads data."""
        return replace(self, known={_checksum(self): identity})

    def subset(self, samples: int) -> Dataset:
        """A fixed choice of this number of samples, or all of them for 0; the identity says that it is a subset."""
        if not 0 < samples < len(self):
            return self
        chosen = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))[:samples]
        identity = replace(self.identity, subsets=(*self.identity.subsets, samples))
        return self.take(chosen).with_identity(identity)

    def take(self, chosen: Tensor) -> Dataset:
        """Some samples, by their numbers."""
        groups = None if self.groups is None else self.groups[chosen]
        return replace(self, x=self.x[chosen], y=self.y[chosen], groups=groups)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.x.shape[1:])

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        """What it is, without the arrays."""
        low, high = self.domain
        inputs = f"{len(self):,} inputs of shape {self.shape} in [{low:g}, {high:g}]"
        return f"Dataset({self.name} {self.split}: {inputs}, {self.classes} classes)"


def _bytes(array: Tensor | npt.NDArray[Any]) -> Any:
    if isinstance(array, Tensor):
        array = array.detach().cpu().contiguous().view(torch.uint8).numpy()
    return np.ascontiguousarray(array).data


def _checksum(data: Dataset) -> int:
    """A checksum that changes with anything written into the arrays, through any view of them."""
    facts = (data.split, data.class_names, data.domain, data.x.dtype, data.x.shape, data.y.dtype, data.y.shape)
    return crc32(_bytes(data.y), crc32(_bytes(data.x), crc32(repr(facts).encode())))


def content_digest(
    x: Tensor | npt.NDArray[Any],
    y: Tensor | npt.NDArray[Any],
    class_names: tuple[str, ...],
    domain: tuple[float, float],
) -> str:
    """16 hex digits that identify these arrays, class names and domain."""
    hashed = hashlib.sha256(repr((class_names, tuple(map(float, domain)))).encode())
    for array in (x, y):
        hashed.update(f"{array.dtype}{tuple(array.shape)}".removeprefix("torch.").encode())
        hashed.update(_bytes(array))
    return hashed.hexdigest()[:16]


BYTES = (1 / 127.5, -1.0)
"""The scaling of bytes."""


def scaled_bytes(x: npt.NDArray[np.uint8]) -> Tensor:
    """Bytes as float32 in [-1, 1], `x / 127.5 - 1`."""
    found = x.astype(np.float32)
    found /= 127.5
    found -= 1.0
    return torch.from_numpy(found)


def carve(data: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Divide samples into what is left and a carved part, stratified by class.

    Of each class the same share is carved, rounded such that the sum is right, and never all of it. If samples have
    groups, whole groups are carved, so the shares are only as near as groups allow. Equal seeds give equal splits, with
    any version of any library.

    Args:
        data: what to divide.
        share: the carved part of it, above 0 and below 1.
        seed: another one carves another part.

    Returns:
        The remaining part and the carved part; both in the order of the samples.
    """
    groups = None if data.groups is None else data.groups.numpy()
    left, carved = carve_indices(data.y.numpy(), share, seed, groups)
    return data.take(torch.from_numpy(left)), data.take(torch.from_numpy(carved))


def carve_indices(
    y: npt.NDArray[np.int64], share: float, seed: int, groups: npt.NDArray[np.int64] | None = None
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """As `carve`, for labels and perhaps groups: the places of what is left, and of the carved part.

    >>> left, carved = carve_indices(np.array([0, 0, 0, 0, 1, 1, 1, 1]), 0.25, seed=0)
    >>> len(left), len(carved), len(set(carved // 4))
    (6, 2, 2)
    """
    if not 0 < share < 1:
        raise PolyboundError(f"a share of samples must lie between 0 and 1, got {share:g}")
    chosen = _carve_samples(y, share, seed) if groups is None else _carve_groups(y, groups, share, seed)
    if not chosen.any() or chosen.all():
        raise PolyboundError(f"{len(chosen)} samples are too few to carve {share:g} of them")
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def hold_out(data: Dataset, split: str, note: str) -> Dataset:
    """One side of data without an official test split. The test side is always the same: there is no seed."""
    train, test = carve(data, TEST_SHARE, seed=0)
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
