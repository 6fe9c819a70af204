"""One step of gradient descent for all runs of a stack: by hand where there are closed forms, by autograd elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.errors import PolyboundError
from polybound.models import (
    CCP,
    ConvCCP,
    DeepNetwork,
    JacobianGradients,
    PolynomialNetwork,
    closed_form,
    has_closed_form,
)
from polybound.seeds import drawn, seeded
from polybound.training.losses import CrossEntropy, Loss
from polybound.training.methods import Method, Plain, StepContext, drop_subnormal
from polybound.training.optim import SGD, Descent


class StepRandom:
    """Random numbers of a training step: they follow from the seed, the epoch and the step alone.

    Args:
        runs: how many runs there are, a multiple of the number of seeds.
        seeds: one for each group of runs that share their batches.
        epoch: from 0.
        step: from 0.
    """

    def __init__(self, runs: int, seeds: Sequence[int], epoch: int, step: int) -> None:
        self.runs, self._key = runs, (seeds, epoch, step)

    @cached_property
    def generators(self) -> list[torch.Generator]:
        """One for each group, made when the first number is drawn."""
        seeds, epoch, step = self._key
        return [seeded(seed, epoch, step + 1) for seed in seeds]

    def draw(self, sample: Callable[..., Tensor], shape: Sequence[int], like: Tensor) -> Tensor:
        """Random numbers (E, *shape) by `torch.rand` or `torch.randn`; runs of a group share theirs."""
        return drawn(sample, self.generators, self.runs, shape, like)

    def unit_vectors(self, like: Tensor) -> Tensor:
        """Random directions of the last dimension: (E, *like.shape[-2:])."""
        return F.normalize(self.draw(torch.randn, like.shape[-2:], like), dim=-1, eps=0.0)


def engine_for(
    model: PolynomialNetwork,
    method: Method | None = None,
    loss: Loss | None = None,
    descent: Descent | None = None,
    precision: str = "float32",
) -> Engine:
    """The fastest engine that can train `model` by a method; by plain cross-entropy and SGD without one.

    Raises:
        PolyboundError: steps of that model by that method have no lower precision.
    """
    method = Plain() if method is None else method
    kind: type[Engine] = AutogradEngine
    if not method.own_loss and has_closed_form(model):
        kind = ClosedEngine
    elif isinstance(model, CCP | ConvCCP) and has_closed_form(model) and not method.bounds_network:
        # The closed form must be that of the method's loss, and not that of a loss which the method replaced.
        first = next(base for base in type(method).__mro__ if {"closed_loss", "loss"} & vars(base).keys())
        if first is not Method and "closed_loss" in vars(first):
            kind = RowsEngine
    engine = kind(model, method, loss, descent)
    engine.lowered = precision == "bfloat16"
    if engine.lowered and (kind is not AutogradEngine or method.bounds_network):
        what = f"a {type(model).__name__}" + (f" by method {method.name}" if method.bounds_network else "")
        raise PolyboundError(f"precision bfloat16 is for networks that autograd trains, not for {what}")
    return engine


class Engine(ABC):
    """Steps of E runs, for flat inputs (groups, batch, features); the runs of a group share their batch.

    All targets are (groups, batch), or (groups, batch, outputs) if they are numbers. Losses are means over the batch,
    one for each run.

    Attributes:
        context: where in the training the next step is.
        lowered: whether a step computes in bfloat16 where PyTorch's autocast does; the weights keep their precision.
    """

    context = StepContext()
    lowered = False

    def __init__(
        self, model: PolynomialNetwork, method: Method, loss: Loss | None = None, descent: Descent | None = None
    ) -> None:
        self.model, self.method = model, method
        self.loss = CrossEntropy() if loss is None else loss
        self.descent = Descent(model, SGD()) if descent is None else descent
        self.runs = model.runs or 1
        self.parameters = [
            parameter for parameter in model.parameters() if parameter.numel() and parameter.requires_grad
        ]

    @abstractmethod
    def step_(self, x: Tensor, y: Tensor, rate: float, random: StepRandom, weights: Tensor | None = None) -> Tensor:
        """Make a step of the optimiser, in place: of SGD `w <- w - rate (gradient + decay w)`.

        Args:
            x: inputs, (groups, batch, features).
            y: targets.
            rate: the learning rate.
            random: draws random numbers for each run.
            weights: of the samples, (groups, batch), 1 on average.

        Returns:
            The losses before, (E,).
        """

    def for_runs(self, values: Tensor) -> Tensor:
        """Values (groups, batch, ...) as (E, batch, ...)."""
        return values.repeat_interleave(self.runs // len(values), 0)

    def _descend(self, pairs: Sequence[tuple[Tensor, Tensor]], losses: Tensor, samples: int, rate: float) -> Tensor:
        """A step along the gradients of losses that are sums over the samples; returns the mean losses."""
        means = [(parameter, gradient / samples) for parameter, gradient in pairs]
        if self.descent.plain:
            for parameter, gradient in means:
                parameter.mul_(1 - rate * self.method.decay).sub_(gradient, alpha=rate)
        else:
            self.descent.step_(means, rate, self.method.decay)
        return losses / samples


class ClosedEngine(Engine):
    """Losses of the outputs of networks that have closed forms."""

    def __init__(self, model: PolynomialNetwork, *parts: Any) -> None:
        super().__init__(model, *parts)
        self.form = closed_form(model)

    @torch.no_grad()
    def step_(self, x: Tensor, y: Tensor, rate: float, random: StepRandom, weights: Tensor | None = None) -> Tensor:
        del random  # nothing here is random
        targets, samples = self.for_runs(y), y.shape[1]
        weights = None if weights is None else self.for_runs(weights).unsqueeze(1)
        sums = x.new_zeros(self.runs)

        def logit_grad(logits: Tensor, runs: slice, part: slice) -> Tensor:
            found, losses = self.loss.logit_grad(logits, targets[runs, part])
            if weights is not None:
                found.mul_(weights[runs, :, part])
                losses.mul_(weights[runs, :, part])
            sums[runs] += losses.sum((1, 2))
            return drop_subnormal(found).mul_(1 / samples)

        if self.descent.plain:
            self.form.descend_(x, logit_grad, rate, self.method.decay)
        else:
            self.descent.step_(self.form.gradients_of(x, logit_grad), rate, self.method.decay)
        return sums / samples


class RowsEngine(ClosedEngine):
    """Losses of the logits and of rows of the Jacobian, which the method has in closed form."""

    form: JacobianGradients

    @torch.no_grad()
    def step_(self, x: Tensor, y: Tensor, rate: float, random: StepRandom, weights: Tensor | None = None) -> Tensor:
        del weights  # a method with a loss of its own has none
        by_logits, by_rows, losses = self.method.closed_loss(self, x, y, random)
        samples = y.shape[1]
        if self.descent.plain:
            self.form.update_by_rows_(by_logits.div_(samples), by_rows.div_(samples), rate, self.method.decay)
            return losses / samples  # type: ignore[no-any-return]
        return self._descend(self.form.gradients_by_rows(by_logits, by_rows), losses, samples, rate)

    def logit_grad(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The logits' gradient of the loss summed over the batch, (E, classes, batch), and the losses."""
        found, losses = self.loss.logit_grad(self.form.logits(x), self.for_runs(y))
        return found, losses.sum((1, 2))

    def rows(self, v: Tensor) -> Tensor:
        """`v^T J` for directions v, (E, rows, classes, batch), at the inputs of the last logits."""
        return self.form.rows(v.contiguous())


