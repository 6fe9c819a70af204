"""The page of theorems: every statement of the paper with its functions, and every function with its statements."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from generator.reference import homes

SOURCE = Path(__file__).with_name("theorems.toml")


@dataclass(frozen=True)
class Statement:
    """A theorem, lemma, definition or algorithm of the paper, and the full names of the functions that compute it."""

    topic: str
    name: str
    title: str
    states: str
    computes: str
    functions: tuple[str, ...]


def statements() -> list[Statement]:
    """All statements, by topic."""
    found = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["statement"]
    return [Statement(**{**each, "functions": tuple(each["functions"])}) for each in found]


def write_theorems(page: Path) -> None:
    """Put statements and functions into a page, in the place of `<!-- statements -->` and `<!-- functions -->`."""
    found = statements()
    lines = []
    for topic in dict.fromkeys(each.topic for each in found):
        lines += [f"## {topic}", "", *(section(each) for each in found if each.topic == topic)]
    functions = sorted({function for each in found for function in each.functions})
    back = {name: [each.name for each in found if name in each.functions] for name in functions}
    rows = [f"| {link(name)} | {'; '.join(names)} |" for name, names in back.items()]
    backward = "\n".join(["| function | in the paper |", "| --- | --- |", *rows])
    text = page.read_text(encoding="utf-8")
    for mark, part in (("<!-- statements -->", "\n".join(lines)), ("<!-- functions -->", backward)):
        if mark not in text:
            raise ValueError(f"{page} has no {mark}")
        text = text.replace(mark, part)
    page.write_text(text, encoding="utf-8")


def section(each: Statement) -> str:
    """One statement: what the paper states, what is computed, and by which functions."""
    heading = f"### {each.name}: {each.title}" if each.title else f"### {each.name}"
    parts = [heading, each.states.strip(), f"**Computed.** {each.computes.strip()}"]
    return "\n\n".join([*parts, f"**Functions.** {', '.join(map(link, each.functions))}\n"])


def link(function: str) -> str:
    """A link to where a function is described.

    >>> link("polybound.theory.theta")
    '[`theory.theta`](../reference/api/theory.md#polybound.theory.norms.theta)'
    """
    _, room, name = function.split(".")
    return f"[`{room}.{name}`](../reference/api/{room}.md#{homes(room)[name]})"
