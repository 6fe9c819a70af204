"""The bytes of a data file: never more of them than expected, and compared with what is known of them."""

from __future__ import annotations

import gzip
import hashlib
import struct
import tarfile
import wave
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from polybound.errors import FileFormatError

__all__ = ["DataFile", "check_bytes", "check_file", "read_content", "refusing", "regular"]

_BLOCK = 1 << 20


@dataclass(frozen=True)
class DataFile:
    """A file of a data set, and what is known of its content.

    Compressors differ, so size and digests of a gzipped file are those of the plain bytes.

    Attributes:
        name: its path below the data set's folder, without ".gz" if gzipped is set.
        size: bytes of its content; not one byte more is read or downloaded.
        sha256: known digests of its content, empty if none is known; several if several versions are about.
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
    except (
        gzip.BadGzipFile,
        zlib.error,
        zipfile.BadZipFile,
        tarfile.TarError,
        wave.Error,
        struct.error,
        UnicodeDecodeError,
        OverflowError,
        RuntimeError,  # of wave and zipfile, also for features of the format that they lack
    ) as error:
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
        FileFormatError: it is truncated, damaged, too long, or has another digest than the known ones.
    """
    regular(path)
    if file.gzipped and path.name.removesuffix(".part").endswith(".gz"):
        # One byte more than expected shows a bomb, and reading to the end makes gzip compare its own checksum.
        with refusing(path), gzip.open(path) as stream:
            content = stream.read(file.size + 1)
    else:
        with path.open("rb") as plain:
            content = plain.read(file.size + 1)
    check_bytes(path, content, file)
    return content


def check_bytes(where: str | Path, content: bytes, file: DataFile) -> None:
    """Refuse content that is too long, too short, or has another digest than the known ones."""
    if not content:
        raise FileFormatError(f"{where}: empty")
    if len(content) > file.size:
        raise FileFormatError(f"{where}: its content is longer than the {file.size} bytes it should have")
    if file.sha256:
        if file.exact and len(content) < file.size:
            raise FileFormatError(
                f"{where}: its content has {len(content)} bytes, not {file.size}: truncated, half-downloaded or swapped"
            )
        _compare(where, hashlib.sha256(content).hexdigest(), file)


def check_file(path: Path, file: DataFile) -> str:
    """The SHA-256 of a file as it lies there, refused if it is none of the known ones."""
    regular(path)
    digest = hashlib.sha256()
    total = 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            total += len(block)
            if total > file.size:
                raise FileFormatError(f"{path}: longer than the {file.size} bytes it should have")
    if total == 0:
        raise FileFormatError(f"{path}: empty")
    _compare(path, digest.hexdigest(), file)
    return digest.hexdigest()


def _compare(where: str | Path, found: str, file: DataFile) -> None:
    if file.sha256 and found not in file.sha256:
        known = " or ".join(f"{digest[:12]}…" for digest in file.sha256)
        raise FileFormatError(f"{where}: SHA-256 of its content is {found[:12]}…, not {known}: damaged or swapped")
