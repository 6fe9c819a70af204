"""What a report opens with: how many published values are met, what was compared by how much, one headline figure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import isfinite
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

from polybound import evaluation
from polybound.attacks import parse_attack
from polybound.evaluation import CLEAN, Cell, Difference, MixedError, Row, Table, images_label, value_label
from polybound.experiments import EPOCHS, Comparison, Published, paper_method, published
from polybound.report.elements import ExperimentResult, Figure, Line, Panel, Section, Value
from polybound.report.elements import Table as Shown
from polybound.report.labels import BOUND, METHODS, attack_label, place_label
from polybound.report.tables import best_bound, chosen_on_validation, missing_values
from polybound.report.text import to_markdown

ALLOWED = "max(3 points, 2 published standard deviations)"


@dataclass(frozen=True)
class Summary:
    """What was found.

    Attributes:
        met: number of published values that ours are close to.
        missed: number of published values that ours are further from.
        not_judged: number of values that were run with a shorter schedule, fewer or other data or another recipe only.
        published: number of different values in the paper.
        compared: a line for each question: what was compared, by how much, on which images and seeds.
        headline: the figure to look at first.
        misses: the values that are missed, one a row; None without any.
        missing: what was not run, with the reasons; None if nothing is missing.
        differences: every pair that was compared, with its interval; None without any.
        lead: the first sentence.
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

    def as_dict(self) -> dict[str, Any]:
        """The counts, and the tables of what was compared, missed and not run, as JSON can hold them."""
        counts = {name: getattr(self, name) for name in ("met", "missed", "not_judged", "published")}
        parts = {name: getattr(self, name) for name in ("compared", "differences", "misses", "missing")}
        tables = {name: None if part is None else _table_to_dict(part) for name, part in parts.items()}
        return {"verdict": self.verdict, **counts, **tables}

    def markdown(self) -> str:
        """The verdict, and a line for each question."""
        verdict = fill(f"**{self.verdict}**", 118)
        return verdict if self.compared is None else f"{verdict}\n\n{to_markdown(self.compared)}"


def summarise(results: Sequence[ExperimentResult], data_dir: Path | None = None) -> Summary:
    """The opening of a report of experiments; a value that stands in several of its tables counts once."""
    parts = [part for result in results for part in result.section.parts]
    compared = [one for part in parts if isinstance(part, Shown) for one in part.comparisons]
    judged = {one.paper.key: one for one in compared if one.verdict in ("within", "off")}
    # One that is met in one table and missed in another is missed.
    judged |= {one.paper.key: one for one in compared if one.verdict == "off"}
    off = [one for one in judged.values() if one.verdict == "off"]
    other = {one.paper.key for one in compared} - set(judged)
    counts = len(judged) - len(off), len(off), len(other), len({value.key for value in published()})
    figures = [part for part in parts if isinstance(part, Figure) and not part.empty]
    headline = _headline(list(judged.values())) if judged else next(iter(figures), None)
    paper = any(result.experiment.published for result in results)
    run = {one.paper.key for one in compared}
    missing = missing_values(run, [result.experiment for result in results], data_dir) if paper else []
    for result in results:
        experiment, made = result.experiment, result.section
        shown = result.scores.rows or any(isinstance(part, Figure) and not part.empty for part in made.parts)
        # Published values are counted already, and figures say themselves what they lack.
        if not (paper and (experiment.published or shown)):
            missing += [[f"{experiment.paper or experiment.name}: {what}", "", why] for what, why in made.missing]
    pairs = pairs_of(results)
    rows: list[list[Value]] = []
    for one in sorted(off, key=lambda one: -abs(one.difference)):  # the furthest first
        chance = "" if one.deviations is None else f"{one.deviations:+.1f}"
        value = f"{one.paper.mean:.2f} ± {one.paper.std:.2f}"
        rows.append([_name(one), value, str(one.ours), f"{one.difference:+.2f}", f"{one.allowed:.2f}", chance])
    header = ["value", "paper", "here", "difference", "allowed", "in std"]
    note = (
        "The last column is the difference in standard deviations of both, the published one and that of these seeds: "
        "between -2 and 2 it may be chance."
    )
    misses = Shown("The published values that are missed", header, rows, notes=[note], name="misses")
    lacking = Shown("What is missing, and why", ["not run", "published values", "why"], missing, name="missing")
    return Summary(
        *counts,
        compared=questions_table(pairs),
        headline=headline,
        misses=misses if rows else None,
        missing=lacking if missing else None,
        differences=pairs_table(pairs),
        lead="" if compared or paper else "None of this is in the paper's tables, so that nothing is met or missed.",
    )


