"""`polybound bounds`, `info`, `draw`, `card` and `explore`: a network as numbers, a picture, a model card or a page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rich.console import Console

import polybound as pb
from polybound.atomic import write_atomically
from polybound.cli.commands import app, command, is_quiet, progress
from polybound.cli.options import NETWORKS, AsJson, DataDir, Dataset, Images, Network, argument, option
from polybound.cli.tables import show_facts, show_table
from polybound.errors import PolyboundError, writable_file


@command(app, "polybound bounds model.safetensors", "polybound bounds runs/NAME --json", panel=NETWORKS)
def bounds(
    model: Network,
    samples: int = option("Training samples, for the complexities.", "-n", "--samples", default=60000, min=1),
    radius: float = option("The bounds hold for inputs of norm at most this.", default=1.0),
    as_json: AsJson = False,
) -> None:
    """Show every norm and bound of a model: Rademacher complexity, Lipschitz constants, theta and gamma."""
    with Console(stderr=True, quiet=is_quiet()).status("computing bounds"):
        table = pb.bounds(pb.runs.load_model(model).model, samples, radius=radius)
    if as_json:
        print(json.dumps(table.as_dict(), indent=2))
        return
    rows = [[row.quantity, row.format_value(), row.name, (*row.assumptions, "")[0]] for row in table]
    show_table(["quantity", "value", "by", "holds for"], rows, title=table.title, notes=table.notes)


@command(app, "polybound info model.safetensors", "polybound info runs/NAME", panel=NETWORKS)
def info(model: Network, as_json: AsJson = False) -> None:
    """Show what a model file or a run folder holds: kind, configuration, parameters, and the ranges of its values."""
    found = pb.runs.load_model(model)
    network, run = found.model, found.run
    file = found.path if run is None and found.origin is None else None if run is None else run.model_file()
    facts: dict[str, Any] = {} if run is None else {"run": found.about}
    facts |= {"file": str(file), "bytes": file.stat().st_size} if file is not None else {"bundled": found.name}
    facts |= {
        "kind": type(network).__name__,
        "config": network.config(),
        "dtype": str(next(network.parameters()).dtype).removeprefix("torch."),
        "parameters": {name: list(tensor.shape) for name, tensor in network.named_parameters()},
        "numbers": sum(tensor.numel() for tensor in network.parameters()),
        "degree": network.degree,
    }
    nodes = _nodes(network) if network.runs is None else []
    if as_json:
        print(json.dumps(facts | {"nodes": nodes}, indent=2))
        return
    if "graph" in facts["config"]:  # its nodes are in the table
        facts["config"] = {"shape": list(network.shape), "classes": network.classes}
    show_facts(facts)
    if nodes:
        texts = ((f"{v:.4g}" if isinstance(v, float) else v for v in node.values()) for node in nodes)
        rows = [["" if text is None else str(text) for text in line] for line in texts]
        title = "Where the values lie for inputs in [-1, 1], by intervals, to four digits"
        show_table(["node", "size", "norm, l_inf", "from", "to"], rows, title=title)


def _nodes(network: pb.PolynomialNetwork) -> list[dict[str, Any]]:
    """Every node of a network's graph: its name and size, the norm of a map, and where its values provably lie."""
    import torch

    graph, found = network.graph().double(), list[dict[str, Any]]()

    def watch(number: int, box: pb.models.Bounded) -> None:
        node = graph.nodes[number]
        norm = float(pb.theory.operator_norm(node.map)) if isinstance(node, pb.models.Applied) else None
        low, high = float(box.lower.min()), float(box.upper.max())
        about = {"node": graph.label(number, short=True), "size": graph.sizes[number], "norm": norm}
        found.append(about | {"from": low if low > -math.inf else None, "to": high if high < math.inf else None})

    ones = torch.ones(1, graph.features, dtype=torch.float64)
    graph.evaluate(pb.models.Intervals(), pb.models.Bounded(-ones, ones), watch=watch)
    return found


