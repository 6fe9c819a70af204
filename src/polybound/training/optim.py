"""Optimisers and learning rates by name, and descent for all runs of a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, cos, pi
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from polybound.errors import PolyboundError, check_int, check_number
from polybound.models import PolynomialNetwork
from polybound.registry import Component, Components, check_start

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class Optimiser(Component):
    """How a gradient becomes a step.

    An optimiser of your own is a frozen dataclass with a `name`, the names of what it remembers of each weight
    (`remembers`) and `update_`, and one line that registers it (`register_optimiser`); from then on `fit`, `train
    --optimiser` and experiments know it. What it remembers is zero at first, is saved with checkpoints, and goes with a
    run when a stack branches.

    Attributes:
        learning_rate: of the first epoch; the schedule multiplies it.
    """

    remembers: ClassVar[tuple[str, ...]] = ()
    """The names of the state that is kept for each weight from step to step."""

    learning_rate: float = 0.001

    def __post_init__(self) -> None:
        check_number("learning_rate", self.learning_rate)
        super().__post_init__()

    def update_(self, weights: Tensors, gradients: Tensors, memory: list[Tensors], rate: float, step: int) -> None:
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


OPTIMISERS: Components[Optimiser] = Components("optimiser")
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
        check_number("momentum", self.momentum, below=1)
        check_number("weight_decay", self.weight_decay)
        super().__post_init__()

    def update_(self, weights: Tensors, gradients: Tensors, memory: list[Tensors], rate: float, step: int) -> None:
        del step
        if self.weight_decay:
            for weight in weights:
                weight.mul_(1 - rate * self.weight_decay)
        # PyTorch's own weight decay would be part of the gradient.
        plain: dict[str, Any] = {"weight_decay": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False}
        velocity: list[Tensor | None] = list(memory[0])
        fused, momentum = _fused(weights), self.momentum
        sgd(list(weights), list(gradients), velocity, fused=fused, momentum=momentum, lr=rate, **plain)


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
        check_number("beta1", self.beta1, below=1)
        check_number("beta2", self.beta2, below=1)
        check_number("weight_decay", self.weight_decay)
        super().__post_init__()

    def update_(self, weights: Tensors, gradients: Tensors, memory: list[Tensors], rate: float, step: int) -> None:
        done = list(torch.full((len(weights),), step - 1.0, device=weights[0].device).unbind())
        mean, square = map(list, memory)
        options: dict[str, Any] = {"beta1": self.beta1, "beta2": self.beta2, "weight_decay": self.weight_decay}
        options |= {"fused": _fused(weights), "amsgrad": False, "maximize": False}
        adamw(list(weights), list(gradients), mean, square, [], done, lr=rate, eps=1e-8, **options)


@register_optimiser
@dataclass(frozen=True)
class Muon(AdamW):
    """Momentum whose matrices are made orthogonal (Jordan et al., 2024); vectors go by AdamW.

    With the decaying sum `m <- beta m + gradient` of a matrix, or of a kernel as the matrix (filters, the rest):
    `w <- (1 - rate weight_decay) w - 0.2 rate sqrt(max(rows, columns)) orthogonal(gradient + beta m)`. The factor
    gives each entry the size of a step of AdamW, so that one learning rate suits both. All directions of a matrix learn
    at the same speed; a product's two factors, whose gradients differ by orders of magnitude, need it most.

    Attributes:
        beta: of the sum of gradients, from 0 on and below 1.
    """

    name: ClassVar[str] = "muon"

    learning_rate: float = 0.02
    beta2: float = 0.95
    weight_decay: float = 0.02
    beta: float = 0.9

    def __post_init__(self) -> None:
        check_number("beta", self.beta, below=1)
        super().__post_init__()

    def update_(self, weights: Tensors, gradients: Tensors, memory: list[Tensors], rate: float, step: int) -> None:
        vectors = [i for i, weight in enumerate(weights) if weight.ndim < 2]
        if vectors:
            parts = [[of[i] for i in vectors] for of in (weights, gradients, *memory)]
            super().update_(parts[0], parts[1], list(parts[2:]), rate, step)
        for weight, gradient, total in zip(weights, gradients, memory[0], strict=True):
            if weight.ndim >= 2:
                total.mul_(self.beta).add_(gradient)
                direction = orthogonal(gradient.add(total, alpha=self.beta).flatten(1)).view_as(weight)
                size = 0.2 * max(weight.shape[0], weight[0].numel()) ** 0.5
                weight.mul_(1 - rate * self.weight_decay).sub_(direction, alpha=rate * size)


def orthogonal(matrix: Tensor, steps: int = 4) -> Tensor:
    """Roughly `U V^T` of a matrix `U S V^T`: its directions, with singular values from about 0.7 to 1.2 each.

    Each step is the polynomial `s -> 3.4445 s - 4.7750 s^3 + 2.0315 s^5` of the singular values, which takes all but
    the smallest near 1; it needs products of matrices alone. A matrix of zeros stays one.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / (torch.linalg.matrix_norm(wide) + 1e-30)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x if wide is matrix else x.T  # type: ignore[no-any-return]


