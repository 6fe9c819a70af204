"""Where data files are looked for, and what is said if one is nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from os import PathLike
from pathlib import Path

from polybound.data.files import DataFile, checksum
from polybound.errors import PolyboundError

__all__ = ["Directories", "MissingDataError", "cache_folder"]

VARIABLE = "POLYBOUND_DATA"
SYSTEM = Path("/usr/share/datasets")  # Debian's packages, such as dataset-fashion-mnist


class MissingDataError(PolyboundError):
    """A data set that is nowhere to be found, and could not be downloaded."""


def cache_folder() -> Path:
    """The user's folder for what can be had again: downloads and computed features."""
    import pooch

    return Path(pooch.os_cache("polybound")).expanduser()


class Directories:
    """The data directories, in the order in which they are searched.

    They are: the one given, the one that the environment variable POLYBOUND_DATA names, the user's cache directory, and
    Debian's. Each data set has a folder of its own below them. A download goes to the first of them.

    Args:
        data_dir: searched before all others.
        download: whether what is nowhere may be downloaded.
    """

    def __init__(self, data_dir: str | PathLike[str] | None = None, *, download: bool = True) -> None:
        self.own = [Path(given).expanduser() for given in (data_dir, os.environ.get(VARIABLE)) if given]
        self.by_variable = bool(self.own) and not data_dir
        self.download = download

    @cached_property
    def roots(self) -> tuple[Path, ...]:
        """All of them, first the one that downloads go to."""
        return (*self.own, cache_folder(), SYSTEM)

    def find(self, folders: tuple[str, ...], file: DataFile) -> Path | None:
        """Where a file is: the first of any of its names in any of these folders."""
        paths = (root / folder / name for root in self.roots for folder in folders for name in file.names)
        # Also what exists but is no file: it shall be refused by name, not passed over.
        return next((path for path in paths if path.exists() or path.is_symlink()), None)

    def need(self, name: str, folders: tuple[str, ...], files: Iterable[DataFile]) -> list[Path]:
        """Where these files of a data set are; they are downloaded if they are nowhere.

        Args:
            name: the data set.
            folders: where below the data directories its files may lie; a download goes to the first.
            files: what is needed.

        Raises:
            MissingDataError: a file is nowhere and cannot be downloaded; the message says what to put where.
            FileFormatError: what was downloaded is not what it should be.
        """
        files, reason = tuple(files), ""
        absent = [file for file in files if self.find(folders, file) is None]
        if absent and self.download:
            from polybound.data.download import DownloadError, fetch

            try:
                for file in absent:
                    fetch(file, self.roots[0] / folders[0] / file.stored)
            except DownloadError as error:
                reason = str(error)
            absent = [file for file in files if self.find(folders, file) is None]
        if absent:
            raise MissingDataError(self._advice(name, folders, absent, reason))
        return [path for file in files if (path := self.find(folders, file)) is not None]

    def checksum(self, name: str, folders: tuple[str, ...], file: DataFile) -> str:
        """The SHA-256 that the content of a data set's file has, or will have when it is downloaded.

        The file itself is looked into only where it could be one of several versions, or where no checksum is known.
        """
        if len(file.sha256) == 1 or (file.sha256 and self.find(folders, file) is None):
            return file.sha256[0]
        (path,) = self.need(name, folders, (file,))
        return checksum(path, file)

    def _advice(self, name: str, folders: tuple[str, ...], files: list[DataFile], reason: str) -> str:
        searched = ", ".join(str(root / folders[0]) for root in self.roots)
        wanted = ", ".join(file.stored for file in files)
        there = f"{f'${VARIABLE}' if self.by_variable else self.roots[0]}/{folders[0]}"
        if self.download:
            return f"{name} is not in {searched}, nor to be had ({reason}); offline? put {wanted} into {there}"
        return f"{name} is not in {searched}; get it by 'polybound data get {name}', or put {wanted} into {there}"
