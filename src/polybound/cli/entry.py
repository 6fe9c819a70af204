"""The command line from its beginning to its exit code: plugins, errors and Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from typer.main import get_command

from polybound.cli.app import app
from polybound.cli.commands import INTERRUPTED, say_stopped
from polybound.errors import PolyboundError
from polybound.registry import load_plugins

__all__ = ["main"]


def main() -> None:
    """Run the command line: bad input ends in one line on standard error and exit code 2."""
    try:
        if _does_something(sys.argv[1:]):
            load_plugins()
        _command()()
    except KeyboardInterrupt:  # before there is a command
        say_stopped("nothing was begun")
        sys.exit(INTERRUPTED)
    except PolyboundError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))


@cache
def _command() -> Callable[[], Any]:
    """The tree of commands; typer makes it from the signatures of all functions, which takes a while."""
    return get_command(app)


def _does_something(arguments: list[str]) -> bool:
    """Whether a command is carried out; help and the version need no plugins, and shall be fast.

    `doctor` imports them by itself, one by one, to say which of them is broken.
    """
    return bool(arguments) and arguments[0] != "doctor" and not {"-h", "--help", "--version"} & set(arguments)


def _fail(message: str) -> None:
    # One line, whatever a library put into its message.
    print(f"polybound: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
