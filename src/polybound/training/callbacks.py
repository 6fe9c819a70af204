"""The history of a training: what is measured after each epoch, kept, and used to stop early."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor

from polybound.constraints import Projection
from polybound.errors import NonFiniteError
from polybound.models import PolynomialNetwork
from polybound.training.losses import Loss
from polybound.training.samples import TrainingSet
from polybound.training.trainer import Callback, Trainer


@dataclass
class History:
    """One line an epoch, as a mapping: "epoch" (from 1), "loss", "rate", "seconds" and what callbacks add.

    With a validation split there are "validation loss" and, for labels, "validation accuracy"; norms are "norm U1" and
    so on. Of a stack, "loss" and what is measured are lists, one value for each run.

    Attributes:
        lines: the mappings.
        best: the epoch, from 1, whose weights early stopping restored; of a stack one for each run; None without it.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    best: int | list[int] | None = None

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.lines)

    def __getitem__(self, name: str) -> list[Any]:
        """One quantity over the epochs."""
        return [line.get(name) for line in self.lines]

    def __repr__(self) -> str:
        if not self.lines:
            return "History(no epochs)"
        last, names = self.lines[-1], ("loss", "validation loss", "validation accuracy")
        shown = ", ".join(f"{name} {_short(last[name])}" for name in names if name in last)
        chosen = "" if self.best is None else f"; best epoch {_short(self.best)}"
        return f"History({len(self.lines)} epochs{chosen}; last: {shown})"


def _short(value: Any) -> str:
    """A number, or the first and last of several."""
    if isinstance(value, list):
        return f"{_short(min(value))} to {_short(max(value))}" if len(value) > 1 else _short(value[0])
    return f"{value:.4g}"


class HistoryKeeper(Callback):
    """Keeps the history, ends a training that went wrong, and stops when no run has become better for some epochs.

    Better is a higher accuracy on the validation split, or as high a one with a smaller loss; without labels, a smaller
    loss. Then the best weights of each run are restored. A run that has not become better for `patience` epochs is
    done, whatever comes while others of its stack go on. Epochs before the method and the adversary are in force do not
    count: what they do is what was asked for.

    Args:
        validation: samples to measure on after every epoch.
        norms: whether to keep the norms that a projection bounds, once an epoch.
        on_epoch: called after each epoch with its number, from 0, and the losses.
        patience: stop early after this number of epochs without anything better; None for no early stopping.
    """

    def __init__(
        self,
        validation: TrainingSet | None,
        norms: bool,
        on_epoch: Callable[[int, Tensor], None] | None,
        patience: int | None = None,
    ) -> None:
        self.history, self.validation, self.norms, self.on_epoch = History(), validation, norms, on_epoch
        self.patience = patience
        self._best: tuple[Tensor, Tensor, Tensor] | None = None  # of each run: epoch from 1, accuracy, loss
        self._weights: list[Tensor] = []

    def after_epoch(self, trainer: Trainer, losses: Tensor) -> None:
        # One look an epoch, so that nothing in the loop waits for the device; a NaN stays one.
        if not torch.isfinite(losses).all():
            bad = int((~torch.isfinite(losses)).nonzero()[0])
            raise NonFiniteError(trainer.diagnosis(bad, losses))
        found = epoch_facts(trainer, losses, self.validation, norms=self.norms, on_measured=self._look)
        alone = trainer.model.runs is None
        shown = {name: (values[0] if alone else values).tolist() for name, values in found.items()}
        rate = trainer.recipe.rate(trainer.epoch - 1)
        self.history.lines.append({"epoch": trainer.epoch, **shown, "rate": rate, "seconds": trainer.seconds})
        if self.on_epoch is not None:
            self.on_epoch(trainer.epoch - 1, losses[0] if alone else losses)

    def _look(self, trainer: Trainer, measured: dict[str, Tensor]) -> None:
        """Remember the best epoch of each run and its weights; stop if all runs are past theirs for long enough."""
        recipe = trainer.recipe
        in_force = max(recipe.phases()[-1], recipe.method.complete_from(recipe.epochs))
        if self.patience is None or trainer.epoch <= in_force:
            return
        loss, parameters = measured["loss"], list(trainer.model.state_dict().values())
        accuracy = measured.get("accuracy", torch.zeros_like(loss))
        if self._best is None:
            self._best = torch.full(loss.shape, trainer.epoch), accuracy, loss
            self._weights = [parameter.clone() for parameter in parameters]
            return
        epochs, best_accuracy, best_loss = self._best
        better = (accuracy > best_accuracy) | ((accuracy == best_accuracy) & (loss < best_loss))
        better &= trainer.epoch - epochs <= self.patience
        epochs = torch.where(better, trainer.epoch, epochs)
        self._best = epochs, torch.where(better, accuracy, best_accuracy), torch.where(better, loss, best_loss)
        for kept, parameter in zip(self._weights, parameters, strict=True):
            stacked = trainer.model.runs is not None
            for run in better.nonzero().flatten().tolist():
                (kept[run] if stacked else kept).copy_(parameter[run] if stacked else parameter)
        if bool((trainer.epoch - epochs >= self.patience).all()):
            trainer.stop()

    @torch.no_grad()
    def after_training(self, trainer: Trainer) -> None:
        for run, reason in trainer.failures.items():
            raise NonFiniteError(f"the weights of run {run} are no longer finite: {reason}")
        if self._best is not None:
            for tensor, kept in zip(trainer.model.state_dict().values(), self._weights, strict=True):
                tensor.copy_(kept)
            best = self._best[0].tolist()
            self.history.best = best[0] if trainer.model.runs is None else best


def epoch_facts(
    trainer: Trainer,
    losses: Tensor,
    validation: TrainingSet | None,
    *,
    norms: bool = False,
    on_measured: Callable[[Trainer, dict[str, Tensor]], None] | None = None,
) -> dict[str, Tensor]:
    """What every history says of the epoch that is over, one value for each run; of the weights that would be kept."""
    found = {"loss": losses}
    with trainer.settled():
        if validation is not None:
            measured = measure(trainer.model, validation, trainer.recipe.loss)
            found |= {f"validation {name}": values for name, values in measured.items()}
            if on_measured is not None:
                on_measured(trainer, measured)
        if norms:
            bounded = Projection(trainer.model, inf).norms()
            found |= {f"norm {name}": norm.reshape(-1) for name, norm in bounded.items()}
    return found


@torch.no_grad()
def measure(model: PolynomialNetwork, data: TrainingSet, loss: Loss) -> dict[str, Tensor]:
    """The mean "loss" and, if targets are labels, the "accuracy", (E,), on some samples."""
    was_training = model.training
    model.eval()
    sums = torch.zeros(2, model.runs or 1, dtype=torch.float64)
    for x, y in zip(torch.split(data.x, 4096), torch.split(data.y, 4096), strict=True):
        outputs = model(x)
        targets = y.expand(*model.lead, *y.shape)
        sums[0] += loss.losses(outputs, targets).sum(-1).double().cpu().reshape(-1)
        if loss.classifies:
            sums[1] += (outputs.argmax(-1) == targets).sum(-1).cpu().reshape(-1)
    model.train(was_training)
    means = sums / len(data)
    return {"loss": means[0], "accuracy": means[1]} if loss.classifies else {"loss": means[0]}
