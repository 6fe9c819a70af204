"""`polybound train`: runs of one data set and architecture, trained together."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import typer
from rich.progress import TextColumn

from polybound.cli.commands import progress_bar
from polybound.cli.tables import note, show_table
from polybound.errors import PolyboundError, check_int
from polybound.evaluation import labels
from polybound.report import EventLog
from polybound.runs import DataSpec, ModelSpec, Run, Spec, TrainingProgress, evaluate_runs, train_runs
from polybound.training import Recipe

__all__ = ["epoch_or_share", "read_options", "run_training", "unfold"]

_NOT_THE_RECIPES = ("dataset", "model", "rank", "seeds", "bounds", "validation", "samples", "recipe")


def read_options(recipe: str, given: Mapping[str, Any], settings: list[str]) -> dict[str, Any]:
    """The options of a recipe, a name or a TOML file, overridden by those given on the command line.

    A file may say which recipe it changes: `recipe = "paper"`.
    """
    options: dict[str, Any] = {"recipe": recipe}
    if recipe not in ("default", "paper"):
        file = Path(recipe)
        if not file.suffix:
            raise PolyboundError(f"there is no recipe called {recipe!r}: --recipe takes default, paper or a TOML file")
        try:
            options = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PolyboundError(f"{file}: not TOML ({error})") from error
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise PolyboundError(f"--set takes NAME=VALUE, got {setting!r}")
        options[name.strip().replace("-", "_")] = _value(value.strip())
    return options | {name: value for name, value in given.items() if value is not None}


def epoch_or_share(start: float | None) -> float | None:
    """A start as people type it: a whole number is an epoch, anything else a share of the epochs."""
    return int(start) if start is not None and start.is_integer() else start


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def unfold(options: Mapping[str, Any], data_dir: Path | None) -> list[Spec]:
    """A spec for every seed and bound."""
    if options.get("dataset") is None:
        raise PolyboundError("which data set? --dataset digits, or any that `polybound data list` shows")
    seeds, bounds = options.get("seeds", [0]), options.get("bounds")
    for name, value in (("seeds", seeds), ("bounds", [None] if bounds is None else bounds)):
        if not isinstance(value, list) or not value:
            raise PolyboundError(f"{name} must be a list of numbers, got {value!r}")
    for seed in seeds:
        check_int("seed", seed, 0)
    plain = {name: value for name, value in options.items() if name not in _NOT_THE_RECIPES}
    name, samples, features = options.get("recipe", "default"), 1, 1

    def recipes() -> list[Recipe]:
        changes = [plain | ({} if bound is None else {"bound": bound}) for bound in bounds or [None]]
        return [Recipe.named(name, samples, features, change) for change in changes]

    recipes()  # refuses what cannot be, before any data is read
    model = ModelSpec(options.get("model", "pn-4"), options.get("rank", 0))
    data = DataSpec.of(
        options["dataset"], data_dir, samples=options.get("samples", 0), held_out=options.get("validation", 0.0)
    )
    if name == "default":
        train = data.load("train", data_dir)
        samples, features = len(train), train.x[0].numel()
    specs = [Spec(data, model, recipe, seed) for seed, recipe in product(seeds, recipes())]
    return list({spec.address: spec for spec in specs}.values())


def run_training(
    stacks: list[list[Spec]], root: Path, data_dir: Path | None, device: str, events: bool, as_json: bool
) -> None:
    """Train what is not finished of some stacks, one after another, measure the clean accuracy, and show all runs."""
    runs = [run for specs in stacks for run in _train(specs, root, data_dir, device, events)]
    failed = {run.path: run.failure for run in runs if run.failure is not None}
    _show([spec for specs in stacks for spec in specs], runs, data_dir, as_json)
    for path, failure in failed.items():
        note(f"error: {path}: {failure}")
    if failed:
        raise typer.Exit(1)


def _train(specs: list[Spec], root: Path, data_dir: Path | None, device: str, events: bool) -> list[Run]:
    """Train one stack, with a progress bar."""
    logs = {spec.address: EventLog(Run.of(spec, root).path) for spec in specs} if events else {}
    with progress_bar(TextColumn("{task.fields[state]}")) as bar:
        many = f"{len(specs)} runs" if len(specs) > 1 else "1 run"
        task = bar.add_task(many, total=None, state="")
        show = _progress(lambda **state: bar.update(task, **state), logs)
        try:
            return train_runs(specs, root, data_dir=data_dir, on_progress=show, device=device)
        finally:
            for log in logs.values():
                log.close()


def _progress(update: Callable[..., None], logs: Mapping[str, EventLog]) -> Callable[[TrainingProgress], None]:
    """What keeps a bar and TensorBoard up to date."""

    def show(progress: TrainingProgress) -> None:
        for address, line in progress.lines.items() if logs else ():
            logs[address].add(line)
        done = progress.epoch + progress.step / progress.steps
        text = f"epoch {progress.epoch}/{progress.epochs} loss {progress.losses.mean():.3f}"
        hits = [line["validation accuracy"] for line in progress.lines.values() if "validation accuracy" in line]
        if hits:
            text += f" valid {100 * sum(hits) / len(hits):.1f} %"
        update(total=progress.epochs, completed=done, state=text)

    return show


def _show(specs: list[Spec], runs: list[Run], data_dir: Path | None, as_json: bool) -> None:
    alive = [run.path for run in runs if run.failure is None]
    found = evaluate_runs(alive, [], data_dir=data_dir).scores.rows if alive else []
    accuracies = {row["run"]: row["correct"] / row["total"] for row in found}
    names = labels([spec.columns() for spec in specs], ())
    rows: list[dict[str, Any]] = []
    for spec, run, name in zip(specs, runs, names, strict=True):
        accuracy = accuracies.get(spec.address)
        about = {"run": str(run.path), "label": name, "seed": spec.seed, **spec.columns()}
        rows.append(about | {"accuracy": accuracy, "failure": run.failure})
    if as_json:
        print(json.dumps({"runs": rows}, indent=2))
        return
    cells = [
        [row["run"], row["label"], "failed" if row["accuracy"] is None else f"{100 * row['accuracy']:.2f} %"]
        for row in rows
    ]
    show_table(["run", "what", "test accuracy"], cells, lead=2)
