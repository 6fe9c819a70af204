"""Commands in processes of their own, which can be killed; without the seconds that importing torch takes each time."""

import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "sklearn.datasets", "polybound.experiments", "polybound.cli"])


class Command:
    """`polybound WORDS` in a process group of its own, begun at once and silent.

    Args:
        *words: the arguments.
        errors: a file for what it prints to standard error.
    """

    def __init__(self, *words, errors=os.devnull):
        self.process = _context.Process(target=_run, args=([str(word) for word in words], str(errors)))
        self.process.start()

    def running(self):
        return self.process.is_alive()

    def worked(self):
        """The seconds that it has kept a core busy."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def workers(self):
        """The number of loky's processes that it has started."""
        return sum(parent == self.process.pid and b"popen_loky" in command for parent, command in _processes())

    def interrupt(self):
        """Ctrl-C; its exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.join(120)
        if self.running():
            self.kill()
            raise AssertionError("Ctrl-C did not end it")
        return self.process.exitcode

    def kill(self):
        """Kill -9 for the process and all that it started; whether it was still running."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        return self.process.exitcode == -signal.SIGKILL


def run_code(code, *words):
    """Run Python code with these arguments in a process of its own, silently; its exit code."""
    process = _context.Process(target=_execute, args=(code, [str(word) for word in words]))
    process.start()
    process.join()
    return process.exitcode


def _execute(code, words):
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    sys.argv = ["-c", *words]
    exec(code, {"__name__": "__main__"})


def _processes():
    """The parent and the command line of every process."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield int((folder / "stat").read_text().rpartition(")")[2].split()[1]), (folder / "cmdline").read_bytes()


def _run(words, errors):
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal; background jobs of a shell ignore it
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    import torch

    from polybound.cli import main

    torch.set_num_threads(1)  # as in the tests' own process: another number of threads gives other bits
    sys.argv = ["polybound", *words]
    main()
