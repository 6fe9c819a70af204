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

import polybound as pb

STORED = "*"
"""The mark of a score that was read and not measured."""


def width() -> int:
    """The width of the terminal in columns; 10,000 without one."""
    if os.environ.get("COLUMNS", "").isdigit():
        return int(os.environ["COLUMNS"])
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000


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


def show_facts(facts: Mapping[str, Any]) -> None:
    """Print a dictionary of facts, nested ones with the name of their group; a path stays in one piece."""
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        flat |= {f"{key}.{inner}": entry for inner, entry in value.items()} if isinstance(value, dict) else {key: value}
    names = max(map(len, flat))
    for name, value in flat.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        text = f"{value:,}" if whole else pb.evaluation.value_label(value)
        print_wrapped(f"{name.ljust(names)}  {text}", hang=names + 2)


# Scores.


def labelled(scores: pb.Table) -> list[dict[str, Any]]:
    """Rows with their labels, which tell each from all others, and what follows from their counts."""
    free = (*pb.evaluation.ATTACK_COLUMNS, *pb.evaluation.SEED_COLUMNS[1:], "available")
    names = pb.evaluation.network_labels(scores.rows, free)
    return [{**pb.evaluation.row_facts(row), "label": name} for name, row in zip(names, scores, strict=True)]


def mean_rows(scores: pb.Table) -> list[dict[str, Any]]:
    """Mean and standard deviation over the seeds of each configuration, in percent."""
    parts = scores.configurations()
    free = (*pb.evaluation.ATTACK_COLUMNS, *pb.evaluation.SEED_COLUMNS, "available")
    names = pb.evaluation.network_labels([part.rows[0] for part in parts], free)
    keys = ("dataset", "split", "defence", *pb.evaluation.ATTACK_COLUMNS, "total", "available")
    found = []
    for name, part in zip(names, parts, strict=True):
        cell, first = part.cell(), part.rows[0]
        if cell is not None:
            about = {"label": name, **{key: first[key] for key in keys}}
            about["data.samples"] = first.get("data.samples", 0)
            found.append(about | {"seeds": len(cell.seeds), "mean": cell.mean, "std": cell.std})
    return found


def show_scores(result: pb.Evaluation, scores: pb.Table) -> None:
    """Print all scores: of one network a line each with its interval, of several a line each network."""
    rows = labelled(scores)
    marks = [STORED if result.is_stored(row) else "" for row in rows]
    if len({_network(row) for row in rows}) == 1:
        cells = []
        for row, mark in zip(rows, marks, strict=True):
            low, share, high = (f"{100 * row[name]:.2f}" for name in ("low", "accuracy", "high"))
            right = f"{row['correct']:,} of {row['total']:,}"
            cells.append([_attack(row), f"{share} %{mark}", f"{low} to {high}", right])
        images = pb.evaluation.images_label(rows[0]["total"], rows[0]["available"])
        header = ["attack", "accuracy", "95 % interval", "images right"]
        show_table(header, cells, title=f"{_network(rows[0])}, {images} images")
    else:
        _show_networks(rows, [f"{100 * row['accuracy']:.2f}{mark}" for row, mark in zip(rows, marks, strict=True)])
    _show_notes(result, scores)


def show_means(result: pb.Evaluation, scores: pb.Table) -> None:
    """Print means over seeds, in percent."""
    rows = mean_rows(scores)
    _show_networks(rows, [f"{row['mean']:.2f}" + (f" ± {row['std']:.2f}" if row["seeds"] > 1 else "") for row in rows])
    _show_notes(result, scores)


def _attack(row: pb.evaluation.Row) -> str:
    """The heading of a column of scores."""
    parts = [row["attack"], *([] if row["protocol"] == "-" else [row["protocol"]])]
    parts += ["attacked"] if row["counted"] == "attacked" else []
    return " ".join([*parts, *([f"attack seed {row['attack_seed']}"] if row["attack_seed"] else [])])


def _network(row: pb.evaluation.Row) -> str:
    """The network that was measured, and the data."""
    defended = f", {row['defence']} denoising" if row["defence"] else ""
    samples = f", {row['data.samples']:,} training samples" if row.get("data.samples") else ""
    return f"{row['dataset']} {row['split']}{defended}{samples}: {row['label']}"


def _show_networks(rows: Sequence[pb.evaluation.Row], texts: Sequence[str]) -> None:
    """Print a line for each network, a column for each attack; means have a column with the number of seeds."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row, text in zip(rows, texts, strict=True):
        images = pb.evaluation.images_label(row["total"], row["available"])
        cells = lines.setdefault((_network(row), images), {"images": images})
        cells |= {"seeds": str(row["seeds"])} if "seeds" in row else {}
        cells[_attack(row)] = text
    seeds = ["seeds"] if any("seeds" in row for row in rows) else []
    header = ["network", *seeds, "images", *dict.fromkeys(map(_attack, rows))]
    show_table(header, [[name, *(cells.get(head, "") for head in header[1:])] for (name, _), cells in lines.items()])


def _show_notes(result: pb.Evaluation, scores: pb.Table) -> None:
    stored = sum(map(result.is_stored, scores))
    if stored:
        print_wrapped(f"{STORED} stored in the run's folder, not measured now: {stored} of {len(scores)} scores")
    for line in result.notes:
        print_wrapped(f"note: {line}")
