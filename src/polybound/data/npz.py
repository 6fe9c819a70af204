"""A user's own arrays in an npz file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polybound.data.samples import Samples
from polybound.errors import FileFormatError

__all__ = ["read_npz"]

_MAX_BYTES = 1 << 34
# What numpy and zipfile raise at damaged files; the last two at headers that announce more than there is.
_REFUSED = (
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,
    OverflowError,
    MemoryError,
)
_NEEDED, _OPTIONAL = ("X", "y"), ("X_test", "y_test")


def read_npz(path: Path) -> dict[str, Samples]:
    """The splits in an npz file with arrays X and y, and X_test and y_test if there is a test split.

    X is (samples, features), (samples, height, width) or (samples, channels, height, width): bytes, which are scaled
    from 0..255, or floating-point numbers that are in [-1, 1] already. y are class numbers from 0 on without gaps, or
    names.

    Raises:
        FileFormatError: the file is damaged, or its arrays are not like this. Pickled objects are never loaded.
    """
    arrays = _load(path)
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


def _load(path: Path) -> dict[str, npt.NDArray[Any]]:
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
