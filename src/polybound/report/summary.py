"""What a report opens with: how many published values are met, one headline figure; as JSON and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from textwrap import fill
from typing import Any

from polybound.evaluation import CLEAN, Cell, Difference
from polybound.experiments import Comparison, Published, published
from polybound.report.differences import pairs_of, pairs_table, questions_table
from polybound.report.elements import Figure, Line, Panel, Part, Section, Table, Value
from polybound.report.elements import Table as Shown
from polybound.report.labels import METHODS
from polybound.report.tables import missing_values
from polybound.report.text import to_markdown

__all__ = ["Summary", "section_to_dict", "section_to_markdown", "summarise", "summary_to_dict", "summary_to_markdown"]


ALLOWED = "max(3 points, 2 published standard deviations)"


@dataclass(frozen=True)
class Summary:
    """What was found.

    Attributes:
        met: the published values that ours are near enough to.
        missed: those that ours are not.
        not_judged: those that were run with a shorter schedule, fewer or other data or another recipe only.
        published: how many different values there are: the paper's, or of these those that some runs are of.
        compared: for each question what was compared, by how much, on which images and seeds; None without any.
        headline: the figure to look at first.
        misses: the values that are missed, one a row; None if there is none.
        missing: what was not run, with the reasons; None if nothing is missing.
        differences: every pair that was compared, with its interval; None without any.
        lead: what to say first.
    """

    met: int
    missed: int
    not_judged: int
    published: int
    compared: Shown | None = None
    headline: Figure | None = None
    misses: Shown | None = None
    missing: Shown | None = None
    differences: Shown | None = None
    lead: str = ""

    @property
    def verdict(self) -> str:
        """How many published values are met, in one sentence or two."""
        judged = self.met + self.missed
        if not judged:
            return self.lead or "No published value was run with the paper's schedule, so none is met or missed."
        share = f"{100 * self.met / judged:.0f} %"
        counts = f"{self.met} of the {judged} published values that were run are met ({share}), {self.missed} missed."
        rest = self.published - judged - self.not_judged
        others = [f"{rest} of the paper's {self.published} values were not run"] if rest else []
        others += [f"{self.not_judged} were run in a reduced form or on other data only"] if self.not_judged else []
        return " ".join(filter(None, [self.lead, counts, f"{', and '.join(others)}." if others else ""]))


def summarise(parts: Sequence[Part], data_dir: Path | None = None) -> Summary:
    """The opening of a report of experiments; a value that stands in several of its tables counts once."""
    sections = [part.section for part in parts]
    compared = [one for part in _tables(sections) for one in part.comparisons]
    judged = {key: one for one in compared if one.verdict in ("within", "off") for key in [one.paper.key]}
    # One that is met in one table and missed in another is missed.
    judged |= {one.paper.key: one for one in compared if one.verdict == "off"}
    off = [one for one in judged.values() if one.verdict == "off"]
    other = {one.paper.key for one in compared} - set(judged)
    counts = len(judged) - len(off), len(off), len(other), len({value.key for value in published()})
    missing = _missing(parts, {one.paper.key for one in compared}, data_dir)
    figures = [part for made in sections for part in made.parts if isinstance(part, Figure) and not part.empty]
    headline = _headline(list(judged.values())) if judged else next(iter(figures), None)
    paper = compared or any(part.experiment.published for part in parts)
    lead = "" if paper else "None of this is in the paper's tables, so that nothing is met or missed."
    pairs = pairs_of(parts)
    return Summary(*counts, questions_table(pairs), headline, _misses(off), missing, pairs_table(pairs), lead)


def _missing(parts: Sequence[Part], run: set[tuple[str, str, str, str]], data_dir: Path | None) -> Shown | None:
    """The published values that were not run, then all else that is not there, with the reasons."""
    paper = any(part.experiment.published for part in parts)
    values = missing_values(run, [part.experiment for part in parts], data_dir) if paper else None
    rows: list[list[Value]] = [] if values is None else [list(row) for row in values.rows]
    for part in parts:
        shown = part.scores.rows or any(isinstance(one, Figure) and not one.empty for one in part.section.parts)
        if paper and (part.experiment.published or shown):
            continue  # its values are counted above, or its figure says it
        name = part.experiment.paper or part.experiment.name
        rows += [[f"{name}: {what}", "", why] for what, why in part.section.missing]
    header = ["not run", "published values", "why"]
    return Shown("What is missing, and why", header, rows, name="missing") if rows else None


def _tables(sections: Sequence[Section]) -> list[Shown]:
    return [part for made in sections for part in made.parts if isinstance(part, Shown)]


def _headline(judged: Sequence[Comparison]) -> Figure:
    """Every published value against ours: met ones lie near the diagonal."""
    lines = [Line("as in the paper", [0.0, 100.0], [0.0, 100.0], kind="guide")]
    for verdict, name in (("within", "met"), ("off", "missed")):
        mine = [one for one in judged if one.verdict == verdict]
        names = [_name(one) for one in mine]
        xs, ys = [one.paper.mean for one in mine], [one.ours.mean for one in mine]
        lines += [Line(name, xs, ys, [one.ours.std for one in mine], (), "marks", names)] if mine else []
    panel = Panel(
        f"{len(judged)} accuracies, published protocol", "published, in %", "measured here, in %", lines, from_zero=True
    )
    note = f"Each point is one value of the paper's tables. Met: within {ALLOWED}. On the line, both are equal."
    return Figure("Published values against those measured here", [panel], notes=[note])


def _name(one: Comparison) -> str:
    """What a published value is of."""
    paper = one.paper
    attack = paper.attack if paper.attack == CLEAN else paper.attack.upper()
    return f"{paper.dataset}, {paper.model}, {METHODS.get(paper.method, paper.method)}, {attack}"


def _misses(off: Sequence[Comparison]) -> Shown | None:
    """The values that are missed, the furthest first."""
    if not off:
        return None
    rows = []
    for one in sorted(off, key=lambda one: -abs(one.difference)):
        paper = f"{one.paper.mean:.2f} ± {one.paper.std:.2f}"
        chance = "" if one.deviations is None else f"{one.deviations:+.1f}"
        rows.append([_name(one), paper, str(one.ours), f"{one.difference:+.2f}", f"{one.allowed:.2f}", chance])
    header = ["value", "paper", "here", "difference", "allowed", "in std"]
    note = (
        "The last column is the difference in standard deviations of both, the published one and that of these seeds: "
        "between -2 and 2 it may be chance."
    )
    return Shown("The published values that are missed", header, rows, notes=[note], name="misses")


# What a report shows as JSON and as Markdown for the terminal.


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
