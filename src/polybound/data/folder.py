"""A user's own data: images in a folder for each class, or arrays in an npz file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from polybound.data.content import DataFile
from polybound.data.images import class_folders, image_shape, read_images
from polybound.data.npz import read_npz
from polybound.data.samples import TEST_SHARE, Samples, hold_out
from polybound.data.shelf import Shelf
from polybound.data.source import Source, verdict
from polybound.errors import FileFormatError, PolyboundError

__all__ = ["FolderSource"]

_DIVIDED = f"no test split of its own: {TEST_SHARE:.0%} of each class, always the same, are held out for it"


@dataclass(frozen=True, kw_only=True)
class FolderSource(Source):
    """Images in PATH/train/CLASS/ and PATH/test/CLASS/, or in PATH/CLASS/; or an npz file.

    A folder PATH/validation/ is that split. Without a test split, a fifth of each class is held out for it.

    Attributes:
        path: the folder, or the npz file.
    """

    path: Path

    @classmethod
    def at(cls, path: Path) -> FolderSource:
        """The source of the data at a path; its shape and its classes are known only after reading."""
        return cls(
            name=f"folder:{path}",
            title="your own data",
            shape=(),
            class_names=(),
            counts={},
            licence="yours",
            home=str(path),
            path=path.expanduser(),
        )

    def read(self, split: str, shelf: Shelf) -> Samples:
        del shelf
        if split not in ("train", "validation", "test"):
            raise self.no_such_split(split)
        if not self.path.exists():
            raise PolyboundError(f"{self.path}: no such folder or file")
        return self._from_npz(split) if self.path.is_file() else self._from_folders(split)

    def files(self, *, full: bool = False) -> tuple[DataFile, ...]:
        del full
        return ()

    def locate(self, shelf: Shelf) -> Path | None:
        del shelf
        return self.path if self.path.exists() else None

    def check(self, shelf: Shelf) -> Iterator[tuple[Path, str]]:
        for split in ("train", "test"):
            yield verdict(self.path, partial(self.read, split, shelf))

    def _from_npz(self, split: str) -> Samples:
        parts = read_npz(self.path)
        if split == "validation":
            raise self.no_such_split(split)
        return parts[split] if "test" in parts else hold_out(parts["train"], split, _DIVIDED)

    def _from_folders(self, split: str) -> Samples:
        train = self.path / "train"
        # A class may be called "train", too; then there are images in it, not folders.
        if not (train.is_dir() and any(entry.is_dir() for entry in train.iterdir())):
            train = self.path
        classes = class_folders(train)
        shape = image_shape(classes)
        own = {
            name: self.path / name
            for name in ("validation", "test")
            if train != self.path and (self.path / name).is_dir()
        }
        if split in own:
            return read_images(self._same_classes(classes, own[split]), shape)
        if split == "validation":
            raise self.no_such_split(split)
        samples = read_images(classes, shape)
        return samples if "test" in own else hold_out(samples, split, _DIVIDED)

    def _same_classes(self, classes: dict[str, list[Path]], folder: Path) -> dict[str, list[Path]]:
        """The classes of another split, in the order of train; one that has no images there is empty."""
        found = class_folders(folder)
        for name in found:
            if name not in classes:
                raise FileFormatError(f"{folder / name}: a class that train does not have")
        return {name: found.get(name, []) for name in classes}
