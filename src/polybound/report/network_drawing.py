"""The picture of a network: which maps lead from the input to which product, laid out and written as SVG."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

__all__ = [
    "LINE",
    "RADIUS",
    "Box",
    "Canvas",
    "Schematic",
    "Step",
    "describe",
    "describe_factors",
    "draw_figure_1",
    "draw_network",
    "legal",
    "network_svg",
    "text_width",
    "wrap",
]


MOST_STEPS = 16
"""Networks of a higher degree have the middle left out of their schematic, if its steps are alike."""

_KEPT = (4, 2)


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


@dataclass(frozen=True)
class Schematic:
    """All that is drawn of a network.

    Attributes:
        title: its name.
        facts: lines below the title.
        entry: the input, and the maps that all factors share.
        scale: s_1 of an NCP, which the first factor is multiplied with.
        steps: the factors in their order; None where some are left out.
        left_out: what is said of these.
        output: the maps from the last product to the output, and the output.
    """

    title: str
    facts: tuple[str, ...]
    entry: tuple[Box, ...]
    scale: Box | None
    steps: tuple[Step | None, ...]
    left_out: str
    output: tuple[Box, ...]


class _Names:
    """How numbers are written: as they are, or as the letters that stand for them."""

    def __init__(self, letters: Mapping[int, str]) -> None:
        self.letters = letters

    def number(self, value: int) -> str:
        return self.letters.get(value, f"{value:,}")

    def index(self, value: int) -> str:
        return self.letters.get(value, str(value))

    def sizes(self, values: Sequence[int]) -> str:
        return " × ".join(map(self.number, values))


def describe(model: PolynomialNetwork, title: str) -> Schematic:
    """The schematic of a network, with its degree, ranks, sizes and number of weights.

    The product form of a CCP is drawn as the paper has it, on the lifted input z = [x, 1].
    """
    factors = polynomial(model).factors()
    lifted = factors.kind == "CCP" and not factors.constant
    weights = sum(parameter.numel() for parameter in model.parameters()) // (model.runs or 1)
    form = f", {model.form} form" if isinstance(model, CCP) else ""
    width = getattr(model, "channels", None)
    units = f"{width} channels" if width is not None else f"rank {factors.A[-1].outputs}"
    facts = [f"{type(model).__name__}{form}, degree {model.degree}, {units}", f"{weights:,} weights"]
    facts += [f"a stack of {model.runs} such networks"] if model.runs is not None else []
    facts += _formula(factors, lifted)
    symbols = ("z", "= [x, 1]") if lifted else ("x", _Names({}).sizes(model.shape))
    shown = factors.lifted() if lifted else factors
    return describe_factors(shown, title, facts, entry=symbols)


def _formula(factors: Factors, lifted: bool) -> list[str]:
    """The recursion in a line, where all steps are matrices."""
    if len(factors.A) == 1 or not all(isinstance(a, Dense) for a in factors.A):
        return []
    if lifted:
        return ["f(z) = C ((U_1 z) ∘ … ∘ (U_k z))"]
    if factors.kind == "NCP":
        return ["y_n = A_n x ∘ S_n(y_(n-1)),  f = C(y_k)"]
    return ["y_n = V_n x ∘ y_(n-1) + y_(n-1),  f = C(y_k)"]


def describe_factors(
    factors: Factors,
    title: str,
    facts: Sequence[str],
    *,
    entry: tuple[str, str],
    letters: Mapping[int, str] | None = None,
    keep: tuple[int, int] | None = None,
) -> Schematic:
    """The schematic of factors.

    Args:
        factors: what is drawn.
        title: of the schematic.
        facts: lines below the title.
        entry: the input's name and its size.
        letters: what stands for some numbers, "m" for the rank.
        keep: how many steps at the beginning and at the end are drawn, if not all are.
    """
    names = _Names(letters or {})
    shared = _shared([_maps(a) for a in factors.A])
    steps = [_step(factors, n, len(shared), entry[0], names) for n in range(len(factors.A))]
    shown, left_out = _shorten(steps, keep, names)
    scale = None if _first_is_free(factors) else Box("s", "1", (names.number(factors.A[0].outputs),))
    last = factors.C.outputs
    return Schematic(
        title,
        tuple(facts),
        (Box(entry[0], "", (entry[1],), "input"), *(_box("pre", "", step, names) for step in shared)),
        scale,
        shown,
        left_out,
        (
            *(_box("C", "", step, names) for step in _maps(factors.C)),
            Box(f"f({entry[0]})", "", (names.number(last) + (" output" if last == 1 else " outputs"),), "output"),
        ),
    )


def _first_is_free(factors: Factors) -> bool:
    """Whether the first factor is multiplied with nothing: s_1 is 1 in a CCP."""
    return factors.kind == "CCP" and bool((factors.s1 == 1).all())


def _maps(step: Affine) -> tuple[Affine, ...]:
    return step.maps if isinstance(step, Chain) else (step,)


def _shared(paths: Sequence[tuple[Affine, ...]]) -> tuple[Affine, ...]:
    """The maps that all factors begin with: the same objects, as PN-Conv's pre-convolution is."""
    found: list[Affine] = []
    for first, *others in zip(*(path[:-1] for path in paths), strict=False):
        if any(other is not first for other in others) or not others:
            break
        found.append(first)
    return tuple(found)


