"""What the scores of a report say to its questions: differences of accuracies, each with its interval."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from statistics import median

from polybound.attacks import parse_attack
from polybound.evaluation import (
    CLEAN,
    Difference,
    MixedError,
    Table,
    best_place,
    certified_radius_of,
    difference,
    value_label,
)
from polybound.experiments import EPOCHS, paper_method
from polybound.report.elements import Part, Value
from polybound.report.elements import Table as Shown
from polybound.report.labels import METHODS, attack_label, dataset_label, images_text, model_label

__all__ = ["BOUND", "Pair", "best_bound", "chosen_on_validation", "pairs_of", "pairs_table", "questions_table"]

BOUND = "method.bound"

_LAST = "schedule.epochs"
_METHODS = (
    ("Does a bound on the norms make networks robust?", "projection", "none", ("sound",)),
    ("Is projection ahead of the penalties?", "projection", "jacobian", ("sound",)),
    ("Is projection ahead of the penalties?", "projection", "l2", ("sound",)),
    (
        "Is a bound for each matrix better than one for all?",
        "layerwise-projection",
        "projection",
        ("published", "sound"),
    ),
    ("Does a bound help adversarial training?", "projection+at", "at", ("sound",)),
)
"""Questions that two methods answer, under one or two protocols."""


@dataclass(frozen=True)
class Pair:
    """Two networks that a question is about, measured on the same images.

    Attributes:
        question: what is asked.
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
            found = difference(first, second)
        except MixedError:
            return None
        return None if found is None else cls(question, sides, where, found, _reduced(first + second))


def _reduced(rows: Table) -> str:
    """A schedule or a training set that is smaller than the paper's."""
    epochs = sorted(number for number in rows.values(_LAST) if number < EPOCHS)
    samples = sorted(filter(None, rows.values("data.samples")))
    parts = [f"{', '.join(map(str, epochs))} of {EPOCHS} epochs"] if epochs else []
    return ", ".join([*parts, *([f"{', '.join(map(str, samples))} training samples"] if samples else [])])


def pairs_of(parts: Sequence[Part]) -> list[Pair]:
    """All pairs for which there are scores, by question; one that several experiments have counts once."""
    found = [*_methods(parts), *_costs(parts), *_certified(parts), *_steps(parts), *_ranks(parts)]
    return list({(pair.question, pair.sides, pair.where): pair for pair in reversed(found) if pair}.values())[::-1]


def best_bound(rows: Table) -> tuple[Table, str] | None:
    """The rows of the best bound, and the bound; None without rows, or if they differ in more than bound and seed."""
    try:
        cell = rows.best(BOUND)
    except MixedError:
        return None
    if cell is None:
        return None
    bound = rows.rows[0].get(BOUND) if cell.chosen is None else cell.chosen[1]
    return rows.where({BOUND: bound}), "" if bound is None else value_label(bound)


def chosen_on_validation(table: Table, columns: Sequence[tuple[str, str]]) -> tuple[Table, str] | None:
    """The test rows of the alternative of a method that is best on validation, and its bound or weight.

    Args:
        table: rows of both splits.
        columns: attacks and protocols; the mean over all of them counts.
    """
    score_columns = ("split", "attack", "protocol", "counted", "total", "available", "held_out", "attack_seed")
    parts = table.configurations(*score_columns)
    found = [part.where(split="validation") for part in parts]
    best = best_place([[part.where(attack=a, protocol=p).cell() for a, p in columns] for part in found])
    if best is None:
        return None
    first = parts[best[0]].rows[0]
    level = first.get(BOUND, first.get("method.weight"))
    return parts[best[0]].where(split="test"), "" if level is None else value_label(level)


