"""A user's own data: images in a folder for each class, or arrays in an npz file."""

from __future__ import annotations

import hashlib
import struct
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from polybound.data.dataset import BYTES, TEST_SHARE, Dataset, hold_out, scaled_bytes
from polybound.data.files import DataFile, Directories, MissingDataError, combined
from polybound.data.sources import SPLITS, Source
from polybound.errors import FileFormatError, require

_DIVIDED = f"no test split of its own: {TEST_SHARE:.0%} of each class, always the same, are held out for it"
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".pgm", ".ppm", ".webp")
_FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP")  # not all that Pillow can read: for some it runs other programs
_MODES = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB"}
_MAX_PIXELS = 1 << 24
_MAX_BYTES = 1 << 34
# What Pillow, numpy and zipfile raise at damaged files; the last two at headers that announce more than there is.
_DAMAGED = (
    *(SyntaxError, ValueError, KeyError, TypeError, EOFError, struct.error, zlib.error, zipfile.BadZipFile),
    *(RuntimeError, OverflowError, MemoryError),
)


@dataclass(frozen=True, kw_only=True)
class FolderSource(Source):
    """Images in PATH/train/CLASS/ and PATH/test/CLASS/, or in PATH/CLASS/; or an npz file.

    A folder PATH/validation/ is that split. Without a test split, a fifth of each class is held out for it. The shape
    and the classes are known only after reading.

    Attributes:
        path: the folder, or the npz file.
    """

    path: Path

    def read(self, split: str, directories: Directories) -> Dataset:
        self.lacking(directories)
        arrays = read_npz(self.path) if self.path.is_file() else {}
        folders = {} if arrays else self._folders()
        own = arrays.keys() | folders.keys()
        if split not in own | {"test"}:
            raise self.no_such_split(split)
        official = "test" in own or split == "validation"
        whole = split if official else "train"
        data = arrays[whole] if arrays else read_images(folders[whole], folders["train"])
        return data if official else hold_out(data, split, _DIVIDED)

    def lacking(self, directories: Directories, *, full: bool = False) -> tuple[DataFile, ...]:
        del full
        if self.locate(directories) is None:
            raise MissingDataError(f"{self.path}: no such folder or file")
        return ()

    def locate(self, directories: Directories) -> Path | None:
        del directories
        return self.path if self.path.exists() else None

    def digest(self, directories: Directories) -> str:
        self.lacking(directories)
        if self.path.is_file():
            return _hash(self.path)[:16]
        classes = (entry for folder in self._folders().values() for entry in _shown(folder) if entry.is_dir())
        files = (file for folder in classes for file in _shown(folder) if file.is_file())
        return combined({file.relative_to(self.path).as_posix(): _hash(file) for file in files})

    def _folders(self) -> dict[str, Path]:
        """The folder of each split that has one of its own."""
        train = self.path / "train"
        # A class may be called "train", too; then there are images in it, not folders.
        if not (train.is_dir() and any(entry.is_dir() for entry in train.iterdir())):
            return {"train": self.path}
        return {split: self.path / split for split in SPLITS if (self.path / split).is_dir()}


