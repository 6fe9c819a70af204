"""Independent tasks on several processes of this machine. Workers ignore SIGINT; the parent raises once."""

from __future__ import annotations

import os
import queue
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, TypeVar

from polybound.errors import check_int

Task = TypeVar("Task")
Result = TypeVar("Result")

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
    pool = _Pool(do, tasks, workers)
    try:
        yield from pool
    finally:
        pool.close()


class _Pool:
    """loky's processes, driven by a thread that blocks SIGINT.

    A terminal sends Ctrl-C to every process of its group, and each worker would print a traceback. Processes inherit
    the signal mask of the thread that starts them: here that is always this thread, or loky's own, which inherits
    from it, so no worker ever sees Ctrl-C, not even one that replaces another. The main thread waits for results,
    and is the only one that is interrupted.
    """

    def __init__(self, do: Callable[[Any], Any], tasks: Sequence[Any], workers: int) -> None:
        self.do, self.tasks, self.workers = do, tasks, workers
        # (True, a result) for each task; then (False, the error, or None).
        self.found: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self.closed, self.ended = threading.Event(), False
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def __iter__(self) -> Iterator[Any]:
        more, found = self.found.get()
        while more:
            yield found
            more, found = self.found.get()
        self.ended = True
        if found is not None:
            raise found

    def _work(self) -> None:
        import joblib

        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with joblib.parallel_config(backend="loky", n_jobs=self.workers), warnings.catch_warnings():
                # Tasks are of different sizes: a worker that is replaced after a large one is no news.
                warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
                # First a task that only makes each process import what `do` needs: loky takes a worker's memory after
                # its first task for its normal size, and ends workers that grow far beyond.
                warned = os.environ.get("PYTHONWARNINGS")
                os.environ["PYTHONWARNINGS"] = f"{warned},{_QUIET_TRACKER}" if warned else _QUIET_TRACKER
                try:
                    every = (joblib.delayed(id)(self.do) for _ in range(self.workers))
                    joblib.Parallel(batch_size=1, pre_dispatch="all")(every)
                finally:
                    os.environ.pop("PYTHONWARNINGS")
                    if warned is not None:
                        os.environ["PYTHONWARNINGS"] = warned
                still_open = takewhile(lambda _: not self.closed.is_set(), self.tasks)
                parallel = joblib.Parallel(batch_size=1, pre_dispatch=2 * self.workers, return_as="generator")
                for result in parallel(joblib.delayed(_with_one_thread)(self.do, task) for task in still_open):
                    self.found.put((True, result))
            self.found.put((False, None))
        except BaseException as error:  # it belongs to whoever waits for the results
            self.found.put((False, error))

    def close(self) -> None:
        """End the processes if they are at work; idle ones are kept for the next call, and end with this process."""
        self.closed.set()
        if self.ended:
            return
        from joblib.externals.loky import get_reusable_executor

        # Threads of joblib and loky fail when their processes are killed. That is intended, and not worth a traceback.
        hook, threading.excepthook = threading.excepthook, lambda _: None
        try:
            while self.thread.is_alive():  # more than once, if the first call met the pool before it was built
                get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)
                self.thread.join(1.0)
        finally:
            threading.excepthook = hook


def _with_one_thread(do: Callable[[Any], Any], task: Any) -> Any:
    import torch

    torch.set_num_threads(1)
    return do(task)
