"""The idx format of MNIST and its descendants: a header of big-endian numbers, then the bytes of one array."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polybound.errors import FileFormatError

__all__ = ["idx_size", "parse_idx"]

_UNSIGNED_BYTE = 0x08


def idx_size(dims: tuple[int, ...]) -> int:
    """Bytes of an idx file with an array of bytes of these dimensions."""
    return 4 + 4 * len(dims) + math.prod(dims)


def parse_idx(content: bytes, where: str | Path, dims: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """The array in the content of an idx file, which must have exactly these dimensions.

    Args:
        content: all of the file, unpacked.
        where: the file's name, for messages.
        dims: the dimensions that the array must have.

    Raises:
        FileFormatError: its header is not that of an array of bytes of these dimensions, or as many do not follow.

    Example:
        >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "labels", (3,))
        array([7, 8, 9], dtype=uint8)
    """
    if len(content) < 4 or content[:2] != b"\0\0":
        raise FileFormatError(f"{where}: not an idx file (it begins with {content[:4].hex() or 'nothing'})")
    kind, rank = content[2], content[3]
    if kind != _UNSIGNED_BYTE:
        raise FileFormatError(f"{where}: its numbers are of idx type 0x{kind:02x}, not unsigned bytes (0x08)")
    if rank != len(dims):
        raise FileFormatError(f"{where}: an array of {rank} dimensions, not {len(dims)}: images and labels swapped?")
    start = 4 + 4 * rank
    if len(content) < start:
        raise FileFormatError(f"{where}: ends in its header: truncated or half-downloaded")
    # Signed, as the format says: what is written as -1 must not pass for four thousand millions.
    found = struct.unpack(f">{rank}i", content[4:start])
    if found != dims:
        raise FileFormatError(f"{where}: its dimensions are {_times(found)}, not {_times(dims)}")
    body = len(content) - start
    if body != math.prod(dims):
        raise FileFormatError(
            f"{where}: {_times(dims)} bytes announced, {body} there: truncated, or with something behind"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(dims)


def _times(dims: tuple[int, ...]) -> str:
    return " x ".join(map(str, dims))
