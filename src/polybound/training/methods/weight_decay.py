"""The l2 penalty of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polybound.registry import check_number
from polybound.training.methods.base import Method, register_method

__all__ = ["WeightDecay"]


@register_method
@dataclass(frozen=True)
class WeightDecay(Method):
    """Cross-entropy plus `weight ||w||^2 / 2` of all weights.

    Attributes:
        weight: of the penalty. The paper does not say which it used.
    """

    name: ClassVar[str] = "l2"

    weight: float = 0.01

    def __post_init__(self) -> None:
        check_number("weight", self.weight)
        super().__post_init__()

    @property
    def label(self) -> str:
        return f"L2 {self.weight:g}"

    @property
    def decay(self) -> float:
        return self.weight
