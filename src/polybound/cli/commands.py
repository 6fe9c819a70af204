"""How every command is declared and ends: its examples, `--quiet`, progress bars, Ctrl-C.

The modules of the command line import `polybound` alone, whose rooms are loaded when first used: help stays fast.
"""

from __future__ import annotations

import inspect
import re
import sys
import unicodedata
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import Field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from polybound.errors import ArgumentError, PolyboundError
from polybound.progress import progress_bar

# What is shown on standard error, unless `--quiet` is given.


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no hints, only results.")]

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def is_quiet() -> bool:
    """Whether `--quiet` was given."""
    return _quiet.get()


def hint(text: str) -> None:
    """Print a line on standard error that helps, but that nobody asked for."""
    if not is_quiet():
        print(text, file=sys.stderr)


def note(text: str) -> None:
    """Print a line on standard error that a user must see."""
    print(f"polybound: {' '.join(text.split())}", file=sys.stderr)


def progress(text: str, total: int | None = None) -> AbstractContextManager[Callable[..., None]]:
    """`progress_bar`, which `--quiet` hides."""
    return progress_bar(text, total, quiet=is_quiet())


# How commands are put together: their order, their examples, `--quiet`, and flags that look like flags.


INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

# fmt: off
ORDER = (
    "demo", "train", "evaluate", "certify", "explore", "bounds", "info", "draw", "card", "export", "verify", "encrypt",
    "data", "runs", "experiments", "reproduce", "sweep", "report", "compare", "doctor",
)
# fmt: on
"""The order of the commands in `--help`: those that a newcomer needs come first, plugins last."""


class _PlainFlags:
    """A command or group whose flags are shown without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""  # or help would show the type bool
        return params


class _Command(_PlainFlags, TyperCommand):
    """A command whose errors name its options."""

    def invoke(self, ctx: Any) -> Any:
        for value in ctx.params.values():
            for path in value if isinstance(value, list | tuple) else [value]:
                # It would break a line of a table or of a message.
                if isinstance(path, str | Path) and any(unicodedata.category(letter) == "Cc" for letter in str(path)):
                    raise PolyboundError(f"{str(path)!r} has a line break or another control character")
        try:
            return super().invoke(ctx)
        except ArgumentError as error:
            raise PolyboundError(_of_the_option(error, ctx)) from error


def _of_the_option(error: ArgumentError, ctx: Any) -> str:
    """An error in the words of the command line: the option, if it was typed, and what else to type."""
    options: dict[str, str] = {}
    for param in ctx.command.params:
        if param.param_type_name == "option":
            option = max(param.opts, key=len)
            options |= dict.fromkeys((str(param.name), option.lstrip("-").replace("-", "_")), option)
    name = {"held_out": "validation"}.get(error.name, error.name)
    problem = re.sub(
        r"\b(\w+)=(?=\S)", lambda found: f"{options[found[1]]} " if found[1] in options else found[0], error.problem
    )
    return f"{options[name] if options.get(name) in typed_options(ctx) else error.name} {problem}"


class _Group(_PlainFlags, TyperGroup):
    """A group with its commands in `ORDER`."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def make_app(name: str, text: str, *, completion: bool = False) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(
        name=name,
        help=text,
        cls=_Group,
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


app = make_app("polybound", "Train, bound, attack and certify polynomial networks.", completion=True)


def command(
    group: typer.Typer,
    *examples: str,
    name: str | None = None,
    panel: str | None = None,
    stopped: str = "nothing was changed",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function to a group as a command, with `--quiet`.

    A parameter that is annotated with a dataclass becomes an option for each of its fields.

    Args:
        group: what to add it to.
        *examples: command lines that help shows, one a line.
        name: the command's name, if it is not the function's.
        panel: heading in the list of commands.
        stopped: the message after Ctrl-C: what is kept, and how to go on.
    """
    # Help makes a line of each paragraph.
    lines = ["Example:" if len(examples) == 1 else "Examples:", *(f"[bold]{example}[/]" for example in examples)]

    def add(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        records: dict[str, Any] = {place: kind for place, kind in hints.items() if is_dataclass(kind)}
        parameters: list[tuple[str, Any, Any]] = []

        def add_parameter(place: str, default: Any, kind: Any) -> None:
            if isinstance(default, Field):
                kind = Annotated[kind, default.metadata["typer"]] if default.metadata else kind
                default = default.default
            parameters.append((place, default, kind))

        for parameter in inspect.signature(function).parameters.values():
            if (record := records.get(parameter.name)) is not None:
                kinds = get_type_hints(record, include_extras=True)
                for one in fields(record):
                    add_parameter(one.name, one, kinds[one.name])
            else:
                add_parameter(parameter.name, parameter.default, hints[parameter.name])
        add_parameter("quiet", False, Quiet)

        @wraps(function)
        def run(*, quiet: bool = False, **values: Any) -> None:
            _quiet.set(quiet)
            for place, record in records.items():
                values[place] = record(**{one.name: values.pop(one.name) for one in fields(record)})
            try:
                function(**values)
            except KeyboardInterrupt:
                note(f"stopped: {stopped}")
                raise typer.Exit(INTERRUPTED) from None

        keyword = inspect.Parameter.KEYWORD_ONLY
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(place, keyword, default=value, annotation=kind) for place, value, kind in parameters]
        )
        run.__annotations__ = {place: kind for place, _, kind in parameters}
        group.command(name, cls=_Command, epilog="\n\n".join(lines), rich_help_panel=panel)(run)
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
