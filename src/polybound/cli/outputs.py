"""`polybound certify --outputs`: intervals that a run's or a model's outputs provably stay in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import MofNCompleteColumn

from polybound.certificates import Network, output_bounds, save_certificates
from polybound.cli.certify import check_target, model_and_images
from polybound.cli.progress import progress_bar
from polybound.cli.tables import show_table

__all__ = ["run_outputs", "show_intervals"]


def run_outputs(
    path: Path,
    eps: list[float],
    images: int,
    dataset: str | None,
    data_dir: Path | None,
    norm: str,
    method: str,
    budget: float,
    save: Path | None,
    as_json: bool,
) -> None:
    """Bound the outputs of the first test images at every eps, and show them."""
    check_target(save, eps)
    model, data = model_and_images(path, dataset, data_dir)
    x, net = data.x[:images], Network(model)
    rows: list[dict[str, Any]] = []
    with progress_bar(MofNCompleteColumn()) as bar:
        for radius in eps:
            task = bar.add_task(f"eps {radius:g}", total=len(x))
            options: dict[str, Any] = {"domain": data.domain, "norm": norm, "method": method, "budget": budget}
            options["on_progress"] = lambda done, task=task: bar.update(task, completed=done)
            found = output_bounds(net, x, radius, keep=save is not None, **options)
            rows += [{"eps": radius, "label": int(data.y[row["image"]])} | row for row in found.rows()]
            if save is not None:
                save_certificates(save, model, found, x, data.domain)
    if as_json:
        about = {"model": str(path), "dataset": data.name, "domain": list(data.domain), "norm": norm}
        print(json.dumps(about | {"rows": rows}, indent=2))
    else:
        title = f"{path}: {len(x)} test images of {data.name}, inputs in {list(data.domain)}, l_{norm} balls"
        show_intervals(title, rows, ["eps"])


def show_intervals(title: str, rows: Sequence[Mapping[str, Any]], about: Sequence[str]) -> None:
    """A line for each interval, headed by what it is about, the columns `about` first."""
    lead = [*about, "image", "label", "output"]
    header = [*lead, "proven from", "to", "attained from", "to"]
    cells = [
        [*(str(row[name]) for name in lead), *(_number(row[name]) for name in ("lower", "upper", "lowest", "highest"))]
        for row in rows
    ]
    show_table(header, cells, lead=len(lead), title=title)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
