"""The data sets by name: their files, addresses and checksums; how to load one, and how to register further ones.

All checksums are SHA-256. Those of fashion-mnist, mnist and kmnist, of CIFAR-10's batches and of NSynth's shortened
test split were computed from the files. Those of EMNIST's zip file, of CIFAR-10's archive and of NSynth's archives are
the ones that others have published for these addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from os import PathLike
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
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


def _mnist(name: str, bases: tuple[str, ...], checksums: tuple[str, str, str, str], **facts: Any) -> IdxSource:
    """A data set of MNIST's layout; the checksums are those of train's images and labels, then of test's."""
    counts = {"train": 60000, "test": 10000}
    parts = {
        "train": idx_files("train", counts["train"], checksums[:2], bases),
        "test": idx_files("t10k", counts["test"], checksums[2:], bases),
    }
    return IdxSource(name=name, shape=(1, 28, 28), counts=counts, folders=(name,), parts=parts, **facts)


def _emnist(part: str, characters: str, counts: dict[str, int], **facts: Any) -> IdxSource:
    return IdxSource(
        name=f"emnist-{part}",
        shape=(1, 28, 28),
        class_names=tuple(characters),
        counts=counts,
        home="https://www.nist.gov/itl/products-and-services/emnist-dataset",
        folders=("emnist", "emnist/gzip", f"emnist-{part}"),
        parts={split: idx_files(f"emnist-{part}-{split}", count) for split, count in counts.items()},
        part=part,
        archive=DataFile(
            "gzip.zip",
            561753746,
            ("fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",),
            (
                "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
            ),
        ),
        inside="gzip",
        transposed=True,
        **facts,
    )


def _cifar_batch(name: str, checksum: str) -> DataFile:
    return DataFile(f"{name}.bin", 10000 * 3073, (checksum,))


def _nsynth_file(part: str, size: int, *checksums: str) -> DataFile:
    name = f"nsynth-{part}.jsonwav.tar.gz"
    # The second address is the one that NSynth's page gives; it has no TLS.
    hosts = ("https://storage.googleapis.com/download.magenta.tensorflow.org", "http://download.magenta.tensorflow.org")
    return DataFile(name, size, checksums, tuple(f"{host}/datasets/nsynth/{name}" for host in hosts))


_BUILT_IN: tuple[Source, ...] = (
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
    _mnist(
        "fashion-mnist",
        (
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        title="pictures of clothes, grey",
        class_names=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
        licence="MIT",
        home="https://github.com/zalandoresearch/fashion-mnist",
    ),
    _mnist(
        "mnist",
        # The original address answers no more; these are the copies of the CVD Foundation and of PyTorch.
        ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        title="handwritten digits, grey",
        class_names=tuple(digits),
        home="http://yann.lecun.com/exdb/mnist/",
    ),
    _mnist(
        "kmnist",
        ("https://codh.rois.ac.jp/kmnist/dataset/kmnist/", "http://codh.rois.ac.jp/kmnist/dataset/kmnist/"),
        (
            "7112ba9ec422d98de4885262d4a4dff14cc4fefb81c11ace8bf563a8255df5c3",
            "2a16eeae62da984b8bd24fa32e31d47291f01dac3fe84d5594f304f71e7d374b",
            "76fbd229ce87db80dd281af5e6670de4ad0e42fb30a7bd643972994c47c1f42e",
            "a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6",
        ),
        title="cursive Japanese characters, grey",
        class_names=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
        licence="CC BY-SA 4.0",
        home="http://codh.rois.ac.jp/kmnist/",
    ),
    _emnist(
        "letters",
        ascii_uppercase,
        {"train": 124800, "test": 20800},
        title="handwritten letters, grey",
        first_label=1,
    ),
    _emnist(
        "byclass",
        digits + ascii_uppercase + ascii_lowercase,
        {"train": 697932, "test": 116323},
        title="handwritten digits and letters, grey",
    ),
    CifarSource(
        name="cifar10",
        title="small photographs, coloured",
        shape=(3, 32, 32),
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        counts={"train": 50000, "test": 10000},
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        folders=("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"),
        archive=DataFile(
            "cifar-10-binary.tar.gz",
            170052171,
            ("c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        ),
        inside="cifar-10-batches-bin",
        parts={
            "train": (
                _cifar_batch("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                _cifar_batch("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                _cifar_batch("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                _cifar_batch("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                _cifar_batch("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            ),
            "test": (_cifar_batch("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),),
        },
    ),
    NSynthSource(
        name="nsynth",
        title="musical notes as spectrograms",
        shape=(1, 32, 32),
        class_names=(
            *("bass", "brass", "flute", "guitar", "keyboard", "mallet"),
            *("organ", "reed", "string", "synth_lead", "vocal"),
        ),
        counts={"train": 289205, "validation": 12678, "test": 4096},
        licence="CC BY 4.0",
        home="https://magenta.tensorflow.org/datasets/nsynth",
        folders=("nsynth",),
        archives={
            "train": _nsynth_file(
                "train", 23815298079, "15c5100fc40c3a262f9b42707c15ffed30b8fec58c0d9b88d4136f6cb1fddefe"
            ),
            "validation": _nsynth_file(
                "valid", 1068767009, "00dea2645fbe0069258567da30807a90825e0bab54c077d6481f253096c4e2a0"
            ),
            "test": _nsynth_file(
                "test",
                349501546,
                "0f9ba5d62beba9ec4612f918d19f5e87a681822f1c566124f05fe8b27a51934c",
                # The same notes cut to their first second and at 8 kHz, which is all that the spectrograms look at.
                "8e7c4e79583dd9dfb4fc8bb8a0c15a61c5fec545dfeb560fbb8ed786a63e7532",
            ),
        },
    ),
)

SOURCES: Registry[Source] = Registry("data set")
"""All data sets by name."""

for _source in _BUILT_IN:
    SOURCES.add(_source.name, _source)


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
