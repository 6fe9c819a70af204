"""What the commands about experiments have in common: their options, and the experiments that those choose."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polybound.cli.commands import AsJson
from polybound.cli.draw import FIGURE_1
from polybound.errors import PolyboundError

if TYPE_CHECKING:
    from polybound.experiments import Experiment  # brings in torch, and is not for --help

__all__ = [
    "Address",
    "AsCsv",
    "AsJson",
    "Bound",
    "Budget",
    "DataDir",
    "Dataset",
    "Engine",
    "Limit",
    "MeasureEvery",
    "Method",
    "Model",
    "Names",
    "Runs",
    "Samples",
    "Seeds",
    "Workers",
    "choose",
    "report_command",
]

Names = Annotated[
    list[str], typer.Argument(metavar="NAME", help="Experiments, see `polybound experiments`, or TOML files.")
]
Runs = Annotated[Path, typer.Option(help="Folder of the run folders.")]
Budget = Annotated[float | None, typer.Option(help="Share of the epochs; every number made so says so.")]
Seeds = Annotated[int | None, typer.Option(help="How many seeds.")]
Samples = Annotated[int | None, typer.Option(help="Train on so many samples only.")]
Limit = Annotated[int | None, typer.Option(help="Attack so many images only.")]
Dataset = Annotated[list[str] | None, typer.Option(metavar="<str>", help="Only these data sets, or others.")]
Model = Annotated[list[str] | None, typer.Option(metavar="<str>", help="Only these models.")]
Method = Annotated[list[str] | None, typer.Option(metavar="<str>", help="Only these methods.")]
Bound = Annotated[list[float] | None, typer.Option(metavar="<float>", help="Only these bounds.")]
MeasureEvery = Annotated[
    int | None,
    typer.Option(help="Measure every so many epochs too, published protocol; the best counts, as in the paper."),
]
Engine = Annotated[str, typer.Option(help="loky, dask or ray.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Jobs at once; one for each core by default.")]
Address = Annotated[str | None, typer.Option(help="Of a Dask scheduler or a Ray head.")]
DataDir = Annotated[Path | None, typer.Option(help="Where the data lies.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")]

_CHANGES = ("budget", "seeds", "samples", "limit", "datasets", "models", "methods", "bounds", "measure_every")


def choose(names: list[str], *changes: Any) -> list[Experiment]:
    """The experiments, changed as the options of the commands below say, in their order."""
    from polybound.experiments import find_experiment

    if FIGURE_1["name"] in names:
        raise PolyboundError("figure-1 is a drawing, without runs: polybound reproduce figure-1 draws it alone")
    values = [(tuple(value) or None) if isinstance(value, list) else value for value in changes]
    return [find_experiment(name).changed(**dict(zip(_CHANGES, values, strict=True))) for name in names]


def report_command(names: list[str], runs: Path, data_dir: Path | None, *changes: Any) -> str:
    """The command that shows what a sweep with these options has made."""
    from polybound.evaluation import value_label

    words = ["polybound", "report", *names, "--runs", str(runs)]
    words += ["--data-dir", str(data_dir)] if data_dir is not None else []
    for name, value in zip(_CHANGES, changes, strict=True):
        option = "--" + name.replace("_", "-").removesuffix("s" if isinstance(value, list) else "")
        for one in value if isinstance(value, list) else [value]:
            words += [] if one is None else [option, value_label(one)]
    return shlex.join(words)
