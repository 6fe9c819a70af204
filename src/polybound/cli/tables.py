"""Tables on the terminal: as wide as it is, and never wider."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from polybound.evaluation import ATTACK_COLUMNS, SEED_COLUMNS, Evaluation, Row, network_labels, row_facts, value_label
from polybound.evaluation import Table as Scores
from polybound.theory import BoundTable

__all__ = ["note", "show_bounds", "show_facts", "show_means", "show_scores", "show_table", "width"]

STORED = "*"
"""What marks a score that was read and not measured."""


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
    """Print a table if it fits; otherwise a list for each row, headed by its first `lead` cells."""
    if title:
        print_wrapped(title)
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]
    if sum(widths) + 3 * len(widths) + 1 <= width():
        view = Table(header_style="bold")
        for place, name in enumerate(header):
            view.add_column(Text(name), justify="left" if place < lead else "right", no_wrap=True)
        for row in rows:
            view.add_row(*(Text(str(cell)) for cell in row))
        Console(width=min(width(), sum(widths) + 3 * len(widths) + 1)).print(view)
    else:
        names = max(map(len, header[lead:]), default=0)
        for row in rows:
            print_wrapped(", ".join(str(cell) for cell in row[:lead] if cell))
            for name, cell in zip(header[lead:], row[lead:], strict=True):
                if str(cell):
                    print_wrapped(f"{name.ljust(names)}  {cell}", indent="    ", hang=names + 2)
    for line in notes:
        print_wrapped(f"note: {line}")


def print_wrapped(text: str, indent: str = "", hang: int = 2) -> None:
    """Print a text in lines that fit; all but the first are indented by `hang` more. Words, as of paths, stay whole."""
    after = indent + " " * min(hang, width() // 2)
    wrapper = textwrap.TextWrapper(width(), indent, after, break_long_words=False, break_on_hyphens=False)
    for line in wrapper.wrap(text):
        print(line)


def _score_label(row: Row) -> str:
    """What a column of scores is of."""
    parts = [row["attack"], *([] if row["protocol"] == "-" else [row["protocol"]])]
    parts += ["attacked"] if row["counted"] == "attacked" else []
    return " ".join([*parts, *([f"attack seed {row['attack_seed']}"] if row["attack_seed"] else [])])


def labelled(scores: Scores) -> list[dict[str, Any]]:
    """Rows with their labels, which tell each from all others, and what follows from their counts."""
    names = network_labels(scores.rows, (*ATTACK_COLUMNS, *SEED_COLUMNS[1:], "available"))
    return [{**row_facts(row), "label": name} for name, row in zip(names, scores, strict=True)]


def show_scores(result: Evaluation, scores: Scores) -> None:
    """Print all scores: of one network a line each with its interval, of several a line each network."""
    rows = labelled(scores)
    if len({_network(row) for row in rows}) == 1:
        cells = [
            [
                _score_label(row),
                f"{100 * row['accuracy']:.2f} %{_mark(result, row)}",
                f"{100 * row['low']:.2f} to {100 * row['high']:.2f}",
                f"{row['correct']:,} of {row['total']:,}",
            ]
            for row in rows
        ]
        header = ["attack", "accuracy", "95 % interval", "images right"]
        show_table(header, cells, title=f"{_network(rows[0])}, {images_text(rows[0])} images")
    else:
        _show_networks(rows, lambda row: f"{100 * row['accuracy']:.2f}{_mark(result, row)}")
    _show_notes(result, scores)


def _mark(result: Evaluation, row: Row) -> str:
    return STORED if result.is_stored(row) else ""


def _show_notes(result: Evaluation, scores: Scores) -> None:
    stored = sum(map(result.is_stored, scores))
    if stored:
        print_wrapped(f"{STORED} stored in the run's folder, not measured now: {stored} of {len(scores)} scores")
    for line in result.notes:
        print_wrapped(f"note: {line}")


def _network(row: Mapping[str, Any]) -> str:
    """What was measured, and on what."""
    defended = f", {row['defence']} denoising" if row["defence"] else ""
    samples = f", {row['data.samples']:,} training samples" if row.get("data.samples") else ""
    return f"{row['dataset']} {row['split']}{defended}{samples}: {row['label']}"


def images_text(row: Mapping[str, Any]) -> str:
    """On how many images something was measured, and of how many if these are not all."""
    return f"{row['total']:,}" + (f" of {row['available']:,}" if row["total"] < row["available"] else "")


def _show_networks(
    rows: Sequence[Mapping[str, Any]], show: Callable[[Mapping[str, Any]], str], seeds: bool = False
) -> None:
    """A line for each network, a column for each attack, in percent."""
    attacks = list(dict.fromkeys(map(_score_label, rows)))
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        images = images_text(row)
        cells = lines.setdefault((_network(row), images), {"images": images})
        cells |= {"seeds": str(row["seeds"])} if seeds else {}
        cells[_score_label(row)] = show(row)
    header = ["network", *(["seeds"] if seeds else []), "images", *attacks]
    show_table(header, [[name, *(cells.get(head, "") for head in header[1:])] for (name, _), cells in lines.items()])


def mean_rows(scores: Scores) -> list[dict[str, Any]]:
    """Mean and standard deviation over the seeds of each configuration, in percent."""
    parts = scores.configurations()
    free = (*ATTACK_COLUMNS, *SEED_COLUMNS, "available")
    names = network_labels([part.rows[0] for part in parts], free)
    found = []
    for name, part in zip(names, parts, strict=True):
        cell, first = part.cell(), part.rows[0]
        if cell is not None:
            keys = ("dataset", "split", "defence", "attack", "protocol", "counted", "attack_seed", "total", "available")
            about = {"label": name} | {key: first[key] for key in keys}
            about["data.samples"] = first.get("data.samples", 0)
            found.append(about | {"seeds": len(cell.seeds), "mean": cell.mean, "std": cell.std})
    return found


def show_means(result: Evaluation, scores: Scores) -> None:
    """Print means over seeds, in percent."""
    _show_networks(
        mean_rows(scores), lambda row: f"{row['mean']:.2f}" + (f" ± {row['std']:.2f}" if row["seeds"] > 1 else ""), True
    )
    _show_notes(result, scores)


def show_bounds(table: BoundTable) -> None:
    """Print all bounds of a model, each with the set it holds on."""
    rows = [[row.quantity, row.shown(), row.name, row.assumptions[0] if row.assumptions else ""] for row in table]
    show_table(["quantity", "value", "by", "holds for"], rows, title=table.title, notes=table.notes)


def show_facts(facts: Mapping[str, Any]) -> None:
    """Print a dictionary of facts, nested ones with the name of their group; a path stays in one piece."""
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        flat |= {f"{key}.{inner}": entry for inner, entry in value.items()} if isinstance(value, dict) else {key: value}
    names = max(map(len, flat))
    for name, value in flat.items():
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value_label(value)
        print_wrapped(f"{name.ljust(names)}  {text}", hang=names + 2)
