"""What rows of a table are called: by what they differ in, never by more and never by less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polybound.evaluation.table import Row, differing, of_the_seed

__all__ = ["column_label", "labels", "network_labels", "value_label"]

_COLUMNS = {
    "data": "data set",
    "data.digest": "data",
    "data.samples": "training samples",
    "data.held_out": "held out",
    "model.rank": "rank",
    "adversary.start": "adversary from epoch",
    "adversary.protocol": "adversary's protocol",
    "attack_seed": "attack seed",
    "total": "images",
    "available": "of",
    "digest": "data",
    "held_out": "held out",
}


def column_label(column: str) -> str:
    """What people call a column.

    >>> column_label("optimiser.learning_rate"), column_label("total")
    ('learning rate', 'images')
    """
    return _COLUMNS.get(column, column.rpartition(".")[2].replace("_", " "))


def value_label(value: Any) -> str:
    """A value for people.

    >>> value_label({"U1": 1.5, "C": 0.8}), value_label(None), value_label(0.0001)
    ('C 0.8 U1 1.5', 'none', '0.0001')
    """
    if value is None or value == "":
        return "none"
    if isinstance(value, Mapping):
        return " ".join(f"{name} {value_label(entry)}" for name, entry in sorted(value.items()))
    if isinstance(value, list | tuple):
        return f"[{' '.join(map(value_label, value))}]"  # 3 is one value, and a list of it another
    if isinstance(value, float):
        return short if float(short := f"{value:g}") == value else repr(value)
    return str(value)


def labels(rows: Sequence[Row], free: Sequence[str] | None = None, *, method: bool = True) -> list[str]:
    """A label for each row: its method, and everything else in which some of the rows differ.

    Two rows have the same label only if they differ in nothing but the columns `free`, by default those of the seed.
    Without `method`, the method is left out, for rows that have it in common.

    >>> labels([{"method": "l2", "method.weight": w, "seed": 0} for w in (0.1, 1.0)])
    ['l2, weight 0.1', 'l2, weight 1']
    """
    free = of_the_seed(rows) if free is None else free
    shown = [_told_apart_by(row, rows, free) for row in rows]
    found = []
    for row, names in zip(rows, shown, strict=True):
        parts = [str(row["method"])] if method and row.get("method") else []
        parts += [f"{column_label(name)} {value_label(row.get(name))}" for name in names]
        found.append(", ".join(parts))
    return found


def network_labels(rows: Sequence[Row], free: Sequence[str]) -> list[str]:
    """As `labels`, of networks; those that are no runs have nothing but their name, in the column "run".

    >>> network_labels([{"method": "l2", "seed": 0, "run": "ab"}, {"run": "a.safetensors"}], ("run",))
    ['l2', 'a.safetensors']
    """
    runs = [row for row in rows if row.get("seed") is not None]
    found = iter(labels(runs, free))
    return [next(found) if row.get("seed") is not None else str(row["run"]) for row in rows]


_FIRST = ("method.bound", "method.weight", "method.eps", "adversary")
"""What is said of a method even if no other row has it."""


def _told_apart_by(row: Row, rows: Sequence[Row], free: Sequence[str]) -> list[str]:
    """The columns that a row's label names.

    The options of a part, such as "method.bound" of "method", need only be compared among rows with the same part.
    """
    names = [name for name in differing(rows, free) if "." not in name and name != "method"]
    for part in dict.fromkeys(name.partition(".")[0] for name in row if "." in name):
        alike = [other for other in rows if other.get(part) == row.get(part)]
        names += [name for name in differing(alike, free) if name.startswith(f"{part}.")]
    first = [name for name in _FIRST if name in row and name not in names and name not in free]
    return [*first, *names] if len(rows) > 1 else first
