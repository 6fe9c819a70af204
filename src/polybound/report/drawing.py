"""The panels of a figure as a page's script takes them, and the figure's legend."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, log10
from typing import Any

from polybound.report.axes import Axis, axes_of
from polybound.report.elements import Figure, Line
from polybound.report.placing import place_texts
from polybound.report.styles import markers_every, style

__all__ = ["drawings_of", "legend_of"]

_SYMBOLS = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross"}
_DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
_STROKES = {"-": "", "--": "6 3", "-.": "6 2 2 2", ":": "2 2"}
_SHAPES = {
    "o": "M11.5 6a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z",
    "s": "M12 3h6v6h-6Z",
    "^": "M15 2l4 7h-8Z",
    "D": "M15 2l4 4l-4 4l-4 -4Z",
    "v": "M15 10l4 -7h-8Z",
    "P": "M13.5 2h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5v-3h2.5Z",
}
_STAR = "M15 1l1.5 3.4l3.7 .4l-2.8 2.5l.8 3.7l-3.2 -1.9l-3.2 1.9l.8 -3.7l-2.8 -2.5l3.7 -.4Z"


def drawings_of(figure: Figure, number: int) -> list[dict[str, Any]]:
    """A drawing for each panel; the page gives them their colours, which are numbers here."""
    numbers = {label: place for place, label in enumerate(figure.labels)}
    found = []
    for panel, (x_axis, y_axis) in zip(figure.panels, axes_of(figure), strict=True):
        places = place_texts(panel, x_axis, y_axis)
        lines = [_line(line, numbers.get(line.label), where) for line, where in zip(panel.lines, places, strict=True)]
        lines += [_published(line, numbers[line.label]) for line in panel.published]
        closest = any(line.kind == "marks" or line.texts for line in panel.lines)
        axes = {"x": _axis(x_axis, panel.x_label), "y": _axis(y_axis, panel.y_label)}
        found.append({"figure": str(number), "lines": lines, **axes, "hover": "closest" if closest else "x unified"})
    return found


def _line(line: Line, number: int | None, where: Sequence[str]) -> dict[str, Any]:
    look = style(number or 0)
    guide = line.kind == "guide"
    shapes = [*(["lines"] if line.kind != "marks" else []), *([] if guide else ["markers"])]
    made: dict[str, Any] = {
        "name": line.label,
        "x": _numbers(line.x),
        "y": _numbers(line.y),
        "dash": "solid" if guide else _DASHES[look.dash],
        "symbol": _SYMBOLS[look.marker],
        "size": 6 if line.kind == "marks" else _sizes(len(line.x), number or 0),
        "colour": None if guide else look.colour,
        "guide": guide,
    }
    if any(where):
        shapes.append("text")
        texts = zip(line.texts, where, strict=True)
        made |= {"texts": [text if name else "" for text, name in texts], "places": [n or "top center" for n in where]}
    if line.texts or line.hints:
        made["hints"] = list(line.hints or line.texts)
    if line.spread and any(line.spread):
        made["spread"] = _numbers(line.spread)
    return made | {"mode": "+".join(shapes)}


def _sizes(count: int, number: int) -> int | list[int]:
    """The size of a line's markers; of a long line, only some are seen, at places that differ from line to line."""
    if not (every := markers_every(count, number)):
        return 7
    first, step = every
    return [7 if place % step == first else 0 for place in range(count)]


def _published(line: Line, number: int) -> dict[str, Any]:
    made = _line(line, number, [])
    return made | {
        "mode": "markers",
        "symbol": "star-open",
        "size": 13,
        "open": True,
        "hints": ["the paper"] * len(line.x),
    }


def _numbers(values: Sequence[float]) -> list[float | None]:
    """Numbers as JSON has them; what is not finite is left out of the line."""
    return [round(float(value), 6) if isfinite(value) else None for value in values]


def _axis(axis: Axis, title: str) -> dict[str, Any]:
    ends = [log10(axis.low), log10(axis.high)] if axis.log else [axis.low, axis.high]
    ticks, texts = [tick for tick, _ in axis.ticks], [text for _, text in axis.ticks]
    return {"title": title, "log": axis.log, "range": ends, "ticks": ticks, "texts": texts}


def legend_of(figure: Figure) -> list[dict[str, Any]]:
    """An entry for each line's name: its label, colour, dash and marker; stars for the paper's values come last."""
    kinds = {line.label: line.kind for panel in figure.panels for line in panel.lines}
    found: list[dict[str, Any]] = []
    for number, label in enumerate(figure.labels):
        look = style(number)
        dash = None if kinds[label] == "marks" else _STROKES[look.dash]
        about = {"colour": f"--c{look.colour}", "dash": dash, "shape": _SHAPES[look.marker], "open": False}
        found.append({"label": label, "button": True, **about})
    if any(panel.published for panel in figure.panels):
        star = {"colour": "--text", "dash": None, "shape": _STAR, "open": True}
        found.append({"label": "the paper", "button": False, **star})
    return found
