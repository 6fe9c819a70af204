"""MNIST and data sets of its layout: four idx files, plain or gzipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polybound.data.content import DataFile, read_content
from polybound.data.idx import parse_idx
from polybound.data.samples import Samples
from polybound.data.shelf import Shelf
from polybound.data.source import Source, verdict
from polybound.errors import FileFormatError

__all__ = ["MnistSource", "check_labels"]


@dataclass(frozen=True, kw_only=True)
class MnistSource(Source):
    """Images and labels in idx files.

    Attributes:
        images: the file of each split's images.
        labels: the file of each split's labels.
    """

    images: dict[str, DataFile]
    labels: dict[str, DataFile]

    def read(self, split: str, shelf: Shelf) -> Samples:
        if split not in self.images:
            raise self.no_such_split(split)
        images, labels = shelf.need(self.name, self.folders, (self.images[split], self.labels[split]))
        return Samples(self._images(images, split), self._labels(labels, split), self.class_names)

    def files(self, *, full: bool = False) -> tuple[DataFile, ...]:
        del full
        return (*self.images.values(), *self.labels.values())

    def locate(self, shelf: Shelf) -> Path | None:
        found = (shelf.find(self.folders, file.names) for file in self.files())
        return next((path.parent for path in found if path is not None), None)

    def check(self, shelf: Shelf) -> Iterator[tuple[Path, str]]:
        for split in self.images:
            for file, read in ((self.images[split], self._images), (self.labels[split], self._labels)):
                if (path := shelf.find(self.folders, file.names)) is not None:
                    yield verdict(path, partial(read, path, split))
        shelf.need(self.name, self.folders, self.files())  # says which are missing

    def _images(self, path: Path, split: str) -> npt.NDArray[np.uint8]:
        channels, height, width = self.shape
        content = read_content(path, self.images[split])
        array = parse_idx(content, path, (self.counts[split], height, width))
        return array.reshape(-1, channels, height, width)

    def _labels(self, path: Path, split: str) -> npt.NDArray[np.int64]:
        labels = parse_idx(read_content(path, self.labels[split]), path, (self.counts[split],))
        return check_labels(labels, len(self.class_names), path)


def check_labels(labels: npt.NDArray[np.integer], classes: int, where: str | Path) -> npt.NDArray[np.int64]:
    """Labels as int64, refused if one is of no class."""
    numbers = labels.astype(np.int64)
    bad = np.flatnonzero((numbers < 0) | (numbers >= classes))
    if bad.size:
        raise FileFormatError(f"{where}: label {labels[bad[0]]} of sample {bad[0]} is of none of the {classes} classes")
    return numbers
