"""Commands in processes of their own, which can be killed; without the seconds that importing torch takes each time."""

import multiprocessing
import os
import signal
import sys
from contextlib import suppress

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "sklearn.datasets", "polybound.experiments", "polybound.cli"])


class Command:
    """`polybound WORDS` in a process group of its own, begun at once and silent.

    Args:
        *words: the arguments.
    """

    def __init__(self, *words):
        self.process = _context.Process(target=_run, args=([str(word) for word in words],))
        self.process.start()

    def running(self):
        return self.process.is_alive()

    def kill(self):
        """Kill -9 for the process and all that it started; whether it was still running."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        return self.process.exitcode == -signal.SIGKILL


def _run(words):
    os.setsid()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    import torch

    from polybound.cli import main

    torch.set_num_threads(1)  # as in the tests' own process: another number of threads gives other bits
    sys.argv = ["polybound", *words]
    main()
