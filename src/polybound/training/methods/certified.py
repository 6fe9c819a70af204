"""Training for certificates: the loss is of the margins' lower bounds that the first rung of the ladder proves."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from torch import Tensor

from polybound.certificates import box_of, margin_bounds
from polybound.constraints import Projection
from polybound.errors import PolyboundError
from polybound.models import Factors, PolynomialNetwork
from polybound.registry import check_number, check_start, check_whole
from polybound.training.methods.base import Method, Moment, cross_entropies, register_method
from polybound.training.methods.projection import ProjectAfterStep

__all__ = ["Certified", "CertifiedProjected"]


@register_method
@dataclass(frozen=True)
class Certified(Method):
    r"""`(1 - weight) CE(f(x)) + weight CE(-low)`, low being lower bounds of the margins over balls of radius eps.

    For each of the `rivals` that are nearest at the centre of the ball, which is cut to the data's domain,

        low_j = g_j - ||G_j||_1 - remainder R_j

    is what the first rung of certificates bounds, by entries: see
    `polybound.certificates.bounds.differentiable`. With
    `remainder=1` it is proven, up to rounding. With less it is between that and the least margin to first order, and
    trains networks that higher rungs prove robust. Of the other rivals `g_j` itself counts. The radius rises from 0
    in proportion to the steps, over a share `ramp` of the method's epochs.

    Attributes:
        eps: radius of the l_inf balls.
        weight: of the certified loss, from 0 to 1; the rest is the clean loss's.
        remainder: what share of the remainder counts.
        ramp: share of the epochs from `start` on in which the radius rises.
        rivals: how many rivals of each sample are bounded; 0 for all.
        start: first epoch with that loss, from 0, or a share of all epochs.
    """

    name: ClassVar[str] = "certified"
    takes_adversary: ClassVar[bool] = False  # the loss sees the whole ball

    eps: float = 0.1
    weight: float = 1.0
    remainder: float = 0.3
    ramp: float = 0.6
    rivals: int = 3
    start: int | float = 0

    def __post_init__(self) -> None:
        check_number("eps", self.eps)
        for name in ("weight", "remainder", "ramp"):
            check_number(name, getattr(self, name))
            if getattr(self, name) > 1:
                raise PolyboundError(f"{name} is a share, at most 1, got {getattr(self, name)!r}")
        check_whole("rivals", self.rivals, 0)
        check_start("start", self.start)
        super().__post_init__()

    @property
    def label(self) -> str:
        return f"certified training {self.eps:g}"

    def eps_at(self, done: float) -> float:
        """The radius where a share of the method's epochs is done.

        >>> Certified(eps=0.2, ramp=0.5).eps_at(0.25), Certified(eps=0.2, ramp=0.5).eps_at(0.75)
        (0.1, 0.2)
        """
        return self.eps if done >= self.ramp else self.eps * done / self.ramp

    def complete_from(self, epochs: int) -> int:
        rising = ceil(self.ramp * (epochs - self.begins) - 1e-9)
        return min(self.begins + rising, epochs - 1)

    def network_loss(self, factors: Factors, inputs: Tensor, labels: Tensor, moment: Moment) -> tuple[Tensor, Tensor]:
        c, r = box_of(inputs, self.eps_at(moment.done), moment.domain)
        bounds = margin_bounds(factors, c, r, labels, self.rivals or None)
        low = bounds.centre - bounds.slope - self.remainder * bounds.remainder
        losses = self.weight * cross_entropies(bounds.logits.scatter(-1, bounds.rivals, -low), labels)
        if self.weight < 1:
            losses = losses + (1 - self.weight) * cross_entropies(factors(inputs), labels)
        return losses, losses


@register_method
@dataclass(frozen=True)
class CertifiedProjected(Certified):
    """Training for certificates whose weights are projected as well, from `start` on, as method `projection` does it.

    Attributes:
        bound: of the l_inf norms of all matrices.
        every: a projection follows every so many steps, and the last one.
    """

    name: ClassVar[str] = "certified-projection"

    bound: float = 1.0
    every: int = 10

    def __post_init__(self) -> None:
        check_number("bound", self.bound)
        check_whole("every", self.every)
        super().__post_init__()

    @property
    def label(self) -> str:
        return f"{super().label} + projection {self.bound:g}"

    def prepare(self, model: PolynomialNetwork) -> ProjectAfterStep:
        return ProjectAfterStep(Projection(model, self.bound), self.every)
