"""A report: sections of experiments or runs, and the folder with the page, its figures and its tables."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from polybound._version import __version__
from polybound.atomic import write_atomically
from polybound.errors import PolyboundError
from polybound.evaluation import ATTACK_COLUMNS, CLEAN, SEED_COLUMNS, Score, best_place, labels, paper_counts
from polybound.evaluation import Table as Scores
from polybound.experiments import EPOCHS, Experiment, experiment_scores, resolve, runs_of, skipped_runs
from polybound.report import tables
from polybound.report.draw import draw
from polybound.report.elements import ExperimentResult, Figure, Section, Table
from polybound.report.figures import curves, growth, initial, run_figures, samples, tradeoff
from polybound.report.labels import PROTOCOLS, column_name
from polybound.report.page import page
from polybound.report.summary import Pair, Summary, pairs_table, questions_table, section_to_dict, summarise
from polybound.report.text import figure_to_csv, read_figure, to_csv, to_latex, to_markdown
from polybound.runs import LoadedModel, find_runs, is_run, load_models


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
        page: the HTML file.
        folder: the folder with every figure and table on its own.
        sections: what both show.
        skipped: runs that could not be read, with the reason.
        summary: the opening of the page.
    """

    page: Path
    folder: Path
    sections: list[Section]
    skipped: dict[str, str] = field(default_factory=dict)
    summary: Summary | None = None

    def as_dict(self) -> dict[str, Any]:
        """All that is shown, as JSON can hold it."""
        skipped = [{"run": run, "why": why} for run, why in self.skipped.items()]
        files = {"page": str(self.page), "folder": str(self.folder)}
        found = {} if self.summary is None else {"found": self.summary.as_dict()}
        return {**files, **found, "sections": list(map(section_to_dict, self.sections)), "skipped": skipped}


