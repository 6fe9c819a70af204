"""The schematic of a network as an SVG file: boxes for affine maps, circles for products and sums."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from polybound.atomic import write_atomically
from polybound.errors import PolyboundError
from polybound.models import CCP, NCP, PolynomialNetwork
from polybound.report.schematic import Box, Schematic, Step, describe, describe_factors
from polybound.report.svg import LINE, RADIUS, Canvas, text_width, wrap

__all__ = ["draw_figure_1", "draw_network", "network_svg"]

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
    if not target.absolute().parent.is_dir():
        raise PolyboundError(f"{target.parent}: no such folder")
    if target.is_dir():
        raise PolyboundError(f"{target}: a folder, not a file")
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
