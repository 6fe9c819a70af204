"""EMNIST's letters and by-class parts: idx files in NIST's zip file, or taken out of it."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polybound.data.archives import open_zip, read_gzip_member, read_member
from polybound.data.content import DataFile, check_file, read_content
from polybound.data.idx import idx_size, parse_idx
from polybound.data.mnist import check_labels
from polybound.data.samples import Samples
from polybound.data.shelf import Shelf
from polybound.data.source import Source, verdict
from polybound.errors import FileFormatError

__all__ = ["EmnistSource"]

_MAPPING_LIMIT = 1 << 16
_UNPACKED = "of files taken out of EMNIST's zip file no digest is known: only their structure was checked"


@dataclass(frozen=True, kw_only=True)
class EmnistSource(Source):
    """A part of EMNIST.

    Its images are stored transposed, and are turned upright here. Its labels count from first_label on.

    Attributes:
        part: "letters" or "byclass".
        first_label: the label of the first class.
        archive: NIST's zip file.
    """

    part: str
    first_label: int
    archive: DataFile

    def read(self, split: str, shelf: Shelf) -> Samples:
        if split not in self.counts:
            raise self.no_such_split(split)
        loose = self._loose(split, shelf)
        if loose is not None:
            images, labels = loose
            x = self._upright(read_content(images, self._file(split, "images")), images, split)
            y = self._from_zero(read_content(labels, self._file(split, "labels")), labels, split)
            return Samples(x, y, self.class_names, note=_UNPACKED)
        (path,) = shelf.need(self.name, self.folders, (self.archive,))
        with self._open(path) as archive:
            return self._from_zip(archive, path, split)

    def files(self, *, full: bool = False) -> tuple[DataFile, ...]:
        del full
        return (self.archive,)

    def lacking(self, shelf: Shelf, *, full: bool = False) -> tuple[DataFile, ...]:
        return () if self.locate(shelf) is not None else self.files(full=full)  # it may be there in another form

    def locate(self, shelf: Shelf) -> Path | None:
        for split in self.counts:
            if (loose := self._loose(split, shelf)) is not None:
                return loose[0].parent
        return shelf.find(self.folders, self.archive.names)

    def check(self, shelf: Shelf) -> Iterator[tuple[Path, str]]:
        zipped = []
        for split in self.counts:
            if (loose := self._loose(split, shelf)) is None:
                zipped.append(split)
                continue
            for path, kind, read in ((loose[0], "images", self._upright), (loose[1], "labels", self._from_zero)):
                yield verdict(path, partial(self._check_loose, path, split, kind, read))
        if zipped:
            (path,) = shelf.need(self.name, self.folders, (self.archive,))
            yield verdict(path, partial(self._check_zip, path, zipped))

    def _file(self, split: str, kind: str) -> DataFile:
        dims = (self.counts[split], *self.shape[1:]) if kind == "images" else (self.counts[split],)
        suffix = "idx3-ubyte" if kind == "images" else "idx1-ubyte"
        return DataFile(f"emnist-{self.part}-{split}-{kind}-{suffix}", idx_size(dims), gzipped=True)

    def _loose(self, split: str, shelf: Shelf) -> tuple[Path, Path] | None:
        """Images and labels that were taken out of the zip file, unless the zip file itself is found before them."""
        folders = tuple(f"{folder}{below}" for folder in self.folders for below in ("", "/gzip"))
        images = shelf.find(folders, (self.archive.name, *self._file(split, "images").names))
        if images is None or images.name == self.archive.name:
            return None
        (labels,) = shelf.need(self.name, folders, (self._file(split, "labels"),))
        return images, labels

    def _check_loose(self, path: Path, split: str, kind: str, read: Callable[[bytes, Path, str], object]) -> None:
        read(read_content(path, self._file(split, kind)), path, split)

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
        contents = []
        for kind in ("images", "labels"):
            file = self._file(split, kind)
            contents.append(read_gzip_member(archive, path, f"gzip/{file.stored}", file, self.archive.size))
        x = self._upright(contents[0], f"{path}: gzip/{self._file(split, 'images').stored}", split)
        y = self._from_zero(contents[1], f"{path}: gzip/{self._file(split, 'labels').stored}", split)
        return Samples(x, y, self.class_names)

    def _check_mapping(self, archive: zipfile.ZipFile, path: Path) -> None:
        """The file that says which label is which character must say what class_names say."""
        name = f"gzip/emnist-{self.part}-mapping.txt"
        content = read_member(archive, path, name, _MAPPING_LIMIT)
        expected = [(self.first_label + index, ord(text)) for index, text in enumerate(self.class_names)]
        try:
            # A label, and the codes of its characters; letters have two, of upper and of lower case.
            rows = [
                [int(number) for number in line.split()]
                for line in content.decode("ascii").splitlines()
                if line.strip()
            ]
            found = [(row[0], row[1]) for row in rows]
        except (ValueError, IndexError) as error:
            raise FileFormatError(f"{path}: {name}: not lines of numbers") from error
        if found != expected:
            raise FileFormatError(f"{path}: {name}: maps labels to other characters than {self.name} has")

    def _upright(self, content: bytes, where: str | Path, split: str) -> npt.NDArray[np.uint8]:
        array = parse_idx(content, where, (self.counts[split], *self.shape[1:]))
        return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(-1, *self.shape)

    def _from_zero(self, content: bytes, where: str | Path, split: str) -> npt.NDArray[np.int64]:
        labels = parse_idx(content, where, (self.counts[split],)).astype(np.int64) - self.first_label
        return check_labels(labels, len(self.class_names), where)
