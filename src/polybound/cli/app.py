"""The commands, and how their errors are shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from polybound._version import __version__
from polybound.cli.data import data_app
from polybound.errors import PolyboundError

__all__ = ["app", "main"]

app = typer.Typer(
    name="polybound",
    help="Train, bound, attack, certify and deploy polynomial networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(data_app)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A model that model.save(path) wrote.")]


def main() -> None:
    """Run the command line: bad input ends in one line on standard error and exit code 2."""
    try:
        app()
    except PolyboundError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))


def _fail(message: str) -> None:
    # One line, whatever a library put into its message.
    print(f"polybound: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


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
    """Train, bound, attack, certify and deploy polynomial networks."""


@app.command(
    epilog="Examples:  [bold]polybound demo[/]   [bold]polybound demo --bound 0.8 --epochs 100[/]   "
    "[bold]polybound demo --json --no-plot[/]"
)
def demo(
    bound: Annotated[float, typer.Option(help="Bound of the projected model's row-l1 norms.")] = 1.0,
    epochs: Annotated[int, typer.Option(min=2, help="Epochs; projections begin halfway.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of the initial weights and of the batches.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the plot goes.")] = Path("polybound-demo.png"),
    plot: Annotated[bool, typer.Option(help="Draw the plot (needs matplotlib).")] = True,
    save: Annotated[Path | None, typer.Option(help="Folder to save both models in.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a plain and a projected PN-4 on the built-in digits; show accuracy and bounds side by side."""
    from polybound.cli.demo import run_demo

    run_demo(bound, epochs, seed, output if plot else None, save, as_json)


@app.command(
    epilog="Examples:  [bold]polybound train --dataset digits --method projection --bound 1 --epochs 20[/]   "
    "[bold]polybound train --dataset fashion-mnist --method projection --bound 2 --bound 1 --seed 0 --seed 1[/]"
)
def train(
    dataset: Annotated[str | None, typer.Option(help="See `polybound data list`, or folder:PATH.")] = None,
    model: Annotated[str | None, typer.Option(help="pn-4, pn-10, pn-conv or ncp-4; pn-4 by default.")] = None,
    method: Annotated[str | None, typer.Option(help="none, projection, jacobian, l2; each also with +at.")] = None,
    bound: Annotated[list[float] | None, typer.Option(help="Bound of the projection; several train together.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed; several train together.")] = None,
    epochs: Annotated[int | None, typer.Option(help="100 by default.")] = None,
    # Not plain --start: torchrun would take that for an abbreviation of an option of its own.
    start: Annotated[
        int | None, typer.Option("--start-epoch", help="First epoch with projection or adversary; 50 by default.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples in a step; 64 by default.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of plain SGD; 0.001 by default.")] = None,
    penalty: Annotated[float | None, typer.Option(help="Weight of a jacobian or l2 penalty.")] = None,
    protocol: Annotated[str | None, typer.Option(help="What an adversary clips to: sound or published.")] = None,
    rank: Annotated[int | None, typer.Option(help="Hidden rank; 16 by default.")] = None,
    validation: Annotated[float | None, typer.Option(help="Share of train held out for validation.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with any field of a recipe; options win.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of the run folders.")] = Path("runs"),
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lies.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train runs by the paper's recipe. A command that was killed goes on where it was when it is given again."""
    from polybound.cli.train import read_recipe, run_training

    given = {
        "dataset": dataset,
        "model": model,
        "method": method,
        "bounds": bound or None,
        "seeds": seed or None,
        "epochs": epochs,
        "start": start,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "penalty": penalty,
        "protocol": protocol,
        "rank": rank,
        "validation": validation,
    }
    run_training(read_recipe(config, given), runs, data_dir, device, as_json)


@app.command(
    epilog="Examples:  [bold]polybound certify runs/NAME --eps 0.01 --eps 0.02[/]   "
    "[bold]polybound certify m.safetensors --dataset digits --eps 0.1 --save proofs.json[/]   "
    "[bold]polybound certify m.safetensors --check proofs.json[/]"
)
def certify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a model that model.save(path) wrote.")],
    eps: Annotated[list[float] | None, typer.Option(help="Radius of the l_inf ball, in units of the data.")] = None,
    images: Annotated[int, typer.Option("-n", "--images", min=1, help="How many test images.")] = 100,
    dataset: Annotated[str | None, typer.Option(help="By default the run's own.")] = None,
    method: Annotated[
        str, typer.Option(help="auto, second, first; crown, zonotope, interval, lipschitz to compare.")
    ] = "auto",
    budget: Annotated[float, typer.Option(help="Seconds of branch and bound for an image.")] = 10.0,
    save: Annotated[Path | None, typer.Option(help="Write the certificates with their proofs to this file.")] = None,
    check: Annotated[Path | None, typer.Option(help="Verify such a file in ball arithmetic (python-flint).")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lies.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove for test images that no perturbation within eps changes the prediction, or show one that does."""
    from polybound.cli.certify import run_certify, run_check

    if check is not None:
        run_check(run, check, as_json)
    elif not eps:
        raise PolyboundError("which radius? --eps 0.01; or --check FILE")
    else:
        run_certify(run, eps, images, dataset, data_dir, method, budget, save, as_json)


@app.command(
    epilog="Examples:  [bold]polybound bounds model.safetensors[/]   [bold]polybound bounds m.safetensors --json[/]"
)
def bounds(
    model: ModelFile,
    samples: Annotated[
        int, typer.Option("-n", "--samples", min=1, help="Training samples, for the complexities.")
    ] = 60000,
    radius: Annotated[float, typer.Option(help="The bounds hold for inputs of norm at most this.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show every norm and bound of a model: Rademacher complexity, Lipschitz constants, theta and gamma."""
    from rich.console import Console

    from polybound.models import load
    from polybound.theory import bounds as all_bounds

    with Console(stderr=True).status("computing bounds"):
        table = all_bounds(load(model), samples, radius=radius)
    if as_json:
        print(json.dumps(table.as_dict(), indent=2))
    else:
        from polybound.cli.tables import show_bounds

        show_bounds(table)


@app.command(epilog="Example:  [bold]polybound info model.safetensors[/]")
def info(model: ModelFile, as_json: AsJson = False) -> None:
    """Show what a model file holds: its kind, its configuration, its parameters."""
    from polybound.models import load

    loaded = load(model)
    parameters = {name: list(tensor.shape) for name, tensor in loaded.named_parameters()}
    facts = {
        "file": str(model),
        "bytes": model.stat().st_size,
        "kind": type(loaded).__name__,
        "config": loaded.config(),
        "dtype": str(next(loaded.parameters()).dtype).removeprefix("torch."),
        "parameters": parameters,
        "numbers": sum(tensor.numel() for tensor in loaded.parameters()),
    }
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        from polybound.cli.tables import show_facts

        show_facts(facts)