def _fused(weights: Sequence[Tensor]) -> bool:
    """Whether all that is done to a weight can be one pass over memory: a fifth of a step's time instead of half."""
    return weights[0].device.type in ("cpu", "cuda")


class Descent:
    """Steps of an optimiser, for a model or for all runs of a stack.

    Its state has the names and shapes of the parameters, so that engines that see the parameters differently share it.

    Args:
        model: what is trained.
        optimiser: how a gradient becomes a step.
        clip: the largest l2 norm of a run's gradient; longer ones are scaled down to it. 0 for no such limit.

    Attributes:
        steps: how many were made.
    """

    def __init__(self, model: PolynomialNetwork, optimiser: Optimiser, clip: float = 0.0) -> None:
        self.optimiser, self.clip, self.steps, self._runs = optimiser, clip, 0, model.runs or 1
        # Closed forms hand out views of parameters; they are known by where they lie.
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.numel()}
        self._names = {parameter.data_ptr(): name for name, parameter in named.items()}
        # Of one run: some optimisers look at matrices.
        self._shapes = {name: p.shape if model.runs is None else p.shape[1:] for name, p in named.items()}
        self._memory = [
            {name: torch.zeros_like(parameter, requires_grad=False) for name, parameter in named.items()}
            for _ in optimiser.remembers
        ]

    @property
    def plain(self) -> bool:
        """Whether it is plain SGD, whose steps engines fuse with the gradients."""
        return type(self.optimiser) is SGD and not self.clip

    def step_(self, pairs: Sequence[tuple[Tensor, Tensor]], rate: float, decay: float) -> None:
        """Make a step, in place, along the gradients of a mean loss plus `decay ||w||^2 / 2`.

        Args:
            pairs: every parameter, or a view of all of it, and its gradient.
            rate: the present learning rate.
            decay: weight of the penalty, which is the method's; an optimiser's own decay comes on top.
        """
        self.steps += 1
        pairs = [pair for pair in pairs if pair[0].numel()]  # an NCP of degree 1 has no matrices in between
        weights = [weight.detach() for weight, _ in pairs]
        # A fused kernel goes through memory, whatever the strides: gradients must lie as the weights do.
        gradients = [
            gradient if gradient.stride() == weight.stride() else torch.empty_like(weight).copy_(gradient)
            for weight, (_, gradient) in zip(weights, pairs, strict=True)
        ]
        names = [self._names[weight.data_ptr()] for weight in weights]
        shapes = [(self._runs, *self._shapes[name]) for name in names]
        if self.clip:
            views = [gradient.view(shape).unbind() for gradient, shape in zip(gradients, shapes, strict=True)]
            for own in zip(*views, strict=True):
                norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in own]))
                share = (self.clip / norm).clamp(max=1.0)  # NaN stays NaN, so that the loop sees it
                for part in own:
                    part.mul_(share)
        if decay:
            gradients = [gradient.add(weight, alpha=decay) for weight, gradient in zip(weights, gradients, strict=True)]
        memory = [[kept[name] for name in names] for kept in self._memory]
        # Fused kernels round the last few numbers of a tensor otherwise than the rest. So each run has tensors of its
        # own: its weights are the same to the bit alone and anywhere in a stack.
        weights, gradients, *memory = (
            [part for shape, tensor in zip(shapes, tensors, strict=True) for part in tensor.view(shape).unbind()]
            for tensors in (weights, gradients, *memory)
        )
        self.optimiser.update_(weights, gradients, list(memory), rate, self.steps)

    def tensors(self) -> dict[str, Tensor]:
        """All that is remembered, by name; empty for plain SGD."""
        if self.plain:
            return {}
        parts = zip(self.optimiser.remembers, self._memory, strict=True)
        found = {f"{what} {name}": tensor for what, kept in parts for name, tensor in kept.items()}
        return found | {"steps": torch.tensor(self.steps)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what another descent remembered."""
        if self.plain or not tensors:
            return
        self.steps = int(tensors["steps"])
        for name, tensor in self.tensors().items():
            if name != "steps":
                tensor.copy_(tensors[name])

    def forget(self, run: int | None) -> None:
        """Clear the state of a run of the stack, or of the model, whose weights were set to zero."""
        for kept in self._memory:
            for tensor in kept.values():
                (tensor if run is None else tensor[run]).zero_()


# Schedules by name: how many epochs, and by how much the learning rate shrinks in each.


@dataclass(frozen=True)
class Schedule(Component):
    """Passes over the data.

    A schedule of your own is a frozen dataclass with a `name` and `factor_at`, and one line that registers it
    (`register_schedule`). If its options are epochs, `scaled` says where they are in a shorter training.

    Attributes:
        epochs: how many.
        batch_size: samples in a step.
    """

    by_step: ClassVar[bool] = False
    """Whether the rate changes within an epoch; then `factor_at` is asked at every step."""

    epochs: int = 100
    batch_size: int = 64

    def __post_init__(self) -> None:
        check_int("epochs", self.epochs)
        check_int("batch_size", self.batch_size)
        super().__post_init__()

    def factor_at(self, epoch: float) -> float:
        """The factor of the learning rate in an epoch, counted from 0; within epochs if the schedule is `by_step`."""
        del epoch
        return 1.0

    def scaled(self, share: float) -> Self:
        """The same with a share of the epochs, at least two."""
        return replace(self, epochs=max(2, round(self.epochs * share)))

    def place(self, epoch: int, shorter: Schedule) -> int:
        """Where an epoch of this schedule is in a shorter one; never after its last, and only the first stays first."""
        if not epoch:
            return 0
        return min(max(1, round(epoch * shorter.epochs / self.epochs)), shorter.epochs - 1)


SCHEDULES: Components[Schedule] = Components("schedule")
"""All schedules by name."""

register_schedule = SCHEDULES.register


@register_schedule
@dataclass(frozen=True)
class Steps(Schedule):
    """The learning rate is multiplied by `factor` at each milestone; the paper's schedule.

    A milestone is an epoch counted from 0, or a share of all epochs, which becomes the first epoch after it.

    >>> Steps().milestones, Steps(epochs=10).milestones, Steps(epochs=10, milestones=(4,)).milestones
    ((25, 75), (3, 8), (4,))
    """

    name: ClassVar[str] = "steps"

    milestones: tuple[int | float, ...] = (0.25, 0.75)
    factor: float = 0.2

    def __post_init__(self) -> None:
        check_number("factor", self.factor)
        if not isinstance(self.milestones, tuple | list):
            raise PolyboundError(f"milestones must be a list of epochs, got {self.milestones!r}")
        for milestone in self.milestones:
            check_start("a milestone", milestone)
        super().__post_init__()
        epochs = (ceil(one * self.epochs - 1e-9) if isinstance(one, float) else one for one in self.milestones)
        object.__setattr__(self, "milestones", tuple(epochs))

    def factor_at(self, epoch: float) -> float:
        return float(self.factor ** sum(epoch >= milestone for milestone in self.milestones))

    def scaled(self, share: float) -> Self:
        shorter = super().scaled(share)
        return replace(shorter, milestones=tuple(self.place(int(milestone), shorter) for milestone in self.milestones))


@register_schedule
@dataclass(frozen=True)
class Cosine(Schedule):
    """The learning rate falls along half a cosine: `(1 + cos(pi epoch / epochs)) / 2`."""

    name: ClassVar[str] = "cosine"

    def factor_at(self, epoch: float) -> float:
        return (1 + cos(pi * epoch / self.epochs)) / 2


@register_schedule
@dataclass(frozen=True)
class OneCycle(Schedule):
    """The learning rate rises along half a cosine from a 25th of itself, and falls along another to 0, step by step.

    Attributes:
        rise: the share of the training in which it rises.
    """

    name: ClassVar[str] = "one-cycle"
    by_step: ClassVar[bool] = True

    rise: float = 0.3

    def __post_init__(self) -> None:
        check_number("rise", self.rise, below=1)
        super().__post_init__()

    def factor_at(self, epoch: float) -> float:
        done = epoch / self.epochs
        if done < self.rise:
            return 0.04 + 0.96 * (1 - cos(pi * done / self.rise)) / 2
        return (1 + cos(pi * (done - self.rise) / (1 - self.rise))) / 2


@register_schedule
@dataclass(frozen=True)
class Constant(Schedule):
    """The same learning rate in all epochs."""

    name: ClassVar[str] = "constant"
