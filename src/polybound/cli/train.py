"""`polybound train`: runs of one data set and architecture, trained together."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from polybound.data import load
from polybound.errors import PolyboundError
from polybound.experiments import Plan, Progress, train_together
from polybound.runs import Run
from polybound.training import Recipe
from polybound.training.distributed import rank, start_workers, stop_workers

__all__ = ["read_recipe", "run_training"]


def read_recipe(file: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a TOML file, overridden by those given on the command line."""
    options: dict[str, Any] = {}
    if file is not None:
        try:
            options = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise PolyboundError(f"{file}: not TOML ({error})") from error
        known = {field.name for field in fields(Recipe)} | {"dataset", "model", "rank", "seeds", "bounds", "validation"}
        if unknown := [name for name in options if name not in known]:
            raise PolyboundError(f"{file}: there is no option {unknown[0]!r}")
    return options | {name: value for name, value in given.items() if value is not None}


def run_training(options: dict[str, Any], root: Path, data_dir: Path | None, device: str, as_json: bool) -> None:
    """Unfold the options into plans, train those that are not finished, and show all."""
    start_workers()
    dataset, model = options.pop("dataset", None), options.pop("model", "pn-4")
    if dataset is None:
        raise PolyboundError("which data set? --dataset digits, or any that `polybound data list` shows")
    width, share = options.pop("rank", 16), options.pop("validation", 0.0)
    seeds, bounds = options.pop("seeds", [0]), options.pop("bounds", None)
    first = Recipe.of(options)
    if bounds is not None and first.regulariser != "projection":
        raise PolyboundError(f"method {first.method!r} takes no bound; --method projection does")
    recipes = [first] if bounds is None else [Recipe.of(options | {"bound": bound}) for bound in bounds]
    plans = [Plan(dataset, model, recipe, seed, width, share) for seed, recipe in product(seeds, recipes)]
    train = load(dataset, "train", data_dir=data_dir, validation=share)
    validation = load(dataset, "validation", data_dir=data_dir, validation=share) if share else None
    test = load(dataset, "test", data_dir=data_dir)

    console = Console(stderr=True, quiet=rank() != 0)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
    with Bar(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(f"{len(plans)} runs of {model} on {dataset}", total=None, state="")

        def show(progress: Progress) -> None:
            done = progress.epoch + progress.step / progress.steps
            state = f"epoch {progress.epoch}/{progress.epochs}  loss {progress.losses.mean():.4f}"
            bar.update(task, total=progress.epochs, completed=done, state=state)

        runs = train_together(plans, train, root, test=test, validation=validation, on_progress=show, device=device)
    if rank() == 0:
        _show(plans, runs, as_json)
    stop_workers()


def _show(plans: list[Plan], runs: list[Run], as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    for plan, run in zip(plans, runs, strict=True):
        last = run.metrics()[-1] if run.metrics() else {}
        bound = plan.recipe.bound if plan.recipe.regulariser == "projection" else None
        row: dict[str, Any] = {"run": str(run.path), "seed": plan.seed, "method": plan.recipe.method, "bound": bound}
        rows.append(row | {"test accuracy": last.get("test accuracy"), "failure": run.failure})
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    view = Table(header_style="bold")
    view.add_column("run", overflow="fold")
    view.add_column("test accuracy", justify="right")
    for row in rows:
        accuracy = row["test accuracy"]
        view.add_row(row["run"], row["failure"] or ("" if accuracy is None else f"{100 * accuracy:.2f} %"))
    Console().print(view)
