"""`polybound data` and `polybound runs`: data sets and run folders, listed, checked, fetched and cleaned."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polybound.cli.commands import AsJson, command, make_app

if TYPE_CHECKING:
    from polybound.data import Directories, Source

__all__ = ["data_app", "runs_app"]


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


# `polybound runs`: list, show and clean run folders.


runs_app = make_app("runs", "List, show and clean run folders.")

Root = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the run folders.")]


@command(runs_app, "polybound runs list", "polybound runs list sweep --json", name="list")
def list_command(folder: Root = Path("runs"), as_json: AsJson = False) -> None:
    """List all runs in a folder: what each is, whether it is finished, how much was measured."""
    from polybound.cli.tables import show_table
    from polybound.runs import list_runs

    found = list_runs(folder)
    if as_json:
        print(json.dumps([vars(one) | {"path": str(one.path)} for one in found], indent=2))
        return
    rows = [[one.path.name, one.label, one.state, str(one.scores), f"{one.size / 1e3:,.0f} kB"] for one in found]
    show_table(["run", "what", "state", "scores", "size"], rows, lead=2)
    states = [one.state for one in found]
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "no runs")


@command(runs_app, "polybound runs show runs/NAME")
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    as_json: AsJson = False,
) -> None:
    """Show everything that determines a run, how it ended, and what was measured on it."""
    from polybound.cli.tables import images_text, labelled, print_wrapped, show_facts, show_table
    from polybound.errors import PolyboundError
    from polybound.evaluation import column_label, differing, value_label
    from polybound.runs import Run, is_run

    if not is_run(run):
        raise PolyboundError(f"{run}: no run folder")
    one = Run(run)
    spec, epochs = one.spec(), [line for line in one.history() if "loss" in line]
    facts: dict[str, Any] = {"run": str(run), "address": spec.address, **spec.columns(), "epochs done": len(epochs)}
    facts |= {"last loss": epochs[-1]["loss"]} if epochs else {}
    facts |= {"failure": one.failure} if one.failure else {}
    scores, doubtful = labelled(one.table()), len(one.unverified())
    if as_json:
        content = {**facts, "finished": one.finished(), "scores": scores, "unverified": doubtful}
        print(json.dumps(content, indent=2))
        return
    show_facts(facts | {"finished": one.finished()})
    if scores:
        # What follows from the counts, or is in the column "images".
        told = ("correct", "per_class", "accuracy", "low", "high", "label", "total", "available")
        different = differing(scores, told)
        names = ["attack", *(name for name in ("protocol", "counted", "split") if name in different)]
        names += [name for name in different if name not in names]
        rows = [
            [*(value_label(row.get(name)) for name in names), f"{100 * row['accuracy']:.2f} %", images_text(row)]
            for row in scores
        ]
        title = "stored scores" if "split" in names else f"stored scores, {scores[0]['split']} split"
        show_table([*map(column_label, names), "accuracy", "images"], rows, title=title)
    if doubtful:
        print_wrapped(f"{doubtful} of them are unverified: their lines in scores.csv have no check")


@command(runs_app, "polybound runs clean --dry-run", "polybound runs clean runs --failed --yes")
def clean(
    folder: Root = Path("runs"),
    failed: Annotated[bool, typer.Option("--failed", help="Also runs that diverged.")] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also runs that were not trained to the end.")
    ] = False,
    damaged: Annotated[bool, typer.Option("--damaged", help="Also runs whose files do not fit each other.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove half-written files, checkpoints of finished runs and, if asked for, runs that are of no use.

    What another process is training stays.
    """
    from polybound.runs import clean_runs

    states = [name for name, asked in (("failed", failed), ("unfinished", unfinished), ("damaged", damaged)) if asked]
    found = clean_runs(folder, states, dry_run=True)
    for path, why in found.items():
        print(f"{path}: {why}")
    if not found:
        print("nothing to remove")
    elif not dry_run and (yes or typer.confirm(f"remove these {len(found)}?")):
        print(f"removed {len(clean_runs(folder, states))}")
