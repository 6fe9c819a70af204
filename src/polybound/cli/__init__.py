"""The command line: `polybound COMMAND`. Everything that it does can be done from Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command

from polybound._version import __version__
from polybound.cli import certify, demo, evaluate, experiments, show, train  # noqa: F401 - they declare commands
from polybound.cli.commands import INTERRUPTED, app, note
from polybound.cli.data import data_app, runs_app
from polybound.cli.deploy import encrypt_app
from polybound.cli.options import DATA, NETWORKS
from polybound.errors import PolyboundError
from polybound.registry import load_plugins

app.add_typer(encrypt_app, rich_help_panel=NETWORKS)
app.add_typer(data_app, rich_help_panel=DATA)
app.add_typer(runs_app, rich_help_panel=DATA)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"polybound {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Train, bound, attack and certify polynomial networks."""


def main() -> None:
    """Run the command line: bad input ends in one line on standard error and exit code 2."""
    words = sys.argv[1:]
    try:
        # Help and the version need no plugins, and shall be fast. `doctor` imports them by itself, one by one.
        if words and words[0] != "doctor" and not {"-h", "--help", "--version"} & set(words):
            load_plugins()
        _command()()
    except KeyboardInterrupt:  # before there is a command
        note("stopped: nothing was begun")
        sys.exit(INTERRUPTED)
    except (PolyboundError, OSError) as error:
        of_file = isinstance(error, OSError) and error.filename and error.strerror
        note(f"error: {error.filename}: {error.strerror}" if of_file else f"error: {error}")  # type: ignore[union-attr]
        sys.exit(2)


@cache
def _command() -> Callable[[], Any]:
    """The tree of commands; typer makes it from the signatures of all functions, which takes a while."""
    return get_command(app)
