"""The commands of `polybound`, from the arguments to the exit code: plugins, errors and Ctrl-C."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from polybound._version import __version__
from polybound.cli.commands import INTERRUPTED, AsJson, command, make_app, say_stopped, typed_options
from polybound.cli.data import data_app, runs_app
from polybound.cli.doctor import add_doctor
from polybound.cli.encrypt import encrypt_app
from polybound.cli.experiments import add_commands
from polybound.cli.interchange import add_interchange
from polybound.cli.show import add_card, add_drawing, add_explorer
from polybound.errors import PolyboundError
from polybound.registry import load_plugins

__all__ = ["app", "main"]


NETWORKS, DATA = "Networks", "Data and runs"
"""Headings of the list of commands."""

# The commands.


app = make_app("polybound", "Train, bound, attack and certify polynomial networks.", completion=True)
app.add_typer(encrypt_app, rich_help_panel=NETWORKS)
app.add_typer(data_app, rich_help_panel=DATA)
app.add_typer(runs_app, rich_help_panel=DATA)
add_commands(app)
add_interchange(app)
add_explorer(app, NETWORKS)
add_drawing(app, NETWORKS)
add_card(app, NETWORKS)
add_doctor(app)

Network = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model that model.save(path) wrote, an ONNX file, or a run folder.")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"polybound {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Train, bound, attack and certify polynomial networks."""