def _methods(parts: Sequence[Part]) -> Iterator[Pair | None]:
    """Two methods under an attack after the last epoch, each with the best of its bounds over their common seeds."""
    for question, first, second, protocols in _METHODS:
        for protocol, part in product(protocols, _tables(parts)):
            rows = part.scores.where(split="test", protocol=protocol).only(lambda row: row["epoch"] == row[_LAST])
            for (dataset, model, attack), mine in rows.groups("data", "model", "attack").items():
                sides = [_of_method(mine, name) for name in (first, second)]
                seeds = set(sides[0].values("seed")) & set(sides[1].values("seed"))
                ours, theirs = (best_bound(side.only(lambda row: row["seed"] in seeds)) for side in sides)  # noqa: B023
                if ours is not None and theirs is not None:
                    names = f"{METHODS[first]} with {METHODS[second]}, {protocol} protocol"
                    where = f"{_place(dataset, model)}, {attack_label(attack)}, bound {ours[1]}"
                    yield Pair.of(question, names, where, ours[0], theirs[0])


def _of_method(rows: Table, name: str) -> Table:
    return rows.only(lambda row: paper_method(row) == name)


def _tables(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.experiment.layout == "table" and part.experiment.validation == 0]


def _place(dataset: str, model: str) -> str:
    return f"{dataset_label(dataset)}, {model_label(model)}"


def _costs(parts: Sequence[Part]) -> Iterator[Pair | None]:
    """One bound, chosen on validation, against none: on clean images and under every attack."""
    question = "What does one bound, chosen on validation, cost and keep?"
    for part in (part for part in parts if part.experiment.layout == "chosen"):
        columns = [(CLEAN, "-"), *((attack, "sound") for attack in part.experiment.attacks)]
        for (dataset, model), rows in part.scores.groups("data", "model").items():
            ours, theirs = (chosen_on_validation(_of_method(rows, name), columns) for name in ("projection", "none"))
            if ours is None or theirs is None:
                continue
            where = f"{_place(dataset, model)}, bound {ours[1]}"
            for attack, protocol in columns:
                sides = f"{METHODS['projection']} with {METHODS['none']}, {attack_label(attack)}"
                both = (rows.where(attack=attack, protocol=protocol) for rows in (ours[0], theirs[0]))
                yield Pair.of(question, sides, where, *both)


def _certified(parts: Sequence[Part]) -> Iterator[Pair | None]:
    """The best of certified training against the best of all projections, by what is proven."""
    for part in (part for part in parts if part.experiment.layout == "tradeoff"):
        tests = part.scores.where(protocol="sound", split="test")
        proven = tests.only(lambda row: certified_radius_of(row["attack"]) is not None)
        for (attack, dataset, model), rows in proven.groups("attack", "data", "model").items():
            names = ("certified", "certified-projection"), ("projection",)
            sides = [_best_configuration(rows.only(lambda row: row["method"] in mine)) for mine in names]  # noqa: B023
            words = f"certified training with projection, {attack_label(attack)}"
            question = "Does certified training prove more than projection?"
            yield Pair.of(question, words, _place(dataset, model), *sides)


def _best_configuration(rows: Table) -> Table:
    configurations = rows.configurations()
    best = best_place([[part.cell()] for part in configurations])
    return Table() if best is None else configurations[best[0]]


def _steps(parts: Sequence[Part]) -> Iterator[Pair | None]:
    """The most steps of an attack that were run against 20, for the same networks."""
    for part in _curves(parts, "steps"):
        for rows in part.scores.where(protocol="sound", split="test").configurations("attack"):
            steps = {
                attack: getattr(parse_attack(attack), "steps", 0) for attack in rows.values("attack") if attack != CLEAN
            }
            most = max(steps.values(), default=0)
            if most > 20:
                several = (rows.only(lambda row: steps.get(row["attack"]) == count) for count in (most, 20))  # noqa: B023
                first = rows.rows[0]
                level = "" if first.get(BOUND) is None else f", bound {value_label(first[BOUND])}"
                where = f"{_place(first['data'], first['model'])}, {paper_method(first)}{level}"
                yield Pair.of("Are 20 steps of PGD enough?", f"{most} steps with 20, sound protocol", where, *several)


