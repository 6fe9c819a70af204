"""`polybound doctor`: the facts of a bug report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from polybound.cli.commands import command, progress_bar

__all__ = ["add_doctor"]


def add_doctor(app: typer.Typer) -> None:
    """Make the command known."""
    command(
        app,
        "polybound doctor",
        "polybound doctor --json > facts.json",
        "polybound doctor --fast",
        panel="This installation",
    )(doctor)


def doctor(
    fast: Annotated[
        bool, typer.Option("--fast", help="Do not try to import each package; compare no checksums.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the checksums of data sets above 500 MB too.")
    ] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Look for data here first.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a bug report should say: versions, extras, threads, devices, plugins, data found and their checksums.

    Nothing is sent anywhere, and nothing is changed. Exit code 1 if something is broken; what is absent is not.
    """
    from polybound.doctor import diagnose, problems

    with progress_bar() as bar:
        task = bar.add_task("looking", total=None)
        facts = diagnose(
            data_dir, fast=fast, verify=verify, on_progress=lambda what: bar.update(task, description=what)
        )
    bad = problems(facts)
    if as_json:
        print(json.dumps(facts | {"problems": bad}, indent=2))
    else:
        # Plain lines, to be pasted; and no table, which would need more than may be there.
        for section, value in facts.items():
            _show(section, value, "")
        print("\n".join([f"problems: {len(bad)}", *(f"  {line}" for line in bad)]))
    if bad:
        raise typer.Exit(1)


def _show(name: str, value: Any, indent: str) -> None:
    if isinstance(value, dict):
        print(f"{indent}{name}:{'' if value else ' none'}")
        for key, inner in value.items():
            _show(key, inner, indent + "  ")
    else:
        print(f"{indent}{name}: {value}")
