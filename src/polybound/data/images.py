"""Images as bytes in files: MNIST's layout, which EMNIST has too, and CIFAR-10's binary version."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polybound.data.dataset import Samples
from polybound.data.files import DataFile
from polybound.data.source import FileSource
from polybound.errors import FileFormatError

__all__ = ["CifarSource", "IdxSource", "idx_files", "idx_size", "parse_idx"]


@dataclass(frozen=True, kw_only=True)
class IdxSource(FileSource):
    """Images and labels in idx files, of each split first the images.

    Attributes:
        first_label: the label of the first class.
        transposed: whether the images lie on their side, as EMNIST's do.
    """

    first_label: int = 0
    transposed: bool = False

    def parse(self, split: str, contents: Mapping[str, bytes]) -> Samples:
        (images, pixels), (labels, numbers) = contents.items()
        x = parse_idx(pixels, images, (self.counts[split], *self.shape[1:]))
        y = parse_idx(numbers, labels, (self.counts[split],)).astype(np.int64) - self.first_label
        upright = np.ascontiguousarray(x.swapaxes(1, 2)) if self.transposed else x
        _check_labels(y, len(self.class_names), labels)
        return Samples(upright.reshape(-1, *self.shape), y, self.class_names)


@dataclass(frozen=True, kw_only=True)
class CifarSource(FileSource):
    """Images in records, each the byte of a label and then those of the pixels."""

    def parse(self, split: str, contents: Mapping[str, bytes]) -> Samples:
        length = 1 + math.prod(self.shape)
        batches = []
        for where, content in contents.items():
            if len(content) % length:
                raise FileFormatError(f"{where}: {len(content)} bytes are not a whole number of records of {length}")
            batches.append(np.frombuffer(content, np.uint8).reshape(-1, length))
            _check_labels(batches[-1][:, 0], len(self.class_names), where)
        records = np.concatenate(batches)
        if len(records) != self.counts[split]:
            raise FileFormatError(f"{where}: {len(records)} images in its {split} split, not {self.counts[split]}")
        return Samples(records[:, 1:].reshape(-1, *self.shape), records[:, 0].astype(np.int64), self.class_names)


def idx_files(
    stem: str,
    count: int,
    checksums: tuple[str, ...] = (),
    bases: tuple[str, ...] = (),
    size: tuple[int, ...] = (28, 28),
) -> tuple[DataFile, ...]:
    """The files of a split's images and labels, by the first part of their names and by their checksums."""
    files = []
    for index, (kind, dims) in enumerate({"images-idx3": (count, *size), "labels-idx1": (count,)}.items()):
        name = f"{stem}-{kind}-ubyte"
        urls = tuple(f"{base}{name}.gz" for base in bases)
        files.append(DataFile(name, idx_size(dims), checksums[index : index + 1], urls, gzipped=True))
    return tuple(files)


def idx_size(dims: tuple[int, ...]) -> int:
    """Bytes of an idx file with an array of bytes of these dimensions."""
    return 4 + 4 * len(dims) + math.prod(dims)


def parse_idx(content: bytes, where: str, dims: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """The array in an idx file: a header of big-endian numbers, then the bytes of an array of these dimensions.

    Example:
        >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "labels", (3,))
        array([7, 8, 9], dtype=uint8)
    """
    # All of the header is known beforehand: bytes (8), so many dimensions, and these.
    header = bytes([0, 0, 8, len(dims)]) + np.array(dims, ">i4").tobytes()
    found, sizes = content[: len(header)], " x ".join(map(str, dims))
    if found != header:
        raise FileFormatError(f"{where}: its idx header is {found.hex()}, not {header.hex()}, that of {sizes} bytes")
    if len(content) != idx_size(dims):
        raise FileFormatError(f"{where}: {sizes} bytes announced, {len(content) - len(header)} there: truncated?")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(dims)


def _check_labels(labels: npt.NDArray[np.integer], classes: int, where: str) -> None:
    bad = np.flatnonzero((labels < 0) | (labels >= classes))
    if bad.size:
        raise FileFormatError(f"{where}: label {labels[bad[0]]} of sample {bad[0]} is of none of the {classes} classes")
