"""One step of gradient descent for all runs of a stack: by hand where there are closed forms, by autograd elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import overload

import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.models import CCP, ConvCCP, JacobianGradients, PolynomialNetwork, closed_form, has_closed_form
from polybound.seeds import drawn, seeded
from polybound.training.losses import CrossEntropy, Loss
from polybound.training.methods import Method, Plain, StepContext, drop_subnormal
from polybound.training.optim import SGD, Descent

__all__ = ["AutogradEngine", "ClosedEngine", "Engine", "NetworkEngine", "RowsEngine", "StepRandom", "engine_for"]


# Random numbers of a training step: from the seed, the epoch and the step alone.


class StepRandom(Sequence[torch.Generator]):
    """A generator for each group of runs that share their batches, made when it is first needed.

    Args:
        runs: how many runs there are, a multiple of the number of seeds.
        seeds: one for each group.
        epoch: from 0.
        step: from 0.
    """

    def __init__(self, runs: int, seeds: Sequence[int], epoch: int, step: int) -> None:
        self.runs = runs
        self._parts = [(seed, epoch, step + 1) for seed in seeds]
        self._made: dict[int, torch.Generator] = {}

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> list[torch.Generator]: ...
    def __getitem__(self, index: int | slice) -> torch.Generator | list[torch.Generator]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        if place not in self._made:
            self._made[place] = seeded(*self._parts[place])
        return self._made[place]

    def draw(self, sample: Callable[..., Tensor], shape: Sequence[int], like: Tensor) -> Tensor:
        """Random numbers (E, *shape) by `torch.rand` or `torch.randn`; runs of a group share theirs."""
        return drawn(sample, self, self.runs, shape, like)

    def unit_vectors(self, like: Tensor) -> Tensor:
        """Random directions of the last dimension: (E, *like.shape[-2:])."""
        return F.normalize(self.draw(torch.randn, like.shape[-2:], like), dim=-1, eps=0.0)


def engine_for(
    model: PolynomialNetwork, method: Method | None = None, loss: Loss | None = None, descent: Descent | None = None
) -> Engine:
    """The fastest engine that can train `model` by a method; by plain cross-entropy and SGD without one."""
    method = Plain() if method is None else method
    if not method.own_loss and has_closed_form(model):
        return ClosedEngine(model, method, loss, descent)
    if method.bounds_network:
        return NetworkEngine(model, method, loss, descent)
    if _has_closed_loss(type(method)) and has_closed_form(model) and isinstance(model, CCP | ConvCCP):
        return RowsEngine(model, method, loss, descent)
    return AutogradEngine(model, method, loss, descent)


def _has_closed_loss(method: type[Method]) -> bool:
    """Whether the closed form is that of the method's loss, and not that of a loss which the method replaced."""
    first = next(kind for kind in method.__mro__ if "closed_loss" in vars(kind) or "loss" in vars(kind))
    return first is not Method and "closed_loss" in vars(first)


