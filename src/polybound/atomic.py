"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from os import PathLike
from pathlib import Path


def write_atomically(path: str | PathLike[str], content: bytes) -> None:
    """Write `content` to `path`, so that neither a reader nor a crash at any moment meets half of it.

    It is written beside the target, forced to the disk and renamed over it; the folder is synced as well, so that the
    new name survives a power cut.
    """
    path = Path(path)
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        error.filename = str(path)  # the name that was asked for, not that of the file beside it
        raise
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files for the owner alone; give the result the permissions that open() would have.
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a full disk does not say whose fault it was
        raise
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path.parent, os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
