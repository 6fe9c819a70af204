"""What every source of data can do: read a split, say where its files are, check them, and identify their content."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from polybound.data.checksums import DataFile, combined
from polybound.data.dataset import Dataset, Samples, content_digest
from polybound.data.directories import Directories, MissingDataError
from polybound.errors import FileFormatError, PolyboundError

__all__ = ["SPLITS", "FunctionSource", "Source", "verdict"]

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """A data set: facts about it, and how it is read. A subclass must implement `read`, and may override the rest.

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
    title: str = ""
    shape: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    licence: str = "none stated"
    home: str = ""
    folders: tuple[str, ...] = ()

    @abstractmethod
    def read(self, split: str, directories: Directories) -> Samples:
        """An official split, "train", "test" or, if there is one, "validation"; else raise `no_such_split`."""

    def files(self, *, full: bool = False) -> tuple[DataFile, ...]:
        """What a download brings; full is for what is usually too large to want."""
        del full
        return ()

    def lacking(self, directories: Directories, *, full: bool = False) -> tuple[DataFile, ...]:
        """What a download would still have to bring."""
        return tuple(file for file in self.files(full=full) if directories.find(self.folders, file.names) is None)

    def locate(self, directories: Directories) -> Path | None:
        """A file or folder of it, unless there is none."""
        found = (directories.find(self.folders, file.names) for file in self.files(full=True))
        return next((path.parent for path in found if path is not None), None)

    def check(self, directories: Directories) -> Iterator[tuple[Path, str]]:
        """Check all its files: each with what is wrong with it, or with an empty string."""
        for split in self.counts or ("train", "test"):
            yield verdict(self.locate(directories) or Path(self.name), partial(self.read, split, directories))

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
                samples = self.read(split, directories)
            except (FileFormatError, MissingDataError):
                raise
            except (ValueError, LookupError):  # there is no such split
                continue
            parts[split] = content_digest(samples.x, samples.y, samples.class_names, samples.domain)
        return combined(parts)

    def no_such_split(self, split: str) -> PolyboundError:
        """What to raise for a split that it does not have."""
        if split == "validation":
            return PolyboundError(
                f"{self.name} has no official validation split: carve one from train by validation=0.1,"
                " and load train with the same share and seed"
            )
        return PolyboundError(f"split must be 'train', 'validation' or 'test', got {split!r}")


@dataclass(frozen=True, kw_only=True)
class FunctionSource(Source):
    """A data set that a function makes.

    Attributes:
        function: gives the data set of a split; called for each split to find the digest.
    """

    function: Callable[[str], Dataset]

    def read(self, split: str, directories: Directories) -> Samples:
        del directories
        try:
            data = self.function(split)
        except LookupError as error:
            if split != "validation":
                raise
            raise self.no_such_split(split) from error
        x, y = (array.detach().cpu().numpy() for array in (data.x.float(), data.y.long()))
        return Samples(x, y, data.class_names, note=data.note, domain=data.domain)

    def locate(self, directories: Directories) -> Path | None:
        del directories
        code = getattr(self.function, "__code__", None)
        return None if code is None else Path(code.co_filename)


def verdict(path: Path, check: Callable[[], object]) -> tuple[Path, str]:
    """A path, with what a check says against it."""
    try:
        check()
    except FileFormatError as error:
        return path, str(error)
    except OSError as error:
        return path, f"{path}: {error.strerror or error}"
    return path, ""
