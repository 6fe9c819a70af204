"""`polybound train`: runs of one data set and architecture, trained together."""

from __future__ import annotations

import json
import time
import tomllib
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import TextColumn
from rich.table import Table

from polybound.cli.progress import progress_bar
from polybound.data import load
from polybound.errors import PolyboundError
from polybound.experiments import Plan, Progress, train_together
from polybound.models import paper_rank
from polybound.report.events import EventLog
from polybound.runs import Run
from polybound.training import Recipe
from polybound.training.distributed import rank, start_workers, stop_workers

__all__ = ["read_recipe", "run_training", "unfold"]


def read_recipe(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a recipe, "paper" or a TOML file, overridden by those given on the command line."""
    options: dict[str, Any] = {}
    if name != "paper":
        file = Path(name)
        if not file.suffix:
            raise PolyboundError(f"there is no recipe called {name!r}: take 'paper', or a TOML file")
        try:
            options = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise PolyboundError(f"{file}: not TOML ({error})") from error
        known = {field.name for field in fields(Recipe)} | {"dataset", "model", "rank", "seeds", "bounds", "validation"}
        if unknown := [name for name in options if name not in known]:
            raise PolyboundError(f"{file}: there is no option {unknown[0]!r}")
    return options | {name: value for name, value in given.items() if value is not None}


def unfold(options: dict[str, Any]) -> list[Plan]:
    """A plan for every seed and bound."""
    options = dict(options)
    dataset, model = options.pop("dataset", None), options.pop("model", "pn-4")
    if dataset is None:
        raise PolyboundError("which data set? --dataset digits, or any that `polybound data list` shows")
    width, share = options.pop("rank", paper_rank(model)), options.pop("validation", 0.0)
    seeds, bounds = options.pop("seeds", [0]), options.pop("bounds", None)
    first = Recipe.of(options)
    if bounds is not None and first.regulariser != "projection":
        raise PolyboundError(f"method {first.method!r} takes no bound; --method projection does")
    recipes = [first] if bounds is None else [Recipe.of(options | {"bound": bound}) for bound in bounds]
    return [Plan(dataset, model, recipe, seed, width, share) for seed, recipe in product(seeds, recipes)]


def run_training(
    stacks: list[list[Plan]], root: Path, data_dir: Path | None, device: str, events: bool, as_json: bool
) -> None:
    """Train what is not finished of some stacks, one after another, and show all runs."""
    start_workers()
    runs = [run for plans in stacks for run in _train(plans, root, data_dir, device, events)]
    if rank() == 0:
        _show([plan for plans in stacks for plan in plans], runs, as_json)
    stop_workers()


def _train(plans: list[Plan], root: Path, data_dir: Path | None, device: str, events: bool) -> list[Run]:
    """Train one stack, with a progress bar."""
    dataset, share = plans[0].dataset, plans[0].validation
    train = load(dataset, "train", data_dir=data_dir, validation=share)
    validation = load(dataset, "validation", data_dir=data_dir, validation=share) if share else None
    test = load(dataset, "test", data_dir=data_dir)
    logs = [EventLog(Run.at(root, plan.name, plan.config()).path) for plan in plans] if events and rank() == 0 else []

    with progress_bar(TextColumn("{task.fields[state]}"), quiet=rank() != 0) as bar:
        task = bar.add_task(f"{len(plans)} runs of {plans[0].model} on {dataset}", total=None, state="")
        accuracy, before = "", (time.monotonic(), 0.0)

        def show(progress: Progress) -> None:
            nonlocal accuracy, before
            for log, line in zip(logs, progress.lines, strict=False):
                log.add(line)
            hits = [line["validation accuracy"] for line in progress.lines if "validation accuracy" in line]
            if hits:
                accuracy = f"  accuracy {100 * sum(hits) / len(hits):.1f} %"
            now, done = time.monotonic(), progress.epoch + progress.step / progress.steps
            speed = (done - before[1]) * len(train) / max(now - before[0], 1e-9) if before[1] else 0.0
            before = (now, done)
            text = f"epoch {progress.epoch}/{progress.epochs}  loss {progress.losses.mean():.4f}{accuracy}"
            text += f"  {speed:,.0f} samples/s" if speed else ""
            bar.update(task, total=progress.epochs, completed=done, state=text)

        try:
            return train_together(plans, train, root, test=test, validation=validation, on_progress=show, device=device)
        finally:
            for log in logs:
                log.close()


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
