"""Progress: how much of a task is done, on a bar on standard error that is gone at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[float, float | None, str], None]
"""Shows progress: what is done, the total, None if unknown, and a text beside it."""


@contextmanager
def progress_bar(text: str = "", total: float | None = None, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Yield `step(done, total, text)`, which moves a bar on a terminal; nothing is shown elsewhere, or if `quiet`.

    Without a terminal there is no bar: even an empty one would print a line before an error message.
    """
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    text_and_bar = progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn()
    columns = *text_and_bar, progress.TimeElapsedColumn(), progress.TimeRemainingColumn()
    disable = quiet or not console.is_terminal
    with progress.Progress(*columns, console=console, transient=True, disable=disable) as bar:
        task = bar.add_task(text, total=total)

        def step(done: float, total: float | None = total, text: str = "") -> None:
            bar.update(task, completed=done, total=total, description=text or None)

        yield step
