"""CIFAR-10, from its binary or its python version, unpacked or as downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polybound.data.archives import tar_members
from polybound.data.content import DataFile, check_bytes, read_content, regular
from polybound.data.mnist import check_labels
from polybound.data.opcodes import read_pickled_dict
from polybound.data.samples import Samples
from polybound.data.shelf import Shelf
from polybound.data.source import Source, verdict
from polybound.errors import FileFormatError

__all__ = ["CifarSource", "CifarVersion"]

Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class CifarVersion:
    """One of the versions in which CIFAR-10 is published.

    Attributes:
        folder: the one in its archive.
        archive: the file to download.
        batches: the files of each split, by their names in the folder.
        pickled: the batches are pickled dictionaries; else records of one label and 3,072 pixels.
    """

    folder: str
    archive: DataFile
    batches: dict[str, tuple[DataFile, ...]]
    pickled: bool

    def owns(self, path: Path) -> bool:
        """Whether a path is that of its archive, or of something in its folder."""
        return path.name == self.archive.name or path.parent.name == self.folder

    @property
    def all_batches(self) -> tuple[DataFile, ...]:
        """Those of all splits."""
        return tuple(file for files in self.batches.values() for file in files)


@dataclass(frozen=True, kw_only=True)
class CifarSource(Source):
    """CIFAR-10.

    Attributes:
        versions: in the order in which they are looked for; the first is the one that is downloaded.
    """

    versions: tuple[CifarVersion, ...]

    def read(self, split: str, shelf: Shelf) -> Samples:
        if split not in self.counts:
            raise self.no_such_split(split)
        version, path = self._find(shelf)
        parts = list(self._parts(version, path, version.batches[split]))
        x, y = (np.concatenate([part[index] for part in parts]) for index in range(2))
        if len(x) != self.counts[split]:
            raise FileFormatError(f"{path}: {len(x)} images in its {split} split, not {self.counts[split]}")
        return Samples(x, y, self.class_names)

    def files(self, *, full: bool = False) -> tuple[DataFile, ...]:
        del full
        return (self.versions[0].archive,)

    def lacking(self, shelf: Shelf, *, full: bool = False) -> tuple[DataFile, ...]:
        return () if self.locate(shelf) is not None else self.files(full=full)  # it may be there in another form

    def locate(self, shelf: Shelf) -> Path | None:
        found = self._found(shelf)
        return None if found is None else found[1]

    def check(self, shelf: Shelf) -> Iterator[tuple[Path, str]]:
        version, path = self._find(shelf)
        if path.is_dir():
            for file in version.all_batches:
                yield verdict(path / file.name, partial(self._check_batches, version, path, (file,)))
        else:
            yield verdict(path, partial(self._check_batches, version, path, version.all_batches))

    def _found(self, shelf: Shelf) -> tuple[CifarVersion, Path] | None:
        """The first version there is, and its folder or its archive."""
        names = []
        for version in self.versions:
            names += [f"{version.folder}/{file.name}" for file in version.all_batches] + [version.archive.name]
        if (path := shelf.find(self.folders, names)) is None:
            return None
        version = next(version for version in self.versions if version.owns(path))
        return version, path if path.name == version.archive.name else path.parent

    def _find(self, shelf: Shelf) -> tuple[CifarVersion, Path]:
        if (found := self._found(shelf)) is not None:
            return found
        (path,) = shelf.need(self.name, self.folders, (self.versions[0].archive,))
        return self.versions[0], path

    def _check_batches(self, version: CifarVersion, path: Path, files: tuple[DataFile, ...]) -> None:
        for _ in self._parts(version, path, files):
            pass

    def _parts(self, version: CifarVersion, path: Path, files: tuple[DataFile, ...]) -> Iterator[Batch]:
        contents = self._from_folder(path, files) if path.is_dir() else self._from_archive(version, path, files)
        for where, content in contents:
            yield self._unpickled(content, where) if version.pickled else self._records(content, where)

    def _from_folder(self, folder: Path, files: tuple[DataFile, ...]) -> Iterator[tuple[str, bytes]]:
        for file in files:
            path = folder / file.name
            if not path.exists():
                raise FileFormatError(f"{path}: missing; {self.name} is not complete without it")
            yield str(path), read_content(path, file)

    def _from_archive(
        self, version: CifarVersion, path: Path, files: tuple[DataFile, ...]
    ) -> Iterator[tuple[str, bytes]]:
        wanted = {f"{version.folder}/{file.name}": file for file in files}
        contents: dict[str, bytes] = {}
        limit = sum(file.size for file in version.all_batches) + (1 << 20)  # readme, class names, headers
        for member in tar_members(regular(path), limit):
            if (file := wanted.get(member.name)) is not None:
                contents[member.name] = member.read(file.size)
                check_bytes(f"{path}: {member.name}", contents[member.name], file)
                if len(contents) == len(wanted):
                    break
        for name in wanted:
            if name not in contents:
                raise FileFormatError(f"{path}: holds no {name}, or ends before it")
            yield f"{path}: {name}", contents.pop(name)

    def _records(self, content: bytes, where: str) -> Batch:
        pixels = int(np.prod(self.shape))
        if len(content) % (1 + pixels):
            raise FileFormatError(f"{where}: {len(content)} bytes are not a whole number of records of {1 + pixels}")
        records = np.frombuffer(content, np.uint8).reshape(-1, 1 + pixels)
        return records[:, 1:].reshape(-1, *self.shape), check_labels(records[:, 0], len(self.class_names), where)

    def _unpickled(self, content: bytes, where: str) -> Batch:
        batch = read_pickled_dict(content, where)
        data, labels = batch.get("data"), batch.get("labels")
        pixels = int(np.prod(self.shape))
        if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != pixels:
            raise FileFormatError(f"{where}: no 'data' of {pixels} pixels an image in it")
        if not isinstance(labels, list) or not all(type(label) is int for label in labels):
            raise FileFormatError(f"{where}: no 'labels' in it that are a list of numbers")
        if len(labels) != len(data):
            raise FileFormatError(f"{where}: {len(data)} images, but {len(labels)} labels")
        y = check_labels(np.array(labels, dtype=np.int64), len(self.class_names), where)
        return data.reshape(-1, *self.shape), y
