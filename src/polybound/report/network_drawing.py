"""The picture of a network: which maps lead from the input to which product, laid out and written as SVG."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from polybound.atomic import write_atomically
from polybound.errors import PolyboundError, writable_file
from polybound.models import (
    CCP,
    NCP,
    Affine,
    Chain,
    Conv,
    Dense,
    Factors,
    Identity,
    PolynomialNetwork,
    Pool,
    polynomial,
)


def network_svg(model: PolynomialNetwork, *, title: str | None = None) -> str:
    """The schematic of a network as the text of an SVG file, drawn from its factors.

    The input is on the left, every factor has a row with its affine maps, and the products run down on the right. Sizes
    are written rows x columns. A residual form has a sum around each product; NCPs have a map between two products.

    Args:
        model: any polynomial network, or a stack of them.
        title: above the drawing; the model's kind by default.

    >>> import polybound as pb
    >>> "rank 16" in pb.report.network_svg(pb.paper_model("pn-4"), title="PN-4")
    True
    """
    factors = polynomial(model).factors()
    lifted = factors.kind == "CCP" and not factors.constant  # drawn as the paper has it, on z = [x, 1]
    weights = sum(parameter.numel() for parameter in model.parameters()) // (model.runs or 1)
    form = f", {model.form} form" if isinstance(model, CCP) else ""
    width = getattr(model, "channels", None)
    units = f"{width} channels" if width is not None else f"rank {factors.A[-1].outputs}"
    facts = [f"{type(model).__name__}{form}, degree {model.degree}, {units}", f"{weights:,} weights"]
    facts += [f"a stack of {model.runs} such networks"] if model.runs is not None else []
    if len(factors.A) > 1 and all(isinstance(a, Dense) for a in factors.A):
        formula = "y_n = V_n x ∘ y_(n-1) + y_(n-1),  f = C(y_k)"
        formula = "y_n = A_n x ∘ S_n(y_(n-1)),  f = C(y_k)" if factors.kind == "NCP" else formula
        facts.append("f(z) = C ((U_1 z) ∘ … ∘ (U_k z))" if lifted else formula)
    entry = ("z", "= [x, 1]") if lifted else ("x", " × ".join(f"{size:,}" for size in model.shape))
    name = type(model).__name__ if title is None else title
    return _draw([Schematic(factors.lifted() if lifted else factors, name, facts, entry=entry)])


def draw_network(model: PolynomialNetwork, path: str | PathLike[str], *, title: str | None = None) -> Path:
    """Write what `network_svg` draws to a file, and return its path."""
    return _write(network_svg(model, title=title), path)


def draw_figure_1(path: str | PathLike[str]) -> Path:
    """Write the paper's Figure 1, CCP on the left and NCP on the right, with letters for all sizes; return its path."""
    d, m, o, k = 53, 47, 43, 41
    letters = {d: "d", m: "m", o: "o", k: "k"}
    # The lemmas' matrices act on the lifted input, and an NCP's on its products with one more unit.
    ccp = CCP(d - 1, m, o, k, form="product", seed=0).factors().lifted()
    ncp = NCP(d - 1, m - 1, o, k, seed=0).factors().lifted()
    both = [
        Schematic(factors, f"{factors.kind} model", (facts,), entry=("z", "d"), letters=letters, keep=(2, 1))
        for factors, facts in (
            (ccp, "f(z) = C ((U_1 z) ∘ … ∘ (U_k z))"),
            (ncp, "x_n = (A_n z) ∘ (S_n x_(n-1)),  f(z) = C x_k"),
        )
    ]
    return _write(_draw(both), path)


def _write(svg: str, path: str | PathLike[str]) -> Path:
    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise PolyboundError(f"{target}: a schematic is an SVG file; its name must end in .svg")
    writable_file(target)
    write_atomically(target, svg.encode())
    return target


# What is drawn of a network: boxes for affine maps, steps for factors and their products.


@dataclass(frozen=True)
class Box:
    """A box of a schematic.

    Attributes:
        symbol: its name, "A" or "average pool".
        index: what stands at the foot of the name.
        lines: sizes and the like, below the name.
        kind: "learned" for weights, "operation" for maps without any, "input" or "output".
    """

    symbol: str
    index: str = ""
    lines: tuple[str, ...] = ()
    kind: Literal["learned", "operation", "input", "output"] = "learned"

    @property
    def name(self) -> str:
        """The symbol with its index."""
        return f"{self.symbol}_{self.index}" if self.index else self.symbol

    @property
    def width(self) -> float:
        """Room for all lines."""
        return max(text_width(self.name, "name"), *(text_width(line, "soft") for line in self.lines), 30.0) + 16

    @property
    def height(self) -> float:
        """Room for all lines."""
        return LINE * (1 + len(self.lines)) + 10.0


