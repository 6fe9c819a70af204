"""Sources of data: read a split, say where its files are, check them; IDX and CIFAR files."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from polybound.data.dataset import BYTES, Dataset, content_digest, scaled_bytes
from polybound.data.files import (
    DataFile,
    Directories,
    MissingDataError,
    checksum,
    combined,
    read_archive,
    read_content,
)
from polybound.errors import ArgumentError, FileFormatError, PolyboundError

SPLITS = ("train", "validation", "test")
_UNKNOWN = "no checksums of its files are known: only their structure was checked"


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """A data set: facts about it, and how it is read. A subclass must implement `read`, and may override the rest.

    Attributes:
        name: in `load`.
        title: a description in a few words.
        shape: of one input.
        class_names: one name for each class.
        counts: samples of each official split.
        licence: of the data, as their authors state it.
        home: their page.
        folders: where below a data directory its files may lie; downloads go to the first.
    """

    name: str
    title: str = ""
    shape: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    licence: str = "none stated"
    home: str = ""
    folders: tuple[str, ...] = ()

    @abstractmethod
    def read(self, split: str, directories: Directories) -> Dataset:
        """An official split, "train", "test" or, if there is one, "validation"; else raise `no_such_split`.

        Nobody else holds its arrays. `load` gives it its name, and says which samples these are.
        """

    def files(self, *, full: bool = False) -> tuple[DataFile, ...]:
        """The files that a download brings; `full` adds those that are usually too large to want."""
        del full
        return ()

    def needed(self, directories: Directories, *, full: bool = False) -> tuple[DataFile, ...]:
        """The files that it is read from: those that a download brings, unless others are there in their place."""
        del directories
        return self.files(full=full)

    def lacking(self, directories: Directories, *, full: bool = False) -> tuple[DataFile, ...]:
        """The files that a download would still have to bring."""
        needed = self.needed(directories, full=full)
        return tuple(file for file in needed if directories.find(self.folders, file) is None)

    def locate(self, directories: Directories) -> Path | None:
        """The folder of the first of its files that is there."""
        found = (directories.find(self.folders, file) for file in self.needed(directories, full=True))
        return next((path.parent for path in found if path is not None), None)

    def check(self, directories: Directories) -> Iterator[tuple[Path, str]]:
        """Check all its files, or else all its splits: each with what is wrong with it, or with an empty string.

        Raises:
            MissingDataError: a file is not there; after all others were checked.
        """
        needed = self.needed(directories, full=True)
        for file in needed:
            if (path := directories.find(self.folders, file)) is not None:
                yield path, _problem(path, partial(checksum, path, file))
        directories.need(self.name, self.folders, self.needed(directories))
        for split in () if needed else self.counts or ("train", "test"):
            path = self.locate(directories) or Path(self.name)
            yield path, _problem(path, partial(self.read, split, directories))

    def digest(self, directories: Directories) -> str:
        """16 hex digits that identify the content of all its splits, without a download.

        It comes from the checksums of its files; if it has none, all splits are read and hashed.

        Raises:
            MissingDataError: the content would have to be read, and is not there.
        """
        if files := self.files():
            return combined({file.name: directories.checksum(self.name, self.folders, file) for file in files})
        parts = {}
        for split in self.counts or SPLITS:
            try:
                data = self.read(split, directories)
            except (FileFormatError, MissingDataError):
                raise
            except (ValueError, LookupError):  # there is no such split
                continue
            parts[split] = content_digest(data.x, data.y, data.class_names, data.domain)
        return combined(parts)

    def no_such_split(self, split: str) -> PolyboundError:
        """The error for a split that the data set does not have."""
        if split == "validation":
            return PolyboundError(
                f"{self.name} has no official validation split: carve one from train by validation=0.1,"
                " and load train with the same share and seed"
            )
        return ArgumentError("split", f"must be 'train', 'validation' or 'test', got {split!r}")


@dataclass(frozen=True, kw_only=True)
class FunctionSource(Source):
    """A data set that a function makes.

    Attributes:
        function: gives the data set of a split; called for each split to find the digest.
    """

    function: Callable[[str], Dataset]

    def read(self, split: str, directories: Directories) -> Dataset:
        del directories
        try:
            data = self.function(split)
        except LookupError as error:
            if split != "validation":
                raise
            raise self.no_such_split(split) from error
        return replace(data, x=data.x.detach().cpu().float().clone(), y=data.y.detach().cpu().long().clone())

    def locate(self, directories: Directories) -> Path | None:
        del directories
        code = getattr(self.function, "__code__", None)
        return None if code is None else Path(code.co_filename)


@dataclass(frozen=True, kw_only=True)
class FileSource(Source):
    """A data set in files, which may come in one archive, and may then lie there unpacked. It must implement `parse`.

    Attributes:
        parts: the files of each split.
        archive: the zip or gzipped tar file that holds them all, if they come in one.
        inside: the folder in the archive in which they are.
        part: which of the data sets in the archive it is, if there are several.
    """

    parts: Mapping[str, tuple[DataFile, ...]]
    archive: DataFile | None = None
    inside: str = ""
    part: str = ""

    @abstractmethod
    def parse(self, split: str, contents: Mapping[str, bytes]) -> Dataset:
        """The samples in the contents of a split's files; the keys name the files, for messages."""

    def read(self, split: str, directories: Directories) -> Dataset:
        if split not in self.parts:
            raise self.no_such_split(split)
        files, used = self.parts[split], self._used(split, directories)
        paths = directories.need(self.name, self.folders, used)
        if self.archive is not None and self.archive in used:
            members = {f"{self.inside}/{file.stored}": file for file in files}
            return self.parse(split, read_archive(paths[0], self.archive, members))
        contents = {str(path): read_content(path, file) for path, file in zip(paths, files, strict=True)}
        unknown = any(not file.sha256 for file in files)
        return replace(self.parse(split, contents), note=_UNKNOWN if unknown else "")

    def files(self, *, full: bool = False) -> tuple[DataFile, ...]:
        del full
        return tuple(sum(self.parts.values(), ())) if self.archive is None else (self.archive,)

    def needed(self, directories: Directories, *, full: bool = False) -> tuple[DataFile, ...]:
        del full
        return tuple(dict.fromkeys(file for split in self.parts for file in self._used(split, directories)))

    def lacking(self, directories: Directories, *, full: bool = False) -> tuple[DataFile, ...]:
        absent = super().lacking(directories, full=full)
        return absent if self.archive is None or not absent else (self.archive,)

    def digest(self, directories: Directories) -> str:
        parts = {"part": self.part} if self.part else {}
        for split, files in self.parts.items():
            for file in files if all(file.sha256 for file in files) else self._used(split, directories):
                key = split if file is self.archive else file.name
                parts[key] = directories.checksum(self.name, self.folders, file)
        return combined(parts)

    def _dataset(self, split: str, x: npt.NDArray[np.uint8], y: npt.NDArray[np.int64]) -> Dataset:
        """Bytes and labels as a data set."""
        inputs, labels = scaled_bytes(x.reshape(-1, *self.shape)), torch.from_numpy(y)
        return Dataset(self.name, split, inputs, labels, self.class_names, scaling=BYTES)

    def _used(self, split: str, directories: Directories) -> tuple[DataFile, ...]:
        """The files of a split: its own if there is no archive, or only they are there; else the archive."""
        files = self.parts[split]
        if self.archive is None:
            return files
        zipped, *plain = (directories.find(self.folders, file) is not None for file in (self.archive, *files))
        return files if any(plain) and not zipped else (self.archive,)


