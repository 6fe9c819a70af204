"""Files of data sets: where they lie, how they are downloaded, and how their content is read and checked."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import tarfile
import time
import wave
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from urllib.parse import urlsplit

from polybound.errors import FileFormatError, PolyboundError
from polybound.progress import progress_bar

# What the standard library raises at damaged files; RuntimeError also for features of a format that it lacks.
_DAMAGED = (
    *(gzip.BadGzipFile, zlib.error, zipfile.BadZipFile, tarfile.TarError, wave.Error, struct.error),
    *(UnicodeDecodeError, OverflowError, RuntimeError),
)


@dataclass(frozen=True)
class DataFile:
    """A file of a data set, and what is known of its content.

    Compressors differ, so size and checksums of a gzipped file are those of the plain bytes.

    Attributes:
        name: its name in the data set's folder, without ".gz" if gzipped is set.
        size: the most bytes its content can have; not one byte more is read or downloaded.
        sha256: known checksums of its content, empty if none is known. Of several versions, the first is downloaded.
        urls: where it can be downloaded, best first.
        gzipped: it may lie there plain, or as name + ".gz", which is how it is downloaded.
    """

    name: str
    size: int
    sha256: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    gzipped: bool = False

    @property
    def stored(self) -> str:
        """Its name as downloaded."""
        return f"{self.name}.gz" if self.gzipped else self.name

    @property
    def names(self) -> tuple[str, ...]:
        """All names it may have on disk."""
        return (self.name, self.stored) if self.gzipped else (self.name,)


@contextmanager
def refusing(where: str | Path) -> Iterator[None]:
    """Turn the errors that a damaged file causes in the standard library into one line that names the file."""
    try:
        yield
    except EOFError as error:
        raise FileFormatError(f"{where}: ends early: truncated or half-downloaded") from error
    except _DAMAGED as error:
        raise FileFormatError(f"{where}: damaged or of another format ({' '.join(str(error).split())})") from error


def read_content(path: Path, file: DataFile) -> bytes:
    """All of a file, unpacked if gzipped.

    Raises:
        FileFormatError: it is truncated, damaged, too long, or has another checksum than the known ones.
    """
    packed = file.gzipped and _regular(path).name != file.name
    # One byte more than expected shows a bomb, and reading to the end makes gzip compare its own checksum.
    with refusing(path), gzip.open(path) if packed else _regular(path).open("rb") as stream:
        content: bytes = stream.read(file.size + 1)
    _check(path, len(content), hashlib.sha256(content).hexdigest(), file)
    return content


def checksum(path: Path, file: DataFile) -> str:
    """The SHA-256 of a file's content, refused if it is not a known one. Only gzipped files are read into memory."""
    if file.gzipped:
        return hashlib.sha256(read_content(path, file)).hexdigest()
    with _regular(path).open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    _check(path, path.stat().st_size, found, file)
    return found


def combined(parts: Mapping[str, str]) -> str:
    """The digest of a data set, 16 hex digits, from the checksums of its named parts.

    Example:
        >>> combined({"train": "ab", "test": "cd"}) == combined({"test": "cd", "train": "ab"})
        True
    """
    text = "".join(f"{name}\0{checksum}\n" for name, checksum in sorted(parts.items()))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def archive_checksum(path: Path, archive: DataFile) -> str:
    """The SHA-256 of an archive, refused if it is not a known one.

    Nothing of an archive is read before. So what is in it is what its authors put there, and needs no checks.
    """
    if not archive.sha256:
        raise FileFormatError(f"{path}: no checksum of this archive is known; unpack it yourself")
    return checksum(path, archive)


def read_archive(path: Path, archive: DataFile, members: Mapping[str, DataFile]) -> dict[str, bytes]:
    """The contents of some members of a zip or gzipped tar archive, unpacked once more if they are gzipped."""
    archive_checksum(path, archive)
    with refusing(path):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as zipped:
                found = {name: zipped.read(name) for name in members}
        else:
            found = dict(tar_members(path, members.__contains__))
        return {
            f"{path}: {name}": gzip.decompress(found[name]) if file.gzipped else found[name]
            for name, file in members.items()
        }


