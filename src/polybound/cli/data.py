"""`polybound data`: what data sets there are, getting them, and checking their files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polybound.cli.commands import AsJson, command, make_app

if TYPE_CHECKING:
    from polybound.data import Directories, Source

__all__ = ["data_app"]

data_app = make_app("data", "List, download and check data sets.")

DataDir = Annotated[
    Path | None,
    typer.Option(help="Look here first, and put downloads here. Default: $POLYBOUND_DATA, or the user's cache."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A data set, as `polybound data list` shows them.")]


@command(data_app, "polybound data list", "polybound data list --json", name="list")
def list_data(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show all data sets: their sizes, licences and sources, and where they were found."""
    from polybound.data import Directories, find_source, names

    directories = Directories(data_dir, download=False)
    rows = [_facts(find_source(name), directories) for name in names()]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _show(rows)


@command(data_app, "polybound data get mnist", "polybound data get nsynth --full")
def get(
    name: Name,
    data_dir: DataDir = None,
    full: Annotated[bool, typer.Option("--full", help="Also what is large: NSynth's train split has 24 GB.")] = False,
) -> None:
    """Download a data set, unless it is there already."""
    from polybound.data import Directories, find_source

    source, directories = find_source(name), Directories(data_dir)
    lacking = source.lacking(directories, full=full)
    if not lacking:
        print(f"{name}: already in {source.locate(directories) or 'memory'}")
    for path in directories.need(name, source.folders, lacking):
        print(path)


@command(data_app, "polybound data verify mnist")
def verify(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check all files of a data set; exit with code 2 if one is damaged, swapped or missing."""
    from polybound.data import Directories, MissingDataError, find_source

    source, directories = find_source(name), Directories(data_dir, download=False)
    results: list[tuple[Path | None, str]] = []
    try:
        results.extend(source.check(directories))
    except MissingDataError as error:
        results.append((None, str(error)))
    bad = [problem for _, problem in results if problem]
    if as_json:
        rows = [
            {"file": path and str(path), "ok": not problem, "problem": problem or None} for path, problem in results
        ]
        print(json.dumps({"name": name, "ok": not bad, "files": rows}, indent=2))
    else:
        for path, problem in results:
            if not problem:
                print(f"ok  {path}")
        for problem in bad:
            print(f"polybound: error: {problem}", file=sys.stderr)
    if bad:
        raise typer.Exit(2)


def _facts(source: Source, directories: Directories) -> dict[str, Any]:
    place = source.locate(directories)
    return {
        "name": source.name,
        "title": source.title,
        "classes": len(source.class_names),
        "shape": list(source.shape),
        "samples": dict(source.counts),
        "bytes": sum(file.size for file in source.files()),
        "licence": source.licence,
        "source": source.home,
        "found": None if place is None else str(place),
    }


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    # What a choice is made by; sources, sizes of the files and the rest are in --json.
    view = Table(header_style="bold", caption="found in: - can be downloaded with `polybound data get NAME`")
    for title in ("name", "classes", "shape", "samples", "licence", "found in"):
        justify: Any = "right" if title in ("classes", "samples") else "left"
        view.add_column(title, justify=justify, overflow="fold", no_wrap=title in ("name", "shape"))
    for row in rows:
        view.add_row(
            row["name"],
            str(row["classes"]),
            "x".join(map(str, row["shape"])),
            " + ".join(f"{count:,}" for count in row["samples"].values()),
            row["licence"],
            row["found"] or "-",
        )
    Console().print(view)
