"""What a report shows as JSON and as Markdown for the terminal."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from textwrap import fill
from typing import Any

from polybound.evaluation import Cell, Difference
from polybound.experiments import Published
from polybound.report.elements import Figure, Section, Table
from polybound.report.summary import Summary
from polybound.report.text import to_markdown

__all__ = ["section_to_dict", "section_to_markdown", "summary_to_dict", "summary_to_markdown"]


_MOST_ROWS = 40
"""Longer tables of a figure's points nobody reads on a terminal."""


def section_to_dict(made: Section) -> dict[str, Any]:
    """A section's tables, with the verdict of each cell, its figures, and what was not run."""
    tables = [_table(part) for part in made.parts if isinstance(part, Table)]
    figures = [_finite(asdict(part)) for part in made.parts if isinstance(part, Figure)]
    missing = [{"what": what, "why": why} for what, why in made.missing]
    about = {"name": made.name, "title": made.title, "notes": list(made.notes), "missing": missing}
    return {**about, "tables": tables, "figures": figures}


def _finite(value: Any) -> Any:
    """A value as JSON has it: what is no finite number is null."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _table(part: Table) -> dict[str, Any]:
    names = ("title", "header", "groups", "notes", "aside", "name")
    verdicts = [{"row": row, "column": column, "verdict": word} for (row, column), word in part.verdicts.items()]
    values = [[asdict(cell) if isinstance(cell, _VALUES) else cell for cell in row] for row in part.rows]
    found = {name: getattr(part, name) for name in names} | {"rows": part.texts, "values": _finite(values)}
    return found | {"bold": sorted(part.bold), "verdicts": verdicts}


_VALUES = (Cell, Difference, Published)


def summary_to_dict(summary: Summary) -> dict[str, Any]:
    """The counts, and the tables of what was compared, missed and not run."""
    counts = {name: getattr(summary, name) for name in ("met", "missed", "not_judged", "published")}
    parts = {name: getattr(summary, name) for name in ("compared", "differences", "misses", "missing")}
    tables = {name: None if part is None else _table(part) for name, part in parts.items()}
    return {"verdict": summary.verdict, **counts, **tables}


def summary_to_markdown(summary: Summary, *, tables: bool = True) -> str:
    """What was found: the verdict, a line for each question, and, as `tables`, what is missed and missing."""
    blocks = [fill(f"**{summary.verdict}**", 118)]
    blocks += [] if summary.compared is None else [to_markdown(summary.compared)]
    for table in (summary.misses, summary.missing) if tables else ():
        blocks += [] if table is None else [f"{table.title}:", to_markdown(table)]
    return "\n\n".join(blocks)


def section_to_markdown(made: Section) -> str:
    """A section for the terminal: its tables, and the lines of its figures as tables."""
    blocks = [f"# {made.title}", *made.notes, *(f"Not run: {what} ({why})." for what, why in made.missing)]
    for part in made.parts:
        blocks += _figure(part) if isinstance(part, Figure) else [to_markdown(part)]
    return "\n\n".join(blocks)


def _figure(part: Figure) -> list[str]:
    blocks = []
    for panel in part.panels:
        header = [panel.x_label, *(line.label for line in panel.lines)]
        xs = sorted({x for line in panel.lines for x in line.x})
        if len(xs) > _MOST_ROWS:
            blocks.append(f"**{panel.title}** ({panel.y_label}): {len(xs)} points, in the figure's CSV file")
            continue
        values = [dict(zip(line.x, line.y, strict=True)) for line in panel.lines]
        cells = [[f"{x:g}", *(f"{v[x]:.2f}" if x in v else "" for v in values)] for x in xs]
        blocks.append(f"**{panel.title}** ({panel.y_label})\n\n{to_markdown(Table('', header, cells))}")
    blocks += [f"{row.title}: {', '.join(caption for caption, _ in row.pictures)}" for row in part.images]
    return [*blocks, *part.notes]
