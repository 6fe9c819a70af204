"""Files that are read once: what was read stays known until the file changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["cached", "remember"]

T = TypeVar("T")
_MOST = 2**29
"""Bytes of files whose contents are kept."""

Signature = tuple[int, int, int]
_known: OrderedDict[Path, tuple[Signature, Any]] = OrderedDict()


def cached(file: Path, read: Callable[[Path], T]) -> T:
    """What `read` makes of a file, read again only if the file is another one by now."""
    path, now = file.absolute(), _signature(file)
    found = _known.get(path)
    if found is not None and found[0] == now:
        _known.move_to_end(path)
        kept: T = found[1]
        return kept
    value = read(file)
    _put(path, now, value)
    return value


def remember(file: Path, value: Any) -> None:
    """What a file holds that was just written."""
    _put(file.absolute(), _signature(file), value)


def _put(path: Path, signature: Signature, value: Any) -> None:
    _known[path] = signature, value
    _known.move_to_end(path)
    size = sum(kept[0][2] for kept in _known.values())
    while size > _MOST and len(_known) > 1:
        size -= _known.popitem(last=False)[1][0][2]


def _signature(file: Path) -> Signature:
    """Every file is written under a new name and renamed: another content is another inode, or another time."""
    found = file.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size
