"""Pieces of an SVG file: text whose width is known before it is drawn, boxes, circles and arrows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

__all__ = ["LINE", "RADIUS", "Canvas", "legal", "text_width", "wrap"]

LINE = 17
"""Height of a line of text."""

RADIUS = 12
"""Of the circles of products and sums."""

# A title is set in 16 pixels and bold, which makes it wider.
_SIZES = {"title": 18.5, "name": 15.0, "soft": 12.0, "foot": 10.0}

# The light colours stand first, so that viewers without media queries have them.
_STYLE = """
.pb-paper { fill: #ffffff; }
.pb-title, .pb-name, .pb-soft { font-family: system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; }
.pb-title, .pb-name { fill: #111827; }
.pb-title { font-size: 16px; font-weight: 600; }
.pb-name { font-size: 15px; }
.pb-soft { font-size: 12px; fill: #374151; }
.pb-line { stroke: #374151; stroke-width: 1.5; fill: none; }
.pb-dashed { stroke: #374151; stroke-width: 1.5; stroke-dasharray: 2 5; fill: none; }
.pb-head { fill: #374151; }
.pb-learned, .pb-operation, .pb-input, .pb-output { stroke-width: 1.5; }
.pb-learned { fill: #dbeafe; stroke: #1d4ed8; }
.pb-operation { fill: #fef3c7; stroke: #a16207; }
.pb-input { fill: #dcfce7; stroke: #15803d; }
.pb-output { fill: #fee2e2; stroke: #b91c1c; }
.pb-sign { stroke: #a16207; stroke-width: 1.8; fill: none; }
.pb-dot { fill: #a16207; }
@media (prefers-color-scheme: dark) {
  .pb-paper { fill: #14171b; }
  .pb-title, .pb-name { fill: #f3f4f6; }
  .pb-soft { fill: #d1d5db; }
  .pb-line, .pb-dashed { stroke: #9ca3af; }
  .pb-head { fill: #9ca3af; }
  .pb-learned { fill: #1c3557; stroke: #93c5fd; }
  .pb-operation { fill: #463807; stroke: #fcd34d; }
  .pb-input { fill: #12402a; stroke: #86efac; }
  .pb-output { fill: #4c1d1d; stroke: #fca5a5; }
  .pb-sign { stroke: #fcd34d; }
  .pb-dot { fill: #fcd34d; }
}
"""

# Widths in units of the font's size, of wide sans-serif fonts; what is not listed is taken for a wide letter.
_WIDTHS = {"digits": 0.64, "upper": 0.8, "lower": 0.64, "narrow": 0.42, "wide": 1.0}


def _width_of(letter: str) -> float:
    if letter in " .,:;'|()[]fijlrt-":
        return _WIDTHS["narrow"]
    if letter.isascii() and letter.isdigit():
        return _WIDTHS["digits"]
    if letter in "mwMW" or not letter.isascii():
        return _WIDTHS["wide"]
    return _WIDTHS["lower" if letter.islower() else "upper"]


def text_width(text: str, style: str) -> float:
    """A width that the text does not exceed in the fonts of common systems; `_` marks what stands at the foot."""
    return sum(sum(map(_width_of, part)) * _SIZES["foot" if foot else style] for part, foot in _parts(text))


def wrap(text: str, style: str, width: float, most: int = 3) -> list[str]:
    """A text in lines that are not wider than that; what is too long for `most` lines ends in an ellipsis."""
    lines = [""]
    for word in text.split():
        for piece in _pieces(word, style, width):
            longer = f"{lines[-1]} {piece}".strip()
            if text_width(longer, style) <= width:
                lines[-1] = longer
            else:
                lines.append(piece)
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1][:-2]}…"]
    return lines


def _pieces(word: str, style: str, width: float) -> list[str]:
    """A word, cut where it is wider than a line."""
    found = [""]
    for letter in word:
        if found[-1] and text_width(found[-1] + letter, style) > width:
            found.append("")
        found[-1] += letter
    return found


def _parts(text: str) -> list[tuple[str, bool]]:
    """The parts of a text, each with whether it stands at the foot: `V_n x` has three."""
    found = re.split(r"_(\w+|\([^)]*\))", text)
    return [(part, place % 2 == 1) for place, part in enumerate(found) if part]


def legal(text: str) -> str:
    """A text without the characters that XML has no place for; those become a replacement character."""
    return re.sub("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]", "\N{REPLACEMENT CHARACTER}", text)


class Canvas:
    """An SVG drawing, which grows by what is added to it.

    Args:
        title: what it shows, for those who cannot see it.
        text: the same in sentences.
    """

    def __init__(self, title: str, text: str) -> None:
        self.root = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
        self.width = self.height = 0.0
        self._add("title").text = legal(title)
        self._add("desc").text = legal(text)
        self._add("style").text = _STYLE
        self._paper = self._add("rect", rx=8, **{"class": "pb-paper"})

    def _add(self, tag: str, **attributes: str | float) -> ElementTree.Element:
        values = {name: value if isinstance(value, str) else f"{value:g}" for name, value in attributes.items()}
        return ElementTree.SubElement(self.root, tag, values)

    def _reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def text(self, x: float, y: float, text: str, style: str = "soft", anchor: str = "start") -> None:
        """A line of text with its base line at y; `_` marks what stands at the foot, if `style` is not a title's."""
        place = self._add("text", x=x, y=y, **{"class": f"pb-{style}", "text-anchor": anchor})
        place.text = ""
        last: ElementTree.Element | None = None
        for part, foot in [(text, False)] if style == "title" else _parts(text):
            if foot:
                last = ElementTree.SubElement(place, "tspan", {"dy": "3", "font-size": "10"})
                last.text = legal(part)
            elif last is None:
                place.text += legal(part)
            else:
                # The base line goes back up with the next character.
                last = ElementTree.SubElement(place, "tspan", {"dy": "-3"})
                last.text = legal(part)
        reach = text_width(text, style)
        self._reach(x + (reach if anchor == "start" else reach / 2), y + 4)

    def box(self, x: float, y: float, width: float, height: float, kind: str, lines: Sequence[str]) -> None:
        """A box around the point (x, y), with its name and the lines below it."""
        top = y - height / 2
        self._add("rect", x=x - width / 2, y=top, width=width, height=height, rx=5, **{"class": f"pb-{kind}"})
        for place, line in enumerate(lines):
            self.text(x, top + LINE * (place + 1) + 1, line, "soft" if place else "name", "middle")
        self._reach(x + width / 2, y + height / 2)

    def product(self, x: float, y: float) -> None:
        """A circle with a dot: a product, entry by entry."""
        self._add("circle", cx=x, cy=y, r=RADIUS, **{"class": "pb-operation"})
        self._add("circle", cx=x, cy=y, r=3, **{"class": "pb-dot"})
        self._reach(x + RADIUS, y + RADIUS)

    def sum(self, x: float, y: float) -> None:
        """A circle with a plus."""
        self._add("circle", cx=x, cy=y, r=RADIUS, **{"class": "pb-operation"})
        self._add("path", d=f"M{x - 6:g} {y:g}h12M{x:g} {y - 6:g}v12", **{"class": "pb-sign"})
        self._reach(x + RADIUS, y + RADIUS)

    def line(self, *points: tuple[float, float], arrow: bool = True, dashed: bool = False) -> None:
        """A line along some points, with a head at its end."""
        where = "L".join(f"{x:g} {y:g}" for x, y in points)
        self._add("path", d=f"M{where}", **{"class": "pb-dashed" if dashed else "pb-line"})
        for x, y in points:
            self._reach(x, y)
        if arrow:
            (before_x, before_y), (x, y) = points[-2:]
            if before_x == x:
                back = -7 if y > before_y else 7
                head = f"M{x:g} {y:g}l-4 {back}h8z"
            else:
                back = -7 if x > before_x else 7
                head = f"M{x:g} {y:g}l{back} -4v8z"
            self._add("path", d=head, **{"class": "pb-head"})

    def as_text(self, margin: float) -> str:
        """The SVG file: its size is what was drawn, with a margin."""
        width, height = round(self.width + margin), round(self.height + margin)
        self.root.set("viewBox", f"0 0 {width} {height}")
        # A wide window does not make it larger than it was drawn.
        self.root.set("width", str(width))
        self.root.set("height", str(height))
        self._paper.set("width", str(width))
        self._paper.set("height", str(height))
        return ElementTree.tostring(self.root, encoding="unicode", xml_declaration=False) + "\n"
