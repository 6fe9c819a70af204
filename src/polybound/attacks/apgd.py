"""APGD and its targeted kind: step sizes that adapt themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from polybound.attacks.ball import Ball
from polybound.attacks.base import Attack, first_success
from polybound.attacks.classifier import Classifier, right
from polybound.attacks.losses import DLR, Loss, TargetedDLR, cross_entropy
from polybound.attacks.random_numbers import RandomNumbers
from polybound.registry import check_choice, check_number, check_whole

__all__ = ["APGD", "APGDT"]


@dataclass(frozen=True)
class APGD(Attack):
    """Auto-PGD (Croce and Hein, 2020): momentum, and steps from 2 eps on that halve where the loss does not improve.

    The best point so far is where an image goes on after a halving. Only images that are classified right are attacked.

    Attributes:
        steps: number of steps.
        loss: "ce" or "dlr", the difference of logits ratio.
        restarts: random starts for images that are still classified right.
        rho: share of a period's steps that must improve the loss.
    """

    kind: ClassVar[str] = "apgd"
    numbers: ClassVar[tuple[str, ...]] = ("eps", "steps")
    skips_misclassified: ClassVar[bool] = True

    steps: int = 100
    loss: str = field(default="ce", kw_only=True)
    restarts: int = field(default=1, kw_only=True)
    rho: float = field(default=0.75, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("steps", self.steps)
        check_whole("restarts", self.restarts)
        check_number("rho", self.rho)
        check_choice("loss", self.loss, ("ce", "dlr"))

    def caveats(self, classes: int) -> list[str]:
        if self.loss == "dlr" and classes < 3:
            return [f"{self.name}: the DLR loss needs 3 classes; with {classes} it is the plain margin"]
        return []

    def perturb(self, model: Classifier, ball: Ball, labels: Tensor, random: RandomNumbers) -> Tensor:
        losses: list[Loss] = [cross_entropy(labels, ball.protocol) if self.loss == "ce" else DLR(labels)]
        return self._search(model, ball, labels, random, losses)

    def _search(
        self, model: Classifier, ball: Ball, labels: Tensor, random: RandomNumbers, losses: list[Loss]
    ) -> Tensor:
        """Each loss from each start, until an image falls."""

        def attempts() -> Iterator[partial[Tensor]]:
            for loss in losses:
                for _ in range(self.restarts):
                    start = ball.far(random.normal() if self.norm == "2" else ball.x, random.uniform())
                    yield partial(self._once, model, ball, start, loss)

        return first_success(model, labels, ball.x, attempts())

    def _once(self, model: Classifier, ball: Ball, start: Tensor, loss: Loss, keep: Tensor) -> Tensor:
        """From one start, for the images `keep`: the first misclassified point, or the one of greatest loss."""
        ball, loss, z = ball.pick(keep), loss.pick(keep), start[:, keep]
        z = z.repeat_interleave(model.runs // len(z), 0)
        logits, gradient = model.gradient(z, loss.slopes)
        value = loss.values(logits)
        best, best_z, best_gradient = value.clone(), z.clone(), gradient.clone()
        found, fallen = z.clone(), ~right(logits, loss.y)
        size = torch.full_like(value, 2 * self.eps).unsqueeze(-1)
        before, last_best = z, best.clone()
        improved, halved = torch.zeros_like(value), torch.ones_like(fallen)
        for step, period in enumerate(self._periods()):
            ahead = ball.ascend(z, gradient.clone(), size)
            if step:
                ahead = ball.project_(z + 0.75 * (ahead - z) + 0.25 * (z - before))
            before, z = z, ahead
            last = step == self.steps - 1
            logits, gradient = (model.logits(z), gradient) if last else model.gradient(z, loss.slopes)
            wrong = ~right(logits, loss.y)
            found = torch.where((wrong & ~fallen).unsqueeze(-1), z, found)
            fallen |= wrong
            if last or bool(fallen.all()):
                break
            previous, value = value, loss.values(logits)
            improved += value > previous
            better = value > best
            best = torch.where(better, value, best)
            best_z = torch.where(better.unsqueeze(-1), z, best_z)
            best_gradient = torch.where(better.unsqueeze(-1), gradient, best_gradient)
            if period:
                stuck = (improved <= self.rho * period) | (~halved & (last_best >= best))
                size = torch.where(stuck.unsqueeze(-1), size / 2, size)
                z = torch.where(stuck.unsqueeze(-1), best_z, z)
                gradient = torch.where(stuck.unsqueeze(-1), best_gradient, gradient)
                halved, last_best = stuck, best.clone()
                improved = torch.zeros_like(improved)
        return torch.where(fallen.unsqueeze(-1), found, best_z)

    def _periods(self) -> Iterator[int]:
        """For each step, the number of steps since the last look at the progress if it is time for another, else 0.

        A period is 22 % of the steps at first, then shorter and shorter.
        """
        period, shortest, shorter = (max(int(share * self.steps), 1) for share in (0.22, 0.06, 0.03))
        since = 0
        for _ in range(self.steps):
            since += 1
            yield period if since == period else 0
            if since == period:
                since, period = 0, max(period - shorter, shortest)


@dataclass(frozen=True)
class APGDT(APGD):
    """Targeted APGD: up the targeted DLR loss, towards each other class in turn, the likeliest first.

    The paper's attack is one step of it, `APGDT(steps=1)`.

    Attributes:
        targets: how many classes to try; nine by default, which are all others of ten.
    """

    kind: ClassVar[str] = "apgdt"
    numbers: ClassVar[tuple[str, ...]] = ("steps",)

    steps: int = 10
    loss: str = field(default="dlr", kw_only=True)
    targets: int = field(default=9, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("targets", self.targets)

    @property
    def label(self) -> str:
        return "APGDT" if self == APGDT(steps=1) else self.name

    def caveats(self, classes: int) -> list[str]:
        if classes < 4:
            return [f"{self.name}: the targeted DLR loss needs 4 classes; with {classes} it is the plain margin"]
        return []

    def perturb(self, model: Classifier, ball: Ball, labels: Tensor, random: RandomNumbers) -> Tensor:
        # The DLR is a ratio of logits, which does not vanish: its gradient is the same under both protocols.
        order = model.logits(ball.x).argsort(1, descending=True)
        # The clean prediction is the first; an image for which that is not its label is not attacked at all.
        losses: list[Loss] = [TargetedDLR(labels, order[:, k]) for k in range(1, min(self.targets + 1, order.shape[1]))]
        return self._search(model, ball, labels, random, losses)
