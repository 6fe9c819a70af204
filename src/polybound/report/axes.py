"""The axes of a figure's panels: ranges that panels share, and ticks that people can read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

from polybound.report.elements import Figure, Line, Panel

__all__ = ["Axis", "axes_of", "columns_of"]


@dataclass(frozen=True)
class Axis:
    """A range with its ticks, (value, text) each; of a logarithmic axis, too, in plain numbers."""

    low: float
    high: float
    log: bool
    ticks: Sequence[tuple[float, str]]

    def share(self, value: float) -> float:
        """Where a value lies, from 0 at the low end to 1 at the high one.

        >>> Axis(1.0, 100.0, True, ()).share(10.0)
        0.5
        """
        if self.log:
            return (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return (value - self.low) / (self.high - self.low)


def axes_of(figure: Figure) -> list[tuple[Axis, Axis]]:
    """The two axes of each panel; panels with one label of the x-axis share its range, with one scale the y-axis."""
    x_axes: dict[tuple[str, bool], Axis] = {}
    y_axes: dict[tuple[str, bool], Axis] = {}
    found = []
    for panel in figure.panels:
        wide, high = (panel.x_label, panel.log_x), (_scale(panel), panel.log_y)
        if wide not in x_axes:
            same = [one for one in figure.panels if (one.x_label, one.log_x) == wide]
            x_axes[wide] = _axis([x for one in same for line in _all(one) for x in line.x], panel.log_x, points=True)
        if high not in y_axes:
            same = [one for one in figure.panels if (_scale(one), one.log_y) == high]
            y_axes[high] = _axis(_heights(same), panel.log_y, any(one.from_zero for one in same))
        found.append((x_axes[wide], y_axes[high]))
    return found


def columns_of(figure: Figure) -> int:
    """How many panels stand side by side: so that the last row is full, or else at least that no panel is alone.

    >>> [columns_of(Figure("", [Panel("", "", "", [])] * count)) for count in (1, 2, 3, 4, 5, 6, 7, 8, 13)]
    [1, 2, 3, 2, 3, 3, 4, 2, 5]
    """
    count = len(figure.panels)
    if figure.columns:
        return min(figure.columns, max(1, count))
    if count < 3:
        return max(1, count)
    full = [columns for columns in (3, 2, 4) if count % columns == 0]
    pairs = [columns for columns in (3, 4, 5) if count % columns != 1]
    return [*full, *pairs, 3][0]


def _scale(panel: Panel) -> str:
    return panel.scale or panel.y_label


def _all(panel: Panel) -> list[Line]:
    return [*panel.lines, *panel.published]


def _heights(panels: Iterable[Panel]) -> list[float]:
    """All values, and the ends of their deviations."""
    found = []
    for line in (line for panel in panels for line in _all(panel)):
        spread = line.spread or [0.0] * len(line.y)
        found += [y + sign * s for y, s in zip(line.y, spread, strict=True) for sign in (-1, 1)]
    return found


def _axis(values: Sequence[float], log: bool, from_zero: bool = False, points: bool = False) -> Axis:
    """An axis for values; the ticks of a logarithmic one with few points are those points."""
    known = [float(value) for value in values if isfinite(value) and (value > 0 or not log)]
    low, high = (min(known), max(known)) if known else (1.0, 10.0)
    one = high - low <= 1e-9 * max(abs(low), abs(high))  # as good as one value
    if log:
        low, high = (low / 2, high * 2) if one else (low, high)
        room = (high / low) ** 0.05
        few = points and len(set(known)) <= 8 and high < 100 * low
        ticks = sorted(set(known)) if few else _log_ticks(low, high)
        return Axis(low / room, high * room, True, _with_texts(ticks))
    if from_zero:
        low = 0.0
    elif one:
        room = max(1.0, 0.01 * abs(low))
        low, high = low - room, high + room
    high = high if high > low else low + 1.0
    room = 0.04 * (high - low)
    ticks = _linear_ticks(low - room / 2, high + room / 2)
    return Axis(low - room, high + room, False, _with_texts(ticks))


def _step(span: float) -> float:
    """The distance of ticks: 1, 2 or 5 times a power of ten, so that there are four to eight of them."""
    size = 10.0 ** floor(log10(span))
    return next(step * size for step in (0.1, 0.2, 0.5, 1.0, 2.0) if span / (step * size) <= 8)


def _log_ticks(low: float, high: float) -> list[float]:
    """The low end and powers of ten, every other one if there are many; within two decades, more of them."""
    first, last = ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9)
    if last - first >= 2:
        powers = [10.0**power for power in range(first, last + 1, 1 + (last - first) // 7)]
        return [*([low] if powers[0] > 3 * low else []), *powers]
    found = [digit * 10.0**power for power in range(first - 1, last + 1) for digit in (1, 2, 5)]
    inside = [tick for tick in found if low * 0.999 <= tick <= high * 1.001]
    return inside if len(inside) > 2 else _linear_ticks(low, high)


def _linear_ticks(low: float, high: float) -> list[float]:
    step = _step(high - low)
    numbers = range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)
    return [float(f"{number * step:.12g}") for number in numbers]


def _with_texts(ticks: Sequence[float]) -> list[tuple[float, str]]:
    """Ticks with their texts, in as many digits as tell them apart."""
    texts = list(map(_text, ticks))
    if len(set(texts)) < len(texts):
        texts = [f"{tick:.12g}" for tick in ticks]
    apart = dict(zip(reversed(texts), reversed(ticks), strict=True))
    return [(tick, text) for text, tick in reversed(apart.items())]


def _text(value: float) -> str:
    """A tick's number as people write it.

    >>> _text(0.2), _text(100.0), _text(1024.0), _text(100000.0), _text(1e7), _text(1e-9)
    ('0.2', '100', '1024', '100k', '10M', '1e-09')
    """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if size <= abs(value) < 1e9 and value % (size / 10) == 0:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
