"""One step of gradient descent for all runs of a stack: by hand where there are closed forms, by autograd elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.models import CCP, ClosedCCP, PolynomialNetwork, closed_form, has_closed_form
from polybound.training.distributed import sum_over_workers, workers
from polybound.training.methods import Method, Plain
from polybound.training.methods.base import drop_subnormal
from polybound.training.random import StepRandom

__all__ = ["AutogradEngine", "ClosedEngine", "Engine", "RowsEngine", "engine_for"]


def engine_for(model: PolynomialNetwork, method: Method | None = None) -> Engine:
    """The fastest engine that can train `model` by a method; by plain cross-entropy without one."""
    method = Plain() if method is None else method
    by_cross_entropy = type(method).loss is Method.loss
    if by_cross_entropy and has_closed_form(model):
        return ClosedEngine(model, method)
    if isinstance(model, CCP) and _has_closed_loss(type(method)):
        return RowsEngine(model, method)
    return AutogradEngine(model, method)


def _has_closed_loss(method: type[Method]) -> bool:
    """Whether the closed form is that of the method's loss, and not that of a loss which the method replaced."""
    first = next(kind for kind in method.__mro__ if "closed_loss" in vars(kind) or "loss" in vars(kind))
    return first is not Method and "closed_loss" in vars(first)


class Engine(ABC):
    """Steps of E runs, for flat inputs (groups, batch, features); a group is what shares a batch, as in `ClosedForm`.

    All labels are (groups, batch). Losses are means over the batch of all workers, one for each run.
    """

    def __init__(self, model: PolynomialNetwork, method: Method) -> None:
        self.model, self.method = model, method
        self.runs = model.runs or 1

    @abstractmethod
    def step_(self, x: Tensor, y: Tensor, rate: float, random: StepRandom) -> Tensor:
        """Descend once, in place: `w <- w - rate (gradient + decay w)`. Returns the losses before, (E,)."""

    def labels_of_runs(self, labels: Tensor) -> Tensor:
        """Labels (groups, batch) as (E, batch)."""
        return labels.repeat_interleave(self.runs // len(labels), 0)


class ClosedEngine(Engine):
    """The cross-entropy of networks that have closed forms."""

    def __init__(self, model: PolynomialNetwork, method: Method) -> None:
        super().__init__(model, method)
        self.form = closed_form(model)
        self.lifted = isinstance(model, CCP) and model.form == "product"

    def _lift(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 1), value=1.0) if self.lifted else x

    def logits(self, x: Tensor) -> Tensor:
        """Logits (E, classes, batch) of inputs (groups, batch, features)."""
        return self.form.logits(self._lift(x))

    def slopes(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The logits' gradient of the cross-entropy summed over the batch, (E, classes, batch), and the losses."""
        return self._slopes_of(self.logits(x), self.labels_of_runs(y))

    @staticmethod
    def _slopes_of(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        labels = labels.unsqueeze(1)
        normaliser = torch.logsumexp(logits, 1, keepdim=True)
        losses = (normaliser - logits.gather(1, labels)).sum((1, 2))
        slopes = logits.sub_(normaliser).exp_()
        slopes.scatter_add_(1, labels, slopes.new_full((1, 1, 1), -1.0).expand_as(labels))
        return slopes, losses

    @torch.no_grad()
    def step_(self, x: Tensor, y: Tensor, rate: float, random: StepRandom) -> Tensor:
        del random  # nothing here is random
        x, labels, samples = self._lift(x), self.labels_of_runs(y), y.shape[1]
        alone = workers() == 1
        losses = x.new_zeros(self.runs)

        def slopes(logits: Tensor, runs: slice, part: slice) -> Tensor:
            found, loss = self._slopes_of(logits, labels[runs, part])
            losses[runs] += loss
            return drop_subnormal(found).mul_(1 / samples) if alone else drop_subnormal(found)

        if alone:
            self.form.descend_(x, slopes, rate, self.method.decay)
            return losses / samples
        return self._descend(self.form.gradients_of(x, slopes), losses, samples, rate)

    def _descend(self, pairs: list[tuple[Tensor, Tensor]], losses: Tensor, samples: int, rate: float) -> Tensor:
        """A step along the gradients of all workers."""
        total = sum_over_workers([*(gradient for _, gradient in pairs), losses], samples=samples)
        for (parameter, _), gradient in zip(pairs, total, strict=False):
            parameter.mul_(1 - rate * self.method.decay).sub_(gradient, alpha=rate)
        return total[-1]


class RowsEngine(ClosedEngine):
    """CCP by losses of the logits and of rows of the Jacobian, which the method has in closed form."""

    form: ClosedCCP

    @torch.no_grad()
    def step_(self, x: Tensor, y: Tensor, rate: float, random: StepRandom) -> Tensor:
        by_logits, by_rows, losses = self.method.closed_loss(self, x, y, random)
        lifted, samples = self._lift(x), y.shape[1]
        if workers() == 1:
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

    def __init__(self, model: PolynomialNetwork, method: Method) -> None:
        super().__init__(model, method)
        self.parameters = [p for p in model.parameters() if p.numel()]

    def _inputs(self, x: Tensor) -> Tensor:
        """Inputs as the model takes them: shared, or, where the method differentiates by them, a copy for each run."""
        if self.model.runs is None:
            return x[0]
        if len(x) == 1 and not self.method.uses_inputs:
            return x[0]
        return x.repeat_interleave(self.runs // len(x), 0)

    def step_(self, x: Tensor, y: Tensor, rate: float, random: StepRandom) -> Tensor:
        inputs = self._inputs(x).requires_grad_(self.method.uses_inputs)
        logits = self.model(inputs)
        labels = self.labels_of_runs(y) if self.model.runs is not None else y[0]
        losses, objective = self.method.loss(logits, inputs, labels, random)
        logits.register_hook(drop_subnormal)
        gradients = list(torch.autograd.grad(objective.sum(), self.parameters))
        with torch.no_grad():
            reported = losses.detach().reshape(self.runs)
            *gradients, reported = sum_over_workers([*gradients, reported], samples=y.shape[1])
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.mul_(1 - rate * self.method.decay).sub_(gradient, alpha=rate)
        return reported
