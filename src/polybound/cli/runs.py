"""`polybound runs`: list, show and clean run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from polybound.cli.commands import AsJson, command, make_app

__all__ = ["runs_app"]

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
