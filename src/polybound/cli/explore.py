"""`polybound explore`: a network, or two, in a page to play with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import MofNCompleteColumn

from polybound.cli.commands import command
from polybound.errors import PolyboundError

if TYPE_CHECKING:
    from polybound.data import Dataset
    from polybound.models import PolynomialNetwork

__all__ = ["add_explorer"]


def add_explorer(app: typer.Typer, panel: str) -> None:
    """Make the command known."""
    command(
        app,
        "polybound explore",
        "polybound explore runs/PLAIN runs/PROJECTED -o explorer.html",
        "polybound explore m.safetensors --dataset digits --images 20",
        "polybound explore pn-4 pn-4-bound-1 --dataset fashion-mnist",
        panel=panel,
        stopped="no page was written; the same command begins anew",
    )(explore)


def explore(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="One or two run folders, model files, ONNX files or bundled networks; by default the digits of "
            "`polybound demo`, plain and projected.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("explorer.html"),
    images: Annotated[int, typer.Option("-n", "--images", min=1, max=100, help="How many test images it has.")] = 100,
    dataset: Annotated[str | None, typer.Option(help="By default the run's own.")] = None,
    budget: Annotated[
        float, typer.Option(min=0.0, help="Seconds of branch and bound for each image and radius.")
    ] = 0.05,
    title: Annotated[str, typer.Option(help="Of the page.")] = "A polynomial network to play with",
    data_dir: Annotated[Path | None, typer.Option(help="Where the data lies.")] = None,
) -> None:
    """Make a page in which a network, or two, can be drawn for, attacked and certified, in any browser.

    One HTML file: it needs neither a server nor a network. What `polybound certify` proves of the test images is
    computed now, everything else in the page.
    """
    from polybound.cli.progress import progress_bar
    from polybound.report import build_explorer

    if len(runs or ()) > 2:
        raise PolyboundError(f"a page shows one network or two, not {len(runs or ())}")
    networks, data = _networks(runs or [], dataset, data_dir)
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("certifying", total=len(networks) * min(images, len(data)))
        options: dict[str, Any] = {"images": images, "budget": budget, "title": title}
        options["on_progress"] = lambda done: bar.advance(task, done)
        page = build_explorer(networks, data, output, **options)
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB, {', '.join(networks)}; {min(images, len(data))} test images")


def _networks(
    runs: list[str], dataset: str | None, data_dir: Path | None
) -> tuple[dict[str, PolynomialNetwork], Dataset]:
    """The networks by the names that the page shows, and their common test images."""
    if not runs:
        runs = ["digits", "digits-bound-1"]
    networks: dict[str, PolynomialNetwork] = {}
    found: dict[str, Dataset] = {}
    for run in runs:
        model, data = _network(run, dataset, data_dir)
        name = Path(run).name or run
        networks[name if name not in networks else f"{name} (2)"] = model
        found[data.digest] = data
    if len(found) > 1:
        names = " and ".join(data.name for data in found.values())
        raise PolyboundError(f"both networks need the same test images, not {names}; --dataset names them")
    return networks, next(iter(found.values()))


def _network(run: str, dataset: str | None, data_dir: Path | None) -> tuple[PolynomialNetwork, Dataset]:
    from polybound.cli.certify import model_and_images
    from polybound.data import load
    from polybound.models import EXAMPLES, example

    if run not in EXAMPLES or Path(run).exists():
        return model_and_images(Path(run), dataset, data_dir)
    own = "digits" if run.startswith("digits") else "fashion-mnist"
    return example(run), load(dataset or own, "test", data_dir=data_dir)
