"""A folder with a report in it: the page, its figures and its tables, in every format."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from polybound._version import __version__
from polybound.atomic import write_atomically
from polybound.experiments.experiment import Experiment
from polybound.experiments.results import Row, collect, write_csv
from polybound.report.folders import runs_section
from polybound.report.layout import section
from polybound.report.page import page
from polybound.report.shapes import Figure, Section, Table
from polybound.report.static import draw
from polybound.report.text import to_csv, to_latex, to_markdown
from polybound.runs import Run

__all__ = ["build_report", "facts", "markdown_of", "report_runs"]


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
    scores: Sequence[Row] = (),
) -> list[Section]:
    """Write `output` (HTML) and beside it, in a folder of the same name, every figure and table on its own.

    The folder has PNG and SVG of each figure, each table as Markdown, LaTeX and CSV, and all scores, `NAME-scores.csv`.
    Other `scores` stand in for run folders that are not there; what is made from weights is left out for those.
    """
    found = [collect(experiment, root, scores) for experiment in experiments]
    sections = [section(experiment, rows, root) for experiment, rows in zip(experiments, found, strict=True)]
    _write_parts(sections, output)
    for experiment, rows in zip(experiments, found, strict=True):
        if rows:
            write_atomically(output.with_suffix("") / f"{experiment.name}-scores.csv", write_csv(rows).encode())
    configurations = [asdict(experiment) for experiment in experiments]
    write_atomically(output, page(title, sections, facts(command), configurations).encode())
    return sections


def report_runs(folders: Sequence[Path], output: Path, *, title: str = "polybound", command: str = "") -> list[Section]:
    """As `build_report`, of any run folders."""
    sections = [runs_section(folders)]
    _write_parts(sections, output)
    configurations = [Run(folder).config() for folder in folders]
    write_atomically(output, page(title, sections, facts(command), configurations).encode())
    return sections


def _write_parts(sections: Sequence[Section], output: Path) -> None:
    folder = output.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for made in sections:
        for number, part in enumerate(made.parts):
            name = f"{made.name}-{number + 1}" if number else made.name
            if isinstance(part, Table):
                for suffix, render in (("md", to_markdown), ("tex", to_latex), ("csv", to_csv)):
                    write_atomically(folder / f"{name}.{suffix}", (render(part) + "\n").encode())
            elif part.panels or part.images:
                draw(part, folder / f"{name}.png", folder / f"{name}.svg")


def markdown_of(made: Section) -> str:
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
