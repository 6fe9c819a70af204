"""`polybound explore`: a network, or two, in a page to play with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import MofNCompleteColumn

from polybound.cli.commands import command
from polybound.errors import PolyboundError

if TYPE_CHECKING:
    from polybound.data import Dataset
    from polybound.models import PolynomialNetwork
    from polybound.report import Feature

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
            help="One or two run folders, model files, ONNX files, saved PolynomialClassifiers or bundled networks; by "
            "default the digits of `polybound demo`, plain and projected.",
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
    shown = [_network(run, dataset, data_dir) for run in runs or ["digits", "digits-bound-1"]]
    data, networks = _common(shown), _named(shown)
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("certifying", total=len(networks) * min(images, len(data)))
        options: dict[str, Any] = {"images": images, "budget": budget, "title": title}
        options |= {"features": shown[0].features, "notes": list(dict.fromkeys(one.note for one in shown if one.note))}
        options["on_progress"] = lambda done: bar.advance(task, done)
        page = build_explorer(networks, data, output, **options)
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB, {', '.join(networks)}; test images: {min(images, len(data))}")


@dataclass(frozen=True, eq=False)
class _Shown:
    """A network of the page.

    Attributes:
        name: what the page calls it.
        model: the network.
        data: test images or samples that fit it.
        features: of an estimator, the names and units of its features.
        note: what a reader must know.
    """

    name: str
    model: PolynomialNetwork
    data: Dataset
    features: list[Feature] | None = None
    note: str = ""


def _common(shown: list[_Shown]) -> Dataset:
    """The test images that all networks share."""
    first = shown[0]
    for other in shown[1:]:
        if other.data.digest != first.data.digest:
            names = f"{first.data.name} and {other.data.name}"
            raise PolyboundError(f"both networks need the same test images, not {names}; --dataset names them")
        if other.features != first.features:
            raise PolyboundError(f"{first.name} and {other.name} have features of other names or scales")
    return first.data


def _named(shown: list[_Shown]) -> dict[str, PolynomialNetwork]:
    networks: dict[str, PolynomialNetwork] = {}
    for one in shown:
        networks[f"{one.name} (2)" if one.name in networks else one.name] = one.model
    return networks


def _network(run: str, dataset: str | None, data_dir: Path | None) -> _Shown:
    from polybound.cli.certify import model_and_images
    from polybound.data import load
    from polybound.models import EXAMPLES, example

    path, name = Path(run), Path(run).name or run
    if run in EXAMPLES and not path.exists():
        own = "digits" if run.startswith("digits") else "fashion-mnist"
        return _Shown(name, example(run), load(dataset or own, "test", data_dir=data_dir))
    if dataset is None and _is_estimator(path):
        return _estimator(name, path)
    return _Shown(name, *model_and_images(path, dataset, data_dir))


def _is_estimator(path: Path) -> bool:
    from polybound.models import read_metadata

    return path.suffix == ".safetensors" and path.is_file() and "polybound-estimator" in read_metadata(path)


def _estimator(name: str, path: Path) -> _Shown:
    """A saved classifier: its file has no samples, so that the page begins with the means of all features."""
    import torch

    from polybound.data import Dataset
    from polybound.estimator import PolynomialClassifier
    from polybound.report import Feature

    found = PolynomialClassifier.load(path)
    scaling, model = found.scaling_, found.model_
    # The input of what never varied is always 0: without its weights the page has the same function.
    _drop_features(model, [i for i, width in enumerate(scaling.width.tolist()) if width == float("inf")])
    names = getattr(found, "feature_names_in_", [f"feature {i + 1}" for i in range(model.features)])
    widths = [width if width < float("inf") else 0.0 for width in scaling.width.tolist()]
    units = zip(names, scaling.mean.tolist(), widths, strict=True)
    mean = torch.zeros(1, model.features)
    with torch.no_grad():
        label = model(mean.to(next(model.parameters()).dtype)).argmax(1)
    data = Dataset("the means of all features", "test", mean, label, tuple(map(str, found.classes_.tolist())))
    note = "eps is in units of three standard deviations of each feature, at which features are cut off."
    return _Shown(name, model, data, [Feature(str(name), *unit) for name, *unit in units], note)


def _drop_features(model: PolynomialNetwork, fixed: list[int]) -> None:
    """Set the weights of some features to zero, in place."""
    import torch

    from polybound.models import Dense

    with torch.no_grad():
        for step in model.factors().A:
            if isinstance(step, Dense):
                step.weight[:, fixed] = 0.0
