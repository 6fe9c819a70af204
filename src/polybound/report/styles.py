"""How lines are told apart: by colour, and without it by marker and dash."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COLOURS", "PAPER_MARKER", "Style", "markers_every", "style"]

# Okabe and Ito's palette, on white and, brighter where it needs to be, on black.
COLOURS = (
    ("#0072B2", "#4DABE8"),
    ("#D55E00", "#FF8A3D"),
    ("#009E73", "#2CC79A"),
    ("#B0578A", "#E29AC2"),
    ("#B57B00", "#F0B73A"),
    ("#3B8FBF", "#8CCBF2"),
)
PAPER_MARKER = "*"

_MARKERS = ("o", "s", "^", "D", "v", "P")
_DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Style:
    """A line's look: the number of its colour, and matplotlib's names of its marker and dash."""

    colour: int
    marker: str
    dash: str


def style(number: int) -> Style:
    """The look of a figure's line by its number; the first 24 differ from each other without any colour.

    >>> style(0), style(6)
    (Style(colour=0, marker='o', dash='-'), Style(colour=0, marker='o', dash='-.'))
    """
    dash = (number + number // 12) % len(_DASHES)
    return Style(number % len(COLOURS), _MARKERS[number % len(_MARKERS)], _DASHES[dash])


def markers_every(points: int, number: int) -> tuple[int, int] | None:
    """The first point of a line that has a marker, and the distance to the next; None if all have one.

    >>> markers_every(30, 0), markers_every(100, 1)
    (None, (5, 16))
    """
    if points <= 30:
        return None
    step = points // 6
    return 5 * number % step, step
