r"""Formulas of the site: LaTeX between dollar signs becomes MathML when the pages are built.

Browsers draw MathML by themselves. So a page needs no script, no font and no network, and its formulas follow the
reader's font size and dark mode. The alternative, KaTeX, would add a script and twenty fonts to the site, or Node.js to
the build. GitHub and most editors draw the same sources.

`$x^2$` is a formula within a line; `$$x^2$$` stands alone. Code is left as it is.
"""

from __future__ import annotations

import re
from html import unescape
from itertools import pairwise
from typing import Any
from xml.etree.ElementTree import Element, tostring

from latex2mathml.converter import convert_to_element
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

OPERATORS = "±∓•⟨⟩"
"""Characters that the converter takes for names. As operators they have the right space around them."""
LIMITS = {"max", "min", "sup", "inf", "∑", "∏"}
"""What has its limits above and below where a formula stands alone."""


def mathml(latex: str, display: bool = False) -> str:
    r"""A formula as MathML; raises a ValueError for a command that the converter does not know.

    >>> mathml("x^2")
    '<math display="inline"><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>'
    """
    # The browser is told which bar is the left one.
    text = re.sub(r"(?<!left)(?<!right)\\([lr])([vV]ert)(?![A-Za-z])", _fence, " ".join(latex.split()))
    element = convert_to_element(text, display="block" if display else "inline")
    element.attrib.pop("xmlns", None)  # HTML needs none
    for each in element.iter():
        each.text = unescape(each.text or "")
        if "\\" in each.text:
            raise ValueError(f"no such command as {each.text} in the formula {latex!r}")
    for each in element.iter():
        _correct(each, display)
    return tostring(element, encoding="unicode")


def _fence(bar: re.Match[str]) -> str:
    side = {"l": "left", "r": "right"}[bar[1]]
    return rf"\{side}\{bar[1]}{bar[2]} "


def _correct(element: Element, display: bool) -> None:
    """Tell names from operators, and put limits where they belong."""
    text = element.text or ""
    for before, sign in pairwise(element):
        if sign.text == "\N{MINUS SIGN}" and before.tag == "mo" and before.text in {"(", "[", ","}:
            sign.set("form", "prefix")  # -1, not a difference
    if element.tag == "mo" and (text == "∞" or (len(text) > 1 and text.isalpha())):
        element.tag = "mi"  # without the space of an operator
    elif element.tag == "mi" and text in OPERATORS:
        element.tag = "mo"
    elif element.tag == "mo" and text in "|‖":
        element.set("stretchy", "false")  # of one height, as in print
    elif display and element.tag in ("msub", "msubsup") and "".join(element[0].itertext()) in LIMITS:
        element.tag = {"msub": "munder", "msubsup": "munderover"}[element.tag]


class _Formula(InlineProcessor):
    """Replaces a formula of Markdown by its MathML, which nothing else then looks into."""

    def __init__(self, pattern: str, display: bool) -> None:
        super().__init__(pattern)
        self.display = display

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:
        del data
        found = mathml(m[1], self.display)
        return self.md.htmlStash.store(found), m.start(0), m.end(0)


class Formulas(Extension):
    """An extension of Python-Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:
        # After code (190), before backslashes (180).
        for name, pattern, display in (
            ("formula on its own", r"\$\$(.+?)\$\$", True),
            ("formula", r"(?<!\\)\$(?![\s$])([^$]+?)(?<![\s\\])\$", False),
        ):
            processor = _Formula(pattern, display)
            processor.md = md
            md.inlinePatterns.register(processor, name, 187 if display else 186)


def makeExtension(**options: Any) -> Formulas:
    """What MkDocs calls for `generator.formulas`."""
    return Formulas(**options)
