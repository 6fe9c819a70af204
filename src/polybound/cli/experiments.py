"""`polybound experiments`, `sweep`, `reproduce`, `report` and `compare`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import MofNCompleteColumn

from polybound.cli.commands import AsJson, command, hint, progress_bar
from polybound.cli.show import FIGURE_1, draw_figure
from polybound.errors import ArgumentError, PolyboundError, existing_folder

if TYPE_CHECKING:
    from polybound.evaluation import Table
    from polybound.experiments import Comparison, Experiment
    from polybound.report import Report
    from polybound.report import Table as Shown

__all__ = [
    "Address",
    "AsCsv",
    "AsJson",
    "Bound",
    "Budget",
    "DataDir",
    "Dataset",
    "Engine",
    "Limit",
    "MeasureEvery",
    "Method",
    "Model",
    "Names",
    "Runs",
    "Samples",
    "Seeds",
    "Workers",
    "add_commands",
    "choose",
    "compare",
    "make_report",
    "report",
    "report_command",
]


# What the commands about experiments have in common: their options, and the experiments that those choose.


Names = Annotated[
    list[str], typer.Argument(metavar="NAME", help="Experiments, see `polybound experiments`, or TOML files.")
]
Runs = Annotated[Path, typer.Option(help="Folder of the run folders.")]
Budget = Annotated[float | None, typer.Option(help="Share of the epochs; every number made so says so.")]
Seeds = Annotated[int | None, typer.Option(help="How many seeds.")]
Samples = Annotated[int | None, typer.Option(help="Number of training samples (default: all).")]
Limit = Annotated[int | None, typer.Option(help="Attack so many images only.")]
Dataset = Annotated[list[str] | None, typer.Option(metavar="<str>", help="Only these data sets, or others.")]
Model = Annotated[list[str] | None, typer.Option(metavar="<str>", help="Only these models.")]
Method = Annotated[list[str] | None, typer.Option(metavar="<str>", help="Only these methods.")]
Bound = Annotated[list[float] | None, typer.Option(metavar="<float>", help="Only these bounds.")]
MeasureEvery = Annotated[
    int | None,
    typer.Option(help="Measure every so many epochs too, published protocol; the best counts, as in the paper."),
]
Engine = Annotated[str, typer.Option(help="loky, dask or ray.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Jobs at once; one for each core by default.")]
Address = Annotated[str | None, typer.Option(help="Of a Dask scheduler or a Ray head.")]
DataDir = Annotated[Path | None, typer.Option(help="Where the data lies.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")]

_CHANGES = ("budget", "seeds", "samples", "limit", "datasets", "models", "methods", "bounds", "measure_every")


def choose(names: list[str], *changes: Any) -> list[Experiment]:
    """The experiments, changed as the options of the commands below say, in their order."""
    from polybound.experiments import find_experiment

    if FIGURE_1["name"] in names:
        raise PolyboundError("figure-1 is a drawing, without runs: polybound reproduce figure-1 draws it alone")
    values = [(tuple(value) or None) if isinstance(value, list) else value for value in changes]
    return [find_experiment(name).changed(**dict(zip(_CHANGES, values, strict=True))) for name in names]


def report_command(names: list[str], runs: Path, data_dir: Path | None, *changes: Any) -> str:
    """The command that shows what a sweep with these options has made."""
    from polybound.evaluation import value_label

    words = ["polybound", "report", *names, "--runs", str(runs)]
    words += ["--data-dir", str(data_dir)] if data_dir is not None else []
    for name, value in zip(_CHANGES, changes, strict=True):
        option = "--" + name.replace("_", "-").removesuffix("s" if isinstance(value, list) else "")
        for one in value if isinstance(value, list) else [value]:
            words += [] if one is None else [option, value_label(one)]
    return shlex.join(words)


# `polybound report` and `compare`.


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
        list[Path] | None,
        typer.Option(metavar="<path>", help="CSV files of scores, in place of run folders that are not there."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="<path>", help="Folder with the data of figures, in place of weights that are not there."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a report of experiments, or of run folders: one HTML file, and beside it all figures and tables.

    Figures are PNG, SVG and CSV files, tables Markdown, LaTeX and CSV. Exit code 1 if some of the runs were skipped.
    """
    for folder in (output.parent, figures):
        if folder is not None:
            existing_folder(folder)
    known = [name for name in names if _is_experiment(name)]
    if not known:
        from polybound.report import report_runs

        made = report_runs([Path(name) for name in names], output, title="polybound: runs", command=_command())
        _show(made, as_json)
        return
    if unknown := [name for name in names if name not in known]:
        raise PolyboundError(f"{unknown[0]}: a report is of experiments or of runs, not of both")
    chosen = choose(names, budget, seeds, samples, limit, dataset, model, method, bound, measure_every)
    from polybound.evaluation import Table
    from polybound.experiments import read_scores

    kept = Table(row for file in scores or () for row in read_scores(file))
    make_report(chosen, runs, output, kept, figures=figures, data_dir=data_dir, as_json=as_json)


def _is_experiment(name: str) -> bool:
    """Whether a name is that of an experiment, and not of a run's folder; a mistyped one is taken for the former."""
    from polybound.experiments import experiment_names

    return name in experiment_names() or name.endswith(".toml") or ("/" not in name and not Path(name).exists())


def _command() -> str:
    return shlex.join(["polybound", *sys.argv[1:]])