class AutogradEngine(Engine):
    """Any model and any method: losses of the outputs, or of the network itself, such as a bound on a ball."""

    def step_(self, x: Tensor, y: Tensor, rate: float, random: StepRandom, weights: Tensor | None = None) -> Tensor:
        method, single = self.method, self.model.runs is None
        samples = y.shape[1]
        y = y[0] if single else self.for_runs(y)
        # Runs share their inputs, unless the method looks at them: then each run has a copy.
        shared = len(x) == 1 and not method.uses_inputs and not method.bounds_network
        inputs = x[0] if single or shared else self.for_runs(x)
        if method.bounds_network:
            if isinstance(self.model, DeepNetwork):
                losses, objective = method.deep_loss(self.model, inputs, y, self.context)
            else:
                losses, objective = method.network_loss(self.model.factors(), inputs, y, self.context)
        else:
            inputs = inputs.requires_grad_(method.uses_inputs)
            with torch.autocast(inputs.device.type, torch.bfloat16, enabled=self.lowered):
                outputs = self.model(inputs).to(inputs.dtype)
            if method.own_loss:
                losses, objective = method.loss(outputs, inputs, y, random)
            else:
                each = self.loss.losses(outputs, y)
                if weights is not None:
                    each = each * (weights[0] if single else self.for_runs(weights))
                losses = objective = each.sum(-1)
            outputs.register_hook(drop_subnormal)
        gradients = torch.autograd.grad(objective.sum(), self.parameters, allow_unused=True)
        with torch.no_grad():
            # What the output does not depend on has no gradient, and stays.
            pairs = [
                (p, gradient) for p, gradient in zip(self.parameters, gradients, strict=True) if gradient is not None
            ]
            return self._descend(pairs, losses.detach().reshape(self.runs), samples, rate)
