"""How every command is declared and ends; progress bars and hints on standard error, which `--quiet` leaves out."""

from __future__ import annotations

import inspect
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from typer.core import TyperCommand, TyperGroup

from polybound.errors import ArgumentError, PolyboundError

__all__ = [
    "INTERRUPTED",
    "ORDER",
    "AsJson",
    "CommandGroup",
    "be_quiet",
    "command",
    "hint",
    "is_quiet",
    "make_app",
    "progress_bar",
    "say_stopped",
    "typed_options",
]


_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def be_quiet(wanted: bool) -> None:
    """Leave out progress bars and hints from now on, or no longer."""
    _quiet.set(wanted)


def is_quiet() -> bool:
    """Whether `--quiet` was given."""
    return _quiet.get()


def hint(text: str) -> None:
    """A line on standard error that helps, but that nobody asked for."""
    if not is_quiet():
        print(text, file=sys.stderr)


@contextmanager
def progress_bar(*columns: ProgressColumn) -> Iterator[Progress]:
    """A bar on standard error that is gone when it is done, with columns of one's own between the bar and the times.

    Where nobody watches there is none: even an empty one would put a line of its own before an error's.
    """
    console = Console(stderr=True)
    parts = (TextColumn("{task.description}"), BarColumn(), *columns, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*parts, console=console, transient=True, disable=is_quiet() or not console.is_terminal) as bar:
        yield bar


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

# How commands are put together: their order, their examples, `--quiet`, and flags that look like flags.


INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

ORDER = (
    "demo",
    "train",
    "evaluate",
    "certify",
    "explore",
    "bounds",
    "info",
    "draw",
    "card",
    "export",
    "verify",
    "encrypt",
    "data",
    "runs",
    "experiments",
    "reproduce",
    "sweep",
    "report",
    "compare",
    "doctor",
)
"""The order in which `--help` shows the commands: what a newcomer needs comes first. Others come last."""

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no hints, only results.")]


class _Command(TyperCommand):
    """A command whose flags are shown without a type, and whose errors name its options."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_flags(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        _check_paths(ctx.params)
        try:
            return super().invoke(ctx)
        except ArgumentError as error:
            raise PolyboundError(_of_the_option(error, ctx)) from error


_OTHER_NAMES = {"held_out": "validation", "datasets": "dataset", "models": "model", "methods": "method"}
"""Options that the library calls by another name than the command line."""


def _of_the_option(error: ArgumentError, ctx: Any) -> str:
    """An error in the words of the command line: the option, if it was typed, and what else to type."""
    options: dict[str, str] = {}
    for param in ctx.command.params:
        if param.param_type_name == "option":
            option = max(param.opts, key=len)
            options |= dict.fromkeys((str(param.name), option.lstrip("-").replace("-", "_")), option)
    typed, name = typed_options(ctx), _OTHER_NAMES.get(error.name, error.name)
    problem = re.sub(
        r"\b(\w+)=(?=\S)", lambda found: f"{options[found[1]]} " if found[1] in options else found[0], error.problem
    )
    return f"{options[name] if options.get(name) in typed else error.name} {problem}"


def _check_paths(options: Mapping[str, Any]) -> None:
    """Refuse texts and names of files that would break a line of a table or of a message."""
    for value in options.values():
        for path in value if isinstance(value, list | tuple) else [value]:
            if isinstance(path, str | Path) and any(unicodedata.category(letter) == "Cc" for letter in str(path)):
                raise PolyboundError(f"{str(path)!r} has a line break or another control character")


class CommandGroup(TyperGroup):
    """A group with its commands in `ORDER`."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_flags(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def _plain_flags(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""  # or help would show the type bool
    return params


def make_app(name: str, text: str, *, completion: bool = False) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(
        name=name,
        help=text,
        cls=CommandGroup,
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def command(
    app: typer.Typer,
    *examples: str,
    name: str | None = None,
    panel: str | None = None,
    stopped: str = "nothing was changed",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function to an app as a command, with `--quiet`.

    Args:
        app: what to add it to.
        *examples: command lines that help shows, one a line.
        name: the command's name, if it is not the function's.
        panel: heading in the list of commands.
        stopped: what to say after Ctrl-C: what is kept, and how to go on.
    """
    # Help makes a line of each paragraph.
    lines = ["Example:" if len(examples) == 1 else "Examples:", *(f"[bold]{example}[/]" for example in examples)]

    def add(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name, cls=_Command, epilog="\n\n".join(lines), rich_help_panel=panel)(_run(function, stopped))
        return function

    return add


def typed_options(context: typer.Context) -> list[str]:
    """The options of a command that were typed, not left at their defaults, by their long names."""
    typed = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.param_type_name == "option" and source is not None and source.name == "COMMANDLINE":
            typed.append(max(parameter.opts, key=len))
    return typed


def _run(function: Callable[..., None], stopped: str) -> Callable[..., None]:
    """The function with one more option, which it need not know of, and with a last word after Ctrl-C."""

    @wraps(function)
    def run(*args: Any, quiet: bool = False, **options: Any) -> None:
        be_quiet(quiet)
        try:
            function(*args, **options)
        except KeyboardInterrupt:
            say_stopped(stopped)
            raise typer.Exit(INTERRUPTED) from None

    own = inspect.signature(function, eval_str=True)
    option = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), option])  # type: ignore[attr-defined]
    run.__annotations__ = {**function.__annotations__, "quiet": Quiet}
    return run


def say_stopped(what_is_kept: str) -> None:
    """One line on standard error, after Ctrl-C."""
    print(f"polybound: stopped: {what_is_kept}", file=sys.stderr)
