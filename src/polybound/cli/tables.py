"""Tables on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from polybound.theory import BoundTable

__all__ = ["show_bounds", "show_facts"]


def show_bounds(table: BoundTable) -> None:
    """Print all bounds of a model, each with the set it holds on."""
    view = Table(title=table.title, title_justify="left", header_style="bold")
    view.add_column("quantity")
    view.add_column("value", justify="right")
    view.add_column("by")
    view.add_column("holds for")
    for row in table:
        view.add_row(row.quantity, row.shown(), row.name, row.assumptions[0] if row.assumptions else "")
    Console().print(view)


def show_facts(facts: dict[str, Any]) -> None:
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
    Console().print(view)
