"""The data sets by name, most of them from `catalogue.toml`; how to load one, and how to register further ones."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from string import digits
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from polybound.data.dataset import Dataset, Identity, carve
from polybound.data.files import DataFile, Directories, MissingDataError
from polybound.data.folder import FolderSource
from polybound.data.nsynth import NSynthSource
from polybound.data.sources import SPLITS, CifarSource, FunctionSource, IdxSource, Source, idx_files
from polybound.errors import PolyboundError, check_number
from polybound.registry import Registry

_OWN = "folder:"

Registered = TypeVar("Registered", bound=Source | Callable[[str], Dataset])


def _digits(split: str) -> Dataset:
    """scikit-learn's 1,797 digits, pixels scaled from 0..16 to [-1, 1]; a stratified split, always the same."""
    images, labels = _digits_by_split()[split]
    x = torch.from_numpy((images / 8.0 - 1.0).astype(np.float32)[:, None])
    return Dataset("digits", split, x, torch.from_numpy(labels), tuple(digits), scaling=(0.125, -1.0))


@cache
def _digits_by_split() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    raw = load_digits()
    parts = train_test_split(raw.images, raw.target, test_size=0.2, random_state=0, stratify=raw.target)
    return {"train": (parts[0], parts[2]), "test": (parts[1], parts[3])}


_KINDS: dict[str, type[Source]] = {"idx": IdxSource, "cifar": CifarSource, "nsynth": NSynthSource}


def _listed(name: str, facts: dict[str, Any]) -> Source:
    """A data set from its table in `catalogue.toml`."""
    kind = _KINDS[facts.pop("kind")]
    if kind is IdxSource:
        bases, known = facts.pop("bases", ()), facts.pop("checksums", {})
        facts["parts"] = {
            split: idx_files(stem, facts["counts"][split], known.get(split, ()), bases)
            for split, stem in facts.pop("stems").items()
        }
    return kind(name=name, **facts)


def _frozen(value: Any) -> Any:
    """A value of a TOML file, with tuples in place of lists and a `DataFile` in place of a table with its fields."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        made = {name: _frozen(one) for name, one in value.items()}
        return DataFile(**made) if "size" in made else made
    return value


SOURCES: Registry[Source] = Registry("data set")
"""All data sets by name."""

SOURCES.add(
    "digits",
    FunctionSource(
        name="digits",
        title="handwritten digits, grey; built in",
        shape=(1, 8, 8),
        class_names=tuple(digits),
        counts={"train": 1437, "test": 360},
        licence="CC BY 4.0",
        home="https://archive.ics.uci.edu/dataset/80",
        function=_digits,
    ),
)
for _name, _facts in tomllib.loads((files("polybound.data") / "catalogue.toml").read_text(encoding="utf-8")).items():
    SOURCES.add(_name, _listed(_name, _frozen(_facts)))


def register(source: Registered, *, name: str = "") -> Registered:
    """Make a data set known to `load`, `names` and the command line; gives back what it was given.

    The command line knows it if the module that registers it is a plugin: `polybound.registry` says how.

    Args:
        source: a `Source`; or a function that takes "train", "test" or perhaps "validation" and gives the `Dataset`,
            which raises a ValueError or LookupError for a split that it does not have.
        name: what a function's data set is called, if not as the function.

    Raises:
        PolyboundError: the name is taken, or cannot be one.

    Example:
        >>> import polybound as pb
        >>> @register
        ... def halves(split):
        ...     x = pb.data.load_digits(split).x
        ...     return pb.data.Dataset("halves", split, x, (x.mean((1, 2, 3)) > -0.4).long(), ("dark", "light"))
        >>> pb.data.load("halves", "test").shape
        (1, 8, 8)
        >>> del SOURCES.entries["halves"]
    """
    if isinstance(source, type):
        raise PolyboundError(f"register an object of {source.__name__}, not the class itself")
    if isinstance(source, Source):
        made: Source = source
    else:
        made = FunctionSource(name=name or getattr(source, "__name__", ""), title="registered", function=source)
    SOURCES.add(made.name, made)
    return source


def names() -> tuple[str, ...]:
    """The names of all data sets that `load` knows; "folder:PATH" comes on top.

    Example:
        >>> names()[:3]
        ('digits', 'fashion-mnist', 'mnist')
    """
    return SOURCES.names()


def find_source(name: str) -> Source:
    """The data set of this name, or of the folder or npz file in "folder:PATH"."""
    if name.startswith(_OWN) and name != _OWN:
        path, what = Path(name.removeprefix(_OWN)), "your own data"
        return FolderSource(name=f"{_OWN}{path}", title=what, licence="yours", home=str(path), path=path.expanduser())
    if name not in SOURCES.entries:
        raise PolyboundError(f"no data set is called {name!r}; there are {', '.join(SOURCES.entries)}, and {_OWN}PATH")
    return SOURCES.entries[name]


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
        data, carving = source.read(split, directories), (0.0, 0)
    else:
        rest, carved = carve(source.read("train", directories), validation, seed)
        data, carving = rest if split == "train" else carved, (float(validation), seed)
    identity = Identity(source.digest(directories), split, *carving)
    return replace(data, name=name, split=split).with_identity(identity)


def load_digits(split: Literal["train", "test"] = "train") -> Dataset:
    """The built-in digits: 1,437 images of 8 x 8 pixels to train with, 360 to test with.

    They come without an official split; this one is stratified and always the same.
    """
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
