"""`polybound certify --outputs`: intervals that a run's or a model's outputs provably stay in."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

from rich.progress import MofNCompleteColumn

from polybound.certificates import Network, OutputBounds, output_bounds
from polybound.cli.certify import model_and_images
from polybound.cli.progress import progress_bar
from polybound.cli.tables import show_table

__all__ = ["run_outputs"]


def run_outputs(
    path: Path,
    eps: list[float],
    images: int,
    dataset: str | None,
    data_dir: Path | None,
    method: str,
    budget: float,
    as_json: bool,
) -> None:
    """Bound the outputs of the first test images at every eps, and show them."""
    model, data = model_and_images(path, dataset, data_dir)
    x, net = data.x[:images], Network(model)
    rows: list[dict[str, Any]] = []
    with progress_bar(MofNCompleteColumn()) as bar:
        for radius in eps:
            task = bar.add_task(f"eps {radius:g}", total=len(x))
            options: dict[str, Any] = {"domain": data.domain, "method": method, "budget": budget}
            options["on_progress"] = lambda done, task=task: bar.update(task, completed=done)
            rows += _rows(radius, output_bounds(net, x, radius, **options), data.y.tolist())
    if as_json:
        about = {"model": str(path), "dataset": data.name, "domain": list(data.domain)}
        print(json.dumps(about | {"rows": rows}, indent=2))
    else:
        _show(f"{path}: {len(x)} test images of {data.name}, inputs in {list(data.domain)}", rows)


def _rows(eps: float, found: OutputBounds, labels: list[int]) -> list[dict[str, Any]]:
    """A row for each image and output; what has no finite bound is null, as JSON has no infinity."""
    ends = {name: getattr(found, name).tolist() for name in ("lower", "lowest", "highest", "upper")}
    return [
        {"eps": eps, "image": image, "label": labels[image], "output": output}
        | {name: value[image][output] if isfinite(value[image][output]) else None for name, value in ends.items()}
        for image in range(len(found))
        for output in range(found.lower.shape[1])
    ]


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    header = ["eps", "image", "label", "output", "proven from", "to", "attained from", "to"]
    names = ("lower", "upper", "lowest", "highest")
    cells = [
        [f"{row['eps']:g}", *(str(row[name]) for name in header[1:4]), *(_number(row[name]) for name in names)]
        for row in rows
    ]
    show_table(header, cells, lead=4, title=title)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
