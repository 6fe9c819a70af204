"""Intervals that a network's outputs provably stay in, next to the certified accuracy of the same balls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from polybound.certificates import Network, output_bounds
from polybound.data import Dataset
from polybound.errors import ArgumentError
from polybound.evaluation.score import read_radius
from polybound.models import polynomial

__all__ = ["output_intervals"]

BUDGET = 1.0
"""Seconds for each image and radius that names none."""


def output_intervals(
    model: nn.Module, data: Dataset, radii: Sequence[float | str], images: int, run: str
) -> list[dict[str, Any]]:
    """A row for each of the first images, each radius and each output: see `polybound.output_bounds`.

    Args:
        model: the network, no stack.
        data: whose images.
        radii: of the balls; see `read_radius`.
        images: how many.
        run: what the rows call the network.

    Raises:
        PolyboundError: there is no radius, or the model is no polynomial network.
    """
    if not radii:
        raise ArgumentError("intervals", "needs the radius of the balls that it is about: certify=0.02")
    net, x, labels = Network(polynomial(model)), data.x[:images], data.y[:images].tolist()
    rows: list[dict[str, Any]] = []
    for radius in radii:
        eps, norm, _, seconds = read_radius(radius)
        found = output_bounds(net, x, eps, norm=norm, domain=data.domain, budget=BUDGET if seconds is None else seconds)
        about = {"run": run, "eps": eps, "norm": norm}
        rows += [about | {"label": labels[row["image"]]} | row for row in found.rows()]
    return rows
