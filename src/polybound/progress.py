"""Progress: how much of a task is done, on a bar on standard error that is gone at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[float, float | None, str], None]
"""Shows progress: what is done, the total, None if unknown, and a text beside it."""


@contextmanager
def progress_bar() -> Iterator[Show]:
    """A function that shows progress on a terminal; nothing is shown elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)