@dataclass(frozen=True)
class Step:
    """One factor and its product.

    Attributes:
        path: the maps from the input to the product.
        between: the map from the product before to this one; None for the identity.
        product: whether there is anything to multiply with; the first factor of a CCP is taken as it is.
        skip: whether what the factor is multiplied with is added to the product, as in the residual form.
        result: the name of what comes out, with its size.
    """

    path: tuple[Box, ...]
    between: Box | None
    product: bool
    skip: bool
    result: str


MOST_STEPS = 16
"""Networks of a higher degree have the middle left out of their schematic, if its steps are alike."""


class Schematic:
    """All that is drawn of factors.

    Args:
        factors: what is drawn.
        title: of the schematic.
        facts: lines below the title.
        entry: the input's name and its size.
        letters: letters in place of some numbers, "m" for the rank.
        keep: how many steps at the beginning and at the end are drawn, if not all are.

    Attributes:
        entry: the input, and the maps that all factors share.
        scale: s_1 of an NCP, which the first factor is multiplied with.
        steps: the factors in their order; None where some are left out.
        left_out: the text in their place.
        output: the maps from the last product to the output, and the output.
    """

    def __init__(
        self,
        factors: Factors,
        title: str,
        facts: Sequence[str],
        *,
        entry: tuple[str, str],
        letters: Mapping[int, str] | None = None,
        keep: tuple[int, int] | None = None,
    ) -> None:
        self.title, self.facts, self.letters = title, facts, letters or {}
        # s_1 is 1 in a CCP: its first factor is multiplied with nothing.
        free = factors.kind == "CCP" and bool((factors.s1 == 1).all())
        paths = [a.maps if isinstance(a, Chain) else (a,) for a in factors.A]
        # The maps that all factors begin with are the same objects, as PN-Conv's pre-convolution is.
        shared: list[Affine] = []
        for first, *others in zip(*(path[:-1] for path in paths), strict=False):
            if any(other is not first for other in others) or not others:
                break
            shared.append(first)
        symbol = "A" if factors.kind == "NCP" else "U" if entry[0] == "z" else "V"
        steps = []
        for n, (a, path) in enumerate(zip(factors.A, paths, strict=True)):
            index, maps = self._index(n + 1), path[len(shared) :]
            # A factor W x + 1 makes a product that is a sum of two terms.
            skip = n > 0 and (a.shift == 1.0 if isinstance(a, Chain) else bool((a.constant == 1).all()))
            before = (
                None if n == 0 or isinstance(factors.S[n - 1], Identity) else self._box("S", index, factors.S[n - 1])
            )
            # The paper calls products of the lifted input z by x.
            size = self._sizes(getattr(maps[-1], "out_shape", (a.outputs,)))
            result = f"{'x' if entry[0] == 'z' else 'y'}_{index}: {size}"
            steps.append(Step(self._path(symbol, index, maps, skip), before, n > 0 or not free, skip, result))
        self.steps, self.left_out = self._shorten(steps, keep)
        self.scale = None if free else Box("s", "1", (self._sizes([factors.A[0].outputs]),))
        self.entry = (Box(entry[0], "", (entry[1],), "input"), *(self._box("pre", "", step) for step in shared))
        last, ends = factors.C.outputs, factors.C.maps if isinstance(factors.C, Chain) else (factors.C,)
        outputs = self._sizes([last]) + (" output" if last == 1 else " outputs")
        output = Box(f"f({entry[0]})", "", (outputs,), "output")
        self.output = (*(self._box("C", "", step) for step in ends), output)

    def _index(self, value: int) -> str:
        return self.letters.get(value, str(value))

    def _sizes(self, values: Sequence[int]) -> str:
        return " × ".join(self.letters.get(value, f"{value:,}") for value in values)

    def _path(self, symbol: str, index: str, maps: Sequence[Affine], without_bias: bool) -> tuple[Box, ...]:
        """The boxes of maps in their order; consecutive poolings have one, from the first to the last."""
        found: list[Box] = []
        first: Pool | None = None
        for step in maps:
            if isinstance(step, Pool):
                found = found[:-1] if first is not None else found
                first = first or step
                before, after = self._sizes(first.shape[1:]), self._sizes(step.out_shape[1:])
                found.append(Box("average pool", "", (f"{before} → {after}",), "operation"))
            else:
                first = None
                found.append(self._box(symbol, index, step, without_bias))
        return tuple(found)

    def _box(self, symbol: str, index: str, step: Affine, without_bias: bool = False) -> Box:
        """The box of one map."""
        if isinstance(step, Pool):
            return self._path(symbol, index, [step], without_bias)[0]
        bias = ("with bias",) if not without_bias and bool((step.constant != 0).any()) else ()
        if isinstance(step, Conv):
            kernel = self._sizes(step.weight.shape[-step.dims :])
            channels = f"{self._sizes([step.shape[0]])} → {self._sizes([step.channels])} channels"
            return Box("K" if symbol in "UV" else symbol, index, (f"convolution {kernel}", channels, *bias))
        inputs, outputs = self._sizes([step.inputs]), self._sizes([step.outputs])
        return Box(
            symbol, index, (f"{outputs} × {inputs}" if isinstance(step, Dense) else f"{inputs} → {outputs}", *bias)
        )

    def _shorten(self, steps: list[Step], keep: tuple[int, int] | None) -> tuple[list[Step | None], str]:
        """The steps that are drawn, and the text in place of the others."""
        first, last = keep or (4, 2)
        middle, end = steps[first : len(steps) - last], len(steps) - last
        alike = {
            (tuple((box.symbol, box.lines) for box in step.path), step.between and step.between.lines, step.skip)
            for step in middle
        }
        if len(middle) < 2 or len(alike) > 1 or (keep is None and len(steps) <= MOST_STEPS):
            return [*steps], ""
        return [*steps[:first], None, *steps[end:]], "…" if self.letters else f"factors {first + 1} to {end}: the same"


