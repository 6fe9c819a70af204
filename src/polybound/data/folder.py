"""A user's own data: images in a folder for each class, or arrays in an npz file."""

from __future__ import annotations

import struct
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polybound.data.checksums import DataFile, combined
from polybound.data.dataset import TEST_SHARE, Samples, hold_out
from polybound.data.directories import Directories, MissingDataError
from polybound.data.source import SPLITS, Source
from polybound.errors import FileFormatError, PolyboundError

__all__ = ["FolderSource"]

_DIVIDED = f"no test split of its own: {TEST_SHARE:.0%} of each class, always the same, are held out for it"
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".pgm", ".ppm", ".webp")
_FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP")  # not all that Pillow can read: for some it runs other programs
_MODES = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB"}
_MAX_PIXELS = 1 << 24
_MAX_BYTES = 1 << 34
# What numpy and zipfile raise at damaged files; the last two at headers that announce more than there is.
_REFUSED = (
    *(ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error),
    *(RuntimeError, OverflowError, MemoryError),
)
_NEEDED, _OPTIONAL = ("X", "y"), ("X_test", "y_test")


@dataclass(frozen=True, kw_only=True)
class FolderSource(Source):
    """Images in PATH/train/CLASS/ and PATH/test/CLASS/, or in PATH/CLASS/; or an npz file.

    A folder PATH/validation/ is that split. Without a test split, a fifth of each class is held out for it.

    Attributes:
        path: the folder, or the npz file.
    """

    path: Path

    @classmethod
    def at(cls, path: Path) -> FolderSource:
        """The source of the data at a path; its shape and its classes are known only after reading."""
        return cls(
            name=f"folder:{path}", title="your own data", licence="yours", home=str(path), path=path.expanduser()
        )

    def read(self, split: str, directories: Directories) -> Samples:
        if self._there(directories).is_file():
            parts = read_npz(self.path)
            if split not in ("train", "test"):
                raise self.no_such_split(split)
            return parts[split] if "test" in parts else hold_out(parts["train"], split, _DIVIDED)
        folders = self._folders()
        classes = class_folders(folders["train"])
        shape = image_shape(classes)
        if split != "train" and split in folders:
            return read_images(self._same_classes(classes, folders[split]), shape)
        if split not in ("train", "test"):
            raise self.no_such_split(split)
        samples = read_images(classes, shape)
        return samples if "test" in folders else hold_out(samples, split, _DIVIDED)

    def lacking(self, directories: Directories, *, full: bool = False) -> tuple[DataFile, ...]:
        del full
        self._there(directories)
        return ()

    def locate(self, directories: Directories) -> Path | None:
        del directories
        return self.path if self.path.exists() else None

    def digest(self, directories: Directories) -> str:
        import pooch

        if self._there(directories).is_file():
            checksum: str = pooch.file_hash(str(self.path), alg="sha256")
            return checksum[:16]
        files = [
            file
            for folder in self._folders().values()
            for entry in _shown(folder)
            if entry.is_dir()
            for file in _shown(entry)
            if file.is_file()
        ]
        return combined({file.relative_to(self.path).as_posix(): pooch.file_hash(str(file)) for file in files})

    def _there(self, directories: Directories) -> Path:
        if self.locate(directories) is None:
            raise MissingDataError(f"{self.path}: no such folder or file")
        return self.path

    def _folders(self) -> dict[str, Path]:
        """The folder of each split that has one of its own."""
        train = self.path / "train"
        # A class may be called "train", too; then there are images in it, not folders.
        if not (train.is_dir() and any(entry.is_dir() for entry in train.iterdir())):
            return {"train": self.path}
        return {split: self.path / split for split in SPLITS if (self.path / split).is_dir()}

    def _same_classes(self, classes: dict[str, list[Path]], folder: Path) -> dict[str, list[Path]]:
        """The classes of another split, in the order of train; one that has no images there is empty."""
        found = class_folders(folder)
        for name in found:
            if name not in classes:
                raise FileFormatError(f"{folder / name}: a class that train does not have")
        return {name: found.get(name, []) for name in classes}


def class_folders(folder: Path) -> dict[str, list[Path]]:
    """The image files of each class, both in the order of their names; hidden files and folders are passed over."""
    classes = {}
    for entry in sorted(_shown(folder)):
        if not entry.is_dir():
            raise FileFormatError(f"{entry}: a file, where a folder for each class should be")
        files = sorted(_shown(entry))
        for file in files:
            if not file.is_file() or file.suffix.lower() not in _SUFFIXES:
                raise FileFormatError(f"{file}: not an image file ({', '.join(_SUFFIXES)})")
        if not files:
            raise FileFormatError(f"{entry}: no images in it")
        classes[entry.name] = files
    if len(classes) < 2:
        raise FileFormatError(f"{folder}: {len(classes)} folders of images in it; at least two classes are needed")
    return classes


def _shown(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if not entry.name.startswith(".")]


def image_shape(classes: dict[str, list[Path]]) -> tuple[int, ...]:
    """The shape of the first image, which all others must have."""
    return _read_image(next(iter(classes.values()))[0]).shape


