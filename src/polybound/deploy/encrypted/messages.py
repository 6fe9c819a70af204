"""Several objects in SEAL's format, one after the other: every one begins with a header that knows its size."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from polybound.errors import PolyboundError

__all__ = ["HEADER", "join", "split"]

HEADER = struct.Struct("<HBBBBHQ")
"""SEAL's header: magic number, its own size, major and minor version, compression, nothing, size with the header."""

_MAGIC = 0xA15E


def join(parts: Iterable[bytes]) -> bytes:
    """The parts, one after the other."""
    return b"".join(parts)


def split(content: bytes, limits: Sequence[int], what: str) -> list[memoryview]:
    """The parts of a message: as many as there are limits, each of at most so many bytes.

    Raises:
        PolyboundError: there are more or fewer, one is too large, or it is none of SEAL's; the message names `what`.
    """
    rest = memoryview(content)
    parts = []
    for number, limit in enumerate(limits, 1):
        if len(rest) < HEADER.size:
            raise PolyboundError(f"{what} ends before its part {number} of {len(limits)}")
        magic, own, *_, size = HEADER.unpack(rest[: HEADER.size])
        if magic != _MAGIC or own != HEADER.size:
            raise PolyboundError(f"{what}: part {number} is not in SEAL's format")
        if not HEADER.size < size <= len(rest):
            raise PolyboundError(f"{what} is truncated: part {number} claims {size} bytes, {len(rest)} are there")
        if size > limit:
            raise PolyboundError(f"{what}: part {number} has {size} bytes, more than {limit}")
        parts.append(rest[:size])
        rest = rest[size:]
    if len(rest):
        raise PolyboundError(f"{what} goes on for {len(rest)} bytes after its last part")
    return parts