def _shown(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_images(folder: Path, train: Path) -> Dataset:
    """All images of a split, (samples, 1 or 3, height, width), with the classes and the shape of the train split.

    Raises:
        FileFormatError: one cannot be read, is of another size or class, or grey among coloured ones.
    """
    classes, found = _class_folders(train), _class_folders(folder)
    for name in found:
        if name not in classes:
            raise FileFormatError(f"{folder / name}: a class that train does not have")
    shape = read_image(next(iter(classes.values()))[0]).shape
    files = [(file, label) for label, name in enumerate(classes) for file in found.get(name, ())]
    x = np.empty((len(files), *shape), dtype=np.uint8)
    for index, (file, _) in enumerate(files):
        image = read_image(file)
        if image.shape != shape:
            here, others = (" x ".join(map(str, dims)) for dims in (image.shape, shape))
            raise FileFormatError(f"{file}: {here} (channels, height, width), others are {others}")
        x[index] = image
    y = torch.tensor([label for _, label in files], dtype=torch.int64)
    return Dataset(folder.name, "", scaled_bytes(x), y, tuple(classes), scaling=BYTES)


def _class_folders(folder: Path) -> dict[str, list[Path]]:
    """The image files of each class, both in the order of their names; hidden files and folders are passed over."""
    classes = {entry.name: _shown(entry) if entry.is_dir() else [] for entry in _shown(folder)}
    for name, files in classes.items():
        if not (folder / name).is_dir():
            raise FileFormatError(f"{folder / name}: a file, where a folder for each class should be")
        if not files:
            raise FileFormatError(f"{folder / name}: no images in it")
        for file in files:
            if not file.is_file() or file.suffix.lower() not in _SUFFIXES:
                raise FileFormatError(f"{file}: not an image file ({', '.join(_SUFFIXES)})")
    if len(classes) < 2:
        raise FileFormatError(f"{folder}: {len(classes)} folders of images in it; at least two classes are needed")
    return classes


def read_image(path: Path, mode: str | None = None) -> npt.NDArray[np.uint8]:
    """The bytes of a picture, (channels, height, width).

    Args:
        path: a file in one of the formats of data sets.
        mode: "L" or "RGB", which the picture is converted to; without it, grey stays grey and RGB stays RGB.

    Raises:
        FileFormatError: the file is damaged, too large, in another format or, without `mode`, of another mode.
    """
    Image = require("PIL.Image", "images", "reading image files")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the limit below is stricter than Pillow's
            with Image.open(path, formats=_FORMATS) as image:
                if image.width * image.height > _MAX_PIXELS:
                    raise ValueError(f"{image.width} x {image.height} pixels are too many")
                if mode is None and image.mode not in _MODES:
                    raise ValueError(f"of mode {image.mode}; save it in grey or RGB")
                array = np.asarray(image.convert(mode or _MODES[image.mode]))
    except (Image.DecompressionBombError, OSError, *_DAMAGED) as error:
        raise FileFormatError(f"{path}: not an image that can be read ({' '.join(str(error).split())})") from error
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def read_npz(path: Path) -> dict[str, Dataset]:
    """The splits in an npz file with arrays X and y, and X_test and y_test if there is a test split.

    X is (samples, features), (samples, height, width) or (samples, channels, height, width): bytes, which are scaled
    from 0..255, or floating-point numbers that are in [-1, 1] already. y are class numbers from 0 on without gaps, or
    names.

    Raises:
        FileFormatError: the file is damaged, or its arrays are not like this. Pickled objects are never loaded.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > _MAX_BYTES:
                raise ValueError(f"it unpacks to more than {_MAX_BYTES} bytes")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in ("X", "y", "X_test", "y_test") if name in loaded}
    except _DAMAGED as error:
        raise FileFormatError(f"{path}: not an npz file of plain arrays ({' '.join(str(error).split())})") from error
    suffixes = {"train": "", "test": "_test"} if arrays.keys() & {"X_test", "y_test"} else {"train": ""}
    inputs: dict[str, Any] = {}
    for split, suffix in suffixes.items():
        for name in (f"X{suffix}", f"y{suffix}"):
            if name not in arrays:
                raise FileFormatError(f"{path}: holds no array {name!r}")
        where, x, y = f"{path}: X{suffix}", arrays[f"X{suffix}"], arrays[f"y{suffix}"]
        if x.ndim not in (2, 3, 4) or x.size == 0:
            raise FileFormatError(f"{where}: of shape {x.shape}; samples come first, then features or an image")
        x = x[:, None] if x.ndim == 3 else x
        if x.dtype != np.uint8:
            if not np.issubdtype(x.dtype, np.floating):
                raise FileFormatError(f"{where}: of type {x.dtype}; bytes (uint8) or floating-point numbers are needed")
            low, high = float(x.min()), float(x.max())
            if not (low >= -1 and high <= 1):  # so that NaN is refused, too
                wanted = "scale them to [-1, 1], or save bytes (uint8)"
                raise FileFormatError(f"{where}: values from {low:g} to {high:g}; {wanted}")
            x = x.astype(np.float32)
        inputs[split] = x
        if y.shape != x.shape[:1]:
            raise FileFormatError(f"{path}: y{suffix} is {y.shape}, but X{suffix} has {len(x)} samples")
    if len({x.shape[1:] for x in inputs.values()}) > 1:
        raise FileFormatError(f"{path}: X and X_test are of different shapes")
    if len({x.dtype for x in inputs.values()}) > 1:
        raise FileFormatError(f"{path}: X and X_test are of different types; it would not be clear how to scale them")
    y = np.concatenate([arrays[f"y{suffix}"] for suffix in suffixes.values()])
    found, numbers = np.unique(y, return_inverse=True)
    if found.dtype.kind not in "iuU":
        raise FileFormatError(f"{path}: y is of type {y.dtype}; class numbers or names are needed")
    if found.dtype.kind in "iu" and (found[0] != 0 or found[-1] != len(found) - 1):
        raise FileFormatError(f"{path}: y has {len(found)} labels from {found[0]} to {found[-1]}, not 0, 1, 2 …")
    if len(found) < 2:
        raise FileFormatError(f"{path}: only one class in y")
    parts = np.split(numbers.reshape(-1).astype(np.int64), [len(inputs["train"])])
    made = {}
    for (split, x), y in zip(inputs.items(), parts, strict=False):
        known = (torch.from_numpy(x), None) if x.dtype != np.uint8 else (scaled_bytes(x), BYTES)
        names = tuple(map(str, found))
        made[split] = Dataset(path.name, split, known[0], torch.from_numpy(y), names, scaling=known[1])
    return made