def _headline(judged: Sequence[Comparison]) -> Figure:
    """Every published value against ours: met ones lie near the diagonal."""
    lines = [Line("as in the paper", [0.0, 100.0], [0.0, 100.0], kind="guide")]
    for verdict, name in (("within", "met"), ("off", "missed")):
        mine = [one for one in judged if one.verdict == verdict]
        names = [_name(one) for one in mine]
        xs, ys = [one.paper.mean for one in mine], [one.ours.mean for one in mine]
        lines += [Line(name, xs, ys, [one.ours.std for one in mine], (), "marks", names)] if mine else []
    title = f"{len(judged)} accuracies, published protocol"
    panel = Panel(title, "published, in %", "measured here, in %", lines, from_zero=True)
    note = f"Each point is one value of the paper's tables. Met: within {ALLOWED}. On the line, both are equal."
    return Figure("Published values against those measured here", [panel], notes=[note])


def _name(one: Comparison) -> str:
    """The data set, model, method and attack of a published value."""
    paper = one.paper
    attack = paper.attack if paper.attack == CLEAN else paper.attack.upper()
    return f"{paper.dataset}, {paper.model}, {METHODS.get(paper.method, paper.method)}, {attack}"


# Questions, and the pairs of networks whose difference answers them.


@dataclass(frozen=True)
class Pair:
    """Two networks that a question is about, measured on the same images.

    Attributes:
        question: the question.
        sides: the first and the second, and under what, where all pairs of the question have it in common.
        where: data set, model, and whatever else tells this pair from others.
        difference: of the accuracies, the first less the second.
        reduced: what was cut short, or "".
    """

    question: str
    sides: str
    where: str
    difference: Difference
    reduced: str = ""

    @classmethod
    def of(cls, question: str, sides: str, where: str, first: Table, second: Table) -> Pair | None:
        """A pair from the scores of both; None if the scores of a side are no single number."""
        try:
            found = evaluation.difference(first, second)
        except MixedError:
            return None
        rows = first + second
        epochs = sorted(number for number in rows.values("schedule.epochs") if number < EPOCHS)
        samples = sorted(filter(None, rows.values("data.samples")))
        reduced = [f"{', '.join(map(str, epochs))} of {EPOCHS} epochs"] if epochs else []
        reduced += [f"{', '.join(map(str, samples))} training samples"] if samples else []
        return None if found is None else cls(question, sides, where, found, ", ".join(reduced))


def pairs_of(results: Sequence[ExperimentResult]) -> list[Pair]:
    """All pairs for which there are scores, by question; one that several experiments have counts once."""
    found = [pair for pairs in (_methods, _costs, _certified, _steps, _ranks) for pair in pairs(results)]
    return list({(pair.question, pair.sides, pair.where): pair for pair in reversed(found) if pair}.values())[::-1]


_METHODS = (
    ("Does a bound on the norms make networks robust?", "projection", "none", "sound"),
    ("Is projection ahead of the penalties?", "projection", "jacobian", "sound"),
    ("Is projection ahead of the penalties?", "projection", "l2", "sound"),
    ("Is a bound for each matrix better than one for all?", "layerwise-projection", "projection", "published"),
    ("Is a bound for each matrix better than one for all?", "layerwise-projection", "projection", "sound"),
    ("Does a bound help adversarial training?", "projection+at", "at", "sound"),
)
"""Questions that two methods answer under a protocol."""


def _methods(results: Sequence[ExperimentResult]) -> Iterator[Pair | None]:
    """Two methods under an attack after the last epoch, each with the best of its bounds over their common seeds."""
    tables = [one for one in results if one.experiment.layout == "table" and one.experiment.validation == 0]
    for (question, first, second, protocol), result in product(_METHODS, tables):
        rows = result.scores.where(split="test", protocol=protocol).only(_after_the_last_epoch)
        for (dataset, model, attack), mine in rows.groups("data", "model", "attack").items():
            sides = [_of_method(mine, name) for name in (first, second)]
            seeds = set(sides[0].values("seed")) & set(sides[1].values("seed"))
            ours, theirs = (best_bound(side.only(lambda row: row["seed"] in seeds)) for side in sides)  # noqa: B023
            if ours is not None and theirs is not None:
                names = f"{METHODS[first]} with {METHODS[second]}, {protocol} protocol"
                where = f"{place_label(dataset, model)}, {attack_label(attack)}, bound {ours[1]}"
                yield Pair.of(question, names, where, ours[0], theirs[0])


