"""Optimisers by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polybound.registry import Part, Registry, check_number

__all__ = ["OPTIMISERS", "SGD", "Optimiser"]


@dataclass(frozen=True)
class Optimiser(Part):
    """How a gradient becomes a step."""

    learning_rate: float = 0.001

    def __post_init__(self) -> None:
        check_number("learning_rate", self.learning_rate)
        super().__post_init__()


OPTIMISERS: Registry[Optimiser] = Registry("optimiser")
"""All optimisers by name."""


@OPTIMISERS.register
@dataclass(frozen=True)
class SGD(Optimiser):
    """Plain stochastic gradient descent, `w <- w - rate gradient`, as in the paper."""

    name: ClassVar[str] = "sgd"
