"""One step of gradient descent for all runs of a stack: by hand where there are closed forms, by autograd elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.models import CCP, PolynomialNetwork
from polybound.models.closed import ClosedCCP, closed_form, has_closed_form
from polybound.seeds import drawn
from polybound.training.distributed import sum_over_workers, workers
from polybound.training.penalty import jacobian_penalty, lower_margins

__all__ = ["Engine", "Generators", "engine_for"]

Generators = Sequence[torch.Generator]
"""For what is random in a step: one for each group of runs, or none where nothing is."""


def engine_for(
    model: PolynomialNetwork,
    jacobian: str | None = None,
    penalty: Tensor | None = None,
    certified: float | None = None,
) -> Engine:
    """The fastest engine that can train `model`.

    Args:
        model: what to train.
        jacobian: how to compute a Jacobian penalty, "random" or "exact", if there is to be one.
        penalty: its weight.
        certified: radius of the balls over which to bound the margins, if that is to be the loss.
    """
    if has_closed_form(model) and jacobian is None and certified is None:
        return ClosedEngine(model)
    if isinstance(model, CCP):
        return RowsEngine(model, jacobian, penalty, certified)
    return AutogradEngine(model, jacobian, penalty, certified)


def _felt(slopes: Tensor) -> Tensor:
    """Gradients by logits, with those set to zero that are too small to move a weight.

    Once the training data is fitted, most classes of most samples have such; their products with what follows are
    subnormal numbers, with which a CPU takes four times as long. An adversary needs the sign of all of them.
    """
    return F.hardshrink(slopes, 1e-20)


class Engine(ABC):
    """Steps and input gradients of E runs, for flat inputs (groups, batch, features); see `ClosedForm` for groups.

    All labels are (groups, batch). Losses are means over the batch of all workers, one for each run.
    """

    def __init__(self, model: PolynomialNetwork) -> None:
        self.model = model
        self.runs = model.runs or 1

    @abstractmethod
    def step_(self, x: Tensor, y: Tensor, rate: float, decay: float, generators: Generators) -> Tensor:
        """Descend once, in place: `w <- w - rate (gradient + decay w)`. Returns the losses before, (E,)."""

    @abstractmethod
    def input_gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """The gradient of each run's cross-entropy by its inputs, up to scale: (E, batch, features)."""

    def _unit_vectors(self, generators: Generators, logits: Tensor) -> Tensor:
        """For the Jacobian penalty, one for each sample: (E, batch, classes)."""
        return F.normalize(drawn(torch.randn, generators, self.runs, logits.shape[-2:], logits), dim=-1, eps=0.0)

    def _per_run(self, labels: Tensor) -> Tensor:
        """Labels (groups, batch) as (E, batch)."""
        return labels.repeat_interleave(self.runs // len(labels), 0)


class ClosedEngine(Engine):
    """CCP, NCP and PN-Conv by their closed forms."""

    def __init__(self, model: PolynomialNetwork) -> None:
        super().__init__(model)
        self.form = closed_form(model)
        self.lifted = isinstance(model, CCP) and model.form == "product"

    def _prepare(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 1), value=1.0) if self.lifted else x

    def _slopes(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The logits' gradient of the cross-entropy summed over the batch, (E, classes, batch), and the losses."""
        return self._slopes_of(self.form.logits(x), self._per_run(y))

    @staticmethod
    def _slopes_of(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        labels = labels.unsqueeze(1)
        normaliser = torch.logsumexp(logits, 1, keepdim=True)
        losses = (normaliser - logits.gather(1, labels)).sum((1, 2))
        slopes = logits.sub_(normaliser).exp_()
        slopes.scatter_add_(1, labels, slopes.new_full((1, 1, 1), -1.0).expand_as(labels))
        return slopes, losses

    @torch.no_grad()
    def step_(self, x: Tensor, y: Tensor, rate: float, decay: float, generators: Generators) -> Tensor:
        del generators  # nothing here is random
        x, labels, samples = self._prepare(x), self._per_run(y), y.shape[1]
        alone = workers() == 1
        losses = x.new_zeros(self.runs)

        def slopes(logits: Tensor, runs: slice, part: slice) -> Tensor:
            found, loss = self._slopes_of(logits, labels[runs, part])
            losses[runs] += loss
            return _felt(found).mul_(1 / samples) if alone else _felt(found)

        if alone:
            self.form.descend_(x, slopes, rate, decay)
            return losses / samples
        return self._descend(self.form.gradients_of(x, slopes), losses, samples, rate, decay)

    @staticmethod
    def _descend(pairs: list[tuple[Tensor, Tensor]], losses: Tensor, samples: int, rate: float, decay: float) -> Tensor:
        """A step along the gradients of all workers."""
        total = sum_over_workers([*(gradient for _, gradient in pairs), losses], samples=samples)
        for (parameter, _), gradient in zip(pairs, total, strict=False):
            parameter.mul_(1 - rate * decay).sub_(gradient, alpha=rate)
        return total[-1]

    @torch.no_grad()
    def input_gradient(self, x: Tensor, y: Tensor) -> Tensor:
        slopes, _ = self._slopes(self._prepare(x), y)
        return self.form.input_gradient(slopes)[..., : x.shape[-1]]


class RowsEngine(ClosedEngine):
    """CCP with the Jacobian penalty, or trained for certificates: losses of the logits and of rows of the Jacobian."""

    form: ClosedCCP

    def __init__(self, model: CCP, jacobian: str | None, penalty: Tensor | None, certified: float | None) -> None:
        super().__init__(model)
        self.jacobian, self.certified = jacobian, certified
        weight = torch.ones(()) if penalty is None else penalty
        self.penalty = weight.to(self.form.C).expand(self.runs).view(-1, 1, 1, 1)

    @torch.no_grad()
    def step_(self, x: Tensor, y: Tensor, rate: float, decay: float, generators: Generators) -> Tensor:
        by_logits, by_rows, losses = (
            self._penalised(x, y, generators) if self.certified is None else self._worst(x, y, self.certified)
        )
        x = self._prepare(x)
        if workers() == 1:
            samples = y.shape[1]
            self.form.update_by_rows_(by_logits.div_(samples), by_rows.div_(samples), x, rate, decay)
            return losses / samples
        return self._descend(self.form.gradients_by_rows(by_logits, by_rows, x), losses, y.shape[1], rate, decay)

    def _penalised(self, x: Tensor, y: Tensor, generators: Generators) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients by logits and rows of cross-entropy and penalty, and the cross-entropies; see `penalty`."""
        slopes, losses = self._slopes(self._prepare(x), y)
        if self.jacobian == "exact":
            one = torch.eye(slopes.shape[1]).to(slopes).view(1, slopes.shape[1], -1, 1)
            v, scale = one.expand(self.runs, -1, -1, slopes.shape[2]), self.penalty
        else:
            v = self._unit_vectors(generators, slopes.mT).mT.unsqueeze(1)
            scale = self.penalty * slopes.shape[1]
        return _felt(slopes), self._rows(v).mul_(scale), losses

    def _worst(self, x: Tensor, y: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """The same for the cross-entropy of the least margins to first order; see `lower_margins`."""
        logits = self.form.logits(self._prepare(x))
        classes = logits.shape[1]
        labels = self._per_run(y)
        one = torch.eye(classes).to(logits)
        v = one[labels].mT.unsqueeze(1) - one.view(1, classes, classes, 1)  # the margin over each class: e_y - e_j
        rows = self._rows(v)
        worst = eps * rows.abs().sum(-1) - (v * logits.unsqueeze(1)).sum(2)
        losses = torch.logsumexp(worst, 1).sum(-1)  # that of y itself is 0
        slopes = _felt(worst.softmax(1))
        return -(v * slopes.unsqueeze(2)).sum(1), rows.sign_().mul_(eps * slopes.unsqueeze(-1)), losses

    def _rows(self, v: Tensor) -> Tensor:
        rows = self.form.rows(v.contiguous())
        if self.lifted:
            rows[..., -1] = 0.0  # the constant is no input
        return rows


class AutogradEngine(Engine):
    """Any model, the Jacobian penalty, and training for certificates."""

    def __init__(
        self, model: PolynomialNetwork, jacobian: str | None, penalty: Tensor | None, certified: float | None
    ) -> None:
        super().__init__(model)
        self.jacobian, self.certified = jacobian, certified
        self.penalty = penalty
        self.parameters = [p for p in model.parameters() if p.numel()]

    def _inputs(self, x: Tensor, own: bool) -> Tensor:
        """Inputs as the model takes them: shared, or, with `own`, a copy for each run."""
        if self.model.runs is None:
            return x[0]
        if len(x) == 1 and not own:
            return x[0]
        return x.repeat_interleave(self.runs // len(x), 0)

    def _losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy summed over the batch, (E,)."""
        labels = self._per_run(y)
        return (
            F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.flatten(), reduction="none")
            .view_as(labels)
            .sum(1)
        )

    def step_(self, x: Tensor, y: Tensor, rate: float, decay: float, generators: Generators) -> Tensor:
        derived = self.jacobian is not None or self.certified is not None
        inputs = self._inputs(x, own=derived).requires_grad_(derived)
        logits = self.model(inputs)
        if self.certified is not None:
            labels = self._per_run(y) if self.model.runs is not None else y[0]
            logits = lower_margins(logits, inputs, labels, self.certified).neg()
        losses = self._losses(logits, y)
        objective = losses.sum()
        if self.jacobian is not None:
            v = None
            if self.jacobian == "random":
                v = self._unit_vectors(generators, logits).view_as(logits)
            penalties = jacobian_penalty(logits, inputs, v).reshape(self.runs)
            weights = penalties.new_ones(()) if self.penalty is None else self.penalty.to(penalties)
            objective = objective + (weights * penalties).sum()
        logits.register_hook(_felt)
        gradients = list(torch.autograd.grad(objective, self.parameters))
        with torch.no_grad():
            *gradients, losses = sum_over_workers([*gradients, losses.detach()], samples=y.shape[1])
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.mul_(1 - rate * decay).sub_(gradient, alpha=rate)
        return losses

    def input_gradient(self, x: Tensor, y: Tensor) -> Tensor:
        inputs = self._inputs(x, own=True).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self._losses(self.model(inputs), y).sum(), inputs)
        return gradient.reshape(self.runs, y.shape[1], -1)
