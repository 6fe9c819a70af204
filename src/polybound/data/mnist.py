"""MNIST, data sets of its layout, and EMNIST: images and labels in idx files, plain, gzipped or in NIST's zip file.

An idx file is a header of big-endian numbers, then the bytes of one array.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polybound.data.archives import open_zip, read_member
from polybound.data.checksums import DataFile, check_bytes, check_file, combined, read_content
from polybound.data.dataset import Samples
from polybound.data.directories import Directories
from polybound.data.source import Source, verdict
from polybound.errors import FileFormatError

__all__ = ["EmnistSource", "MnistSource", "check_labels", "idx_files", "idx_size", "parse_idx"]

_UNSIGNED_BYTE = 0x08
_MAPPING_LIMIT = 1 << 16
_UNPACKED = "of files taken out of EMNIST's zip file no digest is known: only their structure was checked"


def idx_size(dims: tuple[int, ...]) -> int:
    """Bytes of an idx file with an array of bytes of these dimensions."""
    return 4 + 4 * len(dims) + math.prod(dims)


def idx_files(
    stems: Mapping[str, str],
    counts: Mapping[str, int],
    checksums: Mapping[str, str],
    bases: tuple[str, ...] = (),
    size: tuple[int, int] = (28, 28),
) -> tuple[dict[str, DataFile], dict[str, DataFile]]:
    """The files of images and those of labels of each split, by the first part of their names."""
    kinds: dict[str, dict[str, DataFile]] = {"images": {}, "labels": {}}
    for split, stem in stems.items():
        for kind, suffix, dims in (("images", "idx3-ubyte", size), ("labels", "idx1-ubyte", ())):
            name = f"{stem}-{kind}-{suffix}"
            known = (checksums[name],) if name in checksums else ()
            urls = tuple(f"{base}{name}.gz" for base in bases)
            kinds[kind][split] = DataFile(name, idx_size((counts[split], *dims)), known, urls, gzipped=True)
    return kinds["images"], kinds["labels"]


def parse_idx(content: bytes, where: str | Path, dims: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """The array in the content of an idx file, which must have exactly these dimensions.

    Args:
        content: all of the file, unpacked.
        where: the file's name, for messages.
        dims: the dimensions that the array must have.

    Raises:
        FileFormatError: its header is not that of an array of bytes of these dimensions, or as many do not follow.

    Example:
        >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "labels", (3,))
        array([7, 8, 9], dtype=uint8)
    """
    if len(content) < 4 or content[:2] != b"\0\0":
        raise FileFormatError(f"{where}: not an idx file (it begins with {content[:4].hex() or 'nothing'})")
    kind, rank = content[2], content[3]
    if kind != _UNSIGNED_BYTE:
        raise FileFormatError(f"{where}: its numbers are of idx type 0x{kind:02x}, not unsigned bytes (0x08)")
    if rank != len(dims):
        raise FileFormatError(f"{where}: an array of {rank} dimensions, not {len(dims)}: images and labels swapped?")
    start = 4 + 4 * rank
    if len(content) < start:
        raise FileFormatError(f"{where}: ends in its header: truncated or half-downloaded")
    # Signed, as the format says: what is written as -1 must not pass for four thousand millions.
    found = struct.unpack(f">{rank}i", content[4:start])
    if found != dims:
        raise FileFormatError(f"{where}: its dimensions are {_times(found)}, not {_times(dims)}")
    body = len(content) - start
    if body != math.prod(dims):
        raise FileFormatError(
            f"{where}: {_times(dims)} bytes announced, {body} there: truncated, or with something behind"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(dims)


def _times(dims: tuple[int, ...]) -> str:
    return " x ".join(map(str, dims))


def check_labels(labels: npt.NDArray[np.integer], classes: int, where: str | Path) -> npt.NDArray[np.int64]:
    """Labels as int64, refused if one is of no class."""
    numbers = labels.astype(np.int64)
    bad = np.flatnonzero((numbers < 0) | (numbers >= classes))
    if bad.size:
        raise FileFormatError(f"{where}: label {labels[bad[0]]} of sample {bad[0]} is of none of the {classes} classes")
    return numbers


@dataclass(frozen=True, kw_only=True)
class MnistSource(Source):
    """Images and labels in idx files.

    Attributes:
        images: the file of each split's images.
        labels: the file of each split's labels.
        first_label: the label of the first class.
    """

    images: Mapping[str, DataFile]
    labels: Mapping[str, DataFile]
    first_label: int = 0

    def read(self, split: str, directories: Directories) -> Samples:
        if split not in self.images:
            raise self.no_such_split(split)
        paths = directories.need(self.name, self.folders, (self.images[split], self.labels[split]))
        return self._read_files(split, *paths)

    def files(self, *, full: bool = False) -> tuple[DataFile, ...]:
        del full
        return (*self.images.values(), *self.labels.values())

    def check(self, directories: Directories) -> Iterator[tuple[Path, str]]:
        for split in self.images:
            for file in (self.images[split], self.labels[split]):
                if (path := directories.find(self.folders, file.names)) is not None:
                    yield verdict(path, partial(self._parse_file, path, file, split))
        directories.need(self.name, self.folders, self.files())  # says which are missing

    def _read_files(self, split: str, images: Path, labels: Path) -> Samples:
        x = self._parse_file(images, self.images[split], split)
        return Samples(x, self._parse_file(labels, self.labels[split], split), self.class_names)

    def _parse_file(self, path: Path, file: DataFile, split: str) -> npt.NDArray[Any]:
        return self._parse(read_content(path, file), path, file, split)

    def _parse(self, content: bytes, where: str | Path, file: DataFile, split: str) -> npt.NDArray[Any]:
        """The images or the labels in a file's content."""
        if file == self.images[split]:
            return self._upright(parse_idx(content, where, (self.counts[split], *self.shape[1:])))
        labels = parse_idx(content, where, (self.counts[split],)).astype(np.int64) - self.first_label
        return check_labels(labels, len(self.class_names), where)

    def _upright(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return images.reshape(-1, *self.shape)


@dataclass(frozen=True, kw_only=True)
class EmnistSource(MnistSource):
    """A part of EMNIST: its idx files in NIST's zip file, or taken out of it. Its images are stored transposed.

    Attributes:
        part: "letters" or "byclass".
        archive: NIST's zip file.
    """

    part: str
    archive: DataFile

    def read(self, split: str, directories: Directories) -> Samples:
        if split not in self.counts:
            raise self.no_such_split(split)
        if loose := self._loose(split, directories):
            return replace(self._read_files(split, *loose), note=_UNPACKED)
        (path,) = directories.need(self.name, self.folders, (self.archive,))
        with self._open(path) as archive:
            return self._from_zip(archive, path, split)

    def files(self, *, full: bool = False) -> tuple[DataFile, ...]:
        del full
        return (self.archive,)

    def lacking(self, directories: Directories, *, full: bool = False) -> tuple[DataFile, ...]:
        if directories.find(self.folders, self.archive.names) is not None:
            return ()
        return () if all(self._loose(split, directories) for split in self.counts) else self.files(full=full)

    def locate(self, directories: Directories) -> Path | None:
        for split in self.counts:
            if loose := self._loose(split, directories):
                return next(iter(loose)).parent
        return directories.find(self.folders, self.archive.names)

    def check(self, directories: Directories) -> Iterator[tuple[Path, str]]:
        zipped = []
        for split in self.counts:
            loose = self._loose(split, directories)
            zipped += [] if loose else [split]
            for path, file in loose.items():
                yield verdict(path, partial(self._parse_file, path, file, split))
        if zipped:
            (path,) = directories.need(self.name, self.folders, (self.archive,))
            yield verdict(path, partial(self._check_zip, path, zipped))

    def digest(self, directories: Directories) -> str:
        parts = {"part": self.part}  # the zip file holds several
        for split in self.counts:
            loose = self._loose(split, directories)
            if not loose:
                parts[split] = directories.checksum(self.name, self.folders, self.archive)
            for path, file in loose.items():
                parts[file.name] = check_bytes(path, read_content(path, file), file)
        return combined(parts)

    def _loose(self, split: str, directories: Directories) -> dict[Path, DataFile]:
        """Images and labels that were taken out of the zip file; none if the zip file itself is found before them."""
        folders = tuple(f"{folder}{below}" for folder in self.folders for below in ("", "/gzip"))
        images = directories.find(folders, (self.archive.name, *self.images[split].names))
        if images is None or images.name == self.archive.name:
            return {}
        (labels,) = directories.need(self.name, folders, (self.labels[split],))
        return {images: self.images[split], labels: self.labels[split]}

    def _check_zip(self, path: Path, splits: list[str]) -> None:
        with self._open(path) as archive:
            for split in splits:
                self._from_zip(archive, path, split)

    @contextmanager
    def _open(self, path: Path) -> Iterator[zipfile.ZipFile]:
        check_file(path, self.archive)
        with open_zip(path) as archive:
            self._check_mapping(archive, path)
            yield archive

    def _from_zip(self, archive: zipfile.ZipFile, path: Path, split: str) -> Samples:
        def parsed(file: DataFile) -> npt.NDArray[Any]:
            content = read_member(archive, path, f"gzip/{file.stored}", file, self.archive.size)
            return self._parse(content, f"{path}: gzip/{file.stored}", file, split)

        return Samples(parsed(self.images[split]), parsed(self.labels[split]), self.class_names)

    def _check_mapping(self, archive: zipfile.ZipFile, path: Path) -> None:
        """The file that says which label is which character must say what class_names say."""
        name = f"gzip/emnist-{self.part}-mapping.txt"
        content = read_member(archive, path, name, DataFile(name, _MAPPING_LIMIT), _MAPPING_LIMIT)
        expected = [(self.first_label + index, ord(text)) for index, text in enumerate(self.class_names)]
        try:
            # A label, and the codes of its characters; letters have two, of upper and of lower case.
            rows = [[int(word) for word in line.split()] for line in content.decode("ascii").splitlines()]
            found = [(row[0], row[1]) for row in rows if row]
        except (ValueError, IndexError) as error:
            raise FileFormatError(f"{path}: {name}: not lines of numbers") from error
        if found != expected:
            raise FileFormatError(f"{path}: {name}: maps labels to other characters than {self.name} has")

    def _upright(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return np.ascontiguousarray(images.swapaxes(1, 2)).reshape(-1, *self.shape)