def read_images(classes: dict[str, list[Path]], shape: tuple[int, ...]) -> Samples:
    """All images, (samples, 1 or 3, height, width).

    Raises:
        FileFormatError: one cannot be read, or is of another size, or grey among coloured ones.
    """
    files = [file for files in classes.values() for file in files]
    x = np.empty((len(files), *shape), dtype=np.uint8)
    for index, file in enumerate(files):
        image = _read_image(file)
        if image.shape != shape:
            found, others = (" x ".join(map(str, dims)) for dims in (image.shape, shape))
            raise FileFormatError(f"{file}: {found} (channels, height, width), others are {others}")
        x[index] = image
    y = np.repeat(np.arange(len(classes), dtype=np.int64), [len(files) for files in classes.values()])
    return Samples(x, y, tuple(classes))


def _read_image(path: Path) -> npt.NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError as error:
        raise PolyboundError("reading image files needs Pillow: pip install 'polybound[images]'") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the limit below is stricter than Pillow's
            with Image.open(path, formats=_FORMATS) as image:
                if image.width * image.height > _MAX_PIXELS:
                    raise FileFormatError(f"{path}: {image.width} x {image.height} pixels are too many")
                if image.mode not in _MODES:
                    raise FileFormatError(f"{path}: of mode {image.mode}; save it in grey or RGB")
                array = np.asarray(image.convert(_MODES[image.mode]))
    except Image.DecompressionBombError as error:
        raise FileFormatError(f"{path}: too many pixels ({error})") from error
    except FileFormatError:
        raise
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error) as error:
        raise FileFormatError(f"{path}: not an image that can be read ({' '.join(str(error).split())})") from error
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def read_npz(path: Path) -> dict[str, Samples]:
    """The splits in an npz file with arrays X and y, and X_test and y_test if there is a test split.

    X is (samples, features), (samples, height, width) or (samples, channels, height, width): bytes, which are scaled
    from 0..255, or floating-point numbers that are in [-1, 1] already. y are class numbers from 0 on without gaps, or
    names.

    Raises:
        FileFormatError: the file is damaged, or its arrays are not like this. Pickled objects are never loaded.
    """
    arrays = _load_npz(path)
    given = [name for name in _OPTIONAL if name in arrays]
    if missing := [name for name in (*_NEEDED, *(_OPTIONAL if given else ())) if name not in arrays]:
        raise FileFormatError(f"{path}: holds no array {missing[0]!r}")
    suffixes = {"train": "", "test": "_test"} if given else {"train": ""}
    inputs = {split: _inputs(arrays[f"X{suffix}"], f"{path}: X{suffix}") for split, suffix in suffixes.items()}
    labels = {split: arrays[f"y{suffix}"] for split, suffix in suffixes.items()}
    for split, suffix in suffixes.items():
        if labels[split].shape != inputs[split].shape[:1]:
            raise FileFormatError(
                f"{path}: y{suffix} is {labels[split].shape}, but X{suffix} has {len(inputs[split])} samples"
            )
    if given and inputs["train"].shape[1:] != inputs["test"].shape[1:]:
        raise FileFormatError(f"{path}: X and X_test are of different shapes")
    if len({array.dtype for array in inputs.values()}) > 1:
        raise FileFormatError(f"{path}: X and X_test are of different types; it would not be clear how to scale them")
    names, numbers = _classes(labels, path)
    return {split: Samples(inputs[split], numbers[split], names) for split in suffixes}


def _load_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > _MAX_BYTES:
                raise FileFormatError(f"{path}: unpacks to more than {_MAX_BYTES} bytes")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in (*_NEEDED, *_OPTIONAL) if name in arrays}
    except FileFormatError:
        raise
    except _REFUSED as error:
        raise FileFormatError(f"{path}: not an npz file of plain arrays ({' '.join(str(error).split())})") from error


def _inputs(array: npt.NDArray[Any], where: str) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
    if array.ndim not in (2, 3, 4) or array.size == 0:
        raise FileFormatError(
            f"{where}: of shape {array.shape}; samples first, then features, or an image's two or three"
        )
    if array.ndim == 3:
        array = array[:, None]
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.floating):
        raise FileFormatError(f"{where}: of type {array.dtype}; bytes (uint8) or floating-point numbers are needed")
    low, high = float(array.min()), float(array.max())
    if not (low >= -1 and high <= 1):  # so that NaN is refused, too
        raise FileFormatError(f"{where}: values from {low:g} to {high:g}; scale them to [-1, 1], or save bytes (uint8)")
    return array.astype(np.float32)


def _classes(
    labels: dict[str, npt.NDArray[Any]], path: Path
) -> tuple[tuple[str, ...], dict[str, npt.NDArray[np.int64]]]:
    together = np.concatenate(list(labels.values()))
    found, numbers = np.unique(together, return_inverse=True)
    if found.dtype.kind not in "iuU":
        raise FileFormatError(f"{path}: y is of type {together.dtype}; class numbers or names are needed")
    if found.dtype.kind in "iu" and (found[0] != 0 or found[-1] != len(found) - 1):
        raise FileFormatError(
            f"{path}: y goes from {found[0]} to {found[-1]} with {len(found)} different labels, not 0, 1, 2 …"
        )
    if len(found) < 2:
        raise FileFormatError(f"{path}: only one class in y")
    ends = np.cumsum([len(array) for array in labels.values()])[:-1]
    parts = np.split(numbers.reshape(-1).astype(np.int64), ends)
    return tuple(str(name) for name in found), dict(zip(labels, parts, strict=True))
