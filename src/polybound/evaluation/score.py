"""Results of an evaluation: scores that each say their attack, protocol and seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import mean, stdev
from typing import Any

from torch import Tensor

from polybound.evaluation.wilson import wilson

__all__ = ["Evaluation", "Examples", "Score"]


@dataclass(frozen=True)
class Score:
    """The accuracy of one run under one attack.

    Attributes:
        run: name of the run.
        attack: name of the attack; "clean" without one.
        protocol: "sound" or "published"; "-" without an attack.
        correct: images that are classified right both as they are and attacked.
        total: images.
        accuracy: their share.
        low: lower end of its 95 % Wilson interval.
        high: upper end.
        seed: of the attack.
        attacked: images that are classified right attacked, also if they are not as they are: what many papers count.
        per_class: (correct, total) of each class, if asked for.
    """

    run: str
    attack: str
    protocol: str
    correct: int
    total: int
    accuracy: float
    low: float
    high: float
    seed: int
    attacked: int
    per_class: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def of(
        cls, run: str, column: tuple[str, str], seed: int, counts: Tensor, attacked: Tensor, totals: Tensor
    ) -> Score:
        """From the counts of each class."""
        correct, total = int(counts.sum()), int(totals.sum())
        low, high = wilson(correct, total)
        classes = tuple(zip(counts.tolist(), totals.tolist(), strict=True))
        return cls(run, *column, correct, total, correct / total, low, high, seed, int(attacked.sum()), classes)

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        content = asdict(self)
        content["per_class"] = None if self.per_class is None else [list(pair) for pair in self.per_class]
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Score:
        """The inverse of `as_dict`; further entries are ignored."""
        values = {name: content[name] for name in cls.__dataclass_fields__ if name != "per_class"}
        pairs = content.get("per_class")
        return cls(**values, per_class=None if pairs is None else tuple((int(a), int(b)) for a, b in pairs))


@dataclass(frozen=True, eq=False)
class Examples:
    """The first images, as they are and attacked.

    Attributes:
        x: images, (n, ...).
        y: labels, (n,).
        clean: predictions for them, (runs, n).
        adversarial: attacked images, (runs, n, ...), by attack and protocol.
        predictions: predictions for those, (runs, n).
    """

    x: Tensor
    y: Tensor
    clean: Tensor
    adversarial: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    predictions: dict[tuple[str, str], Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """All scores of an evaluation.

    Attributes:
        rows: the scores.
        dataset: name of the data set.
        split: of the data set.
        notes: what a reader of the scores must know.
        class_names: names of the classes.
        examples: images, if some were to be kept.
    """

    rows: list[Score]
    dataset: str
    split: str
    notes: list[str] = field(default_factory=list)
    class_names: tuple[str, ...] = ()
    examples: Examples | None = None

    def find(self, attack: str, protocol: str = "sound", run: str | None = None) -> Score:
        """The score of an attack; of the first run, if none is named."""
        protocol = "-" if attack == "clean" else protocol
        for row in self.rows:
            if row.attack == attack and row.protocol == protocol and run in (None, row.run):
                return row
        raise KeyError(f"no score for {attack} under {protocol}")

    def attacked_only(self) -> Evaluation:
        """The same, counted as many papers count: an image is right if it is classified right attacked.

        That also counts images that the attack, or the clip of the published protocol, moved from a wrong class to the
        right one. It is for comparison with such papers, not for claims.
        """
        rows = []
        for row in self.rows:
            low, high = wilson(row.attacked, row.total)
            share = row.attacked / row.total
            rows.append(replace(row, correct=row.attacked, accuracy=share, low=low, high=high, per_class=None))
        note = "attacked images alone are counted: also those that are misclassified as they are"
        return replace(self, rows=rows, notes=[*self.notes, note])

    def to_json(self) -> str:
        """Everything but the examples."""
        rows = [row.as_dict() for row in self.rows]
        content = {"dataset": self.dataset, "split": self.split, "notes": self.notes, "scores": rows}
        return json.dumps(content, indent=2)

    def table(self) -> str:
        """A table to read, also as Markdown: one line a score, or one a run if there are several runs."""
        runs = list(dict.fromkeys(row.run for row in self.rows))
        lines = self._long(self.rows) if len(runs) <= 1 else self._wide(runs)
        lines += self._per_class(runs) if any(row.per_class for row in self.rows) else []
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def means(self, labels: Mapping[str, str]) -> str:
        """A table of means and standard deviations in %, of the runs that share a label: those of one recipe, say.

        Args:
            labels: a label for each run's name.
        """
        shown = list(dict.fromkeys(labels[row.run] for row in self.rows))
        columns = list(dict.fromkeys((row.attack, row.protocol) for row in self.rows))
        cells = [["runs", "n", *_heads(columns)]]
        for label in shown:
            mine = [row for row in self.rows if labels[row.run] == label]
            groups = [[100 * r.accuracy for r in mine if (r.attack, r.protocol) == column] for column in columns]
            values = [f"{mean(g):.2f} ± {stdev(g):.2f}" if len(g) > 1 else f"{mean(g):.2f}" for g in groups]
            cells.append([label, str(max(len(g) for g in groups)), *values])
        return "\n".join([*_aligned(cells), *(f"note: {note}" for note in self.notes)])

    def _long(self, rows: Sequence[Score]) -> list[str]:
        cells = [["attack", "protocol", "accuracy", "95 % interval", "correct"]]
        for row in rows:
            interval = f"{100 * row.low:.2f} to {100 * row.high:.2f}"
            cells.append(
                [row.attack, row.protocol, f"{100 * row.accuracy:.2f} %", interval, f"{row.correct}/{row.total}"]
            )
        return _aligned(cells)

    def _wide(self, runs: list[str]) -> list[str]:
        columns = list(dict.fromkeys((row.attack, row.protocol) for row in self.rows))
        found = {(row.run, row.attack, row.protocol): row for row in self.rows}
        cells = [["run", *_heads(columns)]]
        for run in runs:
            scores = [found.get((run, *column)) for column in columns]
            cells.append([run, *("" if score is None else f"{100 * score.accuracy:.2f}" for score in scores)])
        return _aligned(cells)

    def _per_class(self, runs: list[str]) -> list[str]:
        cells = [["class", *(f"{row.attack} {row.protocol}".removesuffix(" -") for row in self.rows if row.per_class)]]
        if len(runs) > 1:
            cells[0] = ["class", *(f"{row.run} {row.attack} {row.protocol}" for row in self.rows if row.per_class)]
        for index, name in enumerate(self.class_names):
            pairs = [row.per_class[index] for row in self.rows if row.per_class]
            cells.append([name, *(f"{100 * a / b:.1f}" if b else "" for a, b in pairs)])
        return ["", *_aligned(cells)]


def _heads(columns: Sequence[tuple[str, str]]) -> list[str]:
    return [attack if protocol == "-" else f"{attack} {protocol}" for attack, protocol in columns]


def _aligned(cells: list[list[str]]) -> list[str]:
    """Cells as the lines of a Markdown table, numbers to the right."""
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(cells[0]))]

    def line(row: list[str]) -> str:
        texts = [text.ljust(widths[0]) if i == 0 else text.rjust(widths[i]) for i, text in enumerate(row)]
        return f"| {' | '.join(texts)} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [line(cells[0]), line(rule), *map(line, cells[1:])]
