"""What every method of training can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch.nn.functional as F
from torch import Tensor

from polybound.errors import PolyboundError
from polybound.models import Factors, PolynomialNetwork
from polybound.registry import Part, Registry, start_epoch

if TYPE_CHECKING:
    from polybound.training.engine import RowsEngine
    from polybound.training.random import StepRandom

__all__ = [
    "METHODS",
    "AfterStep",
    "Method",
    "Moment",
    "Plain",
    "cross_entropies",
    "drop_subnormal",
    "join_methods",
    "register_method",
]


class AfterStep(Protocol):
    """What a method does to the weights after a step."""

    def __call__(self, step: int, last: bool) -> None:
        """Act after step `step` of the training, counted from 0 across epochs; `last` is the very last."""


@dataclass(frozen=True)
class Moment:
    """Where in the training a step is, for losses that change on the way.

    Attributes:
        done: the share of the method's own epochs that is done, from 0 to 1.
        domain: the smallest and largest value an input entry can have; None if nobody knows.
    """

    done: float = 1.0
    domain: tuple[float, float] | None = None


@dataclass(frozen=True)
class Method(Part):
    """A way to train against overfitting and attacks: what it does to the loss, after a step, and since when.

    A method of one's own is a frozen dataclass with a `name` and any of the functions below, and one line that
    registers it; from then on `fit`, `train --method` and experiments know it:

        @pb.training.register_method
        @dataclass(frozen=True)
        class LargeLogitPenalty(pb.training.Method):
            name = "large-logits"
            weight: float = 0.1

            def loss(self, logits, inputs, labels, random):
                losses = pb.training.cross_entropies(logits, labels)
                return losses, losses + self.weight * logits.square().sum((-2, -1))
    """

    takes_adversary: ClassVar[bool] = True
    """Whether it can be trained on adversarial examples."""
    uses_inputs: ClassVar[bool] = False
    """Whether its loss differentiates by the inputs."""

    @property
    def own_loss(self) -> bool:
        """Whether it replaces the loss; then the recipe's is the plain cross-entropy, and samples have no weights."""
        return type(self).loss is not Method.loss or self.bounds_network

    @property
    def bounds_network(self) -> bool:
        """Whether its loss is of the network itself, `network_loss`, and not of logits."""
        return type(self).network_loss is not Method.network_loss

    @property
    def begins(self) -> int:
        """The first epoch, from 0, in which it does anything; before that, training is plain.

        A `start` may be a share of the epochs; a recipe, which knows how many there are, makes it an epoch.
        """
        start = getattr(self, "start", 0)
        if isinstance(start, float):
            raise PolyboundError(f"{self.name} begins after {start:g} of the epochs: only a recipe knows how many")
        return int(start)

    def plain_until(self, epochs: int) -> int:
        """For how many of the epochs it is plain training, so that runs of one seed need be trained once."""
        return min(start_epoch(getattr(self, "start", 0), epochs), epochs)

    def complete_from(self, epochs: int) -> int:
        """The first of so many epochs, from 0, in which all of it is in force; the last at the latest."""
        return min(self.begins, epochs - 1)

    @property
    def decay(self) -> float:
        """The weight decay of a step: `w <- w - rate (gradient + decay w)`."""
        return 0.0

    def loss(self, logits: Tensor, inputs: Tensor, labels: Tensor, random: StepRandom) -> tuple[Tensor, Tensor]:
        """What is reported and what is descended, each summed over the batch: one value for each run.

        Args:
            logits: (*lead, batch, classes), computed from `inputs`; lead is (E,) for a stack and () for a model.
            inputs: (*lead, batch, features); they require gradients if `uses_inputs`.
            labels: (*lead, batch).
            random: draws random numbers for each run.
        """
        del inputs, random
        losses = cross_entropies(logits, labels)
        return losses, losses

    def network_loss(self, factors: Factors, inputs: Tensor, labels: Tensor, moment: Moment) -> tuple[Tensor, Tensor]:
        """In the place of `loss`, for one that needs more than logits: what is reported, and what is descended.

        Args:
            factors: of the model or stack, differentiable by its weights.
            inputs: (*lead, batch, features).
            labels: (*lead, batch).
            moment: where in the training the step is.
        """
        del factors, inputs, labels, moment
        raise PolyboundError(f"method {self.name} has no loss of the network")

    def closed_loss(self, engine: RowsEngine, x: Tensor, y: Tensor, random: StepRandom) -> Any:
        """The same for CCP by hand: gradients by logits and by rows of the Jacobian, and the reported losses."""
        del engine, x, y, random
        raise PolyboundError(f"method {self.name} has no closed form")

    def prepare(self, model: PolynomialNetwork) -> AfterStep | None:
        """Called once, before the first step: what to do after each step from `begins` on, if anything."""
        del model
        return None

    def settle(self, model: PolynomialNetwork) -> None:
        """Called where training is left before its end: do what would be done after the last step."""
        if (after := self.prepare(model)) is not None:
            after(0, True)

    def join(self, methods: Sequence[Method]) -> Method:
        """One method for a stack whose runs have these methods; self is one of them."""
        if any(method != self for method in methods):
            raise PolyboundError(f"runs with different options of {self.name} do not train as one stack")
        return self


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy summed over the batch: one value for each run."""
    losses = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.flatten(), reduction="none")
    return losses.view(labels.shape).sum(-1)


def drop_subnormal(slopes: Tensor) -> Tensor:
    """Gradients by logits, with those set to zero that are too small to move a weight.

    Once the training data is fitted, most classes of most samples have such; their products with what follows are
    subnormal numbers, with which a CPU takes four times as long. An adversary needs the sign of all of them.
    """
    return F.hardshrink(slopes, 1e-20)


METHODS: Registry[Method] = Registry("method")
"""All methods by name."""

register_method = METHODS.register


@register_method
@dataclass(frozen=True)
class Plain(Method):
    """The cross-entropy, and nothing else."""

    name: ClassVar[str] = "none"

    def plain_until(self, epochs: int) -> int:
        return epochs


def join_methods(methods: Sequence[Method]) -> Method:
    """One method for a stack: of runs that are plain and runs that are not, the latter can say how they join."""
    leader = next((method for method in methods if not isinstance(method, Plain)), methods[0])
    return leader.join(methods)
