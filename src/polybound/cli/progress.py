"""Progress bars, all alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(*columns: ProgressColumn, quiet: bool = False) -> Iterator[Progress]:
    """A bar on standard error that is gone when it is done, with columns of one's own between the bar and the times.

    Where nobody watches there is none: even an empty one would put a line of its own before an error's.
    """
    console = Console(stderr=True, quiet=quiet)
    parts = (TextColumn("{task.description}"), BarColumn(), *columns, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*parts, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar
