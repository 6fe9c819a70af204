"""What a person sees of a training: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from polybound.errors import PolyboundError
from polybound.training.history import History
from polybound.training.loop import Callback, Trainer

__all__ = ["showing_progress"]


@contextmanager
def showing_progress(verbose: bool | None, history: History, epochs: int) -> Iterator[list[Callback]]:
    """Callbacks that show progress on standard error.

    Args:
        verbose: None for a bar if standard error is a terminal; True for a bar or, elsewhere, a line an epoch; False
            for nothing.
        history: to be shown.
        epochs: how many there will be.
    """
    if verbose not in (None, True, False):
        raise PolyboundError(f"verbose must be True, False or None, got {verbose!r}")
    watched = sys.stderr.isatty()
    if verbose is False or (verbose is None and not watched):
        yield []
    elif not watched:
        yield [_Lines(history)]
    else:
        bar = _Bar(history, epochs)
        try:
            yield [bar]
        finally:
            bar.close()


def _state(history: History) -> str:
    line = history.lines[-1]
    parts = [f"{name} {_number(line[name])}" for name in ("loss", "validation loss") if name in line]
    if "validation accuracy" in line:
        parts.append(f"validation accuracy {100 * _mean(line['validation accuracy']):.1f} %")
    return ", ".join(parts)


def _mean(value: float | list[float]) -> float:
    return sum(value) / len(value) if isinstance(value, list) else value


def _number(value: float | list[float]) -> str:
    return f"{_mean(value):.4g}"


class _Lines(Callback):
    """A line an epoch."""

    def __init__(self, history: History) -> None:
        self.history = history

    def after_epoch(self, trainer: Trainer, losses: Tensor) -> None:
        del losses  # which the history has
        print(f"epoch {trainer.epoch}/{trainer.recipe.epochs}: {_state(self.history)}", file=sys.stderr, flush=True)


class _Bar(Callback):
    """A bar that is gone when the training is over."""

    def __init__(self, history: History, epochs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("epoch {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("{task.description}"),
        )
        self.bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task("", total=epochs)
        self.history, self.shown = history, 0.0
        self.update: Callable[..., None] = lambda **state: self.bar.update(self.task, **state)
        self.bar.start()

    def after_step(self, trainer: Trainer) -> None:
        if trainer.step % 16 == 0 and time.monotonic() - self.shown > 0.2:
            self.shown = time.monotonic()
            self.update(completed=trainer.epoch + trainer.step / trainer.steps)

    def after_epoch(self, trainer: Trainer, losses: Tensor) -> None:
        del losses  # which the history has
        self.update(completed=trainer.epoch, description=_state(self.history))

    def close(self) -> None:
        """Remove the bar."""
        self.bar.stop()