# Pieces of an SVG file: text whose width is known before it is drawn, boxes, circles and arrows.


LINE = 17
"""Height of a line of text."""

RADIUS = 12
"""Of the circles of products and sums."""

# A title is set in 16 pixels and bold, which makes it wider.
_SIZES = {"title": 18.5, "name": 15.0, "soft": 12.0, "foot": 10.0}


def text_width(text: str, style: str) -> float:
    """A width that the text does not exceed in the fonts of common systems; `_` marks what stands at the foot."""

    def width(letter: str) -> float:
        """In units of the font's size, of wide sans-serif fonts; what is not listed is taken for a wide letter."""
        if letter in " .,:;'|()[]fijlrt-":
            return 0.42
        if letter in "mwMW" or not letter.isascii():
            return 1.0
        return 0.64 if letter.isdigit() or letter.islower() else 0.8

    return sum(sum(map(width, part)) * _SIZES["foot" if foot else style] for part, foot in _parts(text))


def wrap(text: str, style: str, width: float, most: int = 3) -> list[str]:
    """A text in lines that are not wider than that; what is too long for `most` lines ends in an ellipsis."""
    lines = [""]
    for word in text.split():
        pieces = [""]  # a word is cut where it is wider than a line
        for letter in word:
            if pieces[-1] and text_width(pieces[-1] + letter, style) > width:
                pieces.append("")
            pieces[-1] += letter
        for piece in pieces:
            longer = f"{lines[-1]} {piece}".strip()
            if text_width(longer, style) <= width:
                lines[-1] = longer
            else:
                lines.append(piece)
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1][:-2]}…"]


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
        style = (files("polybound.report") / "schematic.css").read_text(encoding="utf-8")
        self._add("style").text = style.partition("*/")[2]  # without the comment
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
        for part, foot in [(text, False)] if style == "title" else _parts(text):
            if foot or len(place):
                # After a foot, the base line goes back up with the next character.
                about = {"dy": "3", "font-size": "10"} if foot else {"dy": "-3"}
                ElementTree.SubElement(place, "tspan", about).text = legal(part)
            else:
                place.text += legal(part)
        reach = text_width(text, style)
        self._reach(x + (reach if anchor == "start" else reach / 2), y + 4)

    def box(self, x: float, y: float, box: Box) -> None:
        """A box around the point (x, y), with its name and the lines below it."""
        width, height, top = box.width, box.height, y - box.height / 2
        self._add("rect", x=x - width / 2, y=top, width=width, height=height, rx=5, **{"class": f"pb-{box.kind}"})
        for place, line in enumerate([box.name, *box.lines]):
            self.text(x, top + LINE * (place + 1) + 1, line, "soft" if place else "name", "middle")
        self._reach(x + width / 2, y + height / 2)

    def circle(self, x: float, y: float, plus: bool = False) -> None:
        """A circle with a dot, a product entry by entry, or with a plus, a sum."""
        self._add("circle", cx=x, cy=y, r=RADIUS, **{"class": "pb-operation"})
        if plus:
            self._add("path", d=f"M{x - 6:g} {y:g}h12M{x:g} {y - 6:g}v12", **{"class": "pb-sign"})
        else:
            self._add("circle", cx=x, cy=y, r=3, **{"class": "pb-dot"})
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
        for element in (self.root, self._paper):  # a wide window does not make it larger than it was drawn
            element.set("width", str(width))
            element.set("height", str(height))
        return ElementTree.tostring(self.root, encoding="unicode", xml_declaration=False) + "\n"