def _step(factors: Factors, n: int, shared: int, entry: str, names: _Names) -> Step:
    a, free = factors.A[n], n == 0 and _first_is_free(factors)
    maps = _maps(a)[shared:]
    residual = n > 0 and _adds_one(a)
    symbol = "A" if factors.kind == "NCP" else "U" if entry == "z" else "V"
    path = [_box(symbol, names.index(n + 1), step, names, without_bias=residual) for step in _joined(maps)]
    between = None if n == 0 or isinstance(factors.S[n - 1], Identity) else factors.S[n - 1]
    box = None if between is None else _box("S", names.index(n + 1), between, names)
    shape = getattr(maps[-1], "out_shape", (a.outputs,))
    # The paper calls products of the lifted input z by x.
    result = f"{'x' if entry == 'z' else 'y'}_{names.index(n + 1)}: {names.sizes(shape)}"
    return Step(tuple(path), box, not free, residual, result)


def _adds_one(a: Affine) -> bool:
    """Whether a factor is W x + 1, so that its product is a sum of two terms."""
    return a.shift == 1.0 if isinstance(a, Chain) else bool((a.constant == 1).all())


def _joined(maps: Sequence[Affine]) -> list[Affine | tuple[Pool, Pool]]:
    """The maps in their order, with the first and the last of consecutive poolings as one."""
    found: list[Affine | tuple[Pool, Pool]] = []
    for step in maps:
        if isinstance(step, Pool):
            before = found.pop() if found and isinstance(found[-1], tuple) else (step, step)
            found.append((before[0], step) if isinstance(before, tuple) else (step, step))
        else:
            found.append(step)
    return found


def _box(symbol: str, index: str, step: Affine | tuple[Pool, Pool], names: _Names, without_bias: bool = False) -> Box:
    """The box of one map."""
    if isinstance(step, Pool):
        step = (step, step)
    if isinstance(step, tuple):
        before, after = (names.sizes(shape[1:]) for shape in (step[0].shape, step[1].out_shape))
        return Box("average pool", "", (f"{before} → {after}",), "operation")
    bias = not without_bias and bool((step.constant != 0).any())
    more = ("with bias",) if bias else ()
    if isinstance(step, Conv):
        kernel = names.sizes(step.weight.shape[-step.dims :])
        channels = f"{names.number(step.shape[0])} → {names.number(step.channels)} channels"
        return Box("K" if symbol in "UV" else symbol, index, (f"convolution {kernel}", channels, *more))
    if isinstance(step, Dense):
        return Box(symbol, index, (names.sizes((step.outputs, step.inputs)), *more))
    return Box(symbol, index, (f"{names.number(step.inputs)} → {names.number(step.outputs)}", *more))


