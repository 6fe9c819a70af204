"""What a report opens with: how many published values are met, what was compared, one headline figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polybound.evaluation import CLEAN
from polybound.experiments import Comparison, published
from polybound.report.differences import pairs_of, pairs_table, questions_table
from polybound.report.elements import Figure, Line, Panel, Part, Section, Value
from polybound.report.elements import Table as Shown
from polybound.report.labels import METHODS
from polybound.report.missing import missing_values

__all__ = ["Summary", "summarise"]

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
