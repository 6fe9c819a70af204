"""The reference: one page for each room of the package, and the command line from its own help."""

from __future__ import annotations

import ast
import html
import inspect
import re
from pathlib import Path
from typing import Any

import polybound

ROOMS = tuple(name for name in polybound.__all__ if (Path(polybound.__file__).parent / name / "__init__.py").is_file())
"""The rooms that are public."""


def write_reference(folder: Path) -> None:
    """Write the pages of the interface, and the commands into cli.md in the place of `<!-- commands -->`."""
    (folder / "api").mkdir(parents=True, exist_ok=True)
    (folder / "api" / "polybound.md").write_text(front(), encoding="utf-8")
    for room in ROOMS:
        (folder / "api" / f"{room}.md").write_text(room_page(room), encoding="utf-8")
    page = folder / "cli.md"
    text = page.read_text(encoding="utf-8")
    if "<!-- commands -->" not in text:
        raise ValueError(f"{page} has no place for the commands")
    page.write_text(text.replace("<!-- commands -->", commands()), encoding="utf-8")


def homes(room: str) -> dict[str, str]:
    """The full name of everything that a room offers, by its short name, from the imports of its `__init__`.

    A room may have a function and a module of one name, so `polybound.theory.lipschitz` alone would not do.

    >>> homes("theory")["lipschitz"]
    'polybound.theory.lipschitz.lipschitz'
    """
    source = (Path(polybound.__file__).parent / room / "__init__.py").read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return {alias.name: f"{node.module}.{alias.name}" for node in imports for alias in node.names if alias.asname}


def room_page(room: str) -> str:
    """The page of a room: what it is, a list of what it offers, and each of that with its docstring."""
    module, names = getattr(polybound, room), homes(room)
    order = sorted(names, key=lambda name: (name.isupper(), not callable(getattr(module, name)), name.lower()))
    lines = [f"# polybound.{room}", "", inspect.cleandoc(module.__doc__ or ""), "", "| name | what |", "| --- | --- |"]
    lines += [f"| [`{name}`](#{names[name]}) | {summary(getattr(module, name))} |" for name in order]
    lines += ["", *(f"::: {names[name]}\n" for name in order)]
    return "\n".join(lines)


def front() -> str:
    """The page of the names that the package itself has, each with the room where it is described."""
    rows = []
    for name in sorted(set(polybound.__all__) - set(ROOMS) - {"__version__"}, key=str.lower):
        home = next((room for room in ROOMS if name in homes(room)), None)
        about = summary(getattr(polybound, name))
        where = f"[`pb.{name}`]({home}.md#{homes(home)[name]})" if home else f"`pb.{name}`"
        rows.append(f"| {where} | {about} |")
    lines = ["# polybound", "", "`import polybound as pb` has these names; each room has more.", ""]
    return "\n".join([*lines, "| name | what |", "| --- | --- |", *rows, "", *map(room_line, ROOMS), ""])


def room_line(room: str) -> str:
    """A line of the list of rooms."""
    return f"- [`pb.{room}`]({room}.md): {summary(getattr(polybound, room))}"


def summary(value: Any) -> str:
    """The first line of a docstring, safe in a table."""
    if not (inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value)):
        return "a constant or a type"
    return cell(inspect.cleandoc(value.__doc__ or "").partition("\n")[0])


def commands() -> str:
    """All commands with their help, arguments, options and examples, as Markdown."""
    import typer

    from polybound.cli.commands import app

    return "\n".join(command_lines(typer.main.get_command(app), ["polybound"]))


def command_lines(command: Any, words: list[str]) -> list[str]:
    """The section of a command, and those of the commands under it."""
    context = command.make_context(words[-1], [], resilient_parsing=True)
    lines = []
    if len(words) > 1:
        lines += [f"## {' '.join(words)}", "", (command.help or "").partition("\n")[0], ""]
    found = getattr(command, "commands", None)
    if found is not None:
        for name in command.list_commands(context):
            lines += command_lines(found[name], [*words, name])
        return lines
    usage = " ".join(command.collect_usage_pieces(context))
    lines += ["```text", f"{' '.join(words)} {usage}", "```", ""]
    rows = [row for parameter in command.get_params(context) if (row := parameter_row(parameter, context))]
    lines += ["| | what |", "| --- | --- |", *rows, ""]
    examples = re.findall(r"^\[bold\](polybound .+)\[/\]$", command.epilog or "", re.MULTILINE)
    if examples:
        lines += ["```console", *(f"$ {example}" for example in examples), "```", ""]
    return lines


def parameter_row(parameter: Any, context: Any) -> str:
    """A row of the table of arguments and options, as `--help` has it; empty for what is hidden and for --help."""
    record = parameter.get_help_record(context)
    if record is None or parameter.name == "help":
        return ""
    return f"| {cell(f'`{record[0]}`')} | {html.escape(cell(record[1]), quote=False)} |"


def cell(text: str) -> str:
    """Text that is safe in a cell of a table: bars are escaped, but not in code, where tables leave them alone."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if i % 2 else part.replace("|", "\\|") for i, part in enumerate(parts))
