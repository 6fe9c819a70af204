"""Attacks by gradients: FGSM (one step), PGD, TPGD, and APGD with its targeted form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from polybound.attacks.ball import Ball
from polybound.attacks.base import Attack, RandomNumbers, first_success, pgd_steps
from polybound.attacks.classifier import Classifier, is_correct
from polybound.attacks.losses import DLR, Loss, TargetedDLR, cross_entropy, divergence
from polybound.errors import check_choice, check_flag, check_int, check_number
from polybound.registry import setting_text


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
        return ", ".join([f"FGSM-{setting_text(self.eps)}", *self.changed_settings()])

    def perturb(self, model: Classifier, ball: Ball, labels: Tensor, random: RandomNumbers) -> Tensor:
        del random  # nothing here is random
        return pgd_steps(model, ball, ball.x, cross_entropy(labels, ball.protocol), 1, self.eps)


@dataclass(frozen=True)
class PGD(Attack):
    """Projected gradient descent (Madry et al., 2018), up the cross-entropy:

        x_(t+1) = clip(Pi_{||x' - x|| <= eps}(x_t + step_size sign(grad loss(x_t, y))))

    By default it is what other libraries do, and so comparable: a uniformly random start, the last iterate whether or
    not an earlier one was misclassified already. `early_stop` keeps the first misclassified iterate instead, which is
    at least as strong, and faster, as such images are left out of the later steps.

    Attributes:
        steps: number of steps.
        step_size: of each; by default `2.5 eps / steps`.
        random_start: whether to start from a random point of the ball instead of the image.
        restarts: how often to start; only images that are still classified right are attacked again.
        early_stop: see above.

    >>> import polybound as pb
    >>> data = pb.data.load_digits("test")
    >>> model = pb.paper_model("pn-4", shape=data.shape, seed=0)
    >>> adversarial = pb.PGD(0.1, 20, 0.01)(model, data.x, data.y, domain=data.domain)
    >>> bool((adversarial - data.x).abs().max() <= 0.1)
    True
    """

    kind: ClassVar[str] = "pgd"
    numbers: ClassVar[tuple[str, ...]] = ("eps", "steps", "step_size")

    steps: int = 20
    step_size: float | None = None
    random_start: bool = field(default=True, kw_only=True)
    restarts: int = field(default=1, kw_only=True)
    early_stop: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("steps", self.steps)
        check_int("restarts", self.restarts)
        if self.step_size is None:
            object.__setattr__(self, "step_size", 2.5 * self.eps / self.steps)
        check_number("step_size", self.step_size)
        check_flag("random_start", self.random_start)
        check_flag("early_stop", self.early_stop)

    @property
    def label(self) -> str:
        numbers = ", ".join(setting_text(getattr(self, name)) for name in self.numbers)
        return ", ".join([f"PGD-({numbers})", *self.changed_settings()])

    def perturb(self, model: Classifier, ball: Ball, labels: Tensor, random: RandomNumbers) -> Tensor:
        loss = cross_entropy(labels, ball.protocol)

        def attempt(keep: Tensor | None = None) -> Tensor:
            """From a new start, for the images `keep`, all by default."""
            start, among, rising = ball.x, ball, loss
            if self.random_start:
                start = ball.inside(random.normal() if self.norm == "2" else ball.x, random.uniform())
            if keep is not None:
                start, among, rising = start[:, keep], ball.pick(keep), loss.pick(keep)
            size = float(self.step_size or 0.0)
            return pgd_steps(model, among, start, rising, self.steps, size, early_stop=self.early_stop)

        z = attempt()
        if self.restarts == 1 or not self.random_start:
            return z
        return first_success(model, labels, z, (attempt for _ in range(1, self.restarts)))


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
        check_int("steps", self.steps)
        check_number("step_size", self.step_size)

    @property
    def label(self) -> str:
        return "TPGD" if self == TPGD(steps=1) else self.name

    def perturb(self, model: Classifier, ball: Ball, labels: Tensor, random: RandomNumbers) -> Tensor:
        # Clipped to the range of pixels, not to the ball: with eps below 0.001 the first step does that.
        start = (ball.x + 0.001 * random.normal()).clamp_(*ball.clip)
        loss = divergence(labels, model.logits(ball.x), ball.protocol)
        return pgd_steps(model, ball, start, loss, self.steps, self.step_size)


RHO = 0.75
"""The share of a period's steps that must improve the loss of APGD, or its step is halved."""


@dataclass(frozen=True)
class APGD(Attack):
    """Auto-PGD (Croce and Hein, 2020): momentum, and steps from 2 eps on that halve where the loss does not improve.

    The best point so far is where an image goes on after a halving. Only images that are classified right are attacked.

    Attributes:
        steps: number of steps.
        loss: "ce" or "dlr", the difference of logits ratio.
        restarts: random starts for images that are still classified right.
    """

    kind: ClassVar[str] = "apgd"
    numbers: ClassVar[tuple[str, ...]] = ("eps", "steps")
    skips_misclassified: ClassVar[bool] = True

    steps: int = 100
    loss: str = field(default="ce", kw_only=True)
    restarts: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("steps", self.steps)
        check_int("restarts", self.restarts)
        check_choice("loss", self.loss, ("ce", "dlr"))

    def caveats(self, classes: int) -> list[str]:
        if self.loss == "dlr" and classes < 3:
            return [f"{self.name}: the DLR loss needs 3 classes; with {classes} it is the plain margin"]
        return []

    def perturb(self, model: Classifier, ball: Ball, labels: Tensor, random: RandomNumbers) -> Tensor:
        """Each loss from each start, until an image falls."""

        def attempts() -> Iterator[partial[Tensor]]:
            for loss in self.losses(model, ball, labels):
                for _ in range(self.restarts):
                    start = ball.far(random.normal() if self.norm == "2" else ball.x, random.uniform())
                    yield partial(self._once, model, ball, start, loss)

        return first_success(model, labels, ball.x, attempts())

    def losses(self, model: Classifier, ball: Ball, labels: Tensor) -> list[Loss]:
        """The losses to ascend, one after the other; overridden by the targeted kind."""
        del model
        return [cross_entropy(labels, ball.protocol) if self.loss == "ce" else DLR(labels)]

    def _once(self, model: Classifier, ball: Ball, start: Tensor, loss: Loss, keep: Tensor) -> Tensor:
        """From one start, for the images `keep`: the first misclassified point, or the one of greatest loss."""
        ball, loss, z = ball.pick(keep), loss.pick(keep), start[:, keep]
        z = z.repeat_interleave(model.runs // len(z), 0)
        logits, gradient = model.gradient(z, loss.logit_grad)
        value = loss.values(logits)
        best, best_z, best_gradient = value.clone(), z.clone(), gradient.clone()
        found, fallen = z.clone(), ~is_correct(logits, loss.y)
        size = torch.full_like(value, 2 * self.eps).unsqueeze(-1)
        before, last_best = z, best.clone()
        improved, halved = torch.zeros_like(value), torch.ones_like(fallen)
        for step, period in enumerate(self._periods()):
            ahead = ball.ascend(z, gradient.clone(), size)
            if step:
                ahead = ball.project_(z + 0.75 * (ahead - z) + 0.25 * (z - before))
            before, z = z, ahead
            last = step == self.steps - 1
            logits, gradient = (model.logits(z), gradient) if last else model.gradient(z, loss.logit_grad)
            wrong = ~is_correct(logits, loss.y)
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
                stuck = (improved <= RHO * period) | (~halved & (last_best >= best))
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
        check_int("targets", self.targets)

    @property
    def label(self) -> str:
        return "APGDT" if self == APGDT(steps=1) else self.name

    def caveats(self, classes: int) -> list[str]:
        if classes < 4:
            return [f"{self.name}: the targeted DLR loss needs 4 classes; with {classes} it is the plain margin"]
        return []

    def losses(self, model: Classifier, ball: Ball, labels: Tensor) -> list[Loss]:
        # The DLR is a ratio of logits, which does not vanish: its gradient is the same under both protocols.
        order = model.logits(ball.x).argsort(1, descending=True)
        # The clean prediction is the first; an image for which that is not its label is not attacked at all.
        return [TargetedDLR(labels, order[:, k]) for k in range(1, min(self.targets + 1, order.shape[1]))]