# The layout of schematics.


MARGIN = 20
ARROW = 30
"""Length of the arrows between boxes."""

SKIP = 30
"""How far the line of a skip connection is from the chain of products."""

NARROWEST = 260
"""Least width of a drawing, for its texts."""


def _draw(schematics: Sequence[Schematic]) -> str:
    """Schematics side by side."""
    canvas = Canvas("; ".join(one.title for one in schematics), " ".join(map(_in_words, schematics)))
    left, bottom = float(MARGIN), 0.0
    for one in schematics:
        drawing = _Drawing(canvas, one, left)
        drawing.draw()
        left = drawing.right + 2 * MARGIN
        bottom = max(bottom, drawing.y)
    legend = "Boxes: affine maps, blue ones are learned. Circles: products entry by entry"
    sums = any(step is not None and step.skip for one in schematics for step in one.steps)
    legend += " (dot) and sums (plus)." if sums else "."
    for place, line in enumerate(wrap(legend, "soft", canvas.width - MARGIN, most=9)):
        canvas.text(MARGIN, bottom + 30 + LINE * place, line)
    return canvas.as_text(MARGIN)


def _in_words(one: Schematic) -> str:
    """A schematic for those who cannot see it."""
    steps = [step for step in one.steps if step is not None]
    paths = [[f"{box.symbol}{box.index} ({', '.join(box.lines)})" for box in step.path] for step in steps]
    maps = "; ".join(map(", then ".join, paths))
    skips = " Each product after the first is added to what it was multiplied with." if steps[-1].skip else ""
    more = f" {one.left_out}." if one.left_out else ""
    return f"{one.title}. {'. '.join(one.facts)}. Factors of the input: {maps}.{more}{skips}".replace("_", "")


