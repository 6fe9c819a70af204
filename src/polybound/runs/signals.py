"""SIGINT and SIGTERM that wait until the state of the present step is saved."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["deferred_signals"]


class deferred_signals:  # noqa: N801 - used as a function
    """SIGINT and SIGTERM ask to stop after the present step, once its state is saved."""

    def __enter__(self) -> Callable[[], bool]:
        self.asked = False
        self.before: dict[int, Any] = {}

        def ask(_signal: int, _frame: FrameType | None) -> None:
            self.asked = True

        for name in (signal.SIGINT, signal.SIGTERM):
            try:
                self.before[name] = signal.signal(name, ask)
            except ValueError:  # not in the main thread: signals do not reach us anyway
                break
        return lambda: self.asked

    def __exit__(self, *_: object) -> None:
        for name, handler in self.before.items():
            signal.signal(name, handler)
