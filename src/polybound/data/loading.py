"""Loading a data set by its name."""

from __future__ import annotations

from os import PathLike
from typing import Literal

from polybound.data.catalogue import find_source
from polybound.data.dataset import Dataset, Identity, carve
from polybound.data.files import Directories, MissingDataError
from polybound.data.sources import SPLITS
from polybound.errors import ArgumentError, check_number


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
    downloaded. Every file is compared with its known checksum.

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
        >>> len(data), data.shape, data.classes, data.domain, data.held_out
        (144, (1, 8, 8), 10, (-1.0, 1.0), 0.1)
    """
    source, directories = find_source(name), Directories(data_dir, download=download)
    if split not in SPLITS:
        raise source.no_such_split(split)
    check_number("validation", validation, below=1)
    if split == "test" or validation == 0:
        samples, carving = source.read(split, directories), (0.0, 0)
    else:
        rest, carved = carve(source.read("train", directories), validation, seed)
        samples, carving = rest if split == "train" else carved, (float(validation), seed)
    return samples.dataset(name, split).with_identity(Identity(source.digest(directories), split, *carving))


def load_digits(split: Literal["train", "test"] = "train") -> Dataset:
    """The built-in digits: 1,437 images of 8 x 8 pixels to train with, 360 to test with.

    They come without an official split; this one is stratified and always the same.
    """
    if split not in ("train", "test"):
        raise ArgumentError("split", f"must be 'train' or 'test', got {split!r}")
    return load("digits", split)


def digest_of(name: str, data_dir: str | PathLike[str] | None = None) -> str:
    """The digest that a data set has when it is loaded, without loading it, and never by a download.

    Where checksums of all files are known, the data need not be there. If some files could be one of several versions,
    files that exist are read; a missing file counts as the version that a download would bring.

    Raises:
        MissingDataError: the content would have to be read, and is not there.

    Example:
        >>> digest_of("digits") == load("digits", "test").digest
        True
        >>> digest_of("mnist")
        'ff45a286cf7d286d'
    """
    return find_source(name).digest(Directories(data_dir, download=False))


def missing(name: str, data_dir: str | PathLike[str] | None = None) -> bool:
    """Whether files of a data set are not there, so that `load` would have to download them, or fail.

    Example:
        >>> missing("digits")
        False
    """
    source, directories = find_source(name), Directories(data_dir, download=False)
    try:
        return bool(source.lacking(directories))
    except MissingDataError:
        return True
