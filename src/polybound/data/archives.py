"""Members of zip and tar archives, streamed; nothing is ever written to disk."""

from __future__ import annotations

import gzip
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from polybound.data.checksums import DataFile, check_bytes, refusing
from polybound.errors import FileFormatError

__all__ = ["open_zip", "read_member", "tar_members"]

_BLOCK = 1 << 20


def _check_name(where: Path, name: str) -> str:
    """A member's name without a leading "./"; refused if it points out of the archive."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in (path.parts or ("",))[0] or "\0" in name:
        raise FileFormatError(f"{where}: its member {name!r} points out of the archive; nothing of it is used")
    return str(path)


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip file in which no member is encrypted, doubled, a link, or points elsewhere."""
    with refusing(path), zipfile.ZipFile(path) as archive:
        seen: set[str] = set()
        for member in archive.infolist():
            name = _check_name(path, member.filename)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise FileFormatError(f"{path}: its member {name} is a link; nothing of it is used")
            if member.flag_bits & 0x1:
                raise FileFormatError(f"{path}: its member {name} is encrypted")
            if name in seen:
                raise FileFormatError(f"{path}: it holds {name} twice")
            seen.add(name)
        yield archive


def read_member(archive: zipfile.ZipFile, path: Path, name: str, file: DataFile, limit: int) -> bytes:
    """The checked content of a member of a zip file, unpacked twice if it is gzipped; limit is for its packed bytes."""
    where = f"{path}: {name}"
    if name not in archive.NameToInfo:
        raise FileFormatError(f"{path}: holds no {name}")
    if (size := archive.getinfo(name).file_size) > limit:
        raise FileFormatError(f"{path}: its member {name} unpacks to {size} bytes; at most {limit} are expected")
    with refusing(where), archive.open(name) as stream, gzip.open(stream) if file.gzipped else stream as plain:
        content: bytes = plain.read(file.size + 1)
    check_bytes(where, content, file)
    return content


class _Limited:
    """Reads from a stream, up to a number of bytes: past it lies a bomb."""

    def __init__(self, stream: gzip.GzipFile, path: Path, limit: int) -> None:
        self._stream, self._path, self._limit, self._total = stream, path, limit, 0

    def read(self, size: int) -> bytes:
        block = self._stream.read(size)
        self._total += len(block)
        if self._total > self._limit:
            raise FileFormatError(f"{self._path}: unpacks to more than the {self._limit} bytes it may have")
        return block


def tar_members(
    path: Path, limit: int, advance: Callable[[int], None] = lambda _: None
) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    """The regular files of a gzipped tar archive, in order: their names, and what reads them up to so many bytes.

    A file can be read until the next one is asked for.

    Args:
        path: the archive.
        limit: bytes that it may have unpacked, with all headers.
        advance: told of the packed bytes as they are read.

    Raises:
        FileFormatError: the archive is damaged, holds links or devices, or has names that point out of it.
    """
    with refusing(path), path.open("rb") as raw, gzip.open(raw) as unpacked:
        stream = _Limited(unpacked, path, limit)
        position = 0
        with tarfile.open(fileobj=stream, mode="r|") as tar:  # type: ignore[call-overload]
            for member in tar:
                name = _check_name(path, member.name)
                if not (member.isdir() or member.isreg()) or member.issparse():
                    raise FileFormatError(f"{path}: its member {name} is a link or a device; nothing of it is used")
                if not member.isdir():
                    yield name, partial(_read, tar, member, path, name)
                advance(raw.tell() - position)
                position = raw.tell()
        # tarfile stops at its end mark; gzip compares its checksum only at the very end.
        while stream.read(_BLOCK):
            pass


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo, where: Path, name: str, limit: int) -> bytes:
    if member.size > limit:
        raise FileFormatError(f"{where}: its member {name} has {member.size} bytes; at most {limit} are expected")
    with refusing(f"{where}: {name}"):
        stream = tar.extractfile(member)
        content = stream.read() if stream is not None else b""
    if len(content) != member.size:
        raise FileFormatError(f"{where}: ends in its member {name}: truncated or half-downloaded")
    return content
