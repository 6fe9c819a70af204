"""What is said on the way, on standard error: progress bars, all alike, and hints. `--quiet` leaves both out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["be_quiet", "hint", "is_quiet", "progress_bar"]

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def be_quiet(wanted: bool) -> None:
    """Leave out progress bars and hints from now on, or no longer."""
    _quiet.set(wanted)


def is_quiet() -> bool:
    """Whether `--quiet` was given."""
    return _quiet.get()


def hint(text: str) -> None:
    """A line on standard error that helps, but that nobody asked for."""
    if not is_quiet():
        print(text, file=sys.stderr)


@contextmanager
def progress_bar(*columns: ProgressColumn) -> Iterator[Progress]:
    """A bar on standard error that is gone when it is done, with columns of one's own between the bar and the times.

    Where nobody watches there is none: even an empty one would put a line of its own before an error's.
    """
    console = Console(stderr=True)
    parts = (TextColumn("{task.description}"), BarColumn(), *columns, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*parts, console=console, transient=True, disable=is_quiet() or not console.is_terminal) as bar:
        yield bar
