"""Independent tasks on several processes of this machine, their results in the order of the tasks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from polybound.errors import ArgumentError
from polybound.interrupts import own_interrupts, spared_from_interrupts

__all__ = ["checked_workers", "in_workers"]

Task = TypeVar("Task")
Result = TypeVar("Result")


def checked_workers(workers: int) -> int:
    """A number of processes, if it is one."""
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ArgumentError("workers", f"must be a whole number of at least 1, got {workers!r}")
    return workers


def in_workers(do: Callable[[Task], Result], tasks: Sequence[Task], workers: int) -> Iterator[Result]:
    """`do(task)` of each task, in their order, as they come in.

    With one worker, or one task, all is done in this process. Each of several works with one thread.

    Args:
        do: a function of a module, with results that can be sent to another process.
        tasks: what can be sent to one, too.
        workers: how many processes.

    >>> list(in_workers(abs, [-1, 2, -3], workers=1))
    [1, 2, 3]
    """
    workers = min(checked_workers(workers), max(1, len(tasks)))
    if workers == 1:
        yield from map(do, tasks)
        return
    import joblib

    with (
        own_interrupts(),
        joblib.parallel_config(backend="loky", n_jobs=workers),
        warnings.catch_warnings(),
    ):
        # Tasks are of different sizes: a worker that is replaced after a large one is no news.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
        with spared_from_interrupts():
            joblib.Parallel(batch_size=1, pre_dispatch="all")(joblib.delayed(_ready)(do) for _ in range(workers))
        parallel = joblib.Parallel(batch_size=1, pre_dispatch=2 * workers, return_as="generator")
        yield from parallel(joblib.delayed(_with_one_thread)(do, task) for task in tasks)


def _ready(_do: Callable[[Any], Any]) -> None:
    """Nothing; but a process that is sent a function has imported all that it needs afterwards.

    loky takes a worker's memory after its first task for its normal size, and ends workers that grow far beyond.
    """


def _with_one_thread(do: Callable[[Any], Any], task: Any) -> Any:
    import torch

    torch.set_num_threads(1)
    return do(task)