@command(
    app,
    "polybound demo",
    "polybound demo --bound 0.8 --epochs 100",
    "polybound demo --json --no-plot",
    panel=NETWORKS,
    stopped="nothing was kept; the same command begins anew",
)
def demo(
    bound: Annotated[float, typer.Option(help="Bound of the projected model's row-l1 norms.")] = 1.0,
    epochs: Annotated[int, typer.Option(min=2, help="Epochs; projections begin halfway.")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the initial weights and of the batches.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the plot goes.")] = Path("polybound-demo.png"),
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Draw no plot, which needs matplotlib.")] = False,
    save: Annotated[Path | None, typer.Option(help="Folder to save both models in.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a plain and a projected PN-4 on the built-in digits; attack and certify both."""
    from polybound.cli.demo import run_demo

    run_demo(bound, epochs, seed, None if no_plot else output, save, as_json)


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
    dataset: Annotated[str | None, typer.Option(help="See `polybound data list`, or folder:PATH.")] = None,
    model: Annotated[str | None, typer.Option(help="pn-4, pn-10, pn-conv or ncp-4; pn-4 by default.")] = None,
    method: Annotated[
        str | None, typer.Option(help="none, projection, jacobian, l2, certified, certified-projection, or a plugin's.")
    ] = None,
    bound: Annotated[
        list[float] | None, typer.Option(metavar="<float>", help="Bound of the projection; several train together.")
    ] = None,
    weight: Annotated[float | None, typer.Option(help="Of a jacobian or l2 penalty, or of the certified loss.")] = None,
    eps: Annotated[float | None, typer.Option(help="Radius of the balls of certified training.")] = None,
    adversary: Annotated[
        str | None, typer.Option(help="Train on adversarial examples of this attack: fgsm-0.1, pgd-0.1-20-0.01 ...")
    ] = None,
    protocol: Annotated[str | None, typer.Option(help="What the adversary clips to: sound or published.")] = None,
    seed: Annotated[list[int] | None, typer.Option(metavar="<int>", help="Seed; several train together.")] = None,
    epochs: Annotated[int | None, typer.Option(help="By default about 3,000 steps, from 20 to 200 epochs.")] = None,
    start: Annotated[
        float | None,
        typer.Option(
            "--start-epoch",
            help="First epoch with projection or adversary, from 0, or a share of the epochs; 0.5 by default.",
        ),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples in a step; 64 by default.")] = None,
    optimiser: Annotated[
        str | None, typer.Option(help="adamw, momentum, sgd, or a plugin's; adamw by default.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="By default it shrinks with the number of features; 0.003 for digits.")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Of the optimiser momentum; 0.9 by default.")] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="Of adamw (by default 25 features / samples, from 0.1 to 1) and momentum (0).")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Of the learning rate: cosine, steps or constant; cosine by default.")
    ] = None,
    label_smoothing: Annotated[
        float | None, typer.Option(help="Share of each label that all classes have; 0.1 by default.")
    ] = None,
    rank: Annotated[int | None, typer.Option(min=1, help="Hidden rank; 16 by default, of pn-10 64.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Number of training samples (default: all).")] = None,
    validation: Annotated[float | None, typer.Option(help="Share of train held out for validation.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other option of a part of the recipe.")
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(help="default: by the size of the data; paper: SGD for 100 epochs; or a TOML file of options."),
    ] = "default",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with all that was interrupted in --runs.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events as well.")] = False,
    runs: Annotated[Path, typer.Option(help="Folder of the run folders.")] = Path("runs"),
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lies.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train runs, by a recipe that suits the size of the data, or by the paper's.

    A command that was killed goes on where it was when it is given again.
    """
    from polybound.cli.train import epoch_or_share, read_options, run_training, unfold
    from polybound.runs import interrupted

    given = {
        "dataset": dataset,
        "model": model,
        "method": method,
        "bounds": bound or None,
        "weight": weight,
        "eps": eps,
        "adversary": adversary,
        "protocol": protocol,
        "seeds": seed or None,
        "epochs": epochs,
        "start": epoch_or_share(start),
        "batch_size": batch_size,
        "optimiser": optimiser,
        "learning_rate": learning_rate,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "label_smoothing": label_smoothing,
        "rank": rank,
        "samples": samples,
        "validation": validation,
    }
    if resume:
        if unfit := [name for name, value in given.items() if value is not None]:
            raise PolyboundError(f"--resume goes on with what was begun: it takes no {unfit[0]}")
        stacks = interrupted(runs)
        if not stacks:
            raise PolyboundError(f"nothing to resume in {runs}")
    else:
        stacks = [unfold(read_options(recipe, given, settings or []), data_dir)]
    run_training(stacks, runs, data_dir, device, tensorboard, as_json)


@command(
    app,
    "polybound evaluate runs/* --attacks paper --protocol both --means",
    "polybound evaluate RUN --attacks pgd-0.1-20-0.01,autoattack-0.1 --limit 500",
    "polybound evaluate m.safetensors --dataset digits --attacks fgsm-0.1 --picture attack.png",
    panel=NETWORKS,
    stopped="runs keep what was measured of them; the same command goes on",
)
def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, models that model.save(path) wrote, or ONNX files."),
    ],
    attacks: Annotated[
        str, typer.Option(help="Separated by commas; fgsm-EPS, pgd-EPS-STEPS-STEP, apgdt-STEPS ...; paper: its six.")
    ] = "paper",
    protocol: Annotated[
        str, typer.Option(help="What attacks clip to: sound (the data's domain), published ([0, 1]) or both.")
    ] = "sound",
    limit: Annotated[int | None, typer.Option(min=1, help="Images, from the first on; all by default.")] = None,
    split: Annotated[str, typer.Option(help="test, train or validation.")] = "test",
    dataset: Annotated[str | None, typer.Option(help="The data set, for models that are no runs.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the attacks.")] = 0,
    per_class: Annotated[bool, typer.Option("--per-class", help="Also each class for itself.")] = False,
    means: Annotated[bool, typer.Option("--means", help="Mean and standard deviation over seeds.")] = False,
    count: Annotated[
        str, typer.Option(help="robust: right before and after; attacked: right after, as many papers count.")
    ] = "robust",
    defence: Annotated[str | None, typer.Option(help="A denoiser in front: gaussian, median:size=5, guided.")] = None,
    check: Annotated[int, typer.Option(min=0, help="Look for gradient masking on so many images.")] = 0,
    certified: Annotated[
        list[str] | None,
        typer.Option(
            "--certify",
            metavar="<radius>",
            help="Certified accuracy at 0.02, 0.5:norm=2, 0.1:nodes=1000; repeatable.",
        ),
    ] = None,
    intervals: Annotated[
        int, typer.Option(min=0, help="Of so many images, what the outputs provably stay in over the --certify balls.")
    ] = 0,
    save_examples: Annotated[Path | None, typer.Option(help="An npz file for the adversarial examples.")] = None,
    picture: Annotated[Path | None, typer.Option(help="A picture of some (needs matplotlib).")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images at a time; by default by memory.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lies.")] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, in the columns of every table of scores.")] = False,
) -> None:
    """Measure the accuracy of runs, clean and under attack; scores stay in the run folders.

    Exit code 1 if some of the runs were skipped.
    """
    from polybound.cli.evaluate import run_evaluation

    options = {
        "protocol": protocol,
        "limit": limit,
        "split": split,
        "seed": seed,
        "defence": defence,
        "check": check,
        "certify": tuple(certified or ()),
        "intervals": intervals,
        "batch_size": batch_size,
        "data_dir": data_dir,
        "dataset": dataset,
    }
    if as_json and as_csv:
        raise PolyboundError("--json and --csv exclude each other")
    shown = "csv" if as_csv else "json" if as_json else "table"
    files = {"examples": save_examples, "picture": picture}
    run_evaluation(runs, attacks, options, count=count, shown=shown, means=means, per_class=per_class, **files)


@command(
    app,
    "polybound certify runs/NAME --eps 0.01 --eps 0.02 --images 1000 --workers 4",
    "polybound certify m.safetensors --dataset digits --eps 0.1 --save proofs.json",
    "polybound certify m.safetensors --check proofs.json",
    "polybound certify m.safetensors --dataset digits --eps 0.1 --images 3 --outputs --save intervals.json",
    "polybound certify m.safetensors --dataset digits --eps 0.5 --norm 2",
    panel=NETWORKS,
    stopped="no proofs were written; the same command begins anew",
)
def certify(
    context: typer.Context,
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, a model that model.save(path) wrote, or an ONNX file.")
    ],
    eps: Annotated[
        list[float] | None, typer.Option(metavar="<float>", help="Radius of the ball, in units of the data.")
    ] = None,
    images: Annotated[int, typer.Option("-n", "--images", min=1, help="How many test images.")] = 100,
    dataset: Annotated[str | None, typer.Option(help="By default the run's own.")] = None,
    norm: Annotated[str, typer.Option(help="Norm of the ball: inf or 2.")] = "inf",
    method: Annotated[
        str, typer.Option(help="auto, second, first; crown, zonotope, interval, lipschitz to compare.")
    ] = "auto",
    budget: Annotated[
        float | None, typer.Option(help="Seconds of branch and bound for an image: 10, or 1 with --outputs.")
    ] = None,
    outputs: Annotated[
        bool, typer.Option("--outputs", help="Intervals that the outputs provably stay in, in the place of decisions.")
    ] = False,
    save: Annotated[Path | None, typer.Option(help="Write what is proven, with its proofs, to this file.")] = None,
    check: Annotated[
        Path | None,
        typer.Option(help="Verify such a file in ball arithmetic (python-flint); --eps and --norm must fit it."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that the images are shared out to.")] = 1,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lies.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove for test images that no perturbation within eps changes the prediction, or show one that does."""
    from polybound.cli.certify import run_certify, run_check, run_outputs

    if check is not None:
        run_check(run, check, as_json, typed_options(context), eps, norm)
    elif not eps:
        raise PolyboundError("which radius? --eps 0.01; or --check FILE")
    else:
        seconds = budget if budget is not None else 1.0 if outputs else 10.0
        asked = (run, eps, images, dataset, data_dir, norm, method, seconds, save, as_json)
        if not outputs:
            run_certify(*asked, workers)
        elif workers > 1:
            raise PolyboundError("--workers is about certificates; --outputs has none yet")
        else:
            run_outputs(*asked)


@command(
    app,
    "polybound bounds model.safetensors",
    "polybound bounds runs/NAME --json",
    panel=NETWORKS,
)
def bounds(
    model: Network,
    samples: Annotated[
        int, typer.Option("-n", "--samples", min=1, help="Training samples, for the complexities.")
    ] = 60000,
    radius: Annotated[float, typer.Option(help="The bounds hold for inputs of norm at most this.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show every norm and bound of a model: Rademacher complexity, Lipschitz constants, theta and gamma."""
    from rich.console import Console

    from polybound.cli.commands import is_quiet
    from polybound.runs import load_model
    from polybound.theory import bounds as all_bounds

    with Console(stderr=True, quiet=is_quiet()).status("computing bounds"):
        table = all_bounds(load_model(model).model, samples, radius=radius)
    if as_json:
        print(json.dumps(table.as_dict(), indent=2))
    else:
        from polybound.cli.tables import show_bounds

        show_bounds(table)


@command(
    app,
    "polybound info model.safetensors",
    "polybound info runs/NAME",
    panel=NETWORKS,
)
def info(model: Network, as_json: AsJson = False) -> None:
    """Show what a model file or a run folder holds: its kind, its configuration, its parameters."""
    from polybound.runs import load_model

    loaded = load_model(model)
    file = model if loaded.run is None else loaded.run.model_file()
    network = loaded.model
    facts: dict[str, object] = {} if loaded.run is None else {"run": loaded.about}
    facts |= {
        "file": str(file),
        "bytes": file.stat().st_size,
        "kind": type(network).__name__,
        "config": network.config(),
        "dtype": str(next(network.parameters()).dtype).removeprefix("torch."),
        "parameters": {name: list(tensor.shape) for name, tensor in network.named_parameters()},
        "numbers": sum(tensor.numel() for tensor in network.parameters()),
    }
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        from polybound.cli.tables import show_facts

        show_facts(facts)


def main() -> None:
    """Run the command line: bad input ends in one line on standard error and exit code 2."""
    try:
        if _does_something(sys.argv[1:]):
            load_plugins()
        _command()()
    except KeyboardInterrupt:  # before there is a command
        say_stopped("nothing was begun")
        sys.exit(INTERRUPTED)
    except PolyboundError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))


@cache
def _command() -> Callable[[], Any]:
    """The tree of commands; typer makes it from the signatures of all functions, which takes a while."""
    return get_command(app)


def _does_something(arguments: list[str]) -> bool:
    """Whether a command is carried out; help and the version need no plugins, and shall be fast.

    `doctor` imports them by itself, one by one, to say which of them is broken.
    """
    return bool(arguments) and arguments[0] != "doctor" and not {"-h", "--help", "--version"} & set(arguments)


def _fail(message: str) -> None:
    # One line, whatever a library put into its message.
    print(f"polybound: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
