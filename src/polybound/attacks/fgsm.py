"""FGSM: one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polybound.attacks.ball import Ball
from polybound.attacks.base import Attack, climb
from polybound.attacks.classifier import Classifier
from polybound.attacks.losses import cross_entropy
from polybound.attacks.random_numbers import RandomNumbers
from polybound.attacks.settings import setting_text

__all__ = ["FGSM"]


@dataclass(frozen=True)
class FGSM(Attack):
    """The fast gradient sign method (Goodfellow et al., 2015): one step of size eps up the cross-entropy:

        x_adv = clip(x + eps sign(grad_x loss(x, y)))

    In the norm "2" the step goes along the gradient's direction.

    >>> import polybound as pb
    >>> data = pb.data.load_digits("test")
    >>> model = pb.paper_model("pn-4", shape=data.shape, seed=0)
    >>> adversarial = pb.FGSM(0.1)(model, data.x, data.y, domain=data.domain)
    >>> bool((adversarial - data.x).abs().max() <= 0.1)
    True
    """

    kind: ClassVar[str] = "fgsm"

    @property
    def label(self) -> str:
        return ", ".join([f"FGSM-{setting_text(self.eps)}", *self._options()])

    def perturb(self, model: Classifier, ball: Ball, labels: Tensor, random: RandomNumbers) -> Tensor:
        del random  # nothing here is random
        return climb(model, ball, ball.x, cross_entropy(labels, ball.protocol), 1, self.eps)
