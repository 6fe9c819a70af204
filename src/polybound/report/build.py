"""A folder with a report in it: the page, its figures and its tables, in every format."""

from __future__ import annotations

import platform
from collections.abc import Sequence
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
from polybound.report.elements import Figure, Section, Table
from polybound.report.layout import section
from polybound.report.page import page
from polybound.report.run_report import runs_section
from polybound.report.static import draw
from polybound.report.text import to_csv, to_latex, to_markdown
from polybound.runs import find_runs, is_run, subjects_of

__all__ = ["Report", "build_report", "facts", "report_runs"]


@dataclass(frozen=True)
class Report:
    """What was made.

    Attributes:
        page: the HTML file.
        folder: the folder with every figure and table on its own.
        sections: what both show.
        skipped: what could not be shown, with the reason.
    """

    page: Path
    folder: Path
    sections: list[Section]
    skipped: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The tables, as JSON can hold them."""
        shown = []
        for made in self.sections:
            tables = [asdict(part) | {"bold": sorted(part.bold)} for part in made.parts if isinstance(part, Table)]
            shown.append({"name": made.name, "title": made.title, "notes": list(made.notes), "tables": tables})
        files = {"page": str(self.page), "folder": str(self.folder)}
        return {**files, "sections": shown, "skipped": [{"run": run, "why": why} for run, why in self.skipped.items()]}

    def markdown(self) -> str:
        """The tables, and the lines of the figures as tables."""
        return "\n\n".join(map(_markdown, self.sections))


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
) -> Report:
    """Write `output` (HTML) and beside it, in a folder of the same name, every figure and table on its own.

    The folder has PNG and SVG of each figure, each table as Markdown, LaTeX and CSV, and all scores, `NAME-scores.csv`.
    Other `scores` stand in for run folders that are not there; what is made from weights is left out for those.

    Raises:
        PolyboundError: nothing was found.
    """
    found = [experiment_scores(experiment, root, scores, data_dir) for experiment in experiments]
    skipped: dict[str, str] = {}
    sections = []
    for experiment, table in zip(experiments, found, strict=True):
        without = skipped_runs(experiment, root, data_dir)
        made = section(experiment, table, root, data_dir)
        notes = [f"{path} was skipped: {why}" for path, why in without.items()]
        sections.append(replace(made, notes=[*made.notes, *notes]))
        skipped |= without
    if not any(_has_content(made) for made in sections) and not any(table.rows for table in found):
        names = ", ".join(experiment.name for experiment in experiments)
        raise PolyboundError(
            f"nothing was found of {names} in {root}: `polybound sweep` makes it, or --scores names it"
        )
    folder = _folder_for(output)
    _write_parts(sections, folder)
    for experiment, table in zip(experiments, found, strict=True):
        if table.rows:
            write_atomically(folder / f"{experiment.name}-scores.csv", table.to_csv().encode())
    configurations = [asdict(experiment) for experiment in experiments]
    write_atomically(output, page(title, sections, facts(command), configurations).encode())
    return Report(output, folder, sections, skipped)


def _has_content(made: Section) -> bool:
    """Whether a section has a figure with something in it; a table without scores has only the paper's numbers."""
    return any(isinstance(part, Figure) and (part.panels or part.images) for part in made.parts)


def report_runs(folders: Sequence[Path], output: Path, *, title: str = "polybound", command: str = "") -> Report:
    """As `build_report`, of any run folders; those that cannot be read are skipped and named."""
    loaded, skipped = subjects_of(folders)
    made = runs_section(loaded, skipped)
    folder = _folder_for(output)
    _write_parts([made], folder)
    configurations = [one.run.spec().as_dict() for one in loaded if one.run is not None]
    write_atomically(output, page(title, [made], facts(command), configurations).encode())
    return Report(output, folder, [made], skipped)


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


def _write_parts(sections: Sequence[Section], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for made in sections:
        for number, part in enumerate(made.parts):
            name = f"{made.name}-{number + 1}" if number else made.name
            if isinstance(part, Table):
                for suffix, render in (("md", to_markdown), ("tex", to_latex), ("csv", to_csv)):
                    write_atomically(folder / f"{name}.{suffix}", (render(part) + "\n").encode())
            elif part.panels or part.images:
                draw(part, folder / f"{name}.png", folder / f"{name}.svg")


def _markdown(made: Section) -> str:
    """A section for the terminal: its tables, and the lines of its figures as tables."""
    blocks = [f"# {made.title}", *made.notes]
    for part in made.parts:
        if isinstance(part, Figure):
            for panel in part.panels:
                header = [panel.x_label, *(line.label for line in panel.lines)]
                xs = sorted({x for line in panel.lines for x in line.x})
                values = [dict(zip(line.x, line.y, strict=True)) for line in panel.lines]
                cells = [[f"{x:g}", *(f"{v[x]:.2f}" if x in v else "" for v in values)] for x in xs]
                blocks.append(f"**{panel.title}** ({panel.y_label})\n\n{to_markdown(Table('', header, cells))}")
            blocks += [f"{row.title}: {', '.join(caption for caption, _ in row.pictures)}" for row in part.images]
            blocks += part.notes
        else:
            blocks.append(to_markdown(part))
    return "\n\n".join(blocks)
