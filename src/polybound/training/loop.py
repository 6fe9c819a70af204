"""Algorithm 1 of the paper: stochastic gradient descent with a projection every few steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.constraints import Projection
from polybound.data import Dataset
from polybound.errors import NonFiniteError, PolyboundError
from polybound.models import PolynomialNetwork

__all__ = ["accuracy", "fit"]


def fit(
    model: PolynomialNetwork,
    data: Dataset,
    *,
    epochs: int,
    learning_rate: float = 0.001,
    batch_size: int = 64,
    projection: Projection | None = None,
    every: int = 10,
    start: int = 0,
    seed: int = 0,
    on_epoch: Callable[[int, Tensor], None] | None = None,
) -> None:
    """Train a model, or all runs of a stack at once, in place.

        theta <- theta - learning_rate * gradient of the cross-entropy;   every few steps: theta <- Pi(theta)

    Args:
        model: what to train. The runs of a stack see the same batches and do not influence each other.
        data: the training split.
        epochs: passes over the data.
        learning_rate: step size of plain SGD.
        batch_size: samples in a step.
        projection: the projection Pi, or None.
        every: steps of an epoch between projections; the last step of the last epoch is always followed by one.
        start: the first epoch (from 0) with projections; those before are pre-training.
        seed: of the order of the batches.
        on_epoch: called after each epoch with its number and the mean loss, one value for each run.

    Raises:
        NonFiniteError: the loss of a run became infinite or NaN; the message says which run, when and where.
    """
    if min(epochs, batch_size, every) < 1 or not learning_rate > 0 or len(data) == 0:
        raise PolyboundError("needs data, and epochs, batch_size, every and learning_rate above 0")
    device = next(model.parameters()).device
    x, y = data.x.to(device), data.y.to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=generator).to(device)
        total = torch.zeros(model.lead, device=device)
        batches = order.split(batch_size)
        for step, batch in enumerate(batches, 1):
            losses = _loss(model(x[batch]), y[batch])
            optimiser.zero_grad(set_to_none=True)
            # The gradient of a sum over runs is each run's own gradient.
            losses.sum().backward()
            optimiser.step()
            if projection is not None and epoch >= start and step % every == 0:
                projection.apply_()
            total += losses.detach() * len(batch)
        if projection is not None and epoch == epochs - 1:
            projection.apply_()
        # One look an epoch, so that nothing in the loop waits for the device; a NaN cannot heal in between.
        if not torch.isfinite(total).all():
            raise NonFiniteError(_diagnosis(model, x, total, epoch, learning_rate))
        if on_epoch is not None:
            on_epoch(epoch, total / len(x))


def _loss(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy averaged over the batch: one value for each run."""
    targets = y.expand(logits.shape[:-1])
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").reshape(targets.shape).mean(-1)


def _diagnosis(model: PolynomialNetwork, x: Tensor, losses: Tensor, epoch: int, learning_rate: float) -> str:
    bad = (~torch.isfinite(losses)).nonzero().flatten().tolist()
    where = f"run {bad[0]}" if model.runs is not None else "the run"
    culprit = model.run(bad[0]) if model.runs is not None else model
    reason = culprit.explain_nonfinite(x[:1024])
    return (
        f"the loss of {where} became {losses.flatten()[bad[0] if model.runs else 0].item()} in epoch {epoch + 1}"
        f"{': ' + reason if reason else ''}; a smaller learning rate than {learning_rate:g} or a bound may help"
    )


@torch.no_grad()
def accuracy(model: PolynomialNetwork, data: Dataset) -> Tensor:
    """The share of correctly classified samples, one value for each run."""
    model.eval()
    device = next(model.parameters()).device
    hits = [
        (model(x.to(device)).argmax(-1).cpu() == y) for x, y in zip(data.x.split(4096), data.y.split(4096), strict=True)
    ]
    return torch.cat(hits, dim=-1).double().mean(-1)
