"""Tables on the terminal: as wide as it is, and never wider."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polybound.evaluation import Evaluation, Row, labels, row_facts
from polybound.evaluation import Table as Scores
from polybound.theory import BoundTable

__all__ = ["note", "show_bounds", "show_facts", "show_means", "show_scores", "show_table", "width"]

_OF_THE_SCORE = ("attack", "protocol", "counted", "attack_seed")
_OF_THE_RUN = ("run", "weights", "correct", "per_class", "available")


def width() -> int:
    """Columns of the terminal; without one, as many as are wanted."""
    if os.environ.get("COLUMNS", "").isdigit():
        return int(os.environ["COLUMNS"])
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000


def note(text: str) -> None:
    """A line on standard error."""
    print(f"polybound: {' '.join(text.split())}", file=sys.stderr)


def show_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, lead: int = 1, title: str = "", notes: Sequence[str] = ()
) -> None:
    """Print a table if it fits; otherwise a paragraph for each row, headed by its first `lead` cells."""
    if title:
        print_wrapped(title)
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]
    if sum(widths) + 3 * len(widths) + 1 <= width():
        view = Table(*(Text(name) for name in header), header_style="bold")
        for column in view.columns[lead:]:
            column.justify = "right"
        for column in view.columns:
            column.no_wrap = True
        for row in rows:
            view.add_row(*(Text(str(cell)) for cell in row))
        Console(width=min(width(), sum(widths) + 3 * len(widths) + 1)).print(view)
    else:
        for row in rows:
            print_wrapped(", ".join(str(cell) for cell in row[:lead] if cell))
            facts = [f"{name} {cell}" for name, cell in zip(header[lead:], row[lead:], strict=True) if str(cell)]
            print_wrapped("; ".join(facts), indent="    ")
    for line in notes:
        print_wrapped(f"note: {line}")


def print_wrapped(text: str, indent: str = "") -> None:
    """Print a text in lines that fit."""
    for line in textwrap.wrap(
        text, width(), initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    ):
        print(line)


def _score_label(row: Row) -> str:
    """What a column of scores is of."""
    parts = [row["attack"], *([] if row["protocol"] == "-" else [row["protocol"]])]
    return " ".join([*parts, *(["attacked"] if row["counted"] == "attacked" else [])])


def _names(scores: Scores) -> dict[int, str]:
    """A label for each row, by its place: what it is of, told apart from all others."""
    named = labels(scores.rows, (*_OF_THE_SCORE, *_OF_THE_RUN))
    return dict(enumerate(named))


def labelled(scores: Scores) -> list[dict[str, Any]]:
    """Rows with their labels and what follows from their counts."""
    names = _names(scores)
    return [{**row_facts(row), "label": names[i] or str(row.get("run", ""))} for i, row in enumerate(scores)]


def show_scores(result: Evaluation, scores: Scores) -> None:
    """Print a line for each score, under a heading for each network."""
    rows = labelled(scores)
    header = ["network", "attack", "accuracy", "95 % interval", "images"]
    cells, before = [], ""
    for row in rows:
        interval = f"{100 * row['low']:.2f} to {100 * row['high']:.2f}"
        defended = f", {row['defence']} denoising" if row["defence"] else ""
        images = f"{row['correct']:,}/{row['total']:,}"
        if row["total"] < row["available"]:
            images += f" of {row['available']:,}"
        name = f"{row['dataset']} {row['split']}{defended}: {row['label']}"
        cells.append(["" if name == before else name, _score_label(row), f"{100 * row['accuracy']:.2f} %", interval, images])
        before = name
    _show_grouped(header, cells)
    for line in result.notes:
        print_wrapped(f"note: {line}")


def _show_grouped(header: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """A heading for each group of rows, and a narrow table below it."""
    groups: list[list[Sequence[str]]] = []
    for row in cells:
        if row[0]:
            groups.append([])
        groups[-1].append(row)
    for rows in groups:
        print_wrapped(rows[0][0])
        show_table(header[1:], [row[1:] for row in rows])


def mean_rows(scores: Scores) -> list[dict[str, Any]]:
    """Mean and standard deviation over the seeds of each configuration, in percent."""
    parts = scores.configurations()
    free = ("seed", *_OF_THE_SCORE, *_OF_THE_RUN)
    names = labels([part.rows[0] for part in parts], free)
    found = []
    for name, part in zip(names, parts, strict=True):
        cell, first = part.cell(), part.rows[0]
        if cell is not None:
            keys = ("dataset", "split", "defence", "attack", "protocol", "counted", "attack_seed", "total", "available")
            about = {"label": name or str(first.get("run", ""))} | {key: first[key] for key in keys}
            found.append(about | {"seeds": len(cell.seeds), "mean": cell.mean, "std": cell.std})
    return found


def show_means(result: Evaluation, scores: Scores) -> None:
    """Print means over seeds."""
    cells, before = [], ""
    for row in mean_rows(scores):
        defended = f", {row['defence']} denoising" if row["defence"] else ""
        name = f"{row['dataset']} {row['split']}{defended}: {row['label']}"
        spread = f" ± {row['std']:.2f}" if row["seeds"] > 1 else ""
        images = f"{row['total']:,}" + (f" of {row['available']:,}" if row["total"] < row["available"] else "")
        cells.append(
            ["" if name == before else name, _score_label(row), f"{row['mean']:.2f}{spread}", str(row["seeds"]), images]
        )
        before = name
    _show_grouped(["network", "attack", "mean in %", "seeds", "images"], cells)
    for line in result.notes:
        print_wrapped(f"note: {line}")


def show_bounds(table: BoundTable) -> None:
    """Print all bounds of a model, each with the set it holds on."""
    rows = [[row.quantity, row.shown(), row.name, row.assumptions[0] if row.assumptions else ""] for row in table]
    show_table(["quantity", "value", "by", "holds for"], rows, title=table.title)


def show_facts(facts: Mapping[str, Any]) -> None:
    """Print a dictionary of facts, nested ones indented."""
    view = Table(show_header=False, box=None)
    view.add_column(style="bold")
    view.add_column(overflow="fold")
    for key, value in facts.items():
        if isinstance(value, dict):
            for inner, entry in value.items():
                view.add_row(f"{key}.{inner}", str(entry))
        else:
            view.add_row(key, f"{value:,}" if isinstance(value, int) else str(value))
    Console(width=min(width(), 200)).print(view)