@command(
    app,
    "polybound draw pn-4",
    "polybound draw runs/NAME -o network.svg",
    "polybound draw m.safetensors --title 'Our network'",
    "polybound draw pn-conv --shape 3,32,32 --classes 100 -o cifar.svg",
    panel=NETWORKS,
    stopped="nothing was drawn",
)
def draw(
    model: str = argument(
        "A run folder, a model's file, an ONNX file, or a name: pn-4, pn-10, pn-conv, ncp-4, digits ...", "MODEL"
    ),
    output: Path | None = option("The SVG file; by default the model's name with .svg.", "--output", "-o"),
    title: str | None = option("Above the drawing; the model's name by default."),
    shape: str | None = option("Of an input of a model by name: 3,32,32; 1,28,28 by default.", metavar="SIZES"),
    classes: int | None = option("Of a model by name; 10 by default.", min=1),
    rank: int | None = option("Of a model by name; by default its own.", min=1),
    as_json: AsJson = False,
) -> None:
    """Draw the schematic of a network as SVG: its affine maps, products and skip connections, with all sizes."""
    try:
        sizes = None if shape is None else tuple(int(size) for size in shape.split(","))
    except ValueError:
        raise PolyboundError(f"--shape takes whole numbers separated by commas, 3,32,32, not {shape!r}") from None
    options = {"shape": sizes, "classes": classes, "rank": rank}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    names, file = pb.models.model_names(), Path(model).exists()
    if not file and model in names:
        network, name = pb.paper_model(model, **given), model
    elif not file and model not in pb.models.EXAMPLES:
        known = ", ".join(dict.fromkeys([*names, *pb.models.EXAMPLES]))
        raise PolyboundError(f"{model}: no such file or folder, and none of {known}")
    elif given:
        kind = "models by name" if file else "the paper's models"
        raise PolyboundError(f"{model} has its sizes; --{next(iter(given))} is for {kind}")
    else:
        found = pb.runs.load_model(model)
        network, name = found.model, found.name
    made = pb.report.draw_network(network, output or Path(f"{name}.svg"), title=name if title is None else title)
    facts = {"file": str(made), "kind": type(network).__name__, "degree": network.degree, "features": network.features}
    print(json.dumps(facts | {"classes": network.classes}, indent=2) if as_json else f"wrote {made}")


# `polybound card`: what a network is and measures, on a page.