def _problem(path: Path, check: Callable[[], object]) -> str:
    """The message of a check that fails, or an empty string."""
    try:
        check()
    except FileFormatError as error:
        return str(error)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return ""


# Images as bytes in files: MNIST's layout, which EMNIST has too, and CIFAR-10's binary version.


@dataclass(frozen=True, kw_only=True)
class IdxSource(FileSource):
    """Images and labels in idx files, of each split first the images.

    Attributes:
        first_label: the label of the first class.
        transposed: whether the images lie on their side, as EMNIST's do.
    """

    first_label: int = 0
    transposed: bool = False

    def parse(self, split: str, contents: Mapping[str, bytes]) -> Dataset:
        (images, pixels), (labels, numbers) = contents.items()
        x = parse_idx(pixels, images, (self.counts[split], *self.shape[1:]))
        y = parse_idx(numbers, labels, (self.counts[split],)).astype(np.int64) - self.first_label
        upright = np.ascontiguousarray(x.swapaxes(1, 2)) if self.transposed else x
        bad = np.flatnonzero((y < 0) | (y >= len(self.class_names)))
        if bad.size:
            wrong = f"label {y[bad[0]]} of sample {bad[0]}"
            raise FileFormatError(f"{labels}: {wrong} is not one of the {len(self.class_names)} classes")
        return self._dataset(split, upright, y)


@dataclass(frozen=True, kw_only=True)
class CifarSource(FileSource):
    """Images in records, each the byte of a label and then those of the pixels, in files of known checksums."""

    def parse(self, split: str, contents: Mapping[str, bytes]) -> Dataset:
        records = np.frombuffer(b"".join(contents.values()), np.uint8).reshape(self.counts[split], -1)
        return self._dataset(split, records[:, 1:], records[:, 0].astype(np.int64))


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
    # All of the header is known beforehand: bytes (8), the number of dimensions, and the dimensions.
    header = bytes([0, 0, 8, len(dims)]) + np.array(dims, ">i4").tobytes()
    found, sizes = content[: len(header)], " x ".join(map(str, dims))
    if found != header:
        raise FileFormatError(f"{where}: its idx header is {found.hex()}, not {header.hex()}, that of {sizes} bytes")
    if len(content) != idx_size(dims):
        raise FileFormatError(f"{where}: {sizes} bytes announced, {len(content) - len(header)} there: truncated?")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(dims)
