"""Data files and what is known of their content: never more bytes than expected, and the SHA-256 they must have."""

from __future__ import annotations

import gzip
import hashlib
import struct
import tarfile
import wave
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from polybound.errors import FileFormatError

__all__ = ["DataFile", "check_bytes", "check_file", "combined", "read_content", "refusing", "regular"]

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
        name: its path below the data set's folder, without ".gz" if gzipped is set.
        size: bytes of its content; not one byte more is read or downloaded.
        sha256: known checksums of its content, empty if none is known. Of several versions, the first is downloaded.
        urls: where it can be downloaded, best first.
        gzipped: it may lie there plain, or as name + ".gz", which is how it is downloaded.
        exact: the size is not only the largest possible one, but that of every version.
    """

    name: str
    size: int
    sha256: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    gzipped: bool = False
    exact: bool = True

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
    """Turn whatever a damaged file makes the standard library raise into one line that names the file."""
    try:
        yield
    except EOFError as error:
        raise FileFormatError(f"{where}: ends early: truncated or half-downloaded") from error
    except _DAMAGED as error:
        raise FileFormatError(f"{where}: damaged or of another format ({' '.join(str(error).split())})") from error


def regular(path: Path) -> Path:
    """The path itself, if it is that of a regular file."""
    if path.is_dir():
        raise FileFormatError(f"{path}: a folder, where a file should be")
    if not path.is_file():
        raise FileFormatError(f"{path}: not a regular file")
    return path


def read_content(path: Path, file: DataFile) -> bytes:
    """All of a file, unpacked if gzipped, and checked.

    Raises:
        FileFormatError: it is truncated, damaged, too long, or has another checksum than the known ones.
    """
    packed = regular(path).name.removesuffix(".part").endswith(".gz") and file.gzipped
    # One byte more than expected shows a bomb, and reading to the end makes gzip compare its own checksum.
    with refusing(path), gzip.open(path) if packed else path.open("rb") as stream:
        content: bytes = stream.read(file.size + 1)
    check_bytes(path, content, file)
    return content


def check_bytes(where: str | Path, content: bytes, file: DataFile) -> str:
    """The SHA-256 of content, refused if it is too long, too short, or has another checksum than the known ones."""
    if not content:
        raise FileFormatError(f"{where}: empty")
    if len(content) > file.size:
        raise FileFormatError(f"{where}: its content is longer than the {file.size} bytes it should have")
    if file.sha256 and file.exact and len(content) < file.size:
        raise FileFormatError(
            f"{where}: its content has {len(content)} bytes, not {file.size}: truncated, half-downloaded or swapped"
        )
    return _known(where, hashlib.sha256(content).hexdigest(), file)


def check_file(path: Path, file: DataFile) -> str:
    """The SHA-256 of a file as it lies there, refused if it is none of the known ones."""
    import pooch

    size = regular(path).stat().st_size
    if size == 0:
        raise FileFormatError(f"{path}: empty")
    if size > file.size:
        raise FileFormatError(f"{path}: longer than the {file.size} bytes it should have")
    return _known(path, pooch.file_hash(str(path), alg="sha256"), file)


def _known(where: str | Path, found: str, file: DataFile) -> str:
    if file.sha256 and found not in file.sha256:
        known = " or ".join(f"{checksum[:12]}…" for checksum in file.sha256)
        raise FileFormatError(f"{where}: SHA-256 of its content is {found[:12]}…, not {known}: damaged or swapped")
    return found


def combined(parts: Mapping[str, str]) -> str:
    """The digest of a data set, 16 hex digits, from the checksums of its named parts.

    Example:
        >>> combined({"train": "ab", "test": "cd"}) == combined({"test": "cd", "train": "ab"})
        True
    """
    text = "".join(f"{name}\0{checksum}\n" for name, checksum in sorted(parts.items()))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
