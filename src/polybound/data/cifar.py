"""CIFAR-10, from its binary version, unpacked or as downloaded; the pickles of its python version are not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polybound.data.archives import tar_members
from polybound.data.checksums import DataFile, check_bytes, combined, read_content, regular
from polybound.data.dataset import Samples
from polybound.data.directories import Directories, MissingDataError
from polybound.data.mnist import check_labels
from polybound.data.source import Source, verdict
from polybound.errors import FileFormatError

__all__ = ["CifarSource"]

FOLDER = "cifar-10-batches-bin"
_PYTHON = ("cifar-10-batches-py", "cifar-10-python.tar.gz")

Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class CifarSource(Source):
    """CIFAR-10: batches of records, each a label and the pixels of an image.

    Attributes:
        archive: the file to download.
        batches: the files of each split, by their names in the archive's folder.
    """

    archive: DataFile
    batches: Mapping[str, tuple[DataFile, ...]]

    @property
    def all_batches(self) -> tuple[DataFile, ...]:
        """Those of all splits."""
        return tuple(file for files in self.batches.values() for file in files)

    def read(self, split: str, directories: Directories) -> Samples:
        if split not in self.counts:
            raise self.no_such_split(split)
        path = self._need(directories)
        x, y = map(np.concatenate, zip(*self._batches(path, self.batches[split]), strict=True))
        if len(x) != self.counts[split]:
            raise FileFormatError(f"{path}: {len(x)} images in its {split} split, not {self.counts[split]}")
        return Samples(x, y, self.class_names)

    def files(self, *, full: bool = False) -> tuple[DataFile, ...]:
        del full
        return (self.archive,)

    def lacking(self, directories: Directories, *, full: bool = False) -> tuple[DataFile, ...]:
        return () if self.locate(directories) is not None else self.files(full=full)  # it may be there unpacked

    def locate(self, directories: Directories) -> Path | None:
        names = (*(f"{FOLDER}/{file.name}" for file in self.all_batches), self.archive.name)
        path = directories.find(self.folders, names)
        return path if path is None or path.name == self.archive.name else path.parent

    def check(self, directories: Directories) -> Iterator[tuple[Path, str]]:
        path = self._need(directories)
        if path.is_dir():
            for file in self.all_batches:
                yield verdict(path / file.name, partial(self._batches, path, (file,)))
        else:
            yield verdict(path, partial(self._batches, path, self.all_batches))

    def digest(self, directories: Directories) -> str:
        del directories  # whether unpacked or not, the batches' checksums are known
        return combined({file.name: file.sha256[0] for file in self.all_batches})

    def _need(self, directories: Directories) -> Path:
        """The folder or the archive; if only the python version is there, the line says so."""
        if (path := self.locate(directories)) is not None:
            return path
        try:
            return directories.need(self.name, self.folders, (self.archive,))[0]
        except MissingDataError as error:
            if (python := directories.find(self.folders, _PYTHON)) is None:
                raise
            raise MissingDataError(
                f"{python}: CIFAR-10's python version is made of pickles, which are not read; the binary version,"
                f" {self.archive.name}, is needed: {error}"
            ) from error

    def _batches(self, path: Path, files: tuple[DataFile, ...]) -> list[Batch]:
        contents = self._from_folder(path, files) if path.is_dir() else self._from_archive(path, files)
        return [self._records(content, where) for where, content in contents.items()]

    def _from_folder(self, folder: Path, files: tuple[DataFile, ...]) -> dict[str, bytes]:
        for file in files:
            if not (folder / file.name).exists():
                raise FileFormatError(f"{folder / file.name}: missing; {self.name} is not complete without it")
        return {str(folder / file.name): read_content(folder / file.name, file) for file in files}

    def _from_archive(self, path: Path, files: tuple[DataFile, ...]) -> dict[str, bytes]:
        wanted = {f"{FOLDER}/{file.name}": file for file in files}
        contents: dict[str, bytes] = {}
        limit = sum(file.size for file in self.all_batches) + (1 << 20)  # readme, class names, headers
        for name, read in tar_members(regular(path), limit):
            if (file := wanted.get(name)) is not None:
                contents[name] = read(file.size)
                check_bytes(f"{path}: {name}", contents[name], file)
                if len(contents) == len(wanted):
                    break
        if absent := wanted.keys() - contents.keys():
            raise FileFormatError(f"{path}: holds no {min(absent)}, or ends before it")
        return {f"{path}: {name}": contents[name] for name in wanted}

    def _records(self, content: bytes, where: str) -> Batch:
        pixels = int(np.prod(self.shape))
        if len(content) % (1 + pixels):
            raise FileFormatError(f"{where}: {len(content)} bytes are not a whole number of records of {1 + pixels}")
        records = np.frombuffer(content, np.uint8).reshape(-1, 1 + pixels)
        return records[:, 1:].reshape(-1, *self.shape), check_labels(records[:, 0], len(self.class_names), where)
