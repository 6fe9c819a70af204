"""`polybound sweep`, `reproduce`, `compare` and `report`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import MofNCompleteColumn

from polybound.cli.progress import progress_bar
from polybound.errors import PolyboundError

if TYPE_CHECKING:
    # These bring in torch, and are not for --help.
    from polybound.experiments.experiment import Experiment
    from polybound.experiments.results import Row
    from polybound.report.shapes import Section

__all__ = ["add_commands"]

Names = Annotated[
    list[str], typer.Argument(metavar="NAME...", help="Experiments, see `polybound experiments`, or TOML files.")
]
Runs = Annotated[Path, typer.Option(help="Folder of the run folders.")]
Budget = Annotated[float | None, typer.Option(help="Share of the epochs; every number made so says so.")]
Seeds = Annotated[int | None, typer.Option(help="How many seeds.")]
Samples = Annotated[int | None, typer.Option(help="Train on so many samples only.")]
Limit = Annotated[int | None, typer.Option(help="Attack so many images only.")]
Dataset = Annotated[list[str] | None, typer.Option(help="Only these data sets, or others.")]
Model = Annotated[list[str] | None, typer.Option(help="Only these models.")]
Method = Annotated[list[str] | None, typer.Option(help="Only these methods.")]
Bound = Annotated[list[float] | None, typer.Option(help="Only these bounds.")]
MeasureEvery = Annotated[
    int | None,
    typer.Option(help="Measure every so many epochs too, published protocol; the best counts, as in the paper."),
]
Engine = Annotated[str, typer.Option(help="loky, dask or ray.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Jobs at once; one for each core by default.")]
Address = Annotated[str | None, typer.Option(help="Of a Dask scheduler or a Ray head.")]
DataDir = Annotated[Path | None, typer.Option(help="Where the data lies.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("experiments", epilog="Example:  [bold]polybound experiments[/]")(list_experiments)
    app.command(
        epilog="Examples:  [bold]polybound sweep table-1 --dry-run[/]   "
        "[bold]polybound sweep figure-2 --dataset fashion-mnist --model pn-4 --seeds 5[/]   "
        "[bold]polybound sweep table-5 --engine dask --address tcp://10.0.0.1:8786[/]"
    )(sweep)
    app.command(
        epilog="Examples:  [bold]polybound reproduce figure-5[/]   "
        "[bold]polybound reproduce table-1 --dataset fashion-mnist --model pn-4 --budget 0.1[/]"
    )(reproduce)
    app.command(epilog="Examples:  [bold]polybound compare runs[/]   [bold]polybound compare scores.csv --json[/]")(
        compare
    )
    app.command(
        epilog="Examples:  [bold]polybound report table-1 figure-2 --dataset fashion-mnist -o report.html[/]   "
        "[bold]polybound report runs/* -o report.html[/]   "
        "[bold]polybound report table-5 --seeds 10 --measure-every 25 --scores docs/results/scores.csv[/]"
    )(report)


def list_experiments(as_json: AsJson = False) -> None:
    """List all experiments: the paper's tables and figures, and our own."""
    from rich.table import Table

    from polybound.experiments.experiment import experiment_names, find_experiment

    found = [find_experiment(name) for name in experiment_names()]
    if as_json:
        print(json.dumps([{"name": e.name, "paper": e.paper, "title": e.title} for e in found], indent=2))
        return
    view = Table("name", "what", header_style="bold")
    for experiment in found:
        view.add_row(experiment.name, experiment.title)
    Console().print(view)


def _chosen(names: list[str], *changes: Any) -> list[Experiment]:
    """The experiments, changed as the options of the commands below say, in their order."""
    from polybound.experiments.experiment import find_experiment

    fields = ("budget", "seeds", "samples", "limit", "datasets", "models", "methods", "bounds", "measure_every")
    values = [(tuple(value) or None) if isinstance(value, list) else value for value in changes]
    return [find_experiment(name).changed(**dict(zip(fields, values, strict=True))) for name in names]


def _sweep(
    experiments: list[Experiment],
    runs: Path,
    data_dir: Path | None,
    engine: str,
    workers: int | None,
    address: str | None,
) -> None:
    from polybound.experiments.sweep import sweep as carry_out

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
    chosen = _chosen(names, budget, seeds, samples, limit, dataset, model, method, bound, measure_every)
    if dry_run:
        from polybound.experiments.sweep import estimate

        found = estimate(chosen, runs, data_dir)
        if as_json:
            print(json.dumps(asdict(found)))
        else:
            print(f"{found.jobs} jobs with {found.runs} runs, {found.done} jobs done already")
            print(f"training the rest takes about {_duration(found.seconds)} on one worker; attacks come on top of it")
        return
    _sweep(chosen, runs, data_dir, engine, workers, address)
    if as_json:
        from polybound.experiments.results import collect

        print(json.dumps([asdict(row) for experiment in chosen for row in collect(experiment, runs)], indent=1))
    else:
        print(f"all done: `polybound report {' '.join(names)} --runs {runs}` shows it")


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
) -> None:
    """Give back a table or figure of the paper, next to the published values: sweep, then report."""
    chosen = _chosen(names, budget, seeds, samples, limit, dataset, model, method, bound, measure_every)
    target = output or Path(f"{Path(names[0]).stem}.html")
    if not target.parent.is_dir():
        raise PolyboundError(f"{target.parent}: no such folder")
    _sweep(chosen, runs, data_dir, engine, workers, address)
    _report(chosen, runs, target)


