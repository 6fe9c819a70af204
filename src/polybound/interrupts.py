"""Ctrl-C while loky's processes work: it is this process's affair, and ends in one exception, without noise."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["own_interrupts", "spared_from_interrupts"]

# On Ctrl-C the pool is killed. Its semaphores are then left to this tracker, which warns of what it does about them.
_TRACKER = "ignore:resource_tracker:UserWarning"


@contextmanager
def spared_from_interrupts() -> Iterator[None]:
    """Processes that are started here never see Ctrl-C; where threads have no signal masks, nothing changes.

    A terminal sends it to all processes, and each would print a traceback. Here it waits until the end of the block.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    warned = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = _TRACKER if not warned else f"{warned},{_TRACKER}"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.environ.pop("PYTHONWARNINGS")
        if warned is not None:
            os.environ["PYTHONWARNINGS"] = warned


@contextmanager
def own_interrupts() -> Iterator[None]:
    """Within this block threads fail in silence once Ctrl-C was pressed: their pool is gone, as it shall be."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []
    handler, hook = signal.getsignal(signal.SIGINT), threading.excepthook

    def interrupt(number: int, frame: FrameType | None) -> Any:
        asked.append(number)
        return handler(number, frame) if callable(handler) else None

    def fail(error: threading.ExceptHookArgs) -> None:
        if not asked:
            hook(error)

    if callable(handler):  # not where Ctrl-C is ignored
        signal.signal(signal.SIGINT, interrupt)
        threading.excepthook = fail
    try:
        yield
    finally:
        if asked:
            _kill_pool()
        if callable(handler):
            signal.signal(signal.SIGINT, handler)
            threading.excepthook = hook


def _kill_pool() -> None:
    """End loky's processes. joblib does so where Ctrl-C finds it at work; between two calls they wait for more."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)
