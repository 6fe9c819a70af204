"""NSynth: musical notes, classified by the family of their instrument; pictures of them, that is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from polybound.data.content import DataFile, check_file
from polybound.data.notes import read_notes
from polybound.data.samples import Samples, hold_out
from polybound.data.shelf import Shelf
from polybound.data.source import Source, verdict

__all__ = ["NSynthSource"]

_PARTS = {"train": "train", "validation": "valid", "test": "test"}


@dataclass(frozen=True, kw_only=True)
class NSynthSource(Source):
    """NSynth, from its archives of JSON and wav files.

    With the archive of train, the splits are the official ones. Without it (it has 24 GB) the official test split is
    all there is; it is then divided into train and test by instrument, and the data set's note says so.

    Attributes:
        archives: the file of each official split.
    """

    archives: dict[str, DataFile]

    def read(self, split: str, shelf: Shelf) -> Samples:
        if split not in _PARTS:
            raise self.no_such_split(split)
        if shelf.find(self.folders, self.archives["train"].names) is not None:
            return self._notes(split, *shelf.need(self.name, self.folders, (self.archives[split],)))
        if split == "validation":
            raise self.no_such_split(split)
        notes = self._notes("test", *shelf.need(self.name, self.folders, (self.archives["test"],)))
        return hold_out(
            notes,
            split,
            f"part of NSynth's official test split of {len(notes.y)} notes, which was divided by instrument, so that"
            " none is in both train and test; NSynth's official train split is not there",
        )

    def files(self, *, full: bool = False) -> tuple[DataFile, ...]:
        return tuple(self.archives.values()) if full else (self.archives["test"],)

    def locate(self, shelf: Shelf) -> Path | None:
        found = (shelf.find(self.folders, file.names) for file in self.archives.values())
        return next((path.parent for path in found if path is not None), None)

    def check(self, shelf: Shelf) -> Iterator[tuple[Path, str]]:
        shelf.need(self.name, self.folders, (self.archives["test"],))
        for split, file in self.archives.items():
            if (path := shelf.find(self.folders, file.names)) is not None:
                yield verdict(path, partial(self._notes, split, path))

    def _notes(self, split: str, path: Path) -> Samples:
        digest = check_file(path, self.archives[split])
        return read_notes(path, digest, _PARTS[split], self.counts[split], self.class_names)