def make_report(
    chosen: list[Experiment],
    runs: Path,
    output: Path,
    scores: Table | None = None,
    *,
    figures: Path | None = None,
    data_dir: Path | None = None,
    as_json: bool = False,
) -> None:
    """Make the report of some experiments, and show it."""
    from polybound.report import build_report

    title = chosen[0].title if len(chosen) == 1 else "polybound: the paper's results, reproduced"
    options: dict[str, Any] = {"title": title, "command": _command(), "scores": scores, "data_dir": data_dir}
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("report", total=len(chosen))

        def show(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=name)

        made = build_report(chosen, runs, output, figures=figures, on_progress=show, **options)
    _show(made, as_json)


def _show(made: Report, as_json: bool) -> None:
    from polybound.cli.tables import note, width

    if as_json:
        print(json.dumps(made.as_dict(), indent=2))
    elif width() > 1000:
        print(made.markdown())
    else:
        _show_sections(made)
    if not as_json:
        print(f"\n{made.page} and {made.folder}/")
    for path, why in made.skipped.items():
        note(f"skipped {path}: {why}")
    if made.skipped:
        raise typer.Exit(1)


def _show_sections(made: Report) -> None:
    """What was found and the tables, as wide as the terminal; figures are in the files."""
    from polybound.cli.tables import print_wrapped
    from polybound.report import Table

    if made.summary is not None:
        print_wrapped(made.summary.verdict)
        if made.summary.compared is not None:
            _show_part(made.summary.compared)
        print()
    for section in made.sections:
        print_wrapped(section.title)
        for line in [*section.notes, *(f"Not run: {what} ({why})." for what, why in section.missing)]:
            print_wrapped(line)
        for part in section.parts:
            if isinstance(part, Table):
                _show_part(part)


def _show_part(table: Shown) -> None:
    """Print a table of a report, with the marks that its notes explain."""
    from polybound.cli.tables import print_wrapped, show_table

    rows = [[table.marked(row, n, text) for n, text in enumerate(line)] for row, line in enumerate(table.texts)]
    ends = [*(first for first, _ in table.groups[1:]), len(rows)]
    print()
    print_wrapped(table.title)
    for (first, heading), end in zip(table.groups or [(0, "")], ends, strict=True):
        show_table(table.header, rows[first:end], lead=table.lead, title=heading)
    for line in table.notes:
        print_wrapped(line)


def compare(
    where: Annotated[
        Path, typer.Argument(metavar="RUNS", help="A folder of run folders, or a CSV file of scores.")
    ] = Path("runs"),
    protocol: Annotated[str, typer.Option(help="published or sound.")] = "published",
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Set what was run against the published values.

    Exit code 1 if a value is off or a run was skipped, 2 if there is no value to judge.
    """
    from polybound.cli.tables import note
    from polybound.experiments import compare as against
    from polybound.experiments import read_runs, read_scores

    if protocol not in ("published", "sound"):
        raise ArgumentError("protocol", f"must be published or sound, got {protocol!r}")
    if not where.exists():
        raise PolyboundError(f"{where}: no such file or folder")
    scores, skipped = read_runs(where) if where.is_dir() else (read_scores(where), {})
    found = against(scores, protocol)
    if as_json and as_csv:
        raise PolyboundError("--json and --csv exclude each other")
    for path, why in skipped.items():
        note(f"skipped {path}: {why}")
    if not found:
        raise PolyboundError(f"{where}: no run that the paper has a value for")
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    else:
        _show_comparison(found, protocol, as_csv)
    if not any(one.verdict in ("within", "off") for one in found):
        verdicts = ", ".join(dict.fromkeys(one.verdict for one in found))
        raise PolyboundError(f"{where}: no value to judge; all are of other conditions than the paper's ({verdicts})")
    if skipped or any(one.verdict == "off" for one in found):
        raise typer.Exit(1)


def _show_comparison(found: Sequence[Comparison], protocol: str, as_csv: bool) -> None:
    """A line for each published value, and how many are met."""
    import csv

    from polybound.cli.tables import print_wrapped, show_table
    from polybound.evaluation import value_label

    header = ["data set", "model", "method", "attack", "paper", "here", "difference", "in std", "verdict"]
    rows = []
    for one in found:
        paper, ours = one.paper, one.ours
        best = f"{ours} (best of {one.bounds} bounds: {value_label(ours.chosen[1])})" if ours.chosen else str(ours)
        best += f" ({ours.epoch} epochs)" if isinstance(ours.epoch, str) else ""
        method = f"{paper.method} ({one.variant})" if one.variant else paper.method
        deviations = "" if one.deviations is None else f"{one.deviations:+.1f}"
        published = f"{paper.mean:.2f} ± {paper.std:.2f}"
        names = [paper.dataset, paper.model, method, paper.attack]
        rows.append([*names, published, best, f"{one.difference:+.2f}", deviations, one.verdict])
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([header, *rows])
        return
    show_table(header, rows, lead=4)
    off = [one for one in found if one.verdict == "off"]
    judged = [one for one in found if one.verdict in ("within", "off")]
    near = sum(one.deviations is not None and abs(one.deviations) <= 2.0 for one in off)
    allowed = "max(3 points, 2 published standard deviations)"
    print_wrapped(f"{protocol} protocol: {len(judged) - len(off)} of {len(judged)} values within {allowed}")
    if off:
        print_wrapped(
            f"{near} of the {len(off)} others within 2 standard deviations of both, the paper's and these seeds'"
        )


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
    from polybound.experiments import sweep as run_sweep

    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("jobs", total=None)

        def show(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=name or "jobs")

        run_sweep(
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
    existing_folder(target.parent)
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
