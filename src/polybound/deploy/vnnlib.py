"""VNN-LIB 1.0: questions about a network's outputs over a box of inputs."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

__all__ = ["Property", "read_vnnlib"]


@dataclass(frozen=True)
class Property:
    """A box of inputs and conditions on the outputs."""


def read_vnnlib(path: str | PathLike[str]) -> Property:
    """The property of a VNN-LIB file."""
    raise NotImplementedError(path)
