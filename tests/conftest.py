import io
import json
import os
import random
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest
import torch

import helpers.profiles  # noqa: F401 - chooses one
from helpers.browser import Browser
from helpers.data import root, server  # noqa: F401

STARTED = pytest.StashKey[float]()

# The tests run side by side on the cores; threads inside of each would only get in each other's way.
torch.set_num_threads(1)
# No test cuts the power: files need not reach the disk before the test goes on.
os.fsync = lambda _: None


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def pytest_addoption(parser):
    parser.addoption("--seconds", type=float, help="start no further test after this time; the order is random then")


def pytest_collection_modifyitems(config, items):
    if config.getoption("seconds") is not None:
        random.Random(str(config.getoption("hypothesis_seed"))).shuffle(items)


def pytest_sessionstart(session):
    session.config.stash[STARTED] = time.monotonic()


def pytest_runtest_setup(item):
    seconds = item.config.getoption("seconds")
    if seconds is not None and time.monotonic() - item.config.stash[STARTED] > seconds:
        pytest.skip("the time is up")


@pytest.fixture(scope="module")
def browser():
    """A page in a real browser, for the tests of a file."""
    browser = Browser()
    yield browser
    browser.close()


@dataclass(frozen=True)
class Outcome:
    """What a command left behind: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


# What decides how output looks, on the machine that the tests run on.
_LOOKS = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM")


def run_command(*words, cwd=".", env=None, columns=None):
    """Run `polybound WORDS` in this process; with `columns`, on a terminal of that width.

    Arguments, environment, folder, output streams and torch's threads are afterwards as they were. An exception that
    the command line does not turn into an exit code is passed on.
    """
    from polybound.cli import main

    looks = {"COLUMNS": "160", "NO_COLOR": "1", "TTY_COMPATIBLE": "0"}
    if columns is not None:
        looks = {"COLUMNS": str(columns), "LINES": "25", "TERM": "xterm-256color", "TTY_COMPATIBLE": "1"}
    out, err = (io.StringIO(), io.StringIO()) if columns is None else (Terminal(), Terminal())
    argv, environment, threads = sys.argv, dict(os.environ), torch.get_num_threads()
    code = 0
    try:
        for name in _LOOKS:
            os.environ.pop(name, None)
        os.environ.update({**looks, **{name: str(value) for name, value in (env or {}).items()}})
        sys.argv = ["polybound", *map(str, words)]
        with chdir(cwd), redirect_stdout(out), redirect_stderr(err):
            try:
                main()
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads(threads)
    return Outcome(code, out.getvalue(), err.getvalue())


@pytest.fixture
def registries(monkeypatch):
    """What a test registers is forgotten afterwards."""
    from polybound.attacks.names import ATTACKS
    from polybound.data.catalogue import SOURCES
    from polybound.defences.denoisers import DEFENCES
    from polybound.experiments.experiment import EXPERIMENTS
    from polybound.models.zoo import MODELS
    from polybound.training import AUGMENTATIONS, LOSSES, METHODS, OPTIMISERS, SCHEDULES

    kinds = (METHODS, OPTIMISERS, SCHEDULES, LOSSES, AUGMENTATIONS, ATTACKS, DEFENCES, SOURCES, MODELS, EXPERIMENTS)
    for registry in kinds:
        monkeypatch.setattr(registry, "entries", dict(registry.entries))


@pytest.fixture
def no_pictures(monkeypatch):
    """Reports draw nothing, for tests about their numbers: matplotlib is slow."""
    monkeypatch.setattr("polybound.report.build.draw", lambda *_: None)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """The folder of a run on digits, a fifth of them held out; whoever writes into it has a copy."""
    from polybound.runs import DataSpec, Spec, train_runs
    from polybound.training import Recipe

    spec = Spec(DataSpec.of("digits", held_out=0.2), recipe=Recipe.from_options(epochs=5, learning_rate=0.02))
    (run,) = train_runs([spec], tmp_path_factory.mktemp("digits"))
    return run.path


@pytest.fixture(scope="session")
def cli():
    """`polybound` in this process: `cli("evaluate", run, "--json").json`."""
    return run_command


@pytest.fixture(scope="session")
def refused(cli):
    """The message with which `polybound` refuses something: exit code 2, nothing printed, no traceback."""

    def run(*words):
        result = cli(*words)
        assert result.code == 2, result
        assert result.out == "" and "Traceback" not in result.err
        return result.err

    return run
