"""`polybound experiments`, `reproduce`, `sweep`, `report` and `compare`."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import polybound as pb
from polybound.cli.commands import app, command, hint, note, progress
from polybound.cli.options import EXPERIMENTS, AsCsv, AsJson, DataDir, Runs, argument, option
from polybound.cli.tables import print_wrapped, show_table
from polybound.errors import PolyboundError, check_choice, existing_folder

# What the commands about experiments have in common: their options, and the experiments that those choose.


Names = Annotated[
    list[str], typer.Argument(metavar="NAME", help="Experiments, see `polybound experiments`, or TOML files.")
]
FIGURE_1 = {"name": "figure-1", "paper": "Figure 1", "title": "Schematic of CCP and NCP"}
"""The figure of the paper that needs no experiment."""
STOPPED = "what was trained and measured is saved; the same command goes on"


@dataclass(frozen=True)
class ExperimentFilter:
    """The options that reduce or change experiments: keywords of `Experiment.changed`."""

    budget: float | None = option("Share of the epochs; every number made so says so.")
    seeds: int | None = option("Number of seeds.")
    samples: int | None = option("Number of training samples (default: all).")
    limit: int | None = option("Number of images that are attacked (default: all).")
    datasets: list[str] | None = option("Only these data sets, or others.", "--dataset", metavar="<str>")
    models: list[str] | None = option("Only these models.", "--model", metavar="<str>")
    methods: list[str] | None = option("Only these methods.", "--method", metavar="<str>")
    bounds: list[float] | None = option("Only these bounds.", "--bound", metavar="<float>")
    measure_every: int | None = option(
        "Also measure after every N epochs, published protocol; the best counts, as in the paper."
    )

    def experiments(self, names: Sequence[str]) -> list[pb.experiments.Experiment]:
        """The experiments, changed by these options."""
        if FIGURE_1["name"] in names:
            raise PolyboundError("figure-1 is a drawing, without runs: polybound reproduce figure-1 draws it alone")
        lists = {name: tuple(value) or None for name, value in vars(self).items() if isinstance(value, list)}
        return [pb.experiments.find_experiment(name).changed(**(vars(self) | lists)) for name in names]


@dataclass(frozen=True)
class Engine:
    """The options that say where a sweep runs: keywords of `experiments.sweep`."""

    engine: str = option("loky, dask or ray.", default="loky")
    workers: int | None = option("Jobs at once; one for each core by default.", min=1)
    address: str | None = option("Of a Dask scheduler or a Ray head.")
    data_dir: DataDir = None

    def sweep(self, experiments: list[pb.experiments.Experiment], runs: Path) -> None:
        """Train and measure what is not done, with a progress bar."""
        options: dict[str, Any] = {"engine": self.engine, "workers": self.workers, "cluster": self.address}
        with progress("jobs") as step:
            pb.experiments.sweep(experiments, runs, data_dir=self.data_dir, on_progress=step, **options)


@command(app, "polybound experiments", name="experiments", panel=EXPERIMENTS)
def list_experiments(as_json: AsJson = False) -> None:
    """List all experiments: the paper's tables and figures, and our own."""
    found = [pb.experiments.find_experiment(name) for name in pb.experiments.experiment_names()]
    shown = [{"name": e.name, "paper": e.paper, "title": e.title} for e in found]
    shown.insert(next(i for i, e in enumerate(found) if e.name.startswith("figure-")), FIGURE_1)
    if as_json:
        print(json.dumps(shown, indent=2))
    else:
        show_table(["name", "what"], [[one["name"], one["title"]] for one in shown], lead=2)