def build_report(
    experiments: Sequence[Experiment],
    root: Path,
    output: Path,
    *,
    title: str = "polybound",
    command: str = "",
    scores: Scores | None = None,
    data_dir: Path | None = None,
    figures: Path | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Write `output` (HTML) and beside it, in a folder of the same name, every figure and table on its own.

    The folder has PNG, SVG and the data (CSV) of each figure, each table as Markdown, LaTeX and CSV, what was found as
    Markdown, `found.md`, with `misses`, `missing` and `differences` as tables, and all scores, `NAME-scores.csv`.

    Args:
        experiments: what to show.
        root: folder of the run folders.
        output: the page.
        title: its heading.
        command: what makes it, for the page to say.
        scores: stand in for run folders that are not there.
        data_dir: where the data lies.
        figures: folder with the data of figures, for those that are drawn from weights that are not there.
        on_progress: called with the number of experiments that are done, their number, and the name of the next.

    Raises:
        PolyboundError: nothing was found.
    """
    show = on_progress or (lambda *_: None)
    results: list[ExperimentResult] = []
    skipped: dict[str, str] = {}
    for number, experiment in enumerate(experiments):
        show(number, len(experiments), experiment.name)
        table = experiment_scores(experiment, root, scores, data_dir)
        without = skipped_runs(experiment, root, data_dir)
        made = section(experiment, table, root, data_dir, figures)
        notes = [f"{path} was skipped: {why}" for path, why in without.items()]
        results.append(ExperimentResult(experiment, table, replace(made, notes=[*made.notes, *notes])))
        skipped |= without
    # A table without scores has only the paper's numbers; what was not run at all is in the summary.
    sections = [
        one.section
        for one in results
        if one.scores.rows or any(isinstance(part, Figure) and not part.empty for part in one.section.parts)
    ]
    if not sections:
        names = ", ".join(experiment.name for experiment in experiments)
        raise PolyboundError(f"nothing was found of {names} in {root}: `polybound sweep` makes it; --scores names it")
    show(len(experiments), len(experiments), "drawing")
    configurations = [asdict(experiment) for experiment in experiments]
    report = _write(output, title, command, sections, summarise(results, data_dir), configurations, skipped)
    for one in results:
        if one.scores.rows:
            write_atomically(report.folder / f"{one.experiment.name}-scores.csv", one.scores.to_csv().encode())
    return report


def report_runs(folders: Sequence[Path], output: Path, *, title: str = "polybound", command: str = "") -> Report:
    """As `build_report`, of any run folders; those that cannot be read are skipped and named."""
    loaded, skipped = load_models(folders)
    made, summary = runs_section(loaded, skipped)
    configurations = [one.run.spec().as_dict() for one in loaded if one.run is not None]
    return _write(output, title, command, [made], summary, configurations, skipped)


# The sections.


LAYOUTS: dict[str, Callable[[Experiment, Scores], Table | Figure]] = {
    "table": tables.paper_table,
    "chosen": tables.chosen_table,
    "tradeoff": tradeoff,
    "curves": curves,
}
"""How the scores of an experiment are shown, by `Experiment.layout`."""

STUDIES: dict[str, Callable[[Experiment, Path, Path | None], Figure]] = {
    "growth": growth,
    "initial": initial,
    "samples": samples,
}
"""Figures of what is computed from weights or data, by `Experiment.kind`."""


def section(
    experiment: Experiment, table: Scores, root: Path, data_dir: Path | None = None, figures: Path | None = None
) -> Section:
    """Tables and figures of an experiment, from its scores and what else its folder holds.

    What is drawn from weights or studies that are not there is drawn from `figures`, a folder with the data of figures,
    if it has them.
    """
    experiment = resolve(experiment, root, data_dir, report=True)
    parts: list[Table | Figure] = []
    if experiment.kind in ("accuracy", "search"):
        parts.append(LAYOUTS[experiment.layout](experiment, table))
    if experiment.kind == "search":
        found = tables.search_table(experiment, root, data_dir)
        parts += [] if found is None else [found]
    elif experiment.kind in STUDIES:
        made = STUDIES[experiment.kind](experiment, root, data_dir)
        file = figures / f"{experiment.name}.csv" if figures is not None else None
        if file is not None and file.is_file() and made.empty:
            made = replace(read_figure(file, experiment.title), notes=made.notes)
        parts.append(made)
    if experiment.layout == "table":
        first, _ = load_models([run.path for spec, run in runs_of(experiment, root, data_dir) if spec.seed == 0])
        bounds = replace(tables.bounds_table(first), title="Bounds of the runs with seed 0", aside=True)
        parts += [bounds] if bounds.rows else []
    title = f"{experiment.paper}: {experiment.title}" if experiment.paper else experiment.title
    protocols = [name for name in PROTOCOLS if name in table.values("protocol")]
    notes = _notes(table, averages=experiment.kind != "growth")
    return Section(experiment.name, title, parts, notes, tables.missing_parts(experiment, table, data_dir), protocols)


def _notes(table: Scores, averages: bool) -> list[str]:
    """What must be said of every number: a cut schedule, few data, few images; then seeds, images and epochs."""
    notes = []
    if epochs := sorted(epochs for epochs in table.values("schedule.epochs") if epochs < EPOCHS):
        notes.append(f"Reduced schedule: {', '.join(map(str, epochs))} of {EPOCHS} epochs.")
    if few := sorted(filter(None, table.values("data.samples"))):
        notes.append(f"Reduced data: {', '.join(map(str, few))} training samples.")
    if limits := sorted({(row["total"], row["available"]) for row in table if row["total"] < row["available"]}):
        notes.append(f"Measured on the first {', '.join(f'{n:,} of {all_:,}' for n, all_ in limits)} images only.")
    if averages and table.rows:
        images = ", ".join(f"{n:,}" for n in sorted({row["total"] for row in table}))
        after = ", ".join(map(str, sorted(table.values("epoch"))))
        when = f"clean and under the published protocol after the best epoch measured (of {after}), else after the last"
        when = "last epoch" if all(row["epoch"] == row["schedule.epochs"] for row in table) else when
        notes.append(f"Mean and standard deviation over seeds{tables.seeds_text(table)}, {images} images, {when}.")
    return notes


def runs_section(loaded: Sequence[LoadedModel], skipped: Mapping[str, str]) -> tuple[Section, Summary]:
    """Accuracies of runs, averaged over seeds and nothing else, figures, the bounds of every model; and a summary.

    What was skipped is named, with the reason.

    Raises:
        PolyboundError: there is nothing to show.
    """
    table = Scores(row for one in loaded if one.run is not None for row in one.run.table())
    table = table.only(lambda row: row["counted"] == paper_counts(row["attack"], row["protocol"]))
    if not table.rows:
        why = "; ".join(f"{path}: {reason}" for path, reason in skipped.items())
        raise PolyboundError(why or "no scores in these runs: `polybound evaluate` makes them")
    bounds, full = tables.bounds_table(loaded), table.fullest()
    headings = tables.by_heading(full)
    figures = run_figures(full, headings, loaded)
    parts: list[Table | Figure] = [tables.scores_table(table), *([bounds] if bounds.rows else []), *figures]
    notes = [f"{path} was skipped: {why}" for path, why in skipped.items()]
    title = f"{len(loaded)} run{'s' if len(loaded) > 1 else ''}"
    protocols = [name for name in PROTOCOLS if name in table.values("protocol")]
    count = len(table.configurations("epoch", *Score.names()))
    lead = f"{title} of {count} configuration{'s' if count > 1 else ''}, averaged over seeds and nothing else."
    pairs = highest_pairs(headings)
    compared, differences = questions_table(pairs), pairs_table(pairs)
    headline = next(iter(figures), None)
    summary = Summary(0, 0, 0, 0, compared, headline, differences=differences, lead=lead)
    return Section("runs", title, parts, notes, protocols=protocols), summary


def highest_pairs(headings: Sequence[tuple[str, Scores]]) -> list[Pair]:
    """The configuration with the highest accuracy of a column against the next, for each heading and column.

    Only what was measured on the same images is compared, by the rule of `best_place`. Runs are not judged by the
    paper's values: those are of the best of all bounds, which `compare` looks for.
    """
    found = []
    for heading, table in headings:
        for column, rows in table.groups(*ATTACK_COLUMNS).items():
            rivals = rows.where(total=max(rows.values("total"))).configurations()
            left = list(zip(labels([one.rows[0] for one in rivals], SEED_COLUMNS), rivals, strict=True))
            ranked: list[tuple[str, Scores]] = []
            while left and (best := best_place([[one.cell()] for _, one in left])) is not None:
                ranked.append(left.pop(best[0]))
            if len(ranked) > 1:
                (name, first), (other, second) = ranked[:2]
                under = column_name(*column)
                asked = "Which is the most accurate?" if under == CLEAN else f"Which keeps most under {under}?"
                sides = f"{name} with {other}, the next of {len(rivals)}"
                found.append(Pair.of(asked, sides, heading, first, second))
    return [pair for pair in found if pair is not None]


# The files.


def _write(
    output: Path,
    title: str,
    command: str,
    sections: list[Section],
    summary: Summary,
    configurations: Sequence[Mapping[str, Any]],
    skipped: dict[str, str],
) -> Report:
    """Write every figure and table as files, then the page: the first of a section has its name, others a word more."""
    # The folder beside the page: of the same name, unless that is one with runs in it.
    if find_runs(output.parent):
        raise PolyboundError(f"{output.parent} is a folder of runs: pass an --output in another folder")
    folder = output.with_suffix("")
    while folder.is_dir() and (is_run(folder) or find_runs(folder) or (folder / ".checkpoints").exists()):
        folder = folder.with_name(f"{folder.name}-report")
    if folder == output:
        raise PolyboundError(f"{output}: the name of a report must end in .html")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "found.md", f"{summary.markdown()}\n".encode(errors="replace"))
    named: list[tuple[str, Table | Figure]] = []
    named += [(one.name, one) for one in (summary.misses, summary.missing, summary.differences) if one is not None]
    if summary.headline is not None and not any(summary.headline is part for made in sections for part in made.parts):
        named.append(("headline", summary.headline))
    for made in sections:
        for number, part in enumerate(made.parts):
            more = part.name if isinstance(part, Table) else ""
            more = more or (str(number + 1) if number else "")
            named.append((f"{made.name}-{more}" if more else made.name, part))
    for name, part in named:
        if isinstance(part, Table):
            for suffix, render in (("md", to_markdown), ("tex", to_latex), ("csv", to_csv)):
                write_atomically(folder / f"{name}.{suffix}", f"{render(part)}\n".encode(errors="replace"))
        elif not part.empty:
            draw(part, folder / f"{name}.png", folder / f"{name}.svg")
            if part.panels:
                write_atomically(folder / f"{name}.csv", figure_to_csv(part).encode(errors="replace"))
    # What a reader needs to know to repeat a report.
    facts = {"polybound": __version__, "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
    facts |= {package: version(package) for package in ("torch", "numpy", "scikit-learn")}
    facts |= {"Python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    facts |= {"command": command} if command else {}
    text = page(title, sections, facts, configurations, summary)
    write_atomically(output, text.encode(errors="replace"))
    return Report(output, folder, sections, skipped, summary)
