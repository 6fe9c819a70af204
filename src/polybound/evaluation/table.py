"""One flat table of scores, and the cells that are made from it.

A row is a mapping: what determines the run (columns of its spec, such as "method.bound"), "run" (its address), "seed",
"epoch" (after which it was measured), and the fields of a `Score`. The same columns are in memory, in run folders and
in CSV files.

A cell is a mean over seeds, and over nothing else: if the rows differ in any other column, there is no cell but an
error that names the column. The best bound and the best epoch, as papers take them, are operations of their own, and
the cells that they make say so.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import isfinite
from statistics import fmean, stdev
from typing import Any

from polybound.errors import PolyboundError
from polybound.evaluation.score import Score, dated_name
from polybound.registry import setting_text

Row = Mapping[str, Any]

SEED_COLUMNS = ("seed", "run", "weights", "correct", "per_class")
"""The columns in which the rows of a cell may differ: the seed, and what follows from it."""

ATTACK_COLUMNS = ("attack", "protocol", "counted", "attack_seed")
"""The columns that tell scores of one network on the same images apart."""

CHECK = "check"
"""The column of a run folder's file that tells whether a line is as it was written; see `Score.check`."""

_SCORE = {field.name: str(field.type) for field in fields(Score)}
_LEADING = ("data", "model", "method", "adversary", "seed", "epoch")


class MixedError(PolyboundError):
    """Rows that differ in more than the seed were to become one number."""


@dataclass(frozen=True)
class Cell:
    """Mean and standard deviation over seeds, in percent.

    Attributes:
        mean: of the accuracies.
        std: their standard deviation; 0 for a single seed.
        seeds: which.
        total: images that each was measured on.
        available: images of the split.
        epoch: the epoch after which it was measured, or "best of 75, 100".
        chosen: (column, value, number of values it was the best of), where it is the best of several.
    """

    mean: float
    std: float
    seeds: tuple[int, ...]
    total: int
    available: int
    epoch: int | str | None = None
    chosen: tuple[str, Any, int] | None = None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ± {self.std:.2f}" if len(self.seeds) > 1 else "")


