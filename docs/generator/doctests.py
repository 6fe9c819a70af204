"""An extension of griffe: docstrings as Markdown, with examples as blocks of code and `(*lead, batch)` as it is."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *(?:\n|\Z)).*)*", re.MULTILINE)
STAR = re.compile(r"(?<=\()\*(?=\w)|(?<=, )\*(?=\w+[,)]|\()")


def fenced(text: str) -> str:
    """A docstring whose examples are fenced, so that Markdown does not take `>>>` for a quotation."""
    return EXAMPLE.sub(lambda found: f"{found.group(1)}```pycon\n{found.group(0)}\n{found.group(1)}```", text)


def starred(text: str) -> str:
    r"""A docstring in which the star of a shape is not taken for emphasis; code is left alone.

    >>> print(starred("x: inputs, (*lead, batch) or `(*lead, 1)`."))
    x: inputs, (\*lead, batch) or `(*lead, 1)`.
    """
    parts = text.split("`")
    return "`".join(part if i % 2 else STAR.sub(r"\*", part) for i, part in enumerate(parts))


class Doctests(Extension):
    """Makes Markdown of the docstring of every object that is loaded."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = starred(fenced(obj.docstring.value))