@command(
    app,
    "polybound reproduce figure-5",
    "polybound reproduce figure-1 -o figure-1.svg",
    "polybound reproduce table-1 --dataset fashion-mnist --model pn-4 --budget 0.1",
    panel=EXPERIMENTS,
    stopped=STOPPED,
)
def reproduce(
    names: Names,
    *,
    output: Path | None = option("The report; NAME.html by default.", "--output", "-o"),
    runs: Runs = Path("runs"),
    changes: ExperimentFilter,
    engine: Engine,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table or figure of the paper, next to the published values: sweep, then report.

    Figure 1, a schematic, is drawn as SVG; it has nothing to train and takes no options but --output.
    """
    if names == [FIGURE_1["name"]]:
        drawn = pb.report.draw_figure_1(output or Path(f"{FIGURE_1['name']}.svg"))
        print(json.dumps({"file": str(drawn)}, indent=2) if as_json else f"wrote {drawn}")
        return
    chosen = changes.experiments(names)
    target = output or Path(f"{Path(names[0]).stem}.html")
    existing_folder(target.parent)
    engine.sweep(chosen, runs)
    _show(_make_report(chosen, runs, target, data_dir=engine.data_dir), as_json)


@command(
    app,
    "polybound sweep table-1 --dry-run",
    "polybound sweep figure-2 --dataset fashion-mnist --model pn-4 --seeds 5",
    "polybound sweep table-5 --engine dask --address tcp://10.0.0.1:8786",
    panel=EXPERIMENTS,
    stopped=STOPPED,
)
def sweep(
    names: Names,
    *,
    runs: Runs = Path("runs"),
    changes: ExperimentFilter,
    engine: Engine,
    dry_run: bool = option("Only say what would run.", "--dry-run", default=False),
    as_json: AsJson = False,
) -> None:
    """Train and measure all that experiments need. What is done is not done again; what was killed goes on."""
    chosen = changes.experiments(names)
    if dry_run:
        check_choice("engine", engine.engine, pb.experiments.ENGINES)
        found = pb.experiments.preview(chosen, runs, engine.data_dir)
        if as_json:
            print(json.dumps(found))
            return
        print(f"{found['jobs']} jobs with {found['runs']} runs, {found['done']} jobs done already")
        if found["missing"]:
            print(f"not on this machine: {', '.join(found['missing'])}")
        return
    engine.sweep(chosen, runs)
    if as_json:
        tables = [pb.experiments.experiment_scores(one, runs, data_dir=engine.data_dir) for one in chosen]
        print(json.dumps([dict(row) for table in tables for row in table], indent=1))
    else:
        hint("all done; `polybound report` shows it, with the same names and options")


@command(
    app,
    "polybound report runs/* -o report.html",
    "polybound report table-1 figure-2 --dataset fashion-mnist -o report.html",
    "polybound report table-5 figure-4 --seeds 10 --scores docs/results/scores.csv --figures docs/results",
    panel=EXPERIMENTS,
    stopped=STOPPED,
)
def report(
    names: Names,
    *,
    output: Path = option("The report.", "--output", "-o", default=Path("report.html")),
    runs: Runs = Path("runs"),
    changes: ExperimentFilter,
    scores: list[Path] | None = option(
        "CSV files of scores, in place of run folders that are not there.", metavar="<path>"
    ),
    figures: Path | None = option(
        "Folder with the data of figures, in place of weights that are not there.", metavar="<path>"
    ),
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a report of experiments, or of run folders: one HTML file, and beside it all figures and tables.

    Figures are PNG, SVG and CSV files, tables Markdown, LaTeX and CSV. Exit code 1 if some of the runs were skipped.
    """
    for folder in (output.parent, figures):
        if folder is not None:
            existing_folder(folder)
    experiments = pb.experiments.experiment_names()
    # A mistyped name is taken for that of an experiment, not of a run's folder.
    folders = [
        Path(name)
        for name in names
        if name not in experiments and not name.endswith(".toml") and ("/" in name or Path(name).exists())
    ]
    if folders and len(folders) < len(names):
        raise PolyboundError(f"{folders[0]}: a report is of experiments or of runs, not of both")
    if folders:
        command = shlex.join(["polybound", *sys.argv[1:]])
        made = pb.report.report_runs(folders, output, title="polybound: runs", command=command)
    else:
        kept = pb.Table(row for file in scores or () for row in pb.experiments.read_scores(file))
        chosen = changes.experiments(names)
        made = _make_report(chosen, runs, output, scores=kept, figures=figures, data_dir=data_dir)
    _show(made, as_json)


def _make_report(chosen: list[pb.experiments.Experiment], runs: Path, output: Path, **options: Any) -> pb.report.Report:
    title = chosen[0].title if len(chosen) == 1 else "polybound: the paper's results, reproduced"
    options["command"] = shlex.join(["polybound", *sys.argv[1:]])
    with progress("report", len(chosen)) as step:
        return pb.report.build_report(chosen, runs, output, title=title, on_progress=step, **options)


def _show(made: pb.report.Report, as_json: bool) -> None:
    """Print a report: as JSON, or what was found and the tables, as wide as the terminal; figures are in the files."""
    if as_json:
        print(json.dumps(made.as_dict(), indent=2))
    else:
        if made.summary is not None:
            print_wrapped(made.summary.verdict)
            if made.summary.compared is not None:
                _show_table(made.summary.compared)
            print()
        for section in made.sections:
            print_wrapped(section.title)
            for line in [*section.notes, *(f"Not run: {what} ({why})." for what, why in section.missing)]:
                print_wrapped(line)
            for part in section.parts:
                if isinstance(part, pb.report.Table):
                    _show_table(part)
        print(f"\n{made.page} and {made.folder}/")
    for path, why in made.skipped.items():
        note(f"skipped {path}: {why}")
    if made.skipped:
        raise typer.Exit(1)


def _show_table(table: pb.report.Table) -> None:
    """Print a table of a report, with the marks that its notes explain."""
    rows = [[table.marked(row, n, text) for n, text in enumerate(line)] for row, line in enumerate(table.texts)]
    ends = [*(first for first, _ in table.groups[1:]), len(rows)]
    print()
    print_wrapped(table.title)
    for (first, heading), end in zip(table.groups or [(0, "")], ends, strict=True):
        show_table(table.header, rows[first:end], lead=table.lead, title=heading)
    for line in table.notes:
        print_wrapped(line)


@command(app, "polybound compare runs", "polybound compare scores.csv --json", panel=EXPERIMENTS, stopped=STOPPED)
def compare(
    where: Path = argument("A folder of run folders, or a CSV file of scores.", "RUNS", default=Path("runs")),
    protocol: str = option("published or sound.", default="published"),
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Set what was run against the published values.

    Exit code 1 if a value is off or a run was skipped, 2 if there is no value to judge.
    """
    check_choice("protocol", protocol, ("published", "sound"))
    if as_json and as_csv:
        raise PolyboundError("--json and --csv exclude each other")
    if not where.exists():
        raise PolyboundError(f"{where}: no such file or folder")
    scores, skipped = pb.experiments.read_runs(where) if where.is_dir() else (pb.experiments.read_scores(where), {})
    found = pb.experiments.compare(scores, protocol)
    for path, why in skipped.items():
        note(f"skipped {path}: {why}")
    if not found:
        raise PolyboundError(f"{where}: no run that the paper has a value for")
    judged = [one for one in found if one.verdict in ("within", "off")]
    off = [one for one in judged if one.verdict == "off"]
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(_comparison(found))
    else:
        header, *rows = _comparison(found)
        show_table(header, rows, lead=4)
        near = sum(one.deviations is not None and abs(one.deviations) <= 2.0 for one in off)
        allowed = "max(3 points, 2 published standard deviations)"
        print_wrapped(f"{protocol} protocol: {len(judged) - len(off)} of {len(judged)} values within {allowed}")
        if off:
            others = f"{near} of the {len(off)} others within 2 standard deviations of both"
            print_wrapped(f"{others}, the paper's and these seeds'")
    if not judged:
        verdicts = ", ".join(dict.fromkeys(one.verdict for one in found))
        raise PolyboundError(f"{where}: no value to judge; all are of other conditions than the paper's ({verdicts})")
    if skipped or off:
        raise typer.Exit(1)


def _comparison(found: Sequence[pb.experiments.Comparison]) -> list[list[str]]:
    """A header, and a line for each published value."""
    rows = [["data set", "model", "method", "attack", "paper", "here", "difference", "in std", "verdict"]]
    for one in found:
        paper, ours = one.paper, one.ours
        chosen = ours.chosen and pb.evaluation.value_label(ours.chosen[1])
        best = f"{ours} (best of {one.bounds} bounds: {chosen})" if chosen else str(ours)
        best += f" ({ours.epoch} epochs)" if isinstance(ours.epoch, str) else ""
        method = f"{paper.method} ({one.variant})" if one.variant else paper.method
        deviations = "" if one.deviations is None else f"{one.deviations:+.1f}"
        published = f"{paper.mean:.2f} ± {paper.std:.2f}"
        names = [paper.dataset, paper.model, method, paper.attack]
        rows.append([*names, published, best, f"{one.difference:+.2f}", deviations, one.verdict])
    return rows