class Engine(ABC):
    """Steps of E runs, for flat inputs (groups, batch, features); a group shares a batch, as in `ManualGradients`.

    All targets are (groups, batch), or (groups, batch, outputs) if they are numbers. Losses are means over the batch,
    one for each run.

    Attributes:
        context: where in the training the next step is.
    """

    context = StepContext()

    def __init__(
        self, model: PolynomialNetwork, method: Method, loss: Loss | None = None, descent: Descent | None = None
    ) -> None:
        self.model, self.method = model, method
        self.loss = CrossEntropy() if loss is None else loss
        self.descent = Descent(model, SGD()) if descent is None else descent
        self.runs = model.runs or 1

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

    def targets_of_runs(self, targets: Tensor) -> Tensor:
        """Targets (groups, batch, ...) as (E, batch, ...)."""
        return targets.repeat_interleave(self.runs // len(targets), 0)

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

    def __init__(
        self, model: PolynomialNetwork, method: Method, loss: Loss | None = None, descent: Descent | None = None
    ) -> None:
        super().__init__(model, method, loss, descent)
        self.form = closed_form(model)
        self.lifted = isinstance(model, CCP) and model.form == "product"

    def _lift(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 1), value=1.0) if self.lifted else x

    def logits(self, x: Tensor) -> Tensor:
        """Logits (E, classes, batch) of inputs (groups, batch, features)."""
        return self.form.logits(self._lift(x))

    def logit_grad(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The logits' gradient of the loss summed over the batch, (E, classes, batch), and the losses."""
        logit_grad, losses = self.loss.logit_grad(self.logits(x), self.targets_of_runs(y))
        return logit_grad, losses.sum((1, 2))

    @torch.no_grad()
    def step_(self, x: Tensor, y: Tensor, rate: float, random: StepRandom, weights: Tensor | None = None) -> Tensor:
        del random  # nothing here is random
        x, targets, samples = self._lift(x), self.targets_of_runs(y), y.shape[1]
        weights = None if weights is None else self.targets_of_runs(weights).unsqueeze(1)
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
        lifted, samples = self._lift(x), y.shape[1]
        if self.descent.plain:
            decay = self.method.decay
            self.form.update_by_rows_(by_logits.div_(samples), by_rows.div_(samples), lifted, rate, decay)
            return losses / samples  # type: ignore[no-any-return]
        return self._descend(self.form.gradients_by_rows(by_logits, by_rows, lifted), losses, samples, rate)

    def rows(self, v: Tensor) -> Tensor:
        """`v^T J` for directions v, (E, rows, classes, batch), at the inputs of the last logits."""
        rows = self.form.rows(v.contiguous())
        if self.lifted:
            rows[..., -1] = 0.0  # the constant is no input
        return rows


class AutogradEngine(Engine):
    """Any model and any method."""

    def __init__(
        self, model: PolynomialNetwork, method: Method, loss: Loss | None = None, descent: Descent | None = None
    ) -> None:
        super().__init__(model, method, loss, descent)
        self.parameters = [p for p in model.parameters() if p.numel()]

    def _inputs(self, x: Tensor) -> Tensor:
        """Inputs as the model takes them: shared, or, where the method differentiates by them, a copy for each run."""
        if self.model.runs is None:
            return x[0]
        if len(x) == 1 and not self.method.uses_inputs:
            return x[0]
        return x.repeat_interleave(self.runs // len(x), 0)

    def _of_runs(self, values: Tensor) -> Tensor:
        """Targets or weights as the model's outputs have them: with a dimension for the runs if it is a stack."""
        return values[0] if self.model.runs is None else self.targets_of_runs(values)

    def _losses(
        self, outputs: Tensor, inputs: Tensor, y: Tensor, random: StepRandom, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """What is reported and what is descended, summed over the batch."""
        if self.method.own_loss:
            return self.method.loss(outputs, inputs, self._of_runs(y), random)
        losses = self.loss.losses(outputs, self._of_runs(y))
        losses = (losses if weights is None else losses * self._of_runs(weights)).sum(-1)
        return losses, losses

    def step_(self, x: Tensor, y: Tensor, rate: float, random: StepRandom, weights: Tensor | None = None) -> Tensor:
        inputs = self._inputs(x).requires_grad_(self.method.uses_inputs)
        outputs = self.model(inputs)
        losses, objective = self._losses(outputs, inputs, y, random, weights)
        outputs.register_hook(drop_subnormal)
        gradients = torch.autograd.grad(objective.sum(), self.parameters)
        with torch.no_grad():
            pairs = list(zip(self.parameters, gradients, strict=True))
            return self._descend(pairs, losses.detach().reshape(self.runs), y.shape[1], rate)


class NetworkEngine(AutogradEngine):
    """Any model by a loss of the network itself, such as a bound over the neighbourhoods of the inputs."""

    def step_(self, x: Tensor, y: Tensor, rate: float, random: StepRandom, weights: Tensor | None = None) -> Tensor:
        del random, weights  # nothing here is random, and a method with a loss of its own has no weights
        stacked = self.model.runs is not None
        inputs = x.repeat_interleave(self.runs // len(x), 0) if stacked else x[0]
        losses, objective = self.method.network_loss(self.model.factors(), inputs, self._of_runs(y), self.context)
        gradients = torch.autograd.grad(objective.sum(), self.parameters)
        with torch.no_grad():
            pairs = list(zip(self.parameters, gradients, strict=True))
            return self._descend(pairs, losses.detach().reshape(self.runs), y.shape[1], rate)
