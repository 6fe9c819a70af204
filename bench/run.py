"""All benchmarks: one table of ratios, and `results.json` beside this file.

Both sides of a ratio are measured in turns in this one process, as medians: on a shared machine nothing else can be
compared. Times are microseconds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

import attacks
import polynet
import projection_in_training
import projection_l1
import training

MODULES = (projection_l1, projection_in_training, training, attacks, polynet)


def main() -> None:
    console = Console()
    results = []
    for module in MODULES:
        with console.status(f"measuring {module.__name__}"):
            results += module.rows()
    view = Table(header_style="bold")
    view.add_column("what")
    for name in ("ours, us", "reference, us", "ratio", "goal", "met"):
        view.add_column(name, justify="right")
    for row in results:
        numbers = f"{row['ours']:,.0f}", f"{row['reference']:,.0f}", f"{row['ratio']:.3g}", f"{row['goal']:g}"
        view.add_row(row["name"], *numbers, "yes" if row["met"] else "no")
    console.print(view)
    path = Path(__file__).with_name("results.json")
    path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
