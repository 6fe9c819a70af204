"""Where the texts at the points of a panel go, so that none lies over another text, a point or a line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import hypot

from polybound.report.axes import Axis
from polybound.report.elements import Panel

__all__ = ["PLACES", "place_texts"]

WIDTH, HEIGHT = 330.0, 240.0
"""The size of a panel's field, in pixels, for which texts are placed."""

SIZE = 10.0
"""The size of the texts."""

PLACES = {"top center": (0, 1), "bottom center": (0, -1), "middle right": (1, 0), "middle left": (-1, 0)}
PLACES |= {"top right": (1, 1), "bottom right": (1, -1), "top left": (-1, 1), "bottom left": (-1, -1)}
"""Plotly's names of the places around a point, with their directions."""

Box = tuple[float, float, float, float]


def place_texts(panel: Panel, x_axis: Axis, y_axis: Axis) -> list[list[str]]:
    """For each line of a panel and each of its points the place of its text; "" for a text without room for it."""
    points = [
        [(WIDTH * x_axis.share(x), HEIGHT * y_axis.share(y)) for x, y in zip(line.x, line.y, strict=True)]
        for line in panel.lines
    ]
    taken = [_around(x, y, 3.0, 3.0) for line in points for x, y in line]
    for line, places in zip(panel.lines, points, strict=True):
        taken += [] if line.kind == "marks" else _along(places)
    found = []
    for line, places in zip(panel.lines, points, strict=True):
        chosen = []
        for text, (x, y) in zip(line.texts or [""] * len(places), places, strict=True):
            name, box = next(_free(text, x, y, taken), ("", None))
            chosen.append(name)
            taken += [] if box is None else [box]
        found.append(chosen)
    return found


def _along(points: list[tuple[float, float]]) -> list[Box]:
    """Small boxes along the lines that join points."""
    found = []
    for (x0, y0), (x1, y1) in pairwise(points):
        count = int(hypot(x1 - x0, y1 - y0) / 3.0)
        steps = [(number + 1) / (count + 1) for number in range(count)]
        found += [_around(x0 + share * (x1 - x0), y0 + share * (y1 - y0), 0.5, 0.5) for share in steps]
    return found


def _free(text: str, x: float, y: float, taken: list[Box]) -> Iterator[tuple[str, Box]]:
    """The places at which a text is inside the panel and over nothing that is there."""
    if not text:
        return
    half_width, half_height = 0.31 * SIZE * len(text), 0.6 * SIZE
    for name, (right, up) in PLACES.items():
        reach = 3.0 if right and up else 4.0
        box = _around(x + right * (half_width + reach), y + up * (half_height + reach), half_width, half_height)
        inside = box[0] >= 0 and box[1] >= 0 and box[2] <= WIDTH and box[3] <= HEIGHT
        if inside and not any(_overlap(box, other) for other in taken):
            yield name, box


def _around(x: float, y: float, half_width: float, half_height: float) -> Box:
    return x - half_width, y - half_height, x + half_width, y + half_height


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
