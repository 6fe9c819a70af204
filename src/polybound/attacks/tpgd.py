"""TPGD: away from the clean prediction, without labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polybound.attacks.ball import Ball
from polybound.attacks.base import Attack, climb
from polybound.attacks.classifier import Classifier
from polybound.attacks.losses import divergence
from polybound.attacks.random_numbers import RandomNumbers
from polybound.registry import check_number, check_whole

__all__ = ["TPGD"]


@dataclass(frozen=True)
class TPGD(Attack):
    """The attack inside TRADES (Zhang et al., 2019): PGD up the divergence from the clean prediction:

        maximise KL(p(x) || p(x_adv)),   from x + 0.001 * normal noise

    The defaults are those of the library that the paper used; the paper's attack is one step of it, `TPGD(steps=1)`.

    Attributes:
        steps: number of steps.
        step_size: of each.
    """

    kind: ClassVar[str] = "tpgd"
    numbers: ClassVar[tuple[str, ...]] = ("steps",)

    steps: int = 10
    step_size: float = 2 / 255

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("steps", self.steps)
        check_number("step_size", self.step_size)

    @property
    def label(self) -> str:
        return "TPGD" if self == TPGD(steps=1) else self.name

    def perturb(self, model: Classifier, ball: Ball, labels: Tensor, random: RandomNumbers) -> Tensor:
        # Clipped to the range of pixels, not to the ball: with eps below 0.001 the first step does that.
        start = (ball.x + 0.001 * random.normal()).clamp_(*ball.clip)
        loss = divergence(labels, model.logits(ball.x), ball.protocol)
        return climb(model, ball, start, loss, self.steps, self.step_size)
