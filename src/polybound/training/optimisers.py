"""Optimisers by name: how a gradient becomes a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from polybound.errors import PolyboundError
from polybound.registry import Part, Registry, check_number

__all__ = ["OPTIMISERS", "SGD", "AdamW", "Momentum", "Optimiser", "register_optimiser"]


@dataclass(frozen=True)
class Optimiser(Part):
    """How a gradient becomes a step.

    An optimiser of one's own is a frozen dataclass with a `name`, the names of what it remembers of each weight
    (`remembers`) and `update_`, and one line that registers it (`register_optimiser`); from then on `fit`, `train
    --optimiser` and experiments know it. What it remembers is zero at first, is saved with checkpoints, and goes with a
    run when a stack branches.

    Attributes:
        learning_rate: of the first epoch; the schedule multiplies it.
    """

    remembers: ClassVar[tuple[str, ...]] = ()
    """What is remembered of each weight from step to step."""

    learning_rate: float = 0.001

    def __post_init__(self) -> None:
        check_number("learning_rate", self.learning_rate)
        super().__post_init__()

    def update_(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        memory: Sequence[Sequence[Tensor]],
        rate: float,
        step: int,
    ) -> None:
        """Make a step, in place; gradients may be overwritten.

        Args:
            weights: all parameters; of a stack, those of each run.
            gradients: of the same shapes.
            memory: for each name of `remembers`, tensors of the same shapes, to be changed in place.
            rate: the present learning rate.
            step: of the training, from 1 on.
        """
        del memory, step
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.sub_(gradient, alpha=rate)


OPTIMISERS: Registry[Optimiser] = Registry("optimiser")
"""All optimisers by name."""

register_optimiser = OPTIMISERS.register


@register_optimiser
@dataclass(frozen=True)
class SGD(Optimiser):
    """Plain stochastic gradient descent, `w <- w - rate gradient`, as in the paper."""

    name: ClassVar[str] = "sgd"


@register_optimiser
@dataclass(frozen=True)
class Momentum(Optimiser):
    """SGD along a decaying sum of gradients: `v <- momentum v + gradient; w <- (1 - rate weight_decay) w - rate v`.

    Attributes:
        momentum: from 0 on and below 1.
        weight_decay: decoupled from the gradient.
    """

    name: ClassVar[str] = "momentum"
    remembers: ClassVar[tuple[str, ...]] = ("velocity",)

    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_share("momentum", self.momentum)
        check_number("weight_decay", self.weight_decay)
        super().__post_init__()

    def update_(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        memory: Sequence[Sequence[Tensor]],
        rate: float,
        step: int,
    ) -> None:
        del step
        if self.weight_decay:
            for weight in weights:
                weight.mul_(1 - rate * self.weight_decay)
        sgd(
            list(weights),
            list(gradients),
            list(memory[0]),
            fused=_fused(weights),
            momentum=self.momentum,
            lr=rate,
            weight_decay=0.0,  # PyTorch's would be part of the gradient
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


@register_optimiser
@dataclass(frozen=True)
class AdamW(Optimiser):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019).

    With the means m of gradients and v of their squares, each divided by `1 - beta^step`:
    `w <- (1 - rate weight_decay) w - rate m / (sqrt(v) + 1e-8)`.

    Attributes:
        beta1: of the mean of gradients.
        beta2: of the mean of their squares.
        weight_decay: decoupled from the gradient.
    """

    name: ClassVar[str] = "adamw"
    remembers: ClassVar[tuple[str, ...]] = ("mean", "square")

    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_share("beta1", self.beta1)
        _check_share("beta2", self.beta2)
        check_number("weight_decay", self.weight_decay)
        super().__post_init__()

    def update_(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        memory: Sequence[Sequence[Tensor]],
        rate: float,
        step: int,
    ) -> None:
        done = list(torch.full((len(weights),), step - 1.0, device=weights[0].device).unbind())
        adamw(
            list(weights),
            list(gradients),
            list(memory[0]),
            list(memory[1]),
            [],
            done,
            fused=_fused(weights),
            amsgrad=False,
            beta1=self.beta1,
            beta2=self.beta2,
            lr=rate,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )


def _fused(weights: Sequence[Tensor]) -> bool:
    """Whether all that is done to a weight can be one pass over memory: a fifth of a step's time instead of half."""
    return weights[0].device.type in ("cpu", "cuda")


def _check_share(name: str, value: float) -> None:
    check_number(name, value)
    if value >= 1:
        raise PolyboundError(f"{name} must be below 1, got {value!r}")
