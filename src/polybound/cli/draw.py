"""`polybound draw`: the schematic of a network, and the drawing among the paper's figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polybound.cli.commands import command
from polybound.errors import PolyboundError

if TYPE_CHECKING:
    from polybound.models import PolynomialNetwork

__all__ = ["FIGURE_1", "add_drawing", "draw_figure"]

FIGURE_1 = {"name": "figure-1", "paper": "Figure 1", "title": "Schematic of CCP and NCP"}
"""The figure of the paper that needs no experiment."""


def add_drawing(app: typer.Typer, panel: str) -> None:
    """Make the command known."""
    command(
        app,
        "polybound draw pn-4",
        "polybound draw runs/NAME -o network.svg",
        "polybound draw m.safetensors --title 'Our network'",
        "polybound draw pn-conv --shape 3,32,32 --classes 100 -o cifar.svg",
        panel=panel,
        stopped="nothing was drawn",
    )(draw)


def draw(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run folder, a model's file, an ONNX file, or a name: pn-4, pn-10, pn-conv, ncp-4, digits ...",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The SVG file; by default the model's name with .svg.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Above the drawing; the model's name by default.")] = None,
    shape: Annotated[
        str | None, typer.Option(metavar="SIZES", help="Of an input of a model by name: 3,32,32; 1,28,28 by default.")
    ] = None,
    classes: Annotated[int | None, typer.Option(min=1, help="Of a model by name; 10 by default.")] = None,
    rank: Annotated[int | None, typer.Option(min=1, help="Of a model by name; by default its own.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Draw the schematic of a network as SVG: its affine maps, products and skip connections, with all sizes."""
    from polybound.report import draw_network

    sizes: dict[str, Any] = {"shape": _shape(shape), "classes": classes, "rank": rank}
    given = {name: value for name, value in sizes.items() if value is not None}
    network, name = _find(model, given)
    made = draw_network(network, output or Path(f"{name}.svg"), title=name if title is None else title)
    facts = {"file": str(made), "kind": type(network).__name__, "degree": network.degree, "features": network.features}
    print(json.dumps(facts | {"classes": network.classes}, indent=2) if as_json else f"wrote {made}")


def draw_figure(output: Path | None, as_json: bool) -> None:
    """Draw the paper's Figure 1, for `polybound reproduce figure-1`."""
    from polybound.report import draw_figure_1

    made = draw_figure_1(output or Path(f"{FIGURE_1['name']}.svg"))
    print(json.dumps({"file": str(made)}, indent=2) if as_json else f"wrote {made}")


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise PolyboundError(f"--shape takes whole numbers separated by commas, 3,32,32, not {text!r}") from None


def _find(model: str, sizes: dict[str, Any]) -> tuple[PolynomialNetwork, str]:
    """A network and its name: a file or folder first, then the bundled and the paper's models."""
    from polybound.models import EXAMPLES, example, model_names, paper_model
    from polybound.runs import load_subject

    path = Path(model)
    if path.exists():
        if sizes:
            raise PolyboundError(f"{model} has its sizes; --{next(iter(sizes))} is for models by name")
        return load_subject(path).model, path.resolve().name if path.is_dir() else path.stem
    if model in model_names():
        return paper_model(model, **sizes), model
    if model in EXAMPLES and not sizes:
        return example(model), model
    if model in EXAMPLES:
        raise PolyboundError(f"{model} has its sizes; --{next(iter(sizes))} is for the paper's models")
    names = ", ".join(dict.fromkeys([*model_names(), *EXAMPLES]))
    raise PolyboundError(f"{model}: no such file or folder, and none of {names}")
