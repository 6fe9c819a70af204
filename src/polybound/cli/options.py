"""How options are declared, those that several commands have, and the headings of the list of commands."""

from __future__ import annotations

from dataclasses import field
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer


def option(text: str, *names: str, default: Any = None, **settings: Any) -> Any:
    """An option, as the default of a command's parameter or of a record's field: its help, names and settings."""
    return field(default=default, metadata={"typer": typer.Option(*names, help=text, **settings)})


def argument(text: str, metavar: str, *, default: Any = Parameter.empty) -> Any:
    """An argument, as the default of a command's parameter: its help, and what stands for it in the usage."""
    return field(default=default, metadata={"typer": typer.Argument(help=text, metavar=metavar)})


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")]
DataDir = Annotated[Path | None, typer.Option(help="Where the data lies.")]
Dataset = Annotated[str | None, typer.Option(help="The data set; by default the run's own.")]
Radii = Annotated[
    list[float] | None, typer.Option(metavar="<float>", help="Radius of the ball, in units of the data; repeatable.")
]
Images = Annotated[int, typer.Option("-n", "--images", min=1, help="Number of test images.")]
Runs = Annotated[Path, typer.Option(help="Folder of the run folders.")]
Network = Annotated[
    str, typer.Argument(metavar="MODEL", help="A run folder, a model's file, an ONNX file or a bundled network.")
]

NETWORKS, DATA, EXPERIMENTS, TOOLS = "Networks", "Data and runs", "The paper's experiments", "Other tools"
"""Headings of the list of commands."""
