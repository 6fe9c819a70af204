"""What the explorer holds: networks, test images and what was proven of them, as JSON with arrays in base64."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polybound.certificates import Network, certified_radius
from polybound.data import Dataset
from polybound.errors import PolyboundError
from polybound.models import PolynomialNetwork, polynomial
from polybound.theory import lipschitz

__all__ = ["Feature", "describe_data", "describe_network"]

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


def describe_network(
    name: str, model: PolynomialNetwork, data: Dataset, budget: float, on_progress: Callable[[int], None]
) -> dict[str, Any]:
    """A network with its bounds, and the radii that are proven and attacked of each image of `data`.

    The weights are float32 where that is what they are, and float64 otherwise: the page has the very same network.
    `slack` is `Network.slack` at the edge of the domain, which is never smaller than that of a box in it.
    """
    _check(name, polynomial(model), data)
    net = Network(model)
    edge = max(abs(side) for side in data.domain)
    # Some rounding farther than the domain, as are the page's boxes.
    slack = net.slack(torch.full((1, net.features), edge * (1 + 2.0**-20), dtype=torch.float64))
    constant = lipschitz(net.factors, method="rowwise", radius=edge * (1 + 2.0**-20)).value
    certified, attacked = _proven(net, data, budget, on_progress)
    return {
        "name": name,
        "note": f"{type(model).__name__}, degree {model.degree}, {net.At[0].shape[1]} units",
        "A": [{"W": _array(At.T), "b": _array(b)} for At, b in zip(net.At, net.b, strict=True)],
        "S": [None if step is None else {"W": _array(step.matrix()), "b": _array(step.constant)} for step in net.S],
        "s1": _array(net.s1),
        "C": {"W": _array(net.C), "b": _array(net.beta)},
        "stretch": [_array(mu) for mu in net.stretch],
        "norms": _array(torch.tensor(net.norms_S, dtype=torch.float64)),
        "slack": _array(slack.squeeze(0)),
        "roundings": net.roundings,
        "lipschitz": _array(torch.as_tensor(constant, dtype=torch.float64).reshape(1)),
        "certified": _array(certified),
        "attacked": _array(attacked),
    }


def describe_data(data: Dataset, features: Sequence[Feature] | None) -> dict[str, Any]:
    """The test images, or samples of a table, with their labels and names."""
    picture = len(data.shape) == 3 and data.shape[0] in (1, 3)
    names = None
    if not picture:
        width = data.x[0].numel()
        given = [Feature(f"feature {i + 1}") for i in range(width)] if features is None else features
        if len(given) != width:
            raise PolyboundError(f"{len(given)} features are named, {data.name} has {width}")
        names = [{"name": one.name, "centre": one.centre, "width": one.width} for one in given]
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


def _check(name: str, model: PolynomialNetwork, data: Dataset) -> None:
    if model.runs is not None:
        raise PolyboundError(f"{name}: a stack of {model.runs} networks; take model.run(e) of it")
    if model.classes < 2:
        raise PolyboundError(f"{name}: one output; a page is about classifiers, of two classes and more")
    if data.x[0].numel() != model.features:
        raise PolyboundError(f"{name}: {data.name} has inputs of shape {data.shape}, the model takes {model.shape}")
    if len(data.class_names) != model.classes:
        raise PolyboundError(f"{name}: {data.name} has {len(data.class_names)} classes, the model {model.classes}")
    factors = model.factors()
    weights = factors.entries() + sum(step.inputs * step.outputs for step in factors.S) * (not factors.coupled)
    if weights > LARGEST:
        raise PolyboundError(
            f"{name}: {weights:,} weights when its maps are written out, a page takes up to {LARGEST:,}; "
            "take a CCP or an NCP of a smaller rank"
        )


def _proven(net: Network, data: Dataset, budget: float, on_progress: Callable[[int], None]) -> tuple[Tensor, Tensor]:
    """For each image, the radius that is certified and the one that an attack needs; see `Radius`."""
    certified, attacked = [], []
    largest = data.domain[1] - data.domain[0]
    for start in range(0, len(data), AT_ONCE):
        x, y = data.x[start : start + AT_ONCE], data.y[start : start + AT_ONCE]
        found = certified_radius(net, x, y, domain=data.domain, budget=budget, largest=largest)
        certified.append(found.certified)
        attacked.append(found.attacked)
        on_progress(len(x))
    return torch.cat(certified), torch.cat(attacked)


def _array(values: Tensor) -> dict[str, str]:
    """Numbers in row order, little-endian, as float32 if they all are."""
    values = values.detach().double().contiguous()
    kind = "f4" if bool((values.float().double() == values).all()) else "f8"
    return {"type": kind, "data": base64.b64encode(values.numpy().astype(f"<{kind}").tobytes()).decode()}
