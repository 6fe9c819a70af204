"""A folder with a report in it: the page, its figures and its tables, in every format."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from polybound._version import __version__
from polybound.atomic import write_atomically
from polybound.errors import PolyboundError
from polybound.evaluation import Table as Scores
from polybound.experiments import Experiment, experiment_scores, skipped_runs
from polybound.report.elements import Figure, Part, Section, Table
from polybound.report.page import page
from polybound.report.sections import runs_section, section
from polybound.report.static import draw
from polybound.report.summary import (
    Summary,
    section_to_dict,
    section_to_markdown,
    summarise,
    summary_to_dict,
    summary_to_markdown,
)
from polybound.report.text import figure_to_csv, to_csv, to_latex, to_markdown
from polybound.runs import find_runs, is_run, load_models

__all__ = ["Report", "build_report", "facts", "report_runs"]


@dataclass(frozen=True)
class Report:
    """What was made.

    Attributes:
        page: the HTML file.
        folder: the folder with every figure and table on its own.
        sections: what both show.
        skipped: what could not be shown, with the reason.
        summary: what the page opens with.
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
        found = {} if self.summary is None else {"found": summary_to_dict(self.summary)}
        return {**files, **found, "sections": list(map(section_to_dict, self.sections)), "skipped": skipped}

    def markdown(self) -> str:
        """What was found, the tables, and the lines of the figures as tables."""
        opening = [] if self.summary is None else [summary_to_markdown(self.summary)]
        return "\n\n".join([*opening, *map(section_to_markdown, self.sections)])


def facts(command: str = "") -> dict[str, str]:
    """What a reader needs to know to repeat a report."""
    found = {"polybound": __version__, "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
    for package in ("torch", "numpy", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found |= {"Python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    return found | ({"command": command} if command else {})


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
    on_progress: Callable[[int, str], None] | None = None,
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
        on_progress: called with the number of experiments that are through, and the name of the next.

    Raises:
        PolyboundError: nothing was found.
    """
    parts: list[Part] = []
    skipped: dict[str, str] = {}
    for number, experiment in enumerate(experiments):
        if on_progress is not None:
            on_progress(number, experiment.name)
        table = experiment_scores(experiment, root, scores, data_dir)
        without = skipped_runs(experiment, root, data_dir)
        made = section(experiment, table, root, data_dir, figures)
        notes = [f"{path} was skipped: {why}" for path, why in without.items()]
        parts.append(Part(experiment, table, replace(made, notes=[*made.notes, *notes])))
        skipped |= without
    # What was not run at all has only the paper's numbers; the summary says what that is.
    sections = [part.section for part in parts if part.scores.rows or _has_content(part.section)]
    if not sections:
        names = ", ".join(experiment.name for experiment in experiments)
        raise PolyboundError(
            f"nothing was found of {names} in {root}: `polybound sweep` makes it, or --scores names it"
        )
    if on_progress is not None:
        on_progress(len(experiments), "drawing")
    folder, summary = _folder_for(output), summarise(parts, data_dir)
    _write_parts(sections, folder, summary)
    for part in parts:
        if part.scores.rows:
            write_atomically(folder / f"{part.experiment.name}-scores.csv", part.scores.to_csv().encode())
    configurations = [asdict(experiment) for experiment in experiments]
    write_atomically(output, page(title, sections, facts(command), configurations, summary).encode(errors="replace"))
    return Report(output, folder, sections, skipped, summary)


def _has_content(made: Section) -> bool:
    """Whether a section has a figure with something in it; a table without scores has only the paper's numbers."""
    return any(isinstance(part, Figure) and not part.empty for part in made.parts)


def report_runs(folders: Sequence[Path], output: Path, *, title: str = "polybound", command: str = "") -> Report:
    """As `build_report`, of any run folders; those that cannot be read are skipped and named."""
    loaded, skipped = load_models(folders)
    made, summary = runs_section(loaded, skipped)
    folder = _folder_for(output)
    _write_parts([made], folder, summary)
    configurations = [one.run.spec().as_dict() for one in loaded if one.run is not None]
    write_atomically(output, page(title, [made], facts(command), configurations, summary).encode(errors="replace"))
    return Report(output, folder, [made], skipped, summary)


def _folder_for(output: Path) -> Path:
    """The folder beside a page: of the same name, unless that is one with runs in it."""
    if find_runs(output.parent):
        raise PolyboundError(f"{output.parent}: a folder of runs; a report goes somewhere else")
    folder = output.with_suffix("")
    while folder.is_dir() and (is_run(folder) or find_runs(folder) or (folder / ".checkpoints").exists()):
        folder = folder.with_name(f"{folder.name}-report")
    if folder == output:
        raise PolyboundError(f"{output}: a report needs a name that ends in .html")
    return folder


def _write_parts(sections: Sequence[Section], folder: Path, summary: Summary) -> None:
    """Every table and figure as files: the first of a section has its name, others a word or a number more."""
    folder.mkdir(parents=True, exist_ok=True)
    found = summary_to_markdown(summary, tables=False)
    write_atomically(folder / "found.md", f"{found}\n".encode(errors="replace"))
    for table in filter(None, (summary.misses, summary.missing, summary.differences)):
        _write_table(table, folder, table.name)
    if summary.headline is not None and not any(summary.headline is part for made in sections for part in made.parts):
        _write_figure(summary.headline, folder, "headline")
    for made in sections:
        for number, part in enumerate(made.parts):
            if isinstance(part, Table):
                more = part.name or (str(number + 1) if number else "")
                _write_table(part, folder, f"{made.name}-{more}" if more else made.name)
            elif not part.empty:
                _write_figure(part, folder, f"{made.name}-{number + 1}" if number else made.name)


def _write_table(table: Table, folder: Path, name: str) -> None:
    for suffix, render in (("md", to_markdown), ("tex", to_latex), ("csv", to_csv)):
        write_atomically(folder / f"{name}.{suffix}", f"{render(table)}\n".encode(errors="replace"))


def _write_figure(figure: Figure, folder: Path, name: str) -> None:
    draw(figure, folder / f"{name}.png", folder / f"{name}.svg")
    if figure.panels:
        write_atomically(folder / f"{name}.csv", figure_to_csv(figure).encode(errors="replace"))
