"""An extension of griffe: examples in docstrings become blocks of code, wherever they stand."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *(?:\n|\Z)).*)*", re.MULTILINE)


def fenced(text: str) -> str:
    """A docstring whose examples are fenced, so that Markdown does not take `>>>` for a quotation."""
    return EXAMPLE.sub(lambda found: f"{found.group(1)}```pycon\n{found.group(0)}\n{found.group(1)}```", text)


class Doctests(Extension):
    """Fences the examples of every object that is loaded."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        del kwargs
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
