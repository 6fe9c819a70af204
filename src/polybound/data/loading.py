"""Loading a data set by its name."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from polybound.data.catalogue import SOURCES
from polybound.data.dataset import Dataset
from polybound.data.folder import FolderSource
from polybound.data.samples import Samples, carve
from polybound.data.shelf import Shelf
from polybound.data.source import Source
from polybound.errors import PolyboundError

__all__ = ["Splits", "find_source", "load", "load_splits", "names"]

_OWN = "folder:"


class Splits(NamedTuple):
    """The three splits of a data set."""

    train: Dataset
    validation: Dataset
    test: Dataset


def names() -> tuple[str, ...]:
    """The names of all data sets that `load` knows; "folder:PATH" comes on top.

    Example:
        >>> names()[:3]
        ('digits', 'fashion-mnist', 'mnist')
    """
    return tuple(SOURCES)


def find_source(name: str) -> Source:
    """The data set of this name, or of the folder or npz file in "folder:PATH"."""
    if name.startswith(_OWN) and name != _OWN:
        return FolderSource.at(Path(name.removeprefix(_OWN)))
    if name not in SOURCES:
        raise PolyboundError(f"no data set is called {name!r}; there are {', '.join(SOURCES)}, and {_OWN}PATH")
    return SOURCES[name]


def load(
    name: str,
    split: str = "train",
    *,
    data_dir: str | PathLike[str] | None = None,
    validation: float = 0.0,
    seed: int = 0,
    download: bool = True,
) -> Dataset:
    """Load one split of a data set into memory, float32 in [-1, 1].

    Files are looked for in data_dir, in the directory that the environment variable POLYBOUND_DATA names, in the user's
    cache directory and in /usr/share/datasets, below each in a folder named as the data set; what is nowhere is
    downloaded. Every file is compared with its known digest.

    Args:
        name: one of `names()`; or "folder:PATH" for images in PATH/train/CLASS/ and PATH/test/CLASS/ or in PATH/CLASS/;
            PATH may also be an npz file with arrays X and y, and X_test and y_test if there is a test split.
        split: "train", "validation" or "test". The test split is never part of the others.
        data_dir: where to look first, and where a download goes.
        validation: the share of the train split that is carved off as validation split, stratified by class. Load both
            with the same share and seed. With 0, train is the whole official split, and validation the official one, if
            there is one.
        seed: of the carving.
        download: whether to download what is nowhere.

    Raises:
        FileFormatError: a file is damaged, truncated or swapped; the message names it.
        PolyboundError: the data set is nowhere and cannot be downloaded; the message says what to put where.

    Example:
        >>> data = load("digits", "validation", validation=0.1)
        >>> len(data), data.shape, data.classes, data.domain
        (144, (1, 8, 8), 10, (-1.0, 1.0))
    """
    source, shelf = find_source(name), Shelf(data_dir, download=download)
    if split not in ("train", "validation", "test"):
        raise source.no_such_split(split)
    if not 0 <= validation < 1:
        raise PolyboundError(f"validation must be a share from 0 on and below 1, got {validation:g}")
    if split == "test" or validation == 0:
        return _dataset(name, split, source.read(split, shelf))
    rest, carved = carve(source.read("train", shelf), validation, seed)
    return _dataset(name, split, rest if split == "train" else carved)


def load_splits(
    name: str,
    *,
    data_dir: str | PathLike[str] | None = None,
    validation: float = 0.1,
    seed: int = 0,
    download: bool = True,
) -> Splits:
    """Load all three splits of a data set; the validation split is carved from train. See `load` for the arguments.

    Example:
        >>> [len(split) for split in load_splits("digits")]
        [1293, 144, 360]
    """
    source, shelf = find_source(name), Shelf(data_dir, download=download)
    if not 0 < validation < 1:
        raise PolyboundError(f"validation must be a share above 0 and below 1, got {validation:g}")
    rest, carved = carve(source.read("train", shelf), validation, seed)
    test = source.read("test", shelf)
    return Splits(_dataset(name, "train", rest), _dataset(name, "validation", carved), _dataset(name, "test", test))


def _dataset(name: str, split: str, samples: Samples) -> Dataset:
    x = samples.x.astype(np.float32)  # always a copy, and so writable, unlike what lies in a file's bytes
    if samples.x.dtype == np.uint8:
        x /= 127.5
        x -= 1.0
    y = torch.from_numpy(samples.y.astype(np.int64))
    return Dataset(name, split, torch.from_numpy(x), y, samples.class_names, note=samples.note)
