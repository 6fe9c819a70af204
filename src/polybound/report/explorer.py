"""The explorer: a network, or two side by side, in one HTML file that needs neither a server nor a network."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polybound._version import __version__
from polybound.atomic import write_atomically
from polybound.certificates import PreparedNetwork, certified_radius
from polybound.data import Dataset
from polybound.errors import ArgumentError, PolyboundError, writable_file
from polybound.models import DeepNetwork, Identity, PolynomialNetwork, polynomial
from polybound.report.text import content_policy
from polybound.theory import lipschitz

LARGEST = 4_000_000
"""The most weights of one network: a page of more megabytes is slow to open on a phone."""

AT_ONCE = 10
"""Images that are certified between two reports of progress."""


@dataclass(frozen=True)
class Feature:
    """A feature of a table: its value in the reader's units is `centre + width * x`.

    Attributes:
        name: what it is called.
        centre: the value where the network's input is 0.
        width: how much one unit of the network's input is.
    """

    name: str
    centre: float = 0.0
    width: float = 1.0


IMAGES = 100
"""The most test images that a page holds."""

SCRIPTS = ("network.js", "attack.js", "certificate.js", "drawing.js", "inputs.js", "cards.js", "page.js")


def build_explorer(
    networks: Mapping[str, PolynomialNetwork],
    data: Dataset,
    path: str | PathLike[str],
    *,
    images: int = IMAGES,
    budget: float = 0.05,
    title: str = "A polynomial network to play with",
    features: Sequence[Feature] | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """Write a page in which one or two networks classify, are attacked and are certified, live; returns its path.

    The page's content security policy allows no request and no script but its own; all names are shown as text.

    Args:
        networks: one or two CCPs or NCPs by the names that the page shows; small ConvCCPs, too.
        data: the test images that the page offers, the first `images` of them; a table has inputs of shape
            `(features,)`.
        path: the HTML file.
        images: at most 100.
        budget: seconds of branch and bound for each image and radius that are certified now, for the page to show.
        title: of the page.
        features: of a table, their names and units.
        on_progress: called with the number of images that are certified, of all networks, and the network's name.

    >>> import polybound as pb, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = pb.report.build_explorer(
    ...         {"plain": pb.example("digits")}, pb.data.load_digits("test"), f"{folder}/e.html", images=2, budget=0.0
    ...     )
    ...     page.stat().st_size < 200_000
    True
    """
    target = Path(path)
    if not 1 <= len(networks) <= 2:
        raise PolyboundError(f"a page shows one network or two, not {len(networks)}")
    if not 1 <= images <= IMAGES:
        raise ArgumentError("images", f"must be between 1 and {IMAGES}, got {images!r}")
    writable_file(target)
    if not torch.isfinite(data.x[:images]).all() or not len(data):
        raise PolyboundError(f"{data.name}: needs inputs, all of them finite")
    some = replace(data, x=data.x[:images], y=data.y[:images])
    show, total = on_progress or (lambda *_: None), len(networks) * len(some)
    content = {
        "title": title,
        "notes": [data.note] if data.note else [],
        "data": _data(some, features),
        "networks": [
            _network(name, model, some, budget, lambda done: show(n * len(some) + done, total, name))  # noqa: B023
            for n, (name, model) in enumerate(networks.items())
        ],
        "version": __version__,
    }
    # The page's style and script are the only ones that its policy allows.
    folder = files("polybound.report") / "explorer_page"
    style = (folder / "page.css").read_text(encoding="utf-8")
    scripts = "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{scripts}\n}})();'
    parts = {
        "policy": content_policy([script], [style]),
        "title": html.escape(title),
        "style": style,
        # No text in it can end the element that it stands in.
        "content": json.dumps(content, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e"),
        "script": script,
    }
    page = (folder / "page.html").read_text(encoding="utf-8")
    # Split first, so that nothing that is filled in is taken for a place to fill.
    filled = "".join(piece if i % 2 == 0 else parts[piece] for i, piece in enumerate(page.split("@@")))
    write_atomically(target, filled.encode(errors="replace"))
    return target


# The content of the page, as JSON with arrays in base64.


def _network(
    name: str, model: PolynomialNetwork, data: Dataset, budget: float, on_progress: Callable[[int], None]
) -> dict[str, Any]:
    """A network with its bounds, and the radii that are proven and attacked of each image of `data`.

    The weights are float32 where that is what they are, and float64 otherwise: the page has the very same network.
    `slack` is `PreparedNetwork.slack` at the edge of the domain, which is never smaller than that of a box in it.
    """
    polynomial(model)  # refuses other networks
    if model.runs is not None:
        raise PolyboundError(f"{name}: a stack of {model.runs} networks; take model.run(e) of it")
    if model.classes < 2:
        raise PolyboundError(f"{name}: one output; a page is about classifiers, of two classes and more")
    if data.x[0].numel() != model.features:
        raise PolyboundError(f"{name}: {data.name} has inputs of shape {data.shape}, the model takes {model.shape}")
    if len(data.class_names) != model.classes:
        raise PolyboundError(f"{name}: {data.name} has {len(data.class_names)} classes, the model {model.classes}")
    if isinstance(model, DeepNetwork) and model.graph().chain() is None:
        kind = type(model).__name__
        raise PolyboundError(f"{name}: a page computes chains of products (CCP, NCP, ConvCCP); this {kind} is none")
    factors = model.factors()
    weights = factors.entries() + sum(step.inputs * step.outputs for step in factors.S) * (not factors.coupled)
    if weights > LARGEST:
        raise PolyboundError(
            f"{name}: {weights:,} weights when its maps are written out, a page takes up to {LARGEST:,}; "
            "take a CCP or an NCP of a smaller rank"
        )
    net = PreparedNetwork(model)
    edge = max(abs(side) for side in data.domain)
    # Some rounding farther than the domain, as are the page's boxes.
    slack = net.slack(torch.full((1, net.features), edge * (1 + 2.0**-20), dtype=torch.float64))
    constant = lipschitz(net.factors, method="rowwise", radius=edge * (1 + 2.0**-20)).value
    largest = data.domain[1] - data.domain[0]
    found = []
    for start in range(0, len(data), AT_ONCE):
        x, y = data.x[start : start + AT_ONCE], data.y[start : start + AT_ONCE]
        found.append(certified_radius(net, x, y, domain=data.domain, budget=budget, largest=largest))
        on_progress(start + len(x))
    return {
        "name": name,
        "note": f"{type(model).__name__}, degree {model.degree}, {net.At[0].shape[1]} units",
        "A": [{"W": _array(At.T), "b": _array(b)} for At, b in zip(net.At, net.b, strict=True)],
        "S": [
            None if isinstance(step, Identity) else {"W": _array(step.matrix()), "b": _array(step.constant)}
            for step in net.S
        ],
        "s1": _array(net.s1),
        "C": {"W": _array(net.C), "b": _array(net.beta)},
        "stretch": [_array(mu) for mu in net.stretch],
        "norms": _array(torch.tensor(net.norms_S, dtype=torch.float64)),
        "slack": _array(slack.squeeze(0)),
        "roundings": net.roundings,
        "lipschitz": _array(torch.as_tensor(constant, dtype=torch.float64).reshape(1)),
        "certified": _array(torch.cat([radius.certified for radius in found])),
        "attacked": _array(torch.cat([radius.attacked for radius in found])),
    }


def _data(data: Dataset, features: Sequence[Feature] | None) -> dict[str, Any]:
    """The test images, or samples of a table, with their labels and names."""
    picture = len(data.shape) == 3 and data.shape[0] in (1, 3)
    names = None
    if not picture:
        width = data.x[0].numel()
        given = [Feature(f"feature {i + 1}") for i in range(width)] if features is None else features
        if len(given) != width:
            raise PolyboundError(f"{len(given)} features are named, {data.name} has {width}")
        names = [asdict(one) for one in given]
    return {
        "dataset": data.name,
        "domain": list(data.domain),
        "shape": list(data.shape),
        "picture": picture,
        "features": names,
        "classes": list(data.class_names),
        "x": _array(data.x.flatten(1)),
        "y": data.y.tolist(),
    }


def _array(values: Tensor) -> dict[str, str]:
    """Numbers in row order, little-endian, as float32 if they all are."""
    values = values.detach().double().contiguous()
    kind = "f4" if bool((values.float().double() == values).all()) else "f8"
    return {"type": kind, "data": base64.b64encode(values.numpy().astype(f"<{kind}").tobytes()).decode()}