def _after_the_last_epoch(row: Row) -> bool:
    return bool(row["epoch"] == row["schedule.epochs"])


def _of_method(rows: Table, name: str) -> Table:
    return rows.only(lambda row: paper_method(row) == name)


def _costs(results: Sequence[ExperimentResult]) -> Iterator[Pair | None]:
    """One bound, chosen on validation, against none: on clean images and under every attack."""
    question = "What does one bound, chosen on validation, cost and keep?"
    for result in (one for one in results if one.experiment.layout == "chosen"):
        columns = [(CLEAN, "-"), *((attack, "sound") for attack in result.experiment.attacks)]
        for (dataset, model), rows in result.scores.groups("data", "model").items():
            ours, theirs = (chosen_on_validation(_of_method(rows, name), columns) for name in ("projection", "none"))
            if ours is None or theirs is None:
                continue
            where = f"{place_label(dataset, model)}, bound {ours[1]}"
            for attack, protocol in columns:
                sides = f"{METHODS['projection']} with {METHODS['none']}, {attack_label(attack)}"
                both = (rows.where(attack=attack, protocol=protocol) for rows in (ours[0], theirs[0]))
                yield Pair.of(question, sides, where, *both)


def _certified(results: Sequence[ExperimentResult]) -> Iterator[Pair | None]:
    """The best of certified training against the best of all projections, by what is proven."""
    for result in (one for one in results if one.experiment.layout == "tradeoff"):
        tests = result.scores.where(protocol="sound", split="test")
        proven = tests.only(lambda row: evaluation.certified_radius_of(row["attack"]) is not None)
        for (attack, dataset, model), rows in proven.groups("attack", "data", "model").items():
            sides = []
            for names in (("certified", "certified-projection"), ("projection",)):
                configurations = rows.only(lambda row: row["method"] in names).configurations()  # noqa: B023
                best = evaluation.best_place([[part.cell()] for part in configurations])
                sides.append(Table() if best is None else configurations[best[0]])
            words = f"certified training with projection, {attack_label(attack)}"
            question = "Does certified training prove more than projection?"
            yield Pair.of(question, words, place_label(dataset, model), *sides)


def _steps(results: Sequence[ExperimentResult]) -> Iterator[Pair | None]:
    """The most steps of an attack that were run against 20, for the same networks."""
    question = "Are 20 steps of PGD enough?"
    for result in (one for one in results if (one.experiment.layout, one.experiment.x) == ("curves", "steps")):
        for rows in result.scores.where(protocol="sound", split="test").configurations("attack"):
            attacks = [attack for attack in rows.values("attack") if attack != CLEAN]
            steps = {attack: getattr(parse_attack(attack), "steps", 0) for attack in attacks}
            most = max(steps.values(), default=0)
            if most > 20:
                both = (rows.only(lambda row: steps.get(row["attack"]) == count) for count in (most, 20))  # noqa: B023
                first = rows.rows[0]
                level = "" if first.get(BOUND) is None else f", bound {value_label(first[BOUND])}"
                where = f"{place_label(first['data'], first['model'])}, {paper_method(first)}{level}"
                yield Pair.of(question, f"{most} steps with 20, sound protocol", where, *both)


def _ranks(results: Sequence[ExperimentResult]) -> Iterator[Pair | None]:
    """The largest hidden rank that was run against the smallest."""
    question = "How much does the hidden rank matter?"
    for result in (one for one in results if (one.experiment.layout, one.experiment.x) == ("curves", "rank")):
        for rows in result.scores.where(attack=CLEAN).only(_after_the_last_epoch).configurations("model.rank"):
            ranks = sorted(rows.values("model.rank"))
            if len(ranks) > 1:
                both = (rows.where({"model.rank": rank}) for rank in (ranks[-1], ranks[0]))
                where = f"{place_label(rows.rows[0]['data'], rows.rows[0]['model'])}, {rows.rows[0]['split']}"
                yield Pair.of(question, f"rank {ranks[-1]} with {ranks[0]}, clean", where, *both)