def _shorten(steps: Sequence[Step], keep: tuple[int, int] | None, names: _Names) -> tuple[tuple[Step | None, ...], str]:
    """The steps that are drawn, and what is said of the others."""
    first, last = keep or _KEPT
    middle = steps[first : len(steps) - last]
    alike = {
        (tuple((box.symbol, box.lines) for box in step.path), step.between and step.between.lines, step.skip)
        for step in middle
    }
    if len(middle) < 2 or len(alike) > 1 or (keep is None and len(steps) <= MOST_STEPS):
        return tuple(steps), ""
    end = len(steps) - last
    text = "…" if names.letters else f"factors {first + 1} to {end}: the same"
    return (*steps[:first], None, *steps[end:]), text


# Pieces of an SVG file: text whose width is known before it is drawn, boxes, circles and arrows.


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


# The schematic of a network as an SVG file: boxes for affine maps, circles for products and sums.


MARGIN = 20
ARROW = 30
"""Length of the arrows between boxes."""

SKIP = 30
"""How far the line of a skip connection is from the chain of products."""

NARROWEST = 260
"""Least width of a drawing, for its texts."""

LEGEND = "Boxes: affine maps, blue ones are learned. Circles: products entry by entry"


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
    return _draw([describe(model, type(model).__name__ if title is None else title)])


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
        describe_factors(factors, f"{factors.kind} model", (facts,), entry=("z", "d"), letters=letters, keep=(2, 1))
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


def _draw(schematics: Sequence[Schematic]) -> str:
    """Schematics side by side."""
    canvas = Canvas("; ".join(one.title for one in schematics), " ".join(map(_in_words, schematics)))
    left, bottom = float(MARGIN), 0.0
    for one in schematics:
        drawing = _Drawing(canvas, one, left)
        drawing.draw()
        left = drawing.right + 2 * MARGIN
        bottom = max(bottom, drawing.y)
    sums = any(step is not None and step.skip for one in schematics for step in one.steps)
    legend = LEGEND + (" (dot) and sums (plus)." if sums else ".")
    for place, line in enumerate(wrap(legend, "soft", canvas.width - MARGIN, most=9)):
        canvas.text(MARGIN, bottom + 30 + LINE * place, line)
    return canvas.as_text(MARGIN)


def _in_words(one: Schematic) -> str:
    """A schematic for those who cannot see it."""
    steps = [step for step in one.steps if step is not None]
    maps = "; ".join(", then ".join(map(_label, step.path)) for step in steps)
    skips = " Each product after the first is added to what it was multiplied with." if steps[-1].skip else ""
    more = f" {one.left_out}." if one.left_out else ""
    return f"{one.title}. {'. '.join(one.facts)}. Factors of the input: {maps}.{more}{skips}".replace("_", "")


def _label(box: Box) -> str:
    return f"{box.symbol}{box.index} ({', '.join(box.lines)})"


def _name(box: Box) -> str:
    return f"{box.symbol}_{box.index}" if box.index else box.symbol


def _width(box: Box) -> float:
    return max(text_width(_name(box), "name"), *(text_width(line, "soft") for line in box.lines), 30.0) + 16


