"""`polybound data`, `runs` and `doctor`: data sets and run folders, listed, checked, fetched and cleaned; the facts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import polybound as pb
from polybound.cli.commands import app, command, make_app, progress
from polybound.cli.options import AsJson, argument, option
from polybound.cli.tables import labelled, show_facts, show_table
from polybound.errors import PolyboundError

data_app = make_app("data", "List, download and check data sets.")

DataDir = Annotated[
    Path | None,
    typer.Option(help="Look here first, and put downloads here. Default: $POLYBOUND_DATA, or the user's cache."),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A data set, as `polybound data list` shows them.")]


@command(data_app, "polybound data list", "polybound data list --json", name="list")
def list_data(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show all data sets: their sizes, licences and sources, and where they were found."""
    directories = pb.data.Directories(data_dir, download=False)
    rows = []
    for source in map(pb.data.find_source, pb.data.names()):
        place = source.locate(directories)
        facts: dict[str, Any] = {"name": source.name, "title": source.title, "classes": len(source.class_names)}
        facts |= {"shape": list(source.shape), "samples": dict(source.counts)}
        facts |= {"bytes": sum(file.size for file in source.files()), "licence": source.licence}
        rows.append(facts | {"source": source.home, "found": None if place is None else str(place)})
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    # What a choice is made by; sources, sizes of the files and the rest are in --json.
    cells = []
    for row in rows:
        counts = " + ".join(f"{count:,}" for count in row["samples"].values())
        shape = "x".join(map(str, row["shape"]))
        cells.append([row["name"], str(row["classes"]), shape, counts, row["licence"], row["found"] or "-"])
    header = ["name", "classes", "shape", "samples", "licence", "found in"]
    show_table(header, cells, notes=["found in: - can be downloaded with `polybound data get NAME`"])


@command(data_app, "polybound data get mnist", "polybound data get nsynth --full")
def get(
    name: Name,
    data_dir: DataDir = None,
    full: bool = option("Also what is large: NSynth's train split has 24 GB.", "--full", default=False),
) -> None:
    """Download a data set, unless it is there already."""
    source, directories = pb.data.find_source(name), pb.data.Directories(data_dir)
    lacking = source.lacking(directories, full=full)
    if not lacking:
        print(f"{name}: already in {source.locate(directories) or 'memory'}")
    for path in directories.need(name, source.folders, lacking):
        print(path)


@command(data_app, "polybound data verify mnist")
def verify(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check all files of a data set; exit with code 2 if one is damaged, swapped or missing."""
    source, directories = pb.data.find_source(name), pb.data.Directories(data_dir, download=False)
    results: list[tuple[Path | None, str]] = []
    try:
        results.extend(source.check(directories))
    except pb.data.MissingDataError as error:
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


# `polybound runs`: list, show and clean run folders.


runs_app = make_app("runs", "List, show and clean run folders.")

Root = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the run folders.")]


@command(runs_app, "polybound runs list", "polybound runs list sweep --json", name="list")
def list_command(folder: Root = Path("runs"), as_json: AsJson = False) -> None:
    """List all runs in a folder: what each is, whether it is finished, how much was measured."""
    found = pb.runs.list_runs(folder)
    if as_json:
        print(json.dumps([vars(one) | {"path": str(one.path)} for one in found], indent=2))
        return
    rows = [[one.path.name, one.label, one.state, str(one.scores), f"{one.size / 1e3:,.0f} kB"] for one in found]
    show_table(["run", "what", "state", "scores", "size"], rows, lead=2)
    states = [one.state for one in found]
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "no runs")


@command(runs_app, "polybound runs show runs/NAME")
def show(
    run: Path = argument("A run folder.", "RUN"),
    as_json: AsJson = False,
) -> None:
    """Show everything that determines a run, how it ended, and what was measured on it."""
    if not pb.runs.is_run(run):
        raise PolyboundError(f"{run}: no run folder")
    one = pb.Run(run)
    spec, epochs = one.spec(), [line for line in one.history() if "loss" in line]
    facts: dict[str, Any] = {"run": str(run), "address": spec.address, **spec.columns(), "epochs done": len(epochs)}
    facts |= {"last loss": epochs[-1]["loss"]} if epochs else {}
    facts |= {"failure": one.failure} if one.failure else {}
    scores = labelled(one.table())
    if as_json:
        print(json.dumps({**facts, "finished": one.finished(), "scores": scores}, indent=2))
        return
    show_facts(facts | {"finished": one.finished()})
    if scores:
        # What follows from the counts, or is in the column "images".
        told = ("correct", "per_class", "accuracy", "low", "high", "label", "total", "available")
        different = pb.evaluation.differing(scores, told)
        names = ["attack", *(name for name in ("protocol", "counted", "split") if name in different)]
        names += [name for name in different if name not in names]
        rows = []
        for row in scores:
            values = [pb.evaluation.value_label(row.get(name)) for name in names]
            images = pb.evaluation.images_label(row["total"], row["available"])
            rows.append([*values, f"{100 * row['accuracy']:.2f} %", images])
        title = "stored scores" if "split" in names else f"stored scores, {scores[0]['split']} split"
        show_table([*map(pb.evaluation.column_label, names), "accuracy", "images"], rows, title=title)


@command(runs_app, "polybound runs clean --dry-run", "polybound runs clean runs --failed --yes")
def clean(
    folder: Root = Path("runs"),
    failed: bool = option("Also runs that diverged.", "--failed", default=False),
    unfinished: bool = option("Also runs that were not trained to the end.", "--unfinished", default=False),
    damaged: bool = option("Also runs whose files do not fit each other.", "--damaged", default=False),
    dry_run: bool = option("Only say what would be removed.", "--dry-run", default=False),
    yes: bool = option("Do not ask.", "--yes", "-y", default=False),
) -> None:
    """Remove half-written files, checkpoints of finished runs and, if asked for, runs that are of no use.

    What another process is training stays.
    """
    states = [name for name, asked in (("failed", failed), ("unfinished", unfinished), ("damaged", damaged)) if asked]
    found = pb.runs.clean_runs(folder, states, dry_run=True)
    for path, why in found.items():
        print(f"{path}: {why}")
    if not found:
        print("nothing to remove")
    elif not dry_run and (yes or typer.confirm(f"remove these {len(found)}?")):
        print(f"removed {len(pb.runs.clean_runs(folder, states))}")


# `polybound doctor`: the facts of a bug report.


@command(
    app,
    "polybound doctor",
    "polybound doctor --json > facts.json",
    "polybound doctor --fast",
    panel="This installation",
)
def doctor(
    fast: bool = option("Do not try to import each package.", "--fast", default=False),
    data_dir: Path | None = option("Look for data here first."),
    as_json: AsJson = False,
) -> None:
    """Show what a bug report should say: versions, extras, threads, devices, plugins, data found.

    Nothing is sent anywhere, and nothing is changed. Exit code 1 if something is broken; what is absent is not.
    """
    from polybound.doctor import diagnose, problems

    with progress("looking") as step:
        facts = diagnose(data_dir, fast=fast, on_progress=step)
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