NOTE = (
    "Points of accuracy, the first of a pair less the second, with 95 % intervals: Student's over the seeds that both "
    "have, or, of one seed, Newcombe's of the images. Where the best of several is compared, it was chosen on the same "
    "images, which is in its favour."
)


def _by_sides(pairs: Iterable[Pair]) -> list[tuple[str, str, list[Pair]]]:
    """Pairs by question and sides, in the order in which these come first."""
    groups: dict[str, dict[str, list[Pair]]] = {}
    for pair in pairs:
        groups.setdefault(pair.question, {}).setdefault(pair.sides, []).append(pair)
    return [(question, sides, mine) for question, parts in groups.items() for sides, mine in parts.items()]


def questions_table(pairs: Sequence[Pair]) -> Shown | None:
    """A line for each question and the two sides that it compares; of many pairs the median, and how they lie."""
    rows: list[list[Value]] = []
    last = ""
    for question, sides, mine in _by_sides(pairs):
        found = [pair.difference for pair in mine]
        if len(found) == 1:
            where = mine[0].where
            much = f"{found[0].points:+.1f} points ({found[0].low:+.1f} to {found[0].high:+.1f})"
        else:
            where, points = f"{len(mine)} pairs", [one.points for one in found]
            above, below = sum(one.low > 0 for one in found), sum(one.high < 0 for one in found)
            much = f"{median(points):+.1f} points in the median, {min(points):+.1f} to {max(points):+.1f}"
            much += f"; interval above 0 in {above}, below 0 in {below}"
        totals = sorted((one.total, one.available) for one in found)
        images = " or ".join(dict.fromkeys(images_label(*total) for total in totals))
        seeds = sorted({len(one.seeds) for one in found})
        count = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
        reduced = dict.fromkeys(pair.reduced for pair in mine if pair.reduced)
        measured = ", ".join([f"{images} images", f"{count} seed{'s' if seeds[-1] > 1 else ''}", *reduced])
        rows.append(["" if question == last else question, f"{sides}: {where}", much, measured])
        last = question
    header = ["question", "compared", "by how much", "images and seeds"]
    return Shown("What was compared", header, rows, notes=[NOTE], name="compared") if rows else None


def pairs_table(pairs: Sequence[Pair]) -> Shown | None:
    """A line for each pair, with its interval."""
    rows: list[list[Value]] = []
    groups = []
    for question, sides, mine in _by_sides(pairs):
        groups.append((len(rows), f"{question} {sides[0].upper()}{sides[1:]}."))
        for pair in mine:
            one = pair.difference
            images = images_label(one.total, one.available)
            rows.append([pair.where, one, images, len(one.seeds), pair.reduced])
    header = ["where", "difference in points", "images", "seeds", "cut short"]
    if not any(pair.reduced for pair in pairs):
        header, rows = header[:-1], [row[:-1] for row in rows]
    title = "All differences, with their intervals"
    return Shown(title, header, rows, groups, notes=[NOTE], name="differences") if rows else None


# Sections as JSON.


def section_to_dict(made: Section) -> dict[str, Any]:
    """A section's tables, with the verdict of each cell, its figures, and what was not run."""
    tables = [_table_to_dict(part) for part in made.parts if isinstance(part, Shown)]
    figures = [_finite(asdict(part)) for part in made.parts if isinstance(part, Figure)]
    missing = [{"what": what, "why": why} for what, why in made.missing]
    about = {"name": made.name, "title": made.title, "notes": list(made.notes), "missing": missing}
    return {**about, "tables": tables, "figures": figures}


def _table_to_dict(part: Shown) -> dict[str, Any]:
    names = ("title", "header", "groups", "notes", "aside", "name")
    verdicts = [{"row": row, "column": column, "verdict": word} for (row, column), word in part.verdicts.items()]
    records = (Cell, Difference, Published)
    values = [[asdict(cell) if isinstance(cell, records) else cell for cell in row] for row in part.rows]
    found = {name: getattr(part, name) for name in names} | {"rows": part.texts, "values": _finite(values)}
    return found | {"bold": sorted(part.bold), "verdicts": verdicts}


def _finite(value: Any) -> Any:
    """A value as JSON has it: null for a number that is not finite."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not isfinite(value) else value
