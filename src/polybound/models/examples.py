"""Trained networks that come with the package, to look at without training any."""

from __future__ import annotations

import json
from importlib.resources import as_file, files
from typing import Any

from polybound.errors import PolyboundError
from polybound.models.base import PolynomialNetwork
from polybound.models.files import load

__all__ = ["EXAMPLES", "example", "example_origin"]

EXAMPLES = ("digits", "digits-bound-1", "pn-4", "pn-4-bound-1")
"""The paper's PN-4 with seed 0, four times.

"digits" and "digits-bound-1" are the networks of `polybound demo`: trained on the built-in digits, plain (97.5 % of the
test images) and projected with bound 1 (92.8 %). "pn-4" and "pn-4-bound-1" are trained by the paper's recipe on
Fashion-MNIST, plain (87.21 %) and projected with bound 1 (78.10 %).
"""


def example(name: str) -> PolynomialNetwork:
    """A trained network, by its name in `EXAMPLES`.

    >>> example("pn-4-bound-1").degree
    4
    """
    with as_file(_folder(name).joinpath(f"{name}.safetensors")) as path:
        return load(path)


def example_origin(name: str) -> dict[str, Any]:
    """Where a network of `EXAMPLES` comes from.

    "spec" is everything that determined its training, as `runs.Spec` has it; "command" trains it again, and "file" says
    what that command leaves behind; "difference" is the largest difference of a weight when this was last done; "note"
    says what else there is to know.

    >>> example_origin("digits-bound-1")["spec"]["method"]["bound"]
    1.0
    """
    content: dict[str, Any] = json.loads(_folder(name).joinpath(f"{name}.json").read_text(encoding="utf-8"))
    return content


def _folder(name: str) -> Any:
    if name not in EXAMPLES:
        raise PolyboundError(f"example must be one of {', '.join(EXAMPLES)}, got {name!r}")
    return files("polybound.models").joinpath("trained")
