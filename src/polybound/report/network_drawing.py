"""The picture of a network: its graph in rows, from the input down to the output, written as SVG.

The longest path runs straight down. What else a sum or a product takes comes from its right, skips of that path pass on
its left, and what is used further down runs down on the right. A row has one box, or a box beside the sum or product
that takes it, so that lines cross lines and never a box.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import pairwise, takewhile
from os import PathLike
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from polybound import models
from polybound.atomic import write_atomically
from polybound.errors import PolyboundError, writable_file
from polybound.models import CCP, NCP, Applied, Graph, Input, PolynomialNetwork, Product


def network_svg(model: PolynomialNetwork, *, title: str | None = None) -> str:
    """The schematic of a network as the text of an SVG file, drawn from its graph.

    Sizes are written rows x columns. A product of y with `V x + 1` is drawn as the sum of `V x * y` and y that it is.

    Args:
        model: any polynomial network, or a stack of them.
        title: above the drawing; the model's kind by default.

    >>> import polybound as pb
    >>> "rank 16" in pb.report.network_svg(pb.paper_model("pn-4"), title="PN-4")
    True
    """
    runs = models.polynomial(model).runs
    one = model if runs is None else model.run(0)
    form = one.form if isinstance(one, CCP) else ""
    width = getattr(one, "channels", getattr(one, "width", None))
    facts = [f"{type(one).__name__}{form and f', {form} form'}, degree {one.degree:,}"]
    facts[0] += f", rank {one.rank}" if isinstance(one, CCP | NCP) else f", {width} channels" if width else ""
    facts.append(f"{sum(parameter.numel() for parameter in one.parameters()):,} weights")
    facts += [f"a stack of {runs} such networks"] if runs is not None else []
    if isinstance(one, CCP | NCP) and one.degree > 1:
        formula = {"residual": "yₙ = Vₙ x ∘ yₙ₋₁ + yₙ₋₁,  f = C yₖ", "product": "f = C (U₁ x ∘ … ∘ Uₖ x)"}
        facts.append(formula.get(form, "yₙ = Aₙ x ∘ Sₙ yₙ₋₁,  f = C yₖ"))
    symbol = "K" if isinstance(one, models.ConvCCP) else {"residual": "V", "product": "U"}.get(form, "A")
    return _draw([Drawing(parts_of(one.graph(fused=False), symbol), title or type(one).__name__, facts)])


def draw_network(model: PolynomialNetwork, path: str | PathLike[str], *, title: str | None = None) -> Path:
    """Write what `network_svg` draws to a file, and return its path."""
    return _write(network_svg(model, title=title), path)


def draw_figure_1(path: str | PathLike[str]) -> Path:
    """Write the paper's Figure 1, CCP on the left and NCP on the right, with letters for all sizes; return its path."""
    d, m, o, k = 53, 47, 43, 41
    letters = {d: "d", m: "m", o: "o", k: "k"}
    # The lemmas' matrices act on the lifted input z = [x, 1], and an NCP's on its products with one more unit.
    both = [
        Drawing(
            parts_of(models.graph_of(model.factors().lifted(), fused=False), symbol, letters), title, [formula], most=0
        )
        for model, symbol, title, formula in (
            (CCP(d - 1, m, o, k, form="product", seed=0), "U", "CCP model", "f(z) = C (U₁ z ∘ … ∘ Uₖ z)"),
            (NCP(d - 1, m - 1, o, k, seed=0), "A", "NCP model", "xₙ = Aₙ z ∘ Sₙ xₙ₋₁,  f(z) = C xₖ"),
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


# What is drawn: boxes for runs of affine maps, circles for products and sums.

MAPS = ("learned", "operation")


@dataclass
class Part:
    """A box or a circle.

    Attributes:
        kind: "learned" for maps with weights, "operation" for other maps, "product", "sum", "input", "output", or "gap"
            in the place of parts that are left out.
        lines: of a box, its name first.
        sources: numbers of the parts that it takes.
        module: the module of the user's that it stands in.
        shape: of its value, as text.
    """

    kind: str
    lines: list[str]
    sources: tuple[int, ...]
    module: str = ""
    shape: str = ""

    @property
    def circle(self) -> bool:
        """Whether it is a product or a sum."""
        return self.kind in ("product", "sum")

    @property
    def size(self) -> tuple[float, float]:
        """Width and height, with room for all lines."""
        widths = [text_width(line, "soft" if n else "name") + 16 for n, line in enumerate(self.lines)]
        height = LINE * len([line for line in self.lines if line]) + 10.0
        return (2 * RADIUS, 2 * RADIUS) if self.circle else (max(46.0, *widths), max(height, 2.0 * RADIUS))


def parts_of(graph: Graph, symbol: str, letters: Mapping[int, str] | None = None) -> list[Part]:
    """The parts of a graph, in its order; maps that nothing comes between are one box, with a line for each.

    The maps must not be fused. A chain's maps of the input are called `symbol`; letters stand in place of some numbers.
    """
    texts = letters or {}

    def sizes(values: Sequence[int]) -> str:
        return " × ".join(texts.get(value, f"{value:,}") for value in values)

    def named(letter: str, digits: str) -> str:
        foot = texts.get(int(digits), digits).translate(str.maketrans("0123456789k", "₀₁₂₃₄₅₆₇₈₉ₖ"))
        return (symbol if letter == "A" else letter) + foot

    maps = {
        n: getattr(node.map, "maps", (node.map,)) for n, node in enumerate(graph.nodes) if isinstance(node, Applied)
    }
    begins = Counter((graph.nodes[n].sources, id(steps[0])) for n, steps in maps.items())
    # In the residual form a product of y and V x + 1 is drawn as one of y and V x, to which y is added.
    wholes = {n: graph.nodes[n].map for n in maps} if symbol in "VK" else {}  # type: ignore[union-attr]
    ones = {n for n, one in wholes.items() if isinstance(one, models.Chain) and one.shift == 1}
    ones |= {n for n, one in wholes.items() if isinstance(one, models.Dense) and bool((one.constant == 1).all())}
    parts: list[Part] = []
    place: list[int] = []  # the part with each node's value
    shared: dict[tuple[int, int], int] = {}
    for number, node in enumerate(graph.nodes):
        module, name = _origin(node.origin)
        sources = tuple(place[source] for source in node.sources)
        at = len(parts)
        if isinstance(node, Input):
            parts.append(Part("input", ["z" if letters else "x", sizes(node.shape)], (), shape=sizes(node.shape)))
        elif isinstance(node, Applied):
            at, joins = sources[0], len(graph.uses[node.source]) == 1
            if match := re.fullmatch(r"([ASs])(\d+)", name):
                name = named(match[1], match[2])
            for n, step in enumerate(maps[number]):
                if (at, id(step)) in shared:
                    at, joins = shared[at, id(step)], False
                    continue
                line, shape, learned = _told(step, sizes, parts[at].shape)
                line += ", bias" if learned and number not in ones and bool((step.constant != 0).any()) else ""
                once, last = n > 0 or begins[node.sources, id(step)] == 1, parts[at]
                if joins and last.kind in MAPS and at == len(parts) - 1:
                    last.kind, last.shape = "learned" if learned else last.kind, shape
                    names = list(filter(None, dict.fromkeys([*last.lines[0].split(", "), name])))
                    last.lines[0] = ", ".join(names if len(names) < 4 else [names[0], "…", names[-1]])
                    last.lines += [line] if line != last.lines[-1] else []
                else:
                    plain = not learned and name[:1] in ("S", symbol)
                    parts.append(Part(MAPS[not learned], ["" if plain else name, line], (at,), module, shape))
                    at, key = len(parts) - 1, (at, id(step))
                    if not once:
                        shared[key], parts[at].lines[0] = at, "shared"
                joins = once
        else:
            shape = max((parts[source].shape.rpartition(": ")[2] for source in sources), key=len)
            shape = f"square: {shape}" if len({*sources}) == 1 and isinstance(node, Product) else shape
            if match := re.fullmatch(r"product (\d+)", node.origin):
                shape = f"{named('x' if letters else 'y', match[1])}: {shape}"
            parts.append(Part("product" if isinstance(node, Product) else "sum", [], sources, module, shape))
            if kept := [place[source] for source in node.sources if source not in ones][: len(ones & {*node.sources})]:
                parts[at].shape = ""
                parts.append(Part("sum", [], (at, kept[0]), module, shape))
                at += 1
        place.append(at)
    outputs = f"{sizes([graph.classes])} output{'' if graph.classes == 1 else 's'}"
    return [*parts, Part("output", [f"f({parts[0].lines[0]})", outputs], (place[graph.output],))]


def _origin(text: str) -> tuple[str, str]:
    """The module that a node stands in, and a short name: of `net.a.forward, line 7` `net.a` and `net.a, line 7`."""
    text = text.partition(", called in ")[0]
    found = re.fullmatch(r"(?:(.*)\.)?\w+, (line \d+)", text)
    module, line = (found[1] or "", found[2]) if found else (text, "")
    name = ", ".join(filter(None, (module, line)))
    return module, name if len(name) <= 30 else f"…{name[-29:]}"


def _told(step: Any, sizes: Callable[[Sequence[int]], str], before: str) -> tuple[str, str, bool]:
    """What a map does, in a line; the shape of its value; and whether it has weights."""
    kind, size = type(step).__name__, sizes([step.outputs, step.inputs])
    shape = sizes(getattr(step, "out_shape", (step.outputs,)))
    if kind in ("Pool", "AveragePool"):
        return f"average pool {sizes(step.shape[1:])} → {sizes(step.out_shape[1:])}", shape, False
    if kind in ("Conv", "Convolution"):
        stride, groups = max(getattr(step, "stride", (1,))), getattr(step, "groups", 1)
        more = (f" / {stride}" if stride > 1 else "") + (f" in {groups} groups" if groups > 1 else "")
        name = "transposed convolution" if getattr(step, "transposed", False) else "convolution"
        kernel = sizes(step.weight.shape[-step.dims :])
        return f"{name} {kernel}{more}, {sizes([step.shape[0]])} → {sizes([step.channels])}", shape, True
    if kind == "Scale":
        return "scale", before, True
    if kind in ("Select", "Collect"):
        verb = "sums" if kind == "Collect" else "places" if step.outputs > step.inputs else "picks"
        moves = kind == "Select" and step.outputs == step.inputs
        return f"order of {before}" if moves else f"{verb} {before} → {shape}", shape, False
    return size if kind == "Dense" else f"{kind.lower()} {size}", shape, True


def _shortened(parts: list[Part], most: int) -> list[Part]:
    """The parts; of more than `most`, with the middle left out wherever a pattern stands three times or more."""

    def alike(n: int) -> tuple[object, ...]:
        """What a part has in common with its counterpart in a repetition; the input stays where it is."""
        part = parts[n]
        return part.kind, *part.lines[1:], *(n - s if s else "input" for s in part.sources)

    signs, start = [alike(n) for n in range(len(parts))], 0
    while len(parts) > most and start < len(parts):
        for period in range(1, min(40, (len(parts) - start) // 3) + 1):
            end = start + period
            while end < len(parts) and signs[end] == signs[end - period]:
                end += 1
            first, last = start + period, start + period * ((end - start) // period - 1)
            # What follows must take one value of what is left out: the gap stands for it.
            taken = {s for part in parts[last:] for s in part.sources if first <= s < last}
            if last - first >= period and len(taken) == 1 and any(part.circle for part in parts[start:first]):
                count, (value,) = (last - first) // period, taken
                text, cut = "…" if most == 0 else f"{count:,} more of the same", last - first - 1
                gap = Part("gap", ["", text], (value - period * count,), shape=parts[value].shape)
                place = [n if n < first else first if n < last else n - cut for n in range(len(parts))]
                rest = [replace(part, sources=tuple(place[s] for s in part.sources)) for part in parts[last:]]
                made = [*parts[:first], gap, *rest]
                used = {source for part in made for source in part.sources}
                if len(used) == len(made) - 1:  # nothing that is kept was there for what is left out only
                    parts, signs, start = made, [*signs[:first], ("gap",), *signs[last:]], first
                    break
        start += 1
    if len(parts) > LARGEST:
        raise PolyboundError(f"the network has {len(parts):,} parts to draw; a picture has up to {LARGEST:,}")
    return parts


# Pieces of an SVG file.

LINE, RADIUS, MARGIN = 17, 12, 20
"""The height of a line of text, the radius of circles, and the room around a drawing."""

_SIZES = {"title": 18.5, "name": 15.0, "soft": 12.0}
"""Of letters; a title is bold, which makes it wider."""


def text_width(text: str, style: str) -> float:
    """A width that the text does not exceed in the fonts of common systems: narrow, wide and other letters."""
    narrow, small = " .,:;'|()[]fijlrt-₀₁₂₃₄₅₆₇₈₉", re.compile("[a-z0-9]")
    units = [
        0.42 if c in narrow else 1.0 if c in "mwMW" or not c.isascii() else 0.64 if small.match(c) else 0.8
        for c in text
    ]
    return sum(units) * _SIZES[style]


class Canvas:
    """An SVG drawing, which grows by what is added to it: for those who cannot see it with a title and sentences."""

    def __init__(self, title: str, text: str) -> None:
        self.root = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
        self.width = self.height = 0.0
        style = (files("polybound.report") / "schematic.css").read_text(encoding="utf-8").partition("*/")[2]
        for tag, content in (("title", title), ("desc", text), ("style", style)):
            self.add(tag, "", content)
        self.paper = self.add("rect", "paper", rx=8)

    def add(self, tag: str, kind: str, text: str = "", **numbers: float | str) -> ElementTree.Element:
        """Add an element, with the class of its kind; what XML has no place for becomes a replacement character."""
        values = {name.replace("_", "-"): n if isinstance(n, str) else f"{n:g}" for name, n in numbers.items()}
        element = ElementTree.SubElement(self.root, tag, values | ({"class": f"pb-{kind}"} if kind else {}))
        illegal = "[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]"
        element.text = re.sub(illegal, "\N{REPLACEMENT CHARACTER}", text)
        return element

    def reach(self, x: float, y: float) -> None:
        """Be at least this large."""
        self.width, self.height = max(self.width, x), max(self.height, y)

    def text(self, x: float, y: float, text: str, style: str = "soft", anchor: str = "start") -> None:
        """A line of text with its base line at y."""
        self.add("text", style, text, x=x, y=y, text_anchor=anchor)
        self.reach(x + text_width(text, style) / (1 if anchor == "start" else 2), y + 4)

    def part(self, x: float, y: float, part: Part) -> None:
        """A box with its lines, or a circle with a dot or a plus, around a point."""
        width, height = part.size
        if not part.circle:
            self.add("rect", part.kind, x=x - width / 2, y=y - height / 2, width=width, height=height, rx=5)
            self.reach(x + width / 2, y + height / 2)
        elif part.kind == "product":
            self.add("circle", "operation", cx=x, cy=y, r=RADIUS)
            self.add("circle", "dot", cx=x, cy=y, r=3)
        else:
            self.add("circle", "operation", cx=x, cy=y, r=RADIUS)
            self.add("path", "sign", d=f"M{x - 6:g} {y:g}h12M{x:g} {y - 6:g}v12")
        lines = [(line, "soft" if n else "name") for n, line in enumerate(part.lines) if line]
        for n, (line, style) in enumerate(lines):
            self.text(x, y + LINE * (n - len(lines) / 2 + 0.8), line, style, "middle")

    def line(self, *points: tuple[float, float], arrow: bool = True, kind: str = "line") -> None:
        """A line along some points, with a head at its end."""
        self.add("path", kind, d="M" + "L".join(f"{x:g} {y:g}" for x, y in points))
        (before_x, before_y), (x, y) = points[-2:]
        down, right = (y > before_y) - (y < before_y), (x > before_x) - (x < before_x)
        if arrow:
            head = f"l-4 {-7 * down}h8z" if before_x == x else f"l{-7 * right} -4v8z"
            self.add("path", "head", d=f"M{x:g} {y:g}{head}")
        for point in points:
            self.reach(*point)


# The layout: paths have columns, values that are used further down have lanes.

MOST, LARGEST = 60, 1000
"""Of more parts than the first, patterns are left out; more than the second are not drawn."""


def _draw(drawings: Sequence[Drawing]) -> str:
    """Drawings side by side."""
    words = [f"{one.title}. {'. '.join(one.facts)}. {one.words}" for one in drawings]
    canvas = Canvas("; ".join(one.title for one in drawings), " ".join(words))
    left = float(MARGIN)
    for one in drawings:
        left = one.draw(canvas, left) + 2 * MARGIN
    for line in ("Boxes: affine maps, blue ones with weights.", "Circles: products entry by entry (dot), sums (plus)."):
        canvas.text(MARGIN, canvas.height + 1.3 * LINE, line)
    width, height = f"{canvas.width + MARGIN:.0f}", f"{canvas.height + MARGIN:.0f}"
    canvas.root.set("viewBox", f"0 0 {width} {height}")
    for element in (canvas.root, canvas.paper):  # a wide window does not make it larger than it was drawn
        element.set("width", width)
        element.set("height", height)
    return ElementTree.tostring(canvas.root, encoding="unicode") + "\n"


class Drawing:
    """The layout of parts: the row and the column of each, and the lanes of values that are used further down.

    Args:
        parts: what is drawn, in topological order.
        title: above it.
        facts: lines below the title.
        most: how many parts there may be before patterns are left out.

    Attributes:
        above: of each part, that of its sources that stands above it, the one with the longest way to the input.
        path: of each part, the last part of its path.
        lanes: what uses a value further down, by the value and whether it passes on the left.
    """

    def __init__(self, parts: list[Part], title: str, facts: Sequence[str], most: int = MOST) -> None:
        self.parts, self.title, self.facts = _shortened(parts, most), title, facts
        self.words = "; ".join(", ".join(part.lines) or part.kind for part in self.parts)
        count, depth = len(self.parts), list[int]()
        self.above, self.path = [-1] * count, [-1] * count
        users: list[list[int]] = [[] for _ in self.parts]
        for n, part in enumerate(self.parts):
            depth.append(1 + max((depth[source] for source in part.sources), default=0))
            self.above[n] = max(sorted(part.sources), key=depth.__getitem__, default=-1)
            for source in set(part.sources):
                users[source].append(n)
        for end in reversed(range(count)):
            at = end
            while at >= 0 and self.path[at] < 0:
                self.path[at], at = end, self.above[at]
        ends = sorted(set(self.path), reverse=True)
        self.taker = {end: min(users[end]) for end in ends[1:]}  # which the end of a path leads into
        # A path of one box stands beside what takes it, if nothing else comes from there.
        beside = {}
        for end, taker in self.taker.items():
            alone = self.path[self.above[end]] != end and users[end] == [taker] and self.parts[end].kind in MAPS
            if alone and len(self.parts[taker].sources) == 2 and self.path[self.above[taker]] == self.path[taker]:
                beside[end] = taker
        numbers = iter(range(count))
        self.row = [0 if n in beside else next(numbers) for n in range(count)]
        for end, taker in beside.items():
            self.row[end] = self.row[taker]
        column, spans = {ends[0]: 0}, defaultdict[int, list[tuple[int, int]]](list)
        for end, taker in self.taker.items():
            span = min(self.row[n] for n in range(count) if self.path[n] == end), self.row[taker]
            at = column[self.path[taker]] + 1
            while any(first <= span[1] and span[0] <= last for first, last in spans[at]):
                at += 1
            column[end] = at
            spans[at].append(span)
        self.column = [column[path] for path in self.path]
        self.lanes: dict[tuple[int, bool], list[int]] = {}
        for source, takers in enumerate(users):
            for n in takers:
                below = self.above[n] == source and self.path[n] == self.path[source]
                if not below and self.taker.get(source) != n:
                    left = self.column[n] == self.column[source] == 0 and self.parts[n].circle
                    self.lanes.setdefault((source, left), []).append(n)
        self.last = [max((self.row[n] for n in takers), default=count) for takers in users]

    def draw(self, canvas: Canvas, left: float) -> float:
        """Draw everything from `left` on; returns how far it goes to the right."""
        top, right = float(MARGIN), left
        for text, style in [(self.title, "title"), *((fact, "soft") for fact in self.facts)]:
            while text_width(text, style) > 560:
                text = f"{text[: len(text) * 9 // 10]}…"
            top, right = top + LINE, max(right, left + text_width(text, style))
            canvas.text(left, top, text, style)
        x, at, edge = self._across(left)
        y, taps = self._down(canvas, top + 16, x, (left, edge))
        for n, part in enumerate(self.parts):
            width, height = part.size
            above, taker = self.above[n], self.taker.get(n)
            if part.kind == "gap":
                canvas.line((x[n], y[n] - height / 2), (x[n], y[n] + height / 2), arrow=False, kind="dashed")
                canvas.text(x[n] + 8, y[n] + 4, part.lines[1])
            else:
                canvas.part(x[n], y[n], part)
            if above >= 0 and self.path[above] == self.path[n]:
                begin = y[above] + self.parts[above].size[1] / 2
                canvas.line((x[n], begin), (x[n], y[n] - height / 2), arrow=part.kind != "gap")
            if taker is not None:
                beside = self.row[taker] == self.row[n]
                way = [(x[n] - width / 2, y[n])] if beside else [(x[n], y[n] + height / 2), (x[n], y[taker])]
                canvas.line(*way, (x[taker] + RADIUS, y[taker]))
        for (source, left_side), takers in self.lanes.items():
            lane, tap = at[source, left_side], taps[self.row[source]]
            start = [(x[source], y[source] + self.parts[source].size[1] / 2), (x[source], tap), (lane, tap)]
            for n in sorted(takers, key=self.row.__getitem__):
                half = self.parts[n].size[0] / 2
                end = [(x[n] - half if left_side else x[n] + half, y[n])]
                if self.above[n] == source and self.parts[n].circle:  # its path begins here: it is entered from above
                    end = [(x[n], taps[self.row[n] - 1] + 10), (x[n], y[n] - RADIUS)]
                canvas.line(*start, (lane, end[0][1]), *end)
                start = [(lane, end[0][1])]
        canvas.reach(max(right, edge), 0)
        return max(right, edge)

    def _across(self, left: float) -> tuple[list[float], dict[tuple[int, bool], float], float]:
        """The middle of each part, where each lane is, and how far everything goes."""
        halves = []
        for part in self.parts:
            half, text = part.size[0] / 2, part.lines[1] if part.kind == "gap" else part.shape if part.circle else ""
            halves.append((half, max(half, text_width(text, "soft") + 12)))
        taken: dict[bool, list[list[tuple[int, int]]]] = {True: [], False: []}
        number = {}
        for key in sorted(self.lanes, key=lambda key: self.row[max(self.lanes[key])] - self.row[key[0]]):
            span, lanes = (self.row[key[0]], max(self.row[n] for n in self.lanes[key])), taken[key[1]]
            free = (n for n, one in enumerate(lanes) if all(span[1] <= a or b <= span[0] for a, b in one))
            number[key] = next(free, len(lanes))
            lanes += [[]] if number[key] == len(lanes) else []
            lanes[number[key]].append(span)
        edge, middles = left + LANE * len(taken[True]), list[float]()
        for column in range(max(self.column) + 1):
            inside = [half for half, at in zip(halves, self.column, strict=True) if at == column]
            middles.append(edge + max(half for half, _ in inside) + (28 if column else 8))
            edge = middles[-1] + max(half for _, half in inside)
        inner = middles[0] - max(half for (half, _), at in zip(halves, self.column, strict=True) if at == 0)
        at = {key: inner - LANE * (n + 0.7) if key[1] else edge + LANE * (n + 1) for key, n in number.items()}
        edge = max(edge + LANE * len(taken[False]) + 10, left + 200)
        return [middles[column] for column in self.column], at, edge

    def _down(
        self, canvas: Canvas, top: float, x: Sequence[float], ends: tuple[float, float]
    ) -> tuple[list[float], list[float]]:
        """The middle of each part, and below each row the place that lanes leave from; draws frames and shapes.

        A frame is around rows that only one value enters and leaves, if there are several such blocks.
        """
        rows = [[n for n, row in enumerate(self.row) if row == at] for at in range(max(self.row) + 1)]
        cuts = [r for r in range(len(rows)) if sum(self.row[n] <= r < self.last[n] for n in range(len(self.row))) == 1]
        blocks = {a + 1: b for a, b in pairwise(cuts) if b - a > 1}
        blocks = blocks if len(blocks) > 1 else {}
        tapped = {self.row[source] for source, _ in self.lanes}
        y, taps, shown, frame = [0.0] * len(self.row), list[float](), "", None
        for number, row in enumerate(rows):
            if number in blocks:
                paths = [self.parts[n].module.split(".") for r in range(number, blocks[number] + 1) for n in rows[r]]
                same = takewhile(lambda names: len({*names}) == 1, zip(*filter(any, paths), strict=False))
                frame = canvas.add("rect", "frame", x=ends[0], y=top - 56, width=ends[1] - ends[0], rx=8), top - 56
                canvas.text(x[0] + 12, top - 38, ".".join(names[0] for names in same))
            height = max(self.parts[n].size[1] for n in row)
            bottom = top + height
            for n in row:
                y[n] = top + height / 2
                if self.parts[n].circle and self.parts[n].shape not in ("", shown):
                    shown = self.parts[n].shape
                    canvas.text(x[n] + 8, bottom + 14, shown)
                    bottom += 14
            if frame is not None and number in blocks.values():
                frame[0].set("height", f"{bottom + 8 - frame[1]:g}")
                bottom, frame = bottom + 10, None
            bottom += 46 if number + 1 in blocks else 0
            taps.append(bottom + 8)
            top = bottom + (36 if number in tapped else 26)
        return y, taps


LANE = 18
"""The distance of lanes."""