class Table:
    """Rows of scores.

    Attributes:
        rows: the rows.

    >>> table = Table([{"seed": s, "attack": "clean", "correct": 9 + s, "total": 20, "available": 20} for s in (0, 1)])
    >>> str(table.cell()), table.cell().seeds
    ('47.50 ± 3.54', (0, 1))
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows: list[Row] = list(rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __add__(self, other: Table) -> Table:
        return Table([*self.rows, *other.rows])

    def __repr__(self) -> str:
        return f"Table({len(self.rows)} scores of {len(self.values('run'))} runs)"

    def where(self, wanted: Mapping[str, Any] | None = None, /, **more: Any) -> Table:
        """The rows that have the wanted values."""
        conditions = {**(wanted or {}), **more}
        return Table(row for row in self.rows if all(row.get(name) == value for name, value in conditions.items()))

    def only(self, wanted: Callable[[Row], bool]) -> Table:
        """The rows for which `wanted` is true."""
        return Table(filter(wanted, self.rows))

    def values(self, column: str) -> list[Any]:
        """The different values of a column, in the order in which they come; rows without one have none."""
        return list({_key(row[column]): row[column] for row in self.rows if column in row}.values())

    def columns(self) -> list[str]:
        """All columns: the most used first, those of the score last."""
        found = dict.fromkeys(name for row in self.rows for name in row)
        first = [name for name in _LEADING if name in found]
        spec = sorted(name for name in found if name not in _SCORE and name not in (*_LEADING, "run"))
        return [*first, *spec, *(["run"] if "run" in found else []), *_SCORE]

    def groups(self, *columns: str) -> dict[tuple[Any, ...], Table]:
        """The rows parted by the values of some columns; a missing value is None."""
        found: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            found.setdefault(tuple(_key(row.get(name)) for name in columns), []).append(row)
        first = [[rows[0].get(name) for name in columns] for rows in found.values()]
        # Mappings and lists cannot be keys: they are, as text.
        keys = [tuple(_key(value) if isinstance(value, dict | list) else value for value in row) for row in first]
        return {key: Table(rows) for key, rows in zip(keys, found.values(), strict=True)}

    def configurations(self, *free: str) -> list[Table]:
        """The rows parted so that each part differs in the seed only, and in the columns `free`."""
        found: dict[frozenset[tuple[str, str]], list[Row]] = {}
        for row in self.rows:
            open_ = {*of_the_seed([row]), *free}
            fixed = frozenset(
                (name, _key(value)) for name, value in row.items() if name not in open_ and value is not None
            )
            found.setdefault(fixed, []).append(row)
        return list(map(Table, found.values()))

    def cell(self) -> Cell | None:
        """The mean over the seeds; None if there is no row.

        Raises:
            MixedError: the rows differ in more than the seed.
        """
        if not self.rows:
            return None
        if mixed := differing(self.rows, of_the_seed(self.rows)):
            name, values = next(iter(mixed.items()))
            shown = ", ".join("none" if value is None else str(value) for value in values)
            raise MixedError(f"one number cannot stand for several values of {name} ({shown})")
        members = [part._measured_once() for part in self.groups("seed").values()]
        shares = [100.0 * row["correct"] / row["total"] for row in members]
        first = self.rows[0]
        spread = stdev(shares) if len(shares) > 1 else 0.0
        seeds = tuple(sorted(row["seed"] for row in members if row.get("seed") is not None))
        return Cell(fmean(shares), spread, seeds, first["total"], first["available"], first.get("epoch"))

    def _measured_once(self) -> Row:
        """The first of rows of one measurement; all of them must have the same count."""
        first = self.rows[0]
        if other := next((row for row in self.rows if row["correct"] != first["correct"]), None):
            counts = f"{first['correct']} and {other['correct']} of {first['total']}"
            raise MixedError(f"seed {first.get('seed')} was measured twice, with {counts} images right")
        return first

    def best_epoch(self) -> Table:
        """For each seed the row of the epoch with the most images right, as the paper takes it.

        Where there were several epochs to choose from, "epoch" says so: "best of 75, 100". Seeds that had different
        epochs to choose from do not make one cell.

        Raises:
            MixedError: there are two different counts for one epoch of a seed.
        """
        rows: list[Row] = []
        for part in self.configurations("epoch"):
            for mine in part.groups("seed").values():
                after = [same._measured_once() for same in mine.groups("epoch").values()]
                best = max(after, key=lambda row: row["correct"])
                if len(after) > 1:
                    epochs = sorted((row.get("epoch") for row in after), key=_order)
                    best = {**best, "epoch": f"best of {', '.join(map(str, epochs))}"}
                rows.append(best)
        return Table(rows)

    def best(self, column: str) -> Cell | None:
        """The cell with the highest mean among the values of a column, as the paper takes the best bound.

        A value that fewer seeds have than others does not compete, see `best_place`.
        """
        found = self.cells_by(column)
        best = best_place([[cell] for _, cell in found])
        if best is None:
            return None
        value, top = found[best[0]]
        return top if len(found) == 1 else replace(top, chosen=(column, value, best[1]))

    def fullest(self) -> Table:
        """Of measurements of a network that differ in the number of images alone, those with the most images."""
        about = ("run", "epoch", *(name for name in _SCORE if name not in ("total", "correct", "per_class")))
        keys = [_key([row.get(name) for name in about]) for row in self.rows]
        most: dict[str, int] = {}
        for key, row in zip(keys, self.rows, strict=True):
            most[key] = max(row["total"], most.get(key, 0))
        return Table(row for key, row in zip(keys, self.rows, strict=True) if row["total"] == most[key])

    def cells_by(self, column: str) -> list[tuple[Any, Cell]]:
        """A cell for each value of a column, in numerical order where they are numbers."""
        parts = self.groups(column).values()
        found = [(part.rows[0].get(column), cell) for part in parts if (cell := part.cell()) is not None]
        return sorted(found, key=lambda pair: _order(pair[0]))

    def to_csv(self, *, checked: bool = False) -> str:
        """The table as a CSV file, which `read_table` reads back.

        Args:
            checked: whether to write the check of each line.
        """
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        columns = self.columns()
        writer.writerow([*columns, CHECK] if checked else columns)
        for row in self.rows:
            writer.writerow([*(_written(row.get(name)) for name in columns), *([_check(row)] if checked else [])])
        return out.getvalue()


def best_place(candidates: Sequence[Sequence[Cell | None]]) -> tuple[int, int] | None:
    """The place of the candidate with the highest mean over its cells, and how many candidates compete.

    A candidate that lacks a cell of another, or that has fewer seeds, may be ahead by luck, and does not compete. None
    if no candidate is left.

    Args:
        candidates: the cells of each, in the same order.
    """
    known = [place for place, cells in enumerate(zip(*candidates, strict=True)) if any(cells)]
    found = {
        number: [cell for cell in (cells[place] for place in known) if cell is not None]
        for number, cells in enumerate(candidates)
        if known and all(cells[place] is not None for place in known)
    }
    seeds = {number: min(len(cell.seeds) for cell in cells) for number, cells in found.items()}
    competing = [number for number in found if seeds[number] == max(seeds.values())]
    if not competing:
        return None
    return max(competing, key=lambda number: fmean(cell.mean for cell in found[number])), len(competing)


def read_table(text: str, *, checked: bool = False) -> Table:
    """The inverse of `Table.to_csv`; if `checked`, every line must have its check.

    Raises:
        PolyboundError: a column is missing, a value is not a number, or a line was changed; the message names the line
            and the column.
    """
    reader = csv.DictReader(io.StringIO(text))
    try:
        names = list(reader.fieldnames or ())
        if missing := [name for name in _SCORE if name not in names]:
            raise PolyboundError(f"not a file of scores: it has no column {', '.join(missing)}")
        return Table(_read_row(line, names, number, checked) for number, line in enumerate(reader, 2))
    except csv.Error as error:
        raise PolyboundError(f"not a file of scores: {error}") from None


def _read_row(line: Mapping[str, Any], names: Sequence[str], number: int, checked: bool) -> Row:
    row: dict[str, Any] = {}
    for name in names:
        value = line[name]
        if value is None or None in line:
            raise PolyboundError(f"line {number} has not as many columns as the header")
        if name in _SCORE:
            try:
                row[name] = _READERS[_SCORE[name]](value)
            except ValueError:
                raise PolyboundError(f"line {number}: {name} cannot be {value!r}") from None
        elif value and name != CHECK:
            row[name] = _read_value(value)
    row["attack"] = dated_name(row["attack"])
    if not 0 <= row["correct"] <= row["total"] or row["total"] < 1:
        raise PolyboundError(f"line {number}: {row['correct']} of {row['total']} images cannot be right")
    if classes := row["per_class"]:
        whole = re.fullmatch(r"\d+/\d+( \d+/\d+)*", classes, re.ASCII)
        pairs = [map(int, pair.split("/")) for pair in classes.split()] if whole else [(-1, -1)]
        if [sum(counts) for counts in zip(*pairs, strict=True)] != [row["correct"], row["total"]]:
            counts = f"{row['correct']} of {row['total']}"
            raise PolyboundError(f"line {number}: per_class does not add up to {counts}: {classes!r}")
    if (checked or line.get(CHECK)) and line.get(CHECK) != _check(row):
        raise PolyboundError(f"line {number} was changed after it was written, or has no check")
    return row


def score_of(row: Row) -> Score:
    """The score that a row of a table holds."""
    return Score(**{name: row[name] for name in _SCORE})


def _check(row: Row) -> str:
    return score_of(row).check(str(row.get("run")))


def _written(value: Any) -> Any:
    """A value as a cell of a CSV file: text as it is, unless it would be read as something else."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return json.dumps(value, sort_keys=True)
    return value if value.isprintable() and _read_value(value) == value else json.dumps(value)


