"""`polybound train`: runs of one data set and architecture, trained together."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import typer

import polybound as pb
from polybound.cli.commands import app, command, note, progress
from polybound.cli.options import NETWORKS, AsJson, DataDir, Runs, option
from polybound.cli.tables import show_table
from polybound.errors import PolyboundError, check_int, require


@dataclass(frozen=True)
class TrainOptions:
    """The options of `polybound train` that determine a run; None where a recipe or a default does."""

    dataset: str | None = option("See `polybound data list`, or folder:PATH.")
    model: str | None = option("pn-4 (the default), pn-10, pn-conv, ncp-4; polynet, boxnet, pi-net, polymlp; ...")
    method: str | None = option("none, projection, jacobian, l2, certified, certified-projection, or a plugin's.")
    bounds: list[float] | None = option(
        "Bound of the projection; several train together.", "--bound", metavar="<float>"
    )
    weight: float | None = option("Weight of the penalty or certified loss.")
    eps: float | None = option("Radius of the balls of certified training.")
    adversary: str | None = option("Train on adversarial examples of this attack: fgsm-0.1, pgd-0.1-20-0.01 ...")
    protocol: str | None = option("What the adversary clips to: sound or published.")
    seeds: list[int] | None = option("Seed; several train together.", "--seed", metavar="<int>")
    epochs: int | None = option("By default about 3,000 steps, from 20 to 200 epochs.")
    start: float | None = option(
        "First epoch with projection or adversary, from 0, or a share of the epochs; 0.5 by default.", "--start-epoch"
    )
    batch_size: int | None = option("Samples in a step; 64 by default.")
    optimiser: str | None = option("adamw, muon, momentum, sgd or a plugin's; or adamw.")
    learning_rate: float | None = option("By default it shrinks with the number of features; 0.003 for digits.")
    momentum: float | None = option("Of the optimiser momentum; 0.9 by default.")
    weight_decay: float | None = option("Of adamw (by default 25 features / samples, from 0.1 to 1) and momentum (0).")
    schedule: str | None = option("Of the learning rate: cosine, one-cycle, steps or constant; cosine by default.")
    augment: list[str] | None = option("Change training images at random: flip, crop-4, shift-2.", metavar="NAME")
    clip: float | None = option("Largest l2 norm of a gradient; no limit by default.")
    label_smoothing: float | None = option("Label smoothing; 0.1 by default.")
    rank: int | None = option("Hidden rank; 16 by default, of pn-10 64.", min=1)
    width: int | None = option("Of polynet, pi-net and polymlp.", min=1)
    blocks: str | None = option("Product blocks: of polynet before each pooling, 1,1,1; of polymlp.", metavar="COUNTS")
    samples: int | None = option("Number of training samples (default: all).", min=1)
    validation: float | None = option("Share of train held out for validation.")


@command(
    app,
    "polybound train --dataset digits",
    "polybound train --dataset digits --method projection --bound 1",
    "polybound train --dataset fashion-mnist --recipe paper --method projection --bound 2 --bound 1 --seed 0 --seed 1",
    "polybound train --dataset digits --adversary pgd-0.1-20-0.01",
    "polybound train --resume",
    panel=NETWORKS,
    stopped="every step up to here is saved; the same command goes on, and so does polybound train --resume",
)
def train(
    options: TrainOptions,
    settings: list[str] | None = option("Any other option of a part of the recipe.", "--set", metavar="NAME=VALUE"),
    recipe: str = option(
        "default: by the size of the data; paper: SGD for 100 epochs; or a TOML file of options.", default="default"
    ),
    resume: bool = option("Go on with all that was interrupted in --runs.", "--resume", default=False),
    tensorboard: bool = option("Write TensorBoard events as well.", "--tensorboard", default=False),
    runs: Runs = Path("runs"),
    data_dir: DataDir = None,
    device: str = option("cpu, cuda or mps.", default="cpu"),
    as_json: AsJson = False,
) -> None:
    """Train runs, by a recipe that suits the size of the data, or by the paper's.

    A command that was killed goes on where it was when it is given again.
    """
    given = {name: value for name, value in vars(options).items() if value not in (None, [])}
    if options.blocks is not None:
        counts = [int(one) if one.strip().isdigit() else one for one in options.blocks.split(",")]
        given["blocks"] = counts if len(counts) > 1 else counts[0]
    if isinstance(options.start, float) and options.start.is_integer():
        given["start"] = int(options.start)  # a whole number is an epoch, anything else a share of the epochs
    if resume:
        if given:
            raise PolyboundError(f"--resume goes on with what was begun: it takes no {next(iter(given))}")
        stacks = pb.runs.interrupted(runs)
        if not stacks:
            raise PolyboundError(f"nothing to resume in {runs}")
    else:
        stacks = [unfold(read_options(recipe, given, settings or []), data_dir)]
    trained = [run for specs in stacks for run in _train(specs, runs, data_dir, device, tensorboard)]
    _show([spec for specs in stacks for spec in specs], trained, data_dir, as_json)
    failed = {run.path: run.failure for run in trained if run.failure is not None}
    for path, failure in failed.items():
        note(f"error: {path}: {failure}")
    if failed:
        raise typer.Exit(1)


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
        name = name.strip().replace("-", "_")
        try:
            options[name] = json.loads(value)
        except (ValueError, RecursionError):  # a word
            options[name] = value.strip()
    return options | dict(given)


_NOT_THE_RECIPES = ("dataset", "model", "rank", "seeds", "bounds", "validation", "samples", "recipe")


def unfold(options: Mapping[str, Any], data_dir: Path | None) -> list[pb.Spec]:
    """A spec for every seed and bound."""
    if options.get("dataset") is None:
        raise PolyboundError("no data set: pass --dataset NAME, one that `polybound data list` shows")
    seeds, bounds = options.get("seeds", [0]), options.get("bounds")
    for name, value in (("seeds", seeds), ("bounds", [None] if bounds is None else bounds)):
        if not isinstance(value, list) or not value:
            raise PolyboundError(f"{name} must be a list of numbers, got {value!r}")
    for seed in seeds:
        check_int("seed", seed, 0)
    architecture = options.get("model", "pn-4")
    own = pb.models.model_parameters(architecture)
    mine = {name: options[name] for name in own if name != "rank" and name in options}
    plain = {name: value for name, value in options.items() if name not in _NOT_THE_RECIPES and name not in mine}
    name, samples, features, deep = options.get("recipe", "default"), 1, 1, False

    def recipes() -> list[pb.Recipe]:
        changes = [plain | ({} if bound is None else {"bound": bound}) for bound in bounds or [None]]
        return [pb.Recipe.named(name, samples, features, change, deep=deep) for change in changes]

    recipes()  # refuses what cannot be, before any data is read
    model = pb.ModelSpec(architecture, options.get("rank", 0), mine)
    held_out = options.get("validation", 0.0)
    data = pb.DataSpec.of(options["dataset"], data_dir, samples=options.get("samples", 0), held_out=held_out)
    if name == "default":
        train = data.load("train", data_dir)
        samples, features, deep = len(train), train.x[0].numel(), not model.build(train).has_stacks
    specs = [pb.Spec(data, model, recipe, seed) for seed, recipe in product(seeds, recipes())]
    return list({spec.address: spec for spec in specs}.values())


def _train(specs: list[pb.Spec], root: Path, data_dir: Path | None, device: str, events: bool) -> list[pb.Run]:
    """Train one stack, with a progress bar and, if asked for, TensorBoard events."""
    logs = {spec.address: _EventLog(pb.Run.of(spec, root).path) for spec in specs} if events else {}
    many = f"{len(specs)} runs" if len(specs) > 1 else "1 run"
    with progress(many) as step:

        def show(state: pb.runs.TrainingProgress) -> None:
            for address, line in state.lines.items() if logs else ():
                logs[address].add(line)
            text = f"{many}, epoch {state.epoch}/{state.epochs} loss {state.losses.mean():.3f}"
            hits = [line["validation accuracy"] for line in state.lines.values() if "validation accuracy" in line]
            text += f" valid {100 * sum(hits) / len(hits):.1f} %" if hits else ""
            step(state.epoch + state.step / state.steps, state.epochs, text)

        try:
            return pb.runs.train_runs(specs, root, data_dir=data_dir, on_progress=show, device=device)
        finally:
            for log in logs.values():
                log.close()


class _EventLog:
    """Writes the numbers of a run's metrics as scalars, by epoch, into files of its folder that TensorBoard reads.

    Files of earlier processes are added to, not replaced.
    """

    def __init__(self, folder: Path) -> None:
        tensorboard = require("tensorboardX", "tensorboard", "a folder of events")
        self._open: Callable[[], Any] = lambda: tensorboard.SummaryWriter(str(folder), flush_secs=10)
        self._writer: Any = None  # opened by the first line: a training that is refused leaves no folder

    def add(self, line: Mapping[str, Any]) -> None:
        self._writer = self._writer or self._open()
        for name, value in line.items():
            if name != "epoch" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, line["epoch"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _show(specs: list[pb.Spec], runs: list[pb.Run], data_dir: Path | None, as_json: bool) -> None:
    """Measure the clean accuracy of all runs, and show them."""
    alive = [run.path for run in runs if run.failure is None]
    found = pb.evaluate_runs(alive, [], data_dir=data_dir).scores.rows if alive else []
    accuracies = {row["run"]: row["correct"] / row["total"] for row in found}
    rows: list[dict[str, Any]] = []
    for spec, run, name in zip(specs, runs, pb.evaluation.labels([spec.columns() for spec in specs], ()), strict=True):
        about = {"run": str(run.path), "label": name, "seed": spec.seed, **spec.columns()}
        rows.append(about | {"accuracy": accuracies.get(spec.address), "failure": run.failure})
    if as_json:
        print(json.dumps({"runs": rows}, indent=2))
        return
    shares = ["failed" if row["accuracy"] is None else f"{100 * row['accuracy']:.2f} %" for row in rows]
    cells = [[row["run"], row["label"], share] for row, share in zip(rows, shares, strict=True)]
    show_table(["run", "what", "test accuracy"], cells, lead=2)
