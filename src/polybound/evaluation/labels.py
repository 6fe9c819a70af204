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


_FIRST = ("method.bound", "method.weight", "method.eps", "adversary")
"""Columns that a label names even if no other row has them."""


def labels(rows: Sequence[Row], free: Sequence[str] | None = None, *, method: bool = True) -> list[str]:
    """A label for each row: its method, and everything else in which some of the rows differ.

    Two rows have the same label only if they differ in nothing but the columns `free`, by default those of the seed.
    Without `method`, the method is left out, for rows that have it in common.

    >>> labels([{"method": "l2", "method.weight": w, "seed": 0} for w in (0.1, 1.0)])
    ['l2, weight 0.1', 'l2, weight 1']
    """
    free = of_the_seed(rows) if free is None else free
    common = [name for name in differing(rows, free) if "." not in name and name != "method"]
    options: dict[str, dict[str, list[str]]] = {}  # by component and its value: the options in which such rows differ
    found = []
    for row in rows:
        names = list(common)
        # The options of a component, such as "method.bound" of "method", are compared among rows with the same one.
        for component in dict.fromkeys(name.partition(".")[0] for name in row if "." in name):
            known, value = options.setdefault(component, {}), str(row.get(component))
            if value not in known:
                alike = [other for other in rows if str(other.get(component)) == value]
                known[value] = [name for name in differing(alike, free) if name.startswith(f"{component}.")]
            names += known[value]
        first = [name for name in _FIRST if name in row and name not in names and name not in free]
        parts = [str(row["method"])] if method and row.get("method") else []
        named = [*first, *names] if len(rows) > 1 else first
        parts += [f"{column_label(name)} {value_label(row.get(name))}" for name in named]
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