def _ranks(parts: Sequence[Part]) -> Iterator[Pair | None]:
    """The largest hidden rank that was run against the smallest."""
    for part in _curves(parts, "rank"):
        last = part.scores.where(attack=CLEAN).only(lambda row: row["epoch"] == row[_LAST])
        for rows in last.configurations("model.rank"):
            ranks = sorted(rows.values("model.rank"))
            if len(ranks) > 1:
                both = (rows.where({"model.rank": rank}) for rank in (ranks[-1], ranks[0]))
                where = f"{_place(rows.rows[0]['data'], rows.rows[0]['model'])}, {rows.rows[0]['split']}"
                yield Pair.of(
                    "How much does the hidden rank matter?", f"rank {ranks[-1]} with {ranks[0]}, clean", where, *both
                )


def _curves(parts: Sequence[Part], x: str) -> list[Part]:
    return [part for part in parts if part.experiment.layout == "curves" and part.experiment.x == x]


NOTE = (
    "Points of accuracy, the first of a pair less the second, with 95 % intervals: Student's over the seeds that both "
    "have, or, of one seed, Newcombe's of the images. Where the best of several is compared, it was chosen on the same "
    "images, which is in its favour."
)


def questions_table(pairs: Sequence[Pair]) -> Shown | None:
    """A line for each question and the two sides that it compares; of many pairs the median, and how they lie."""
    rows: list[list[str]] = []
    for (question, sides), group in groupby(_in_order(pairs), lambda pair: (pair.question, pair.sides)):
        mine = list(group)
        again = rows and any(row[0] == question for row in rows)
        compared = f"{sides}: {mine[0].where}" if len(mine) == 1 else f"{sides}: {len(mine)} pairs"
        rows.append(["" if again else question, compared, _by_how_much(mine), _measured(mine)])
    header = ["question", "compared", "by how much", "images and seeds"]
    return Shown("What was compared", header, rows, notes=[NOTE], name="compared") if rows else None


def _in_order(pairs: Iterable[Pair]) -> list[Pair]:
    """Pairs of a question together, and of its sides, in the order in which they come first."""
    places: dict[tuple[str, ...], int] = {}
    for pair in pairs:
        for key in ((pair.question,), (pair.question, pair.sides)):
            places.setdefault(key, len(places))
    return sorted(pairs, key=lambda pair: (places[pair.question,], places[pair.question, pair.sides]))


def _by_how_much(pairs: Sequence[Pair]) -> str:
    found = [pair.difference for pair in pairs]
    if len(found) == 1:
        return f"{found[0].points:+.1f} points ({found[0].low:+.1f} to {found[0].high:+.1f})"
    points = [one.points for one in found]
    above, below = sum(one.low > 0 for one in found), sum(one.high < 0 for one in found)
    middle = f"{median(points):+.1f} points in the median, {min(points):+.1f} to {max(points):+.1f}"
    return f"{middle}; interval above 0 in {above}, below 0 in {below}"


def _measured(pairs: Sequence[Pair]) -> str:
    """The images and seeds of some pairs, and what was cut short."""
    images = dict.fromkeys(images_text(pair.difference) for pair in sorted(pairs, key=lambda p: p.difference.total))
    seeds = sorted({len(pair.difference.seeds) for pair in pairs})
    count = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    reduced = dict.fromkeys(pair.reduced for pair in pairs if pair.reduced)
    return ", ".join([f"{' or '.join(images)} images", f"{count} seed{'s' if seeds[-1] > 1 else ''}", *reduced])


def pairs_table(pairs: Sequence[Pair]) -> Shown | None:
    """A line for each pair, with its interval."""
    ordered = _in_order(pairs)
    titles: Mapping[int, str] = {
        number: f"{pair.question} {pair.sides[0].upper()}{pair.sides[1:]}."
        for number, pair in enumerate(ordered)
        if number == 0 or (ordered[number - 1].question, ordered[number - 1].sides) != (pair.question, pair.sides)
    }
    rows: list[list[Value]] = [
        [pair.where, pair.difference, images_text(pair.difference), len(pair.difference.seeds), pair.reduced]
        for pair in ordered
    ]
    header = ["where", "difference in points", "images", "seeds", "cut short"]
    if not any(pair.reduced for pair in ordered):
        header, rows = header[:-1], [row[:-1] for row in rows]
    title = "All differences, with their intervals"
    return Shown(title, header, rows, list(titles.items()), notes=[NOTE], name="differences") if rows else None
