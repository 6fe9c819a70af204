"""`polybound experiments`, `sweep` and `reproduce`, and how all commands about experiments are added."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import MofNCompleteColumn

from polybound.cli.commands import command
from polybound.cli.draw import FIGURE_1, draw_figure
from polybound.cli.experiment_options import (
    Address,
    AsJson,
    Bound,
    Budget,
    DataDir,
    Dataset,
    Engine,
    Limit,
    MeasureEvery,
    Method,
    Model,
    Names,
    Runs,
    Samples,
    Seeds,
    Workers,
    choose,
    report_command,
)
from polybound.cli.progress import hint, progress_bar
from polybound.cli.reports import compare, make_report, report
from polybound.errors import ArgumentError, PolyboundError

if TYPE_CHECKING:
    from polybound.experiments import Experiment  # brings in torch, and is not for --help

__all__ = ["add_commands"]


def add_commands(app: typer.Typer) -> None:
    """Add all commands about experiments."""
    for function, name, examples in _COMMANDS:
        command(app, *examples, name=name, panel="The paper's experiments", stopped=_STOPPED)(function)


def list_experiments(as_json: AsJson = False) -> None:
    """List all experiments: the paper's tables and figures, and our own."""
    from polybound.cli.tables import show_table
    from polybound.experiments import experiment_names, find_experiment

    found = [find_experiment(name) for name in experiment_names()]
    shown = [{"name": e.name, "paper": e.paper, "title": e.title} for e in found]
    shown.insert(next(i for i, e in enumerate(found) if e.name.startswith("figure-")), FIGURE_1)
    if as_json:
        print(json.dumps(shown, indent=2))
        return
    show_table(["name", "what"], [[one["name"], one["title"]] for one in shown], lead=2)


def _sweep(
    experiments: list[Experiment],
    runs: Path,
    data_dir: Path | None,
    engine: str,
    workers: int | None,
    address: str | None,
) -> None:
    from polybound.experiments import sweep as carry_out

    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("jobs", total=None)

        def show(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=name or "jobs")

        carry_out(
            experiments, runs, data_dir=data_dir, engine=engine, workers=workers, cluster=address, on_progress=show
        )


def sweep(
    names: Names,
    runs: Runs = Path("runs"),
    budget: Budget = None,
    seeds: Seeds = None,
    samples: Samples = None,
    limit: Limit = None,
    dataset: Dataset = None,
    model: Model = None,
    method: Method = None,
    bound: Bound = None,
    measure_every: MeasureEvery = None,
    engine: Engine = "loky",
    workers: Workers = None,
    address: Address = None,
    data_dir: DataDir = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and for how long.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train and measure all that experiments need. What is done is not done again; what was killed goes on."""
    changes = (budget, seeds, samples, limit, dataset, model, method, bound, measure_every)
    chosen = choose(names, *changes)
    if dry_run:
        _dry_run(chosen, runs, data_dir, engine, as_json)
        return
    _sweep(chosen, runs, data_dir, engine, workers, address)
    if as_json:
        from polybound.experiments import experiment_scores

        rows = [dict(row) for experiment in chosen for row in experiment_scores(experiment, runs, data_dir=data_dir)]
        print(json.dumps(rows, indent=1))
    else:
        hint("all done; this shows it:")
        print(report_command(names, runs, data_dir, *changes))


def _dry_run(chosen: list[Experiment], runs: Path, data_dir: Path | None, engine: str, as_json: bool) -> None:
    from polybound.experiments import ENGINES, estimate

    if engine not in ENGINES:
        raise ArgumentError("engine", f"must be one of {', '.join(ENGINES)}, got {engine!r}")
    found = estimate(chosen, runs, data_dir)
    if as_json:
        print(json.dumps(asdict(found)))
        return
    print(f"{found.jobs} jobs with {found.runs} runs, {found.done} jobs done already")
    if found.missing:
        print(f"not on this machine, and not in the time below: {', '.join(found.missing)}")
    print(f"training the rest takes about {_duration(found.seconds)} on one worker; attacks come on top of it")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def reproduce(
    names: Names,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The report; NAME.html by default.")] = None,
    runs: Runs = Path("runs"),
    budget: Budget = None,
    seeds: Seeds = None,
    samples: Samples = None,
    limit: Limit = None,
    dataset: Dataset = None,
    model: Model = None,
    method: Method = None,
    bound: Bound = None,
    measure_every: MeasureEvery = None,
    engine: Engine = "loky",
    workers: Workers = None,
    address: Address = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Give back a table or figure of the paper, next to the published values: sweep, then report.

    Figure 1, a schematic, is drawn as SVG; it has nothing to train and takes no options but --output.
    """
    if names == [FIGURE_1["name"]]:
        draw_figure(output, as_json)
        return
    chosen = choose(names, budget, seeds, samples, limit, dataset, model, method, bound, measure_every)
    target = output or Path(f"{Path(names[0]).stem}.html")
    if not target.parent.is_dir():
        raise PolyboundError(f"{target.parent}: no such folder")
    _sweep(chosen, runs, data_dir, engine, workers, address)
    make_report(chosen, runs, target, data_dir=data_dir, as_json=as_json)


_STOPPED = "what was trained and measured is saved; the same command goes on"
_COMMANDS = (
    (list_experiments, "experiments", ["polybound experiments"]),
    (
        reproduce,
        "reproduce",
        [
            "polybound reproduce figure-5",
            "polybound reproduce figure-1 -o figure-1.svg",
            "polybound reproduce table-1 --dataset fashion-mnist --model pn-4 --budget 0.1",
        ],
    ),
    (
        sweep,
        "sweep",
        [
            "polybound sweep table-1 --dry-run",
            "polybound sweep figure-2 --dataset fashion-mnist --model pn-4 --seeds 5",
            "polybound sweep table-5 --engine dask --address tcp://10.0.0.1:8786",
        ],
    ),
    (
        report,
        "report",
        [
            "polybound report runs/* -o report.html",
            "polybound report table-1 figure-2 --dataset fashion-mnist -o report.html",
            "polybound report table-5 figure-4 --seeds 10 --scores docs/results/scores.csv --figures docs/results",
        ],
    ),
    (compare, "compare", ["polybound compare runs", "polybound compare scores.csv --json"]),
)
