"""What every source of data can do: read a split, say where its files are, and check them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from polybound.data.content import DataFile
from polybound.data.samples import Samples
from polybound.data.shelf import Shelf
from polybound.errors import FileFormatError, PolyboundError

__all__ = ["Source", "verdict"]


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """A data set: facts about it, and how it is read.

    Attributes:
        name: what it is called in `load`.
        title: what it is, in a few words.
        shape: of one input.
        class_names: one name for each class.
        counts: samples of each official split.
        licence: of the data, as their authors state it.
        home: their page.
        folders: where below a data directory its files may lie; downloads go to the first.
    """

    name: str
    title: str
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    counts: Mapping[str, int]
    licence: str
    home: str
    folders: tuple[str, ...] = field(default=())

    @abstractmethod
    def read(self, split: str, shelf: Shelf) -> Samples:
        """An official split, "train", "test" or, if there is one, "validation"."""

    @abstractmethod
    def files(self, *, full: bool = False) -> tuple[DataFile, ...]:
        """What a download brings; full is for what is usually too large to want."""

    def lacking(self, shelf: Shelf, *, full: bool = False) -> tuple[DataFile, ...]:
        """What a download would still have to bring."""
        return tuple(file for file in self.files(full=full) if shelf.find(self.folders, file.names) is None)

    @abstractmethod
    def locate(self, shelf: Shelf) -> Path | None:
        """A file or folder of it, unless there is none."""

    @abstractmethod
    def check(self, shelf: Shelf) -> Iterator[tuple[Path, str]]:
        """Check all its files: each with what is wrong with it, or with an empty string."""

    def no_such_split(self, split: str) -> PolyboundError:
        """What to raise for a split that it does not have."""
        if split == "validation":
            return PolyboundError(
                f"{self.name} has no official validation split: carve one from train by validation=0.1,"
                " and load train with the same share and seed"
            )
        return PolyboundError(f"split must be 'train', 'validation' or 'test', got {split!r}")


def verdict(path: Path, check: Callable[[], object]) -> tuple[Path, str]:
    """A path, with what a check says against it."""
    try:
        check()
    except FileFormatError as error:
        return path, str(error)
    except OSError as error:
        return path, f"{path}: {error.strerror or error}"
    return path, ""
