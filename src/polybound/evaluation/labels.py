"""What rows of a table are called: by what they differ in, never by more and never by less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polybound.evaluation.table import OF_THE_SEED, Row, differing

__all__ = ["column_label", "labels", "value_label"]

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
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return " ".join(f"{name} {value_label(entry)}" for name, entry in sorted(value.items()))
    if isinstance(value, list | tuple):
        return " ".join(map(value_label, value)) or "none"
    if isinstance(value, float):
        return short if float(short := f"{value:g}") == value else repr(value)
    return str(value)


def labels(rows: Sequence[Row], free: Sequence[str] = OF_THE_SEED) -> list[str]:
    """A label for each row: its method, and everything else in which some of the rows differ.

    Two rows have the same label only if they differ in nothing but the columns `free`.

    >>> labels([{"method": "l2", "method.weight": w, "seed": 0} for w in (0.1, 1.0)])
    ['l2, weight 0.1', 'l2, weight 1']
    """
    mixed = [name for name in differing(rows, free) if name != "method"]
    found = []
    for row in rows:
        parts = [str(row.get("method", ""))] if row.get("method") else []
        shown = (name for name in mixed if name in row or not name.startswith("method."))
        parts += [f"{column_label(name)} {value_label(row.get(name))}" for name in shown]
        found.append(", ".join(parts))
    return found
