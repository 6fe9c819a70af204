"""PGD: many steps, possibly from random starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from polybound.attacks.ball import Ball
from polybound.attacks.base import Attack, climb, first_success
from polybound.attacks.classifier import Classifier
from polybound.attacks.losses import CrossEntropy, cross_entropy
from polybound.attacks.random_numbers import RandomNumbers
from polybound.attacks.settings import setting_text
from polybound.registry import check_flag, check_number, check_whole

__all__ = ["PGD"]


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
        check_whole("steps", self.steps)
        check_whole("restarts", self.restarts)
        if self.step_size is None:
            object.__setattr__(self, "step_size", 2.5 * self.eps / self.steps)
        check_number("step_size", self.step_size)
        check_flag("random_start", self.random_start)
        check_flag("early_stop", self.early_stop)

    @property
    def label(self) -> str:
        numbers = ", ".join(setting_text(getattr(self, name)) for name in self.numbers)
        return ", ".join([f"PGD-({numbers})", *self._options()])

    def perturb(self, model: Classifier, ball: Ball, labels: Tensor, random: RandomNumbers) -> Tensor:
        loss = cross_entropy(labels, ball.protocol)
        z = self._climb(model, ball, self._start(ball, random), loss)
        if self.restarts == 1 or not self.random_start:
            return z

        def again(keep: Tensor) -> Tensor:
            start = self._start(ball, random)[:, keep]
            return self._climb(model, ball.pick(keep), start, loss.pick(keep))

        return first_success(model, labels, z, (again for _ in range(1, self.restarts)))

    def _start(self, ball: Ball, random: RandomNumbers) -> Tensor:
        if not self.random_start:
            return ball.x
        return ball.inside(random.normal() if self.norm == "2" else ball.x, random.uniform())

    def _climb(self, model: Classifier, ball: Ball, start: Tensor, loss: CrossEntropy) -> Tensor:
        size = float(self.step_size or 0.0)
        return climb(model, ball, start, loss, self.steps, size, early_stop=self.early_stop)