@lru_cache(maxsize=4096)
def _read_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read_text(text: str) -> str:
    """The text that `_written` wrote; a digest of digits alone is in quotes."""
    found = _read_value(text)
    return found if isinstance(found, str) else text


def _finite(text: str) -> float:
    if not isfinite(number := float(text)):
        raise ValueError(text)
    return number


_READERS: dict[str, Callable[[str], Any]] = {"int": int, "float": _finite, "str": _read_text}


def differing(rows: Sequence[Row], free: Sequence[str] = ()) -> dict[str, list[Any]]:
    """The columns in which rows differ, with their values; a row that has no such column counts as None."""
    names = dict.fromkeys(name for row in rows for name in row if name not in free)
    found = {name: {_key(row.get(name)): row.get(name) for row in rows} for name in names}
    return {name: list(values.values()) for name, values in found.items() if len(values) > 1}


def of_the_seed(rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns in which rows of one cell may differ; rows without a seed are never averaged."""
    seeded = all(row.get("seed") is not None for row in rows)
    return SEED_COLUMNS if seeded else ("correct", "per_class")


def _key(value: Any) -> str:
    """A text that is the same for equal values only, and for all equal numbers."""
    # Tables have up to 10^5 cells, and most of them are of these types.
    if isinstance(value, str):
        return f'"{value}"'
    if type(value) is int:
        return str(value)
    if type(value) is float:
        return str(int(value)) if value.is_integer() else repr(value)
    return json.dumps(_canonical(value), sort_keys=True, default=str)


def _canonical(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {name: _canonical(entry) for name, entry in value.items()}
    return [_canonical(entry) for entry in value] if isinstance(value, list | tuple) else value


def _order(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)


# Label rows by the columns in which they differ.


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
    """The name of a column in tables and labels.

    >>> column_label("optimiser.learning_rate"), column_label("total")
    ('learning rate', 'images')
    """
    return _COLUMNS.get(column, column.rpartition(".")[2].replace("_", " "))


def value_label(value: Any) -> str:
    """A value as text, as tables and labels show it.

    >>> value_label({"U1": 1.5, "C": 0.8}), value_label(None), value_label(0.0001)
    ('C 0.8 U1 1.5', 'none', '0.0001')
    """
    if value is None or value == "":
        return "none"
    if isinstance(value, Mapping):
        return " ".join(f"{name} {value_label(entry)}" for name, entry in sorted(value.items()))
    if isinstance(value, list | tuple):
        return f"[{' '.join(map(value_label, value))}]"  # 3 is one value, and a list of it another
    return setting_text(value) if isinstance(value, float) else str(value)


def images_label(total: int, available: int) -> str:
    """The number of images that something was measured on, and of all images if these are more.

    >>> images_label(200, 10000), images_label(360, 360)
    ('200 of 10,000', '360')
    """
    return f"{total:,}" if total == available else f"{total:,} of {available:,}"


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
            known, value = options.setdefault(component, {}), _key(row.get(component))
            if value not in known:
                alike = [other for other in rows if _key(other.get(component)) == value]
                known[value] = [name for name in differing(alike, free) if name.startswith(f"{component}.")]
            names += known[value]
        first = [name for name in _FIRST if name in row and name not in names and name not in free]
        parts = [str(row["method"])] if method and row.get("method") else []
        named = [*first, *names] if len(rows) > 1 else first
        parts += [f"{column_label(name)} {value_label(row.get(name))}" for name in named]
        found.append(", ".join(parts))
    return found


def network_labels(rows: Sequence[Row], free: Sequence[str]) -> list[str]:
    """Labels of networks: of runs as `labels` has them, of model files their name in the column "run".

    >>> network_labels([{"method": "l2", "seed": 0, "run": "ab"}, {"run": "a.safetensors"}], ("run",))
    ['l2', 'a.safetensors']
    """
    runs = [row for row in rows if row.get("seed") is not None]
    found = iter(labels(runs, free))
    return [next(found) if row.get("seed") is not None else str(row["run"]) for row in rows]