class _Drawing:
    """One schematic on a canvas: where things are, and the line `y` down to which it is drawn.

    Attributes:
        bus: where the input's line runs down.
        columns: the middles of the boxes of the factors, the same in all rows.
        chain: where the products run down.
        right: how far it goes.
    """

    def __init__(self, canvas: Canvas, about: Schematic, left: float) -> None:
        self.canvas, self.about, self.left = canvas, about, left
        steps = [step for step in about.steps if step is not None]
        self.bus = left + max(box.width for box in about.entry) / 2
        x = self.bus + ARROW
        self.columns, widths = [], [0.0] * max(len(step.path) for step in steps)
        for step in steps:
            for place, box in enumerate(step.path):
                widths[place] = max(widths[place], box.width)
        for width in widths:
            self.columns.append(x + width / 2)
            x += width + ARROW
        self.ends = [middle + width / 2 for middle, width in zip(self.columns, widths, strict=True)]
        on_chain = [about.scale, *(step.between for step in steps), *about.output]
        widest = max(box.width for box in on_chain if box is not None)
        # Boxes on the chain stand clear of the input's line, and the first of them beside the input.
        self.chain = max(x + RADIUS, max(self.bus, self.left + 2 * (self.bus - self.left)) + ARROW / 2 + widest / 2)
        labels = max(text_width(text, "soft") for text in (about.left_out, *(step.result for step in steps)))
        skips = SKIP + 12 if any(step.skip for step in steps) else 0
        self.right = self.chain + max(widest / 2, labels + 14, skips)
        heads = [text_width(about.title, "title"), *(text_width(line, "soft") for line in about.facts)]
        self.right = max(self.right, left + NARROWEST, min(left + max(heads), left + 560))
        self.y = self.tap = float(MARGIN)

    def draw(self) -> None:
        """Draw everything, from the title to the output."""
        width = self.right - self.left
        for style, text in [("title", self.about.title), *(("soft", fact) for fact in self.about.facts)]:
            for line in wrap(text, style, width):
                self.y += LINE
                self.canvas.text(self.left, self.y, line, style)
        self.y += 16
        top = self.y
        # The input and what all factors share, at the top of the input's line.
        for place, box in enumerate(self.about.entry):
            if place:
                self.canvas.line((self.bus, self.tap), (self.bus, self.y))
            self.canvas.box(self.bus, self.y + box.height / 2, box)
            self.tap = self.y + box.height
            self.y = self.tap + ARROW - 6
        # The end of what is drawn on the chain; None where there is nothing yet.
        end = None if self.about.scale is None else self._on_chain(self.about.scale, None, top)
        self.y = max(self.y, end or 0.0)
        for step in self.about.steps:
            end = self._gap(end) if step is None else self._row(step, end)
        for box in self.about.output:
            end = self._on_chain(box, end, self.y)
        self.canvas.width = max(self.canvas.width, self.right)

    def _on_chain(self, box: Box, end: float | None, top: float) -> float:
        """A box on the chain, after what ends at `end`; returns where it ends."""
        height = box.height
        top = top if end is None else end + ARROW
        self.canvas.box(self.chain, top + height / 2, box)
        if end is not None:
            self.canvas.line((self.chain, end), (self.chain, top))
        self.y = max(self.y, top + height)
        return top + height

    def _gap(self, end: float | None) -> float:
        """Dots for the factors that are left out."""
        start = self.y if end is None else end
        for x in (self.bus, self.chain):
            self.canvas.line((x, self.tap if x == self.bus else start), (x, start), arrow=False)
            self.canvas.line((x, start), (x, start + 44), arrow=False, dashed=True)
        self.canvas.text(self.chain + 8, start + 28, self.about.left_out)
        self.tap = self.y = start + 44
        return self.y

    def _row(self, step: Step, end: float | None) -> float:
        """A factor with its product; returns where the chain ends below it."""
        height = max(box.height for box in step.path)
        if step.between is not None:
            end = self._on_chain(step.between, end, self.y)
        y = max(self.y if end is None else self.y + 4, (end or 0.0) + ARROW - RADIUS) + height / 2
        if end is not None:
            y = max(y, end + ARROW + RADIUS)
        # The input's line down to this row, and its maps.
        self.canvas.line((self.bus, self.tap), (self.bus, y), arrow=False)
        self.tap, start, last = y, self.bus, self.ends[len(step.path) - 1]
        for middle, box in zip(self.columns, step.path, strict=False):
            self.canvas.line((start, y), (middle - box.width / 2, y))
            self.canvas.box(middle, y, box)
            start = middle + box.width / 2
        if start < last:
            self.canvas.line((start, y), (last, y), arrow=False)
        x, below = self.chain, y
        if step.product:
            # The circle of the product, and that of a sum around it.
            start, below = end if end is not None else y - RADIUS - ARROW, y + RADIUS
            self.canvas.line((last, y), (x - RADIUS, y))
            self.canvas.line((x, start), (x, y - RADIUS))
            self.canvas.circle(x, y)
        else:
            self.canvas.line((last, y), (x, y), arrow=False)
        if step.product and step.skip:
            under, branch = y + 2 * RADIUS + 14, y - RADIUS - 12
            self.canvas.line((x, y + RADIUS), (x, under - RADIUS))
            self.canvas.line((x, branch), (x + SKIP, branch), (x + SKIP, under), (x + RADIUS, under))
            self.canvas.circle(x, under, plus=True)
            below = under + RADIUS
        self.canvas.text(self.chain + 8, below + 18, step.result)
        self.y = max(y + height / 2, below + 22)
        # The chain goes on from here; its label stands beside the beginning.
        self.canvas.line((self.chain, below), (self.chain, below + 22), arrow=False)
        return below + 22
