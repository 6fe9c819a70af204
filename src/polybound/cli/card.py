"""`polybound card`: what a network is and measures, on a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polybound.cli.commands import command
from polybound.errors import PolyboundError

if TYPE_CHECKING:
    from polybound.data import Dataset
    from polybound.models import PolynomialNetwork

__all__ = ["add_card"]


def add_card(app: typer.Typer, panel: str) -> None:
    """Make the command known."""
    command(
        app,
        "polybound card runs/NAME -o card.md",
        "polybound card digits-bound-1 --json",
        "polybound card m.safetensors --dataset digits --eps 0.1 --images 200",
        panel=panel,
        stopped="no card was written; the same command begins anew",
    )(card)


def card(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A run folder, a model's file, an ONNX file or a bundled network.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the card to this file; otherwise it is printed.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="By default the run's own.")] = None,
    eps: Annotated[
        list[float] | None, typer.Option(metavar="<float>", help="Radius of attacks and certificates; repeatable.")
    ] = None,
    images: Annotated[int, typer.Option("-n", "--images", min=1, help="How many are attacked and certified.")] = 100,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lies.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a model card: data, recipe, accuracy, certificates, bounds, how to make the network again; all measured."""
    from polybound.atomic import write_atomically
    from polybound.cli.progress import progress_bar
    from polybound.report import model_card

    if output is not None and not output.absolute().parent.is_dir():
        raise PolyboundError(f"{output.parent}: no such folder")
    if output is not None and output.is_dir():
        raise PolyboundError(f"{output}: a folder, not a file")
    network, data, options = _subject(model, dataset, data_dir)
    options |= {"images": images} | ({"eps": eps} if eps else {})
    with progress_bar() as bar:
        task = bar.add_task("measuring", total=None)
        made = model_card(network, data, on_progress=lambda what: bar.update(task, description=what), **options)
    text = json.dumps(made.as_dict(), indent=2) + "\n" if as_json else made.markdown()
    if output is None:
        print(text, end="")
    else:
        write_atomically(output, text.encode(errors="replace"))
        print(f"wrote {output}")


def _subject(
    model: str, dataset: str | None, data_dir: Path | None
) -> tuple[PolynomialNetwork, Dataset, dict[str, Any]]:
    """A network, its test images, and what else is known of it."""
    from polybound.cli.certify import model_and_images
    from polybound.data import load
    from polybound.models import EXAMPLES, example, example_origin
    from polybound.runs import Run, Spec, is_run

    path = Path(model)
    if model in EXAMPLES and not path.exists():
        origin = example_origin(model)
        spec = Spec.from_dict(origin["spec"])
        own = dataset in (None, spec.data.name)
        data = spec.data.load("test", data_dir) if own else load(str(dataset), "test", data_dir=data_dir)
        return example(model), data, {"name": model, "spec": spec, "again": origin}
    network, data = model_and_images(path, dataset, data_dir)
    known = Run(path).spec() if is_run(path) else None
    return network, data, {"name": path.resolve().name if path.is_dir() else path.stem, "spec": known}
