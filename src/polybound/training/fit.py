"""Training in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from polybound.data import Dataset
from polybound.errors import NonFiniteError
from polybound.models import PolynomialNetwork
from polybound.training.history import History
from polybound.training.loop import Callback, Trainer
from polybound.training.recipe import Recipe

__all__ = ["accuracy", "fit"]


def fit(
    model: PolynomialNetwork,
    data: Dataset,
    recipe: Recipe | None = None,
    *,
    seed: int | Sequence[int] = 0,
    on_epoch: Callable[[int, Tensor], None] | None = None,
    callbacks: Sequence[Callback] = (),
    **changes: Any,
) -> History:
    """Train a model, or all runs of a stack at once, in place.

    >>> import polybound as pb
    >>> data = pb.data.load_digits("train")
    >>> model = pb.paper_model("pn-4", shape=data.shape, seed=0)
    >>> history = pb.fit(model, data, method="projection", bound=1.0, epochs=2, start=1, learning_rate=0.02)
    >>> len(history), pb.Projection(model, bound=1.0).contains()
    (2, True)

    Args:
        model: what to train.
        data: the training split.
        recipe: how; the paper's by default.
        seed: of the batches, one for all runs of a stack or one for each.
        on_epoch: called after each epoch with its number, from 0, and the mean loss, one value for each run.
        callbacks: more that happens while training.
        **changes: other parts of the recipe, or other options of them: `method="l2", weight=0.1, epochs=10`.

    Raises:
        NonFiniteError: the loss of a run became infinite or NaN; the message says which run, when and where.
    """
    plan = (recipe or Recipe()).changed(changes)
    seeds = [seed] * (model.runs or 1) if isinstance(seed, int) else seed
    keeper = _Keeper(on_epoch)
    Trainer(model, data, plan, seeds, [keeper, *callbacks]).run()
    return keeper.history


class _Keeper(Callback):
    """Keeps the history, and ends a training that went wrong."""

    def __init__(self, on_epoch: Callable[[int, Tensor], None] | None) -> None:
        self.history, self.on_epoch = History(), on_epoch

    def after_epoch(self, trainer: Trainer, losses: Tensor) -> None:
        # One look an epoch, so that nothing in the loop waits for the device; a NaN stays one.
        if not torch.isfinite(losses).all():
            bad = int((~torch.isfinite(losses)).nonzero()[0])
            raise NonFiniteError(trainer.diagnosis(bad, losses))
        shown = losses if trainer.model.runs is not None else losses[0]
        rate = trainer.recipe.rate(trainer.epoch - 1)
        line = {"epoch": trainer.epoch, "loss": shown.tolist(), "rate": rate, "seconds": trainer.seconds}
        self.history.lines.append(line)
        if self.on_epoch is not None:
            self.on_epoch(trainer.epoch - 1, shown)


@torch.no_grad()
def accuracy(model: PolynomialNetwork, data: Dataset) -> Tensor:
    """The share of correctly classified samples, one value for each run."""
    was_training = model.training
    model.eval()
    like = next(model.parameters())
    hits = []
    for x, y in zip(torch.split(data.x.flatten(1), 4096), torch.split(data.y, 4096), strict=True):
        hits.append(model(x.to(like.device, like.dtype)).argmax(-1).cpu() == y)
    model.train(was_training)
    return torch.cat(hits, dim=-1).double().mean(-1)