def _height(box: Box) -> float:
    return LINE * (1 + len(box.lines)) + 10.0


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
        self.bus = left + max(map(_width, about.entry)) / 2
        x = self.bus + ARROW
        self.columns, widths = [], [0.0] * max(len(step.path) for step in steps)
        for step in steps:
            for place, box in enumerate(step.path):
                widths[place] = max(widths[place], _width(box))
        for width in widths:
            self.columns.append(x + width / 2)
            x += width + ARROW
        self.ends = [middle + width / 2 for middle, width in zip(self.columns, widths, strict=True)]
        on_chain = [about.scale, *(step.between for step in steps), *about.output]
        widest = max(_width(box) for box in on_chain if box is not None)
        # Boxes on the chain stand clear of the input's line, and the first of them beside the input.
        self.chain = max(x + RADIUS, max(self.bus, self.left + 2 * (self.bus - self.left)) + ARROW / 2 + widest / 2)
        labels = max(text_width(text, "soft") for text in (about.left_out, *(step.result for step in steps)))
        skips = SKIP + 12 if any(step.skip for step in steps) else 0
        self.right = self.chain + max(widest / 2, labels + 14, skips)
        heads = [text_width(about.title, "title"), *(text_width(line, "soft") for line in about.facts)]
        self.right = max(self.right, left + NARROWEST, min(left + max(heads), left + 560))
        self.y = float(MARGIN)

    def draw(self) -> None:
        """Draw everything, from the title to the output."""
        self._heading()
        top = self.y
        self._entry()
        # The end of what is drawn on the chain; None where there is nothing yet.
        end = None if self.about.scale is None else self._on_chain(self.about.scale, None, top)
        self.y = max(self.y, end or 0.0)
        for step in self.about.steps:
            end = self._gap(end) if step is None else self._row(step, end)
        for box in self.about.output:
            end = self._on_chain(box, end, self.y)
        self.canvas.width = max(self.canvas.width, self.right)

    def _heading(self) -> None:
        width = self.right - self.left
        for line in wrap(self.about.title, "title", width):
            self.y += LINE
            self.canvas.text(self.left, self.y, line, "title")
        for fact in self.about.facts:
            for line in wrap(fact, "soft", width):
                self.y += LINE
                self.canvas.text(self.left, self.y, line)
        self.y += 16

    def _entry(self) -> None:
        """The input and what all factors share, at the top of the input's line."""
        end: float | None = None
        for box in self.about.entry:
            if end is not None:
                self.canvas.line((self.bus, end), (self.bus, self.y))
            height = _height(box)
            self.canvas.box(self.bus, self.y + height / 2, _width(box), height, box.kind, [_name(box), *box.lines])
            end = self.y + height
            self.y = end + ARROW - 6
        self.tap = end or self.y

    def _on_chain(self, box: Box, end: float | None, top: float) -> float:
        """A box on the chain, after what ends at `end`; returns where it ends."""
        height = _height(box)
        top = top if end is None else end + ARROW
        self.canvas.box(self.chain, top + height / 2, _width(box), height, box.kind, [_name(box), *box.lines])
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
        height = max(map(_height, step.path))
        if step.between is not None:
            end = self._on_chain(step.between, end, self.y)
        y = max(self.y if end is None else self.y + 4, (end or 0.0) + ARROW - RADIUS) + height / 2
        if end is not None:
            y = max(y, end + ARROW + RADIUS)
        self._path(step, y)
        if not step.product:
            self.canvas.line((self.ends[len(step.path) - 1], y), (self.chain, y), arrow=False)
            below = y
        else:
            self.canvas.line((self.ends[len(step.path) - 1], y), (self.chain - RADIUS, y))
            below = self._product(step, y, end)
        self.canvas.text(self.chain + 8, below + 18, step.result)
        self.y = max(y + height / 2, below + 22)
        # The chain goes on from here; its label stands beside the beginning.
        self.canvas.line((self.chain, below), (self.chain, below + 22), arrow=False)
        return below + 22

    def _path(self, step: Step, y: float) -> None:
        """The input's line down to this row, and its maps."""
        self.canvas.line((self.bus, self.tap), (self.bus, y), arrow=False)
        self.tap, start = y, self.bus
        for place, box in enumerate(step.path):
            middle, width = self.columns[place], _width(box)
            self.canvas.line((start, y), (middle - width / 2, y))
            self.canvas.box(middle, y, width, _height(box), box.kind, [_name(box), *box.lines])
            start = middle + width / 2
        if start < self.ends[len(step.path) - 1]:
            self.canvas.line((start, y), (self.ends[len(step.path) - 1], y), arrow=False)

    def _product(self, step: Step, y: float, end: float | None) -> float:
        """The circle of a product, and that of a sum around it; returns where they end."""
        x, start = self.chain, end if end is not None else y - RADIUS - ARROW
        self.canvas.line((x, start), (x, y - RADIUS))
        self.canvas.product(x, y)
        if not step.skip:
            return y + RADIUS
        under = y + 2 * RADIUS + 14
        self.canvas.line((x, y + RADIUS), (x, under - RADIUS))
        branch = y - RADIUS - 12
        self.canvas.line((x, branch), (x + SKIP, branch), (x + SKIP, under), (x + RADIUS, under))
        self.canvas.sum(x, under)
        return under + RADIUS
