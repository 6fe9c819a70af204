"""An answer to each question that a report's experiments ask, in one sentence made of the scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from polybound.evaluation import Cell, MixedError, Table, certified_radius_of, value_label
from polybound.experiments import Experiment, paper_method, row_kind
from polybound.report.elements import Figure, Line, Section
from polybound.report.labels import METHODS, attack_label, dataset_label, model_label
from polybound.report.paper_table import BOUND, highest

__all__ = ["Finding", "Part", "findings"]


@dataclass(frozen=True)
class Finding:
    """A question, and what the scores say."""

    question: str
    answer: str


@dataclass(frozen=True)
class Part:
    """An experiment, its scores, and what is shown of them."""

    experiment: Experiment
    scores: Table
    section: Section


def findings(parts: Sequence[Part]) -> list[Finding]:
    """An answer to every question for which there are scores."""
    found = [(question, answer(parts)) for question, answer in _QUESTIONS]
    return [Finding(question, text) for question, text in found if text]


@dataclass(frozen=True)
class _Pair:
    """Two methods under one attack, over the seeds that both have, each with the best of its bounds."""

    where: str
    first: Cell
    second: Cell

    @property
    def gain(self) -> float:
        return self.first.mean - self.second.mean


def _pairs(parts: Sequence[Part], first: str, second: str, protocol: str = "sound") -> Iterator[_Pair]:
    """One method against another for every data set, model and attack; each once."""
    seen = set()
    for part in parts:
        tests = part.scores.where(split="test", protocol=protocol).only(lambda row: row["epoch"] == row[_LAST])
        for (dataset, model, attack), rows in tests.groups("data", "model", "attack").items():
            sides = [rows.only(lambda row, name=name: paper_method(row) == name) for name in (first, second)]  # type: ignore[misc]
            seeds = set(sides[0].values("seed")) & set(sides[1].values("seed"))
            cells = [_best(side.only(lambda row: row["seed"] in seeds)) for side in sides]  # noqa: B023
            where = f"{model_label(model)} on {dataset_label(dataset)} under {attack_label(attack)}"
            if cells[0] is not None and cells[1] is not None and where not in seen:
                seen.add(where)
                yield _Pair(where, cells[0], cells[1])


_LAST = "schedule.epochs"


def _best(rows: Table) -> Cell | None:
    """The best bound; None where there is no row, or where the rows differ in more than bound and seed."""
    try:
        return rows.best(BOUND)
    except MixedError:
        return None


def _ahead(pairs: Sequence[_Pair], protocol: str = "sound") -> str:
    """In how many comparisons the first is ahead, by how much, and the one with the largest gain."""
    ahead = sum(pair.gain > 0 for pair in pairs)
    word = {len(pairs): "Yes", 0: "No"}.get(ahead, "Mostly" if ahead > len(pairs) / 2 else "Hardly")
    count = f"all {ahead}" if ahead == len(pairs) > 1 else f"{ahead} of {len(pairs)}"
    middle = median(pair.gain for pair in pairs)
    top = max(pairs, key=lambda pair: pair.gain)
    most = f"most for {top.where}: {top.first.mean:.1f} instead of {top.second.mean:.1f} %"
    many = f"in {count} comparisons under the {protocol} protocol, by {middle:.1f} points in the median"
    return f"{word}: {many}, {most}." if ahead else f"{word}: {many}."


def _robust(parts: Sequence[Part]) -> str:
    pairs = list(_pairs(_tables(parts), "projection", "none"))
    return f"{_ahead(pairs)[:-1]}; each with the best of its bounds." if pairs else ""


def _tables(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.experiment.layout == "table" and part.experiment.validation == 0]


def _best_method(parts: Sequence[Part]) -> str:
    """Which method has the highest mean under attack, how often, where at least three were run."""
    wins: Counter[str] = Counter()
    seen = set()
    for part in _tables(parts):
        if part.experiment.adversary is not None or part.experiment.kind != "accuracy":
            continue
        tests = part.scores.where(split="test", protocol="sound", defence="")
        for key, rows in tests.groups("data", "model", "attack").items():
            names = list(dict.fromkeys(map(paper_method, rows)))
            cells = [_best(rows.only(lambda row, name=name: paper_method(row) == name)) for name in names]  # type: ignore[misc]
            if len(names) >= 3 and key not in seen:
                seen.add(key)
                wins.update(names[place] for place in highest(cells))
    if not wins:
        return ""
    shown = [f"{METHODS.get(name, name)} in {count}" for name, count in wins.most_common()]
    many = f"Of {len(seen)} comparisons under the sound protocol"
    return f"{many}, the highest accuracy has {', '.join(shown)}; the projection with the best of its bounds."


def _cost(parts: Sequence[Part]) -> str:
    """What one bound, chosen on validation, costs and gains."""
    for part in parts:
        for made in part.section.parts if part.experiment.layout == "chosen" else ():
            rows = {row[0]: row for row in getattr(made, "rows", ())}
            plain, bounded = rows.get(METHODS["none"]), rows.get(METHODS["projection"])
            if isinstance(made, Figure) or plain is None or bounded is None or len(plain) < 4:
                continue
            numbers = [(float(plain[i].split()[0]), float(bounded[i].split()[0])) for i in range(2, len(plain))]
            names = list(made.header[3:])
            gains = [f"{b:.1f} instead of {a:.1f} % under {n}" for n, (a, b) in zip(names, numbers[1:], strict=True)]
            clean = f"clean accuracy falls from {numbers[0][0]:.1f} to {numbers[0][1]:.1f} %"
            group = made.groups[0][1] if made.groups else ""
            return (
                f"With one bound ({bounded[1]}), chosen on validation, {clean}; kept are {', '.join(gains)} ({group})."
            )
    return ""


def _per_matrix(parts: Sequence[Part]) -> str:
    found = []
    for protocol in ("published", "sound"):
        pairs = list(_pairs(_tables(parts), "layerwise-projection", "projection", protocol))
        if pairs:
            ahead, middle = sum(pair.gain > 0 for pair in pairs), median(pair.gain for pair in pairs)
            found.append(f"{ahead} of {len(pairs)} under the {protocol} protocol ({middle:+.1f} points in the median)")
    return f"It is ahead in {', and in '.join(found)}, over the same seeds." if found else ""


def _adversarial(parts: Sequence[Part]) -> str:
    pairs = list(_pairs(_tables(parts), "projection+at", "at"))
    return _ahead(pairs) if pairs else ""


def _certified(parts: Sequence[Part]) -> str:
    """The highest certified accuracies."""
    for part in parts:
        best = []
        for eps in part.experiment.eps if part.experiment.layout == "tradeoff" else ():
            mine = part.scores.where(protocol="sound", split="test").only(
                lambda row, eps=eps: (ball := certified_radius_of(row["attack"])) is not None and ball.eps == eps  # type: ignore[misc]
            )
            cells = [(cell, rows.rows[0]) for rows in mine.configurations() if (cell := rows.cell()) is not None]
            if cells:
                cell, row = max(cells, key=lambda pair: pair[0].mean)
                how = METHODS.get(str(row["method"]), str(row["method"]))
                kind = row_kind(row)
                best.append(f"{cell.mean:.1f} % at eps {eps:g} ({f'{kind} {how}' if kind else how})")
        if best:
            return f"For up to {', '.join(best)} of the images no perturbation changes the class, by proof."
    return ""


def _best_bound(parts: Sequence[Part]) -> str:
    """Where the curves over the bounds are highest, under the sound protocol, for each attack."""
    tops: dict[str, list[float]] = {}
    for part in parts:
        if part.experiment.layout != "curves" or part.experiment.x != "bound" or not part.experiment.attacks:
            continue
        for key, rows in part.scores.where(protocol="sound", split="test").groups("data", "model", "attack").items():
            cell = _best(rows.only(lambda row: row_kind(row) == "single"))
            if cell is not None and cell.chosen is not None and cell.mean > 0:
                tops.setdefault(key[2], []).append(float(cell.chosen[1]))
    if not tops:
        return ""
    shown = [f"{value_label(median_low(values))} for {attack_label(attack)}" for attack, values in tops.items()]
    count = sum(map(len, tops.values()))
    return f"It depends on the attack: {', '.join(shown)} (medians of {count} curves, sound protocol)."


def _steps(parts: Sequence[Part]) -> str:
    lines = _curves(parts, "steps")
    changes = [abs(line.y[-1] - y) for line in lines for x, y in zip(line.x, line.y, strict=True) if x == 20]
    most = max((line.x[-1] for line in lines), default=0)
    if not changes or most <= 20:
        return ""
    return f"Between 20 and {most:g} steps no curve changes by more than {max(changes):.2f} points."


def _rank(parts: Sequence[Part]) -> str:
    lines = [line for line in _curves(parts, "rank") if len(line.x) > 1]
    shown = [f"{line.y[0]:.1f} to {line.y[-1]:.1f} % ({line.label})" for line in lines]
    if not shown:
        return ""
    return f"From rank {lines[0].x[0]:g} to {lines[0].x[-1]:g} accuracy goes from {', '.join(shown)}."


def _curves(parts: Sequence[Part], x: str) -> list[Line]:
    shown = [part.section for part in parts if part.experiment.layout == "curves" and part.experiment.x == x]
    return [line for made in shown for line in _lines(made) if line.x]


def _lines(made: Section) -> list[Line]:
    return [line for one in made.parts if isinstance(one, Figure) for panel in one.panels for line in panel.lines]


def _relaxation(parts: Sequence[Part]) -> str:
    ratios = [
        y
        for part in parts
        if part.experiment.kind == "growth"
        for line in _lines(part.section)
        if line.label.startswith("gamma/theta")
        for y in line.y
    ]
    if not ratios:
        return ""
    return f"Of trained networks the relaxation gamma is {min(ratios):.2f} to {max(ratios):.2f} times theta."


_QUESTIONS: tuple[tuple[str, Callable[[Sequence[Part]], str]], ...] = (
    ("Does a bound on the norms make networks robust?", _robust),
    ("Is projection the best of the methods?", _best_method),
    ("What does it cost?", _cost),
    ("Which bound is best?", _best_bound),
    ("Is a bound for each matrix better than one for all?", _per_matrix),
    ("Does a bound help adversarial training?", _adversarial),
    ("How much can be proven?", _certified),
    ("Are 20 steps of PGD enough?", _steps),
    ("How much does the hidden rank matter?", _rank),
    ("How tight is the bound that is projected onto?", _relaxation),
)
