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
    # (True, a result) for each task; then (False, the error, or None).
    found: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
    closed, ended = threading.Event(), False

    def work() -> None:
        """Drive loky's processes, with SIGINT blocked.

        A terminal sends Ctrl-C to every process of its group, and each worker would print a traceback. Processes
        inherit the signal mask of the thread that starts them: here that is always this thread, or loky's own, which
        inherits from it, so no worker ever sees Ctrl-C, not even one that replaces another. The main thread waits for
        results, and is the only one that is interrupted.
        """
        import joblib

        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with joblib.parallel_config(backend="loky", n_jobs=workers), warnings.catch_warnings():
                # Tasks are of different sizes: a worker that is replaced after a large one is no news.
                warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
                # First a task that only makes each process import what `do` needs: loky takes a worker's memory after
                # its first task for its normal size, and ends workers that grow far beyond.
                warned = os.environ.get("PYTHONWARNINGS")
                os.environ["PYTHONWARNINGS"] = f"{warned},{_QUIET_TRACKER}" if warned else _QUIET_TRACKER
                try:
                    every = (joblib.delayed(id)(do) for _ in range(workers))
                    joblib.Parallel(batch_size=1, pre_dispatch="all")(every)
                finally:
                    os.environ.pop("PYTHONWARNINGS")
                    if warned is not None:
                        os.environ["PYTHONWARNINGS"] = warned
                still_open = takewhile(lambda _: not closed.is_set(), tasks)
                parallel = joblib.Parallel(batch_size=1, pre_dispatch=2 * workers, return_as="generator")
                for result in parallel(joblib.delayed(_with_one_thread)(do, task) for task in still_open):
                    found.put((True, result))
            found.put((False, None))
        except BaseException as error:  # it belongs to whoever waits for the results
            found.put((False, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        more, value = found.get()
        while more:
            yield value
            more, value = found.get()
        ended = True
        if value is not None:
            raise value
    finally:
        # Idle processes are kept for the next call, and end with this process; those at work end now.
        closed.set()
        if not ended:
            from joblib.externals.loky import get_reusable_executor

            # Threads of joblib and loky fail when their processes are killed. That is intended: no traceback.
            hook, threading.excepthook = threading.excepthook, lambda _: None
            try:
                while thread.is_alive():  # more than once, if the first call met the pool before it was built
                    get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)
                    thread.join(1.0)
            finally:
                threading.excepthook = hook


def _with_one_thread(do: Callable[[Any], Any], task: Any) -> Any:
    import torch

    torch.set_num_threads(1)
    return do(task)