def report(
    names: Names,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the report goes.")] = Path("report.html"),
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
    scores: Annotated[
        list[Path] | None, typer.Option(help="CSV files of scores, in place of run folders that are not there.")
    ] = None,
) -> None:
    """Make a report of experiments, or of run folders: one HTML file, and beside it all figures and tables.

    Figures are PNG and SVG files, tables Markdown, LaTeX and CSV.
    """
    if not output.parent.is_dir():
        raise PolyboundError(f"{output.parent}: no such folder")
    if all(Path(name).is_dir() for name in names):
        from polybound.report.build import report_runs

        _show(report_runs([Path(name) for name in names], output, title="polybound: runs", command=_command()), output)
        return
    chosen = _chosen(names, budget, seeds, samples, limit, dataset, model, method, bound, measure_every)
    _report(chosen, runs, output, [row for file in scores or () for row in _scores(file)])


def _command() -> str:
    return shlex.join(["polybound", *sys.argv[1:]])


def _report(chosen: list[Experiment], runs: Path, output: Path, scores: Sequence[Row] = ()) -> None:
    from polybound.report.build import build_report

    title = chosen[0].title if len(chosen) == 1 else "polybound: the paper's results, reproduced"
    _show(build_report(chosen, runs, output, title=title, command=_command(), scores=scores), output)


def _show(sections: list[Section], output: Path) -> None:
    from polybound.report.build import markdown_of

    console = Console()
    for made in sections:
        text = markdown_of(made)
        if console.is_terminal:
            console.print(Markdown(text))
        else:
            print(text)
    print(f"\n{output} and {output.with_suffix('')}/")


def _scores(file: Path) -> list[Row]:
    from polybound.experiments.results import read_csv

    if not file.is_file():
        raise PolyboundError(f"{file}: no such file")
    try:
        return read_csv(file.read_text(encoding="utf-8"))
    except (PolyboundError, ValueError) as error:
        raise PolyboundError(f"{file}: {error}") from None


def compare(
    where: Annotated[
        Path, typer.Argument(metavar="RUNS", help="A folder of run folders, or a CSV file of scores.")
    ] = Path("runs"),
    protocol: Annotated[str, typer.Option(help="published or sound.")] = "published",
    as_json: AsJson = False,
) -> None:
    """Set what was run against the published values. Exit code 1 if a value of a whole schedule is off."""
    from rich.table import Table

    from polybound.experiments.compare import compare as against
    from polybound.experiments.results import collect_folder

    if protocol not in ("published", "sound"):
        raise PolyboundError(f"protocol must be published or sound, got {protocol!r}")
    if not where.exists():
        raise PolyboundError(f"{where}: no such file or folder")
    rows = collect_folder(where) if where.is_dir() else _scores(where)
    found = against(rows, protocol)
    off = [c for c in found if c.verdict == "off"]
    if as_json:
        print(json.dumps([asdict(c) for c in found], indent=2))
    else:
        if not found:
            raise PolyboundError(f"{where}: no run that the paper has a value for")
        names = ("data set", "model", "method", "attack", "paper", "here", "difference", "in std", "verdict")
        view = Table(*names, header_style="bold")
        for c in found:
            best = f"{c.ours} (best of {c.bounds})" if c.bounds > 1 else str(c.ours)
            paper = f"{c.paper.mean:.2f} ± {c.paper.std:.2f}"
            view.add_row(
                c.paper.dataset,
                c.paper.model,
                f"{c.paper.method} ({c.variant})" if c.variant else c.paper.method,
                c.paper.attack,
                paper,
                best,
                f"{c.difference:+.2f}",
                "" if c.deviations is None else f"{c.deviations:+.1f}",
                c.verdict,
            )
        Console().print(view)
        judged = [c for c in found if c.verdict != "reduced"]
        within = len(judged) - len(off)
        near = sum(c.deviations is not None and abs(c.deviations) <= 2.0 for c in off)
        allowed = "max(3 points, 2 published standard deviations)"
        print(f"{protocol} protocol: {within} of {len(judged)} values within {allowed}")
        if off:
            print(f"{near} of the {len(off)} others within 2 standard deviations of both, the paper's and these seeds'")
    if off:
        raise typer.Exit(1)
