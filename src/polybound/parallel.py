"""Independent tasks on several processes of this machine. Workers ignore SIGINT; the parent raises once."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from polybound.errors import check_int

Task = TypeVar("Task")
Result = TypeVar("Result")

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""The environment variables that say how many threads a process has."""

# When the pool is killed, loky's resource tracker cleans up its semaphores and would print a warning about them.
_QUIET_TRACKER = "ignore:resource_tracker:UserWarning"


def in_workers(do: Callable[[Task], Result], tasks: Sequence[Task], workers: int) -> Iterator[Result]:
    """Yield `do(task)` of each task, in their order, as soon as they are known.

    With one worker, or one task, everything is computed in this process. Each of several workers uses one thread.

    Args:
        do: a function of a module, with results that can be sent to another process.
        tasks: values that can be sent to another process.
        workers: number of processes.

    >>> list(in_workers(abs, [-1, 2, -3], workers=1))
    [1, 2, 3]
    """
    workers = min(check_int("workers", workers), max(1, len(tasks)))
    if workers == 1:
        yield from map(do, tasks)
        return
    from joblib.externals.loky import get_reusable_executor

    # Tasks are of different sizes: a worker that is replaced after a large one is no news.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
    with _sheltered():
        pool = get_reusable_executor(workers, timeout=300, env=dict.fromkeys(THREADS, "1"))
        futures = [pool.submit(_with_one_thread, do, task) for task in tasks]
    try:
        for future in futures:
            yield future.result()
    finally:
        # Idle processes are kept for the next call, and end with this process; those at work end now.
        if not all(future.done() for future in futures):
            # loky's threads fail when their processes are killed. That is intended: no traceback.
            hook, threading.excepthook = threading.excepthook, lambda _: None
            try:
                pool.shutdown(wait=True, kill_workers=True)
            finally:
                threading.excepthook = hook


@contextmanager
def _sheltered() -> Iterator[None]:
    """For starting processes, with SIGINT blocked.

    A terminal sends Ctrl-C to every process of its group, and each worker would print a traceback. Processes inherit
    the signal mask of the thread that starts them: here that is this thread, or loky's own, which inherits from it, so
    no worker ever sees Ctrl-C, not even one that replaces another.
    """
    masks = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else set()
    warned = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = f"{warned},{_QUIET_TRACKER}" if warned else _QUIET_TRACKER
    try:
        yield
    finally:
        os.environ.pop("PYTHONWARNINGS")
        if warned is not None:
            os.environ["PYTHONWARNINGS"] = warned
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _with_one_thread(do: Callable[[Any], Any], task: Any) -> Any:
    import torch

    torch.set_num_threads(1)
    return do(task)
