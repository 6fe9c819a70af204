"""The commands, and how their errors are shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from polybound._version import __version__
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
