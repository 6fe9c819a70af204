"""Trained networks that come with the package, to look at without training any."""

from __future__ import annotations

from importlib.resources import as_file, files

from polybound.errors import PolyboundError
from polybound.models.base import PolynomialNetwork
from polybound.models.files import load

__all__ = ["EXAMPLES", "example"]

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
    if name not in EXAMPLES:
        raise PolyboundError(f"example must be one of {', '.join(EXAMPLES)}, got {name!r}")
    with as_file(files("polybound.models").joinpath("trained", f"{name}.safetensors")) as path:
        return load(path)