@command(
    app,
    "polybound card runs/NAME -o card.md",
    "polybound card digits-bound-1 --json",
    "polybound card m.safetensors --dataset digits --eps 0.1 --images 200",
    panel=NETWORKS,
    stopped="no card was written; the same command starts again",
)
def card(
    model: Network,
    output: Path | None = option("Write the card to this file; otherwise it is printed.", "--output", "-o"),
    dataset: Dataset = None,
    eps: list[float] | None = option("Radius of attacks and certificates; repeatable.", metavar="<float>"),
    images: Images = 100,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a model card: data, recipe, accuracy, certificates, bounds, how to make the network again; all measured."""
    if output is not None:
        writable_file(output)
    found = pb.runs.load_model(model)
    data = found.data("test", dataset, data_dir)
    options: dict[str, Any] = {"name": found.name, "spec": found.spec, "again": found.origin, "images": images}
    options |= {"eps": eps} if eps else {}
    with progress("measuring") as step:
        made = pb.report.model_card(found.model, data, on_progress=step, **options)
    text = json.dumps(made.as_dict(), indent=2) + "\n" if as_json else made.markdown()
    if output is None:
        print(text, end="")
    else:
        write_atomically(output, text.encode(errors="replace"))
        print(f"wrote {output}")


# `polybound explore`: a network, or two, in a page to play with.


@command(
    app,
    "polybound explore",
    "polybound explore runs/PLAIN runs/PROJECTED -o explorer.html",
    "polybound explore m.safetensors --dataset digits --images 20",
    "polybound explore pn-4 pn-4-bound-1 --dataset fashion-mnist",
    panel=NETWORKS,
    stopped="no page was written; the same command starts again",
)
def explore(
    runs: list[str] | None = argument(
        "One or two run folders, model files, ONNX files, saved PolynomialClassifiers or bundled networks; by "
        "default the digits of `polybound demo`, plain and projected.",
        "RUN",
        default=None,
    ),
    output: Path = option("The page.", "--output", "-o", default=Path("explorer.html")),
    images: int = option("Number of test images.", "-n", "--images", default=100, min=1, max=100),
    dataset: Dataset = None,
    budget: float = option("Seconds of branch and bound for each image and radius.", default=0.05, min=0.0),
    title: str = option("Of the page.", default="A polynomial network to play with"),
    data_dir: DataDir = None,
) -> None:
    """Make a page in which a network, or two, can be drawn for, attacked and certified, in any browser.

    One HTML file: it needs neither a server nor a network. What `polybound certify` proves of the test images is
    computed now, everything else in the page.
    """
    if len(runs or ()) > 2:
        raise PolyboundError(f"a page shows one network or two, not {len(runs or ())}")
    shown = [_page_network(run, dataset, data_dir) for run in runs or ["digits", "digits-bound-1"]]
    first, _, data, features = shown[0]
    networks: dict[str, pb.PolynomialNetwork] = {}
    for name, model, others, named in shown:
        if others.digest != data.digest:
            names = f"{data.name} and {others.name}"
            raise PolyboundError(f"both networks need the same test images, not {names}; --dataset names them")
        if named != features:
            raise PolyboundError(f"{first} and {name} have features of other names or scales")
        networks[f"{name} (2)" if name in networks else name] = model
    options: dict[str, Any] = {"images": images, "budget": budget, "title": title, "features": features}
    with progress("certifying") as step:
        page = pb.report.build_explorer(networks, data, output, on_progress=step, **options)
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB, {', '.join(networks)}; test images: {min(images, len(data))}")


def _page_network(
    run: str, dataset: str | None, data_dir: Path | None
) -> tuple[str, pb.PolynomialNetwork, pb.data.Dataset, list[pb.report.Feature] | None]:
    """A name, a network, its test images and, of a saved classifier, the names and units of its features.

    The file of a classifier has no samples, so that the page begins with the means of all features.
    """
    path, name = Path(run), Path(run).name or run
    weights = dataset is None and path.suffix == ".safetensors" and path.is_file()
    if not weights or "polybound-estimator" not in pb.models.read_metadata(path):
        given = pb.runs.load_model(run)
        return name, given.model, given.data("test", dataset, data_dir), None
    import torch

    found = pb.PolynomialClassifier.load(path)
    scaling, model = found.scaling_, found.model_
    widths, means = scaling.width.tolist(), scaling.mean.tolist()
    # The input of what never varied is always 0: without its weights the page has the same function.
    fixed = [i for i, width in enumerate(widths) if width == float("inf")]
    mean = torch.zeros(1, model.features)
    with torch.no_grad():
        for step in model.factors().A:
            if isinstance(step, pb.models.Dense):
                step.weight[:, fixed] = 0.0
        label = model(mean.to(next(model.parameters()).dtype)).argmax(1)
    names = getattr(found, "feature_names_in_", [f"feature {i + 1}" for i in range(model.features)])
    units = zip(names, means, (0.0 if i in fixed else width for i, width in enumerate(widths)), strict=True)
    classes = tuple(map(str, found.classes_.tolist()))
    note = "eps is in units of three standard deviations of each feature, at which features are cut off."
    data = pb.data.Dataset("the means of all features", "test", mean, label, classes, note=note)
    return name, model, data, [pb.report.Feature(str(feature), *unit) for feature, *unit in units]