def tar_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the wanted files of a gzipped tar archive, in order; see `read_archive`."""
    with tarfile.open(path, "r|gz") as tar:
        for member in tar:
            if wanted(member.name) and (content := tar.extractfile(member)) is not None:
                yield member.name, content.read()


def _regular(path: Path) -> Path:
    if not path.is_file():
        found = "a folder, where a file should be" if path.is_dir() else "not a regular file"
        raise FileFormatError(f"{path}: {found}")
    return path


def _check(path: Path, size: int, found: str, file: DataFile) -> None:
    """Refuse a content of another size than the file can have, or of an unknown checksum."""
    if not 0 < size <= file.size:
        raise FileFormatError(f"{path}: {f'longer than the {file.size} bytes it should have' if size else 'empty'}")
    if file.sha256 and found not in file.sha256:
        known = " or ".join(f"{checksum[:12]}…" for checksum in file.sha256)
        raise FileFormatError(
            f"{path}: SHA-256 of its content is {found[:12]}…, not {known}: truncated, damaged or swapped"
        )


# Downloads: checked before they get their name, and by one process at a time.


ATTEMPTS = 4  # at one address, for connections that break
TIMEOUT = (10.0, 60.0)  # seconds to connect, and between two bytes
_BLOCK = 1 << 16


class DownloadError(PolyboundError):
    """Nothing came from any address; the message says why."""


def fetch(file: DataFile, target: Path) -> None:
    """Download a file, unless it is there.

    Raises:
        DownloadError: no address has it, or none can be reached.
        FileFormatError: what an address sent is not what it should be; it is not kept.
    """
    from filelock import FileLock

    if not file.urls:
        raise DownloadError(f"{file.stored} has no address to download it from")
    errors: list[PolyboundError] = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / ".download.lock"):
            for url in file.urls:
                if target.exists():  # another process was first
                    return None
                try:
                    return _fetch_from(url, file, target)
                except PolyboundError as error:
                    errors.append(error)
    except OSError as error:  # of the disk
        raise DownloadError(f"{error.filename or target}: {error.strerror or error}") from error
    refusals = [error for error in errors if isinstance(error, FileFormatError)]
    raise refusals[-1] if refusals else DownloadError("; ".join(dict.fromkeys(map(str, errors))))


def _fetch_from(url: str, file: DataFile, target: Path) -> None:
    """Download from one address to another name, check the content, and rename it."""
    import requests

    # The content must fit; what is packed can be somewhat longer than it, if it cannot be packed.
    limit = file.size + file.size // 100 + 4096 if file.gzipped else file.size
    part = target.with_name(f".{target.name}.part")
    try:
        for attempt in range(ATTEMPTS):
            time.sleep(attempt)
            try:
                try:
                    response = requests.get(url, headers={"Accept-Encoding": "identity"}, stream=True, timeout=TIMEOUT)
                except requests.ConnectionError as error:  # offline: another attempt is of no use
                    raise DownloadError(f"no connection to {urlsplit(url).netloc}") from error
                with response, part.open("wb") as out, progress_bar() as show:
                    if 400 <= response.status_code < 500:
                        raise DownloadError(f"{url}: {response.status_code} {response.reason}")
                    response.raise_for_status()
                    blocks = response.iter_content(_BLOCK)
                    for block in blocks:
                        if out.tell() + len(block) > limit:
                            raise FileFormatError(f"{url}: sends more than the {limit} bytes it should; not kept")
                        out.write(block)
                        show(out.tell(), None if file.gzipped else file.size, target.name)
                break
            except requests.RequestException as error:
                if attempt == ATTEMPTS - 1:
                    raise DownloadError(" ".join(str(error).split())) from error
        try:
            checksum(part, file)
        except FileFormatError as error:
            refusal = str(error).removeprefix(f"{part}: ")
            raise FileFormatError(f"{url}: what it sent is not kept: {refusal}") from error
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


# Where data files are looked for, and what is said if one is nowhere.


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
            try:
                for file in absent:
                    fetch(file, self.roots[0] / folders[0] / file.stored)
            except DownloadError as error:
                reason = str(error)
            absent = [file for file in files if self.find(folders, file) is None]
        if absent:
            searched = ", ".join(str(root / folders[0]) for root in self.roots)
            there = f"{f'${VARIABLE}' if self.by_variable else self.roots[0]}/{folders[0]}"
            put = f"put {', '.join(file.stored for file in absent)} into {there}"
            if self.download:
                raise MissingDataError(f"{name} is not in {searched}, nor to be had ({reason}); offline? {put}")
            raise MissingDataError(f"{name} is not in {searched}; get it by 'polybound data get {name}', or {put}")
        return [path for file in files if (path := self.find(folders, file)) is not None]

    def checksum(self, name: str, folders: tuple[str, ...], file: DataFile) -> str:
        """The SHA-256 that the content of a data set's file has, or will have when it is downloaded.

        The file itself is looked into only where it could be one of several versions, or where no checksum is known.
        """
        if len(file.sha256) == 1 or (file.sha256 and self.find(folders, file) is None):
            return file.sha256[0]
        (path,) = self.need(name, folders, (file,))
        return checksum(path, file)
