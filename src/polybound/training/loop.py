"""The loop: Algorithm 1, Algorithm 2 and the baselines, for one model or for all runs of a stack at once.

There is one loop. What else happens while training (checkpoints, progress, validation, early ends) are its callbacks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from polybound.attacks import Classifier, adversarial_batch
from polybound.data import Dataset
from polybound.errors import NonFiniteError, PolyboundError
from polybound.models import PolynomialNetwork
from polybound.seeds import seeded
from polybound.training.distributed import my_share
from polybound.training.engine import engine_for
from polybound.training.random import StepRandom
from polybound.training.recipe import Recipe

__all__ = ["Callback", "Trainer"]


class Callback:
    """Something that watches a training, and may ask it to stop (`trainer.stop()`)."""

    def after_step(self, trainer: Trainer) -> None:
        """A step was made; `trainer.step` of this epoch are done."""

    def after_epoch(self, trainer: Trainer, losses: Tensor) -> None:
        """An epoch is over, `trainer.epoch` of them are done; `losses` are the runs' means over its steps, (E,)."""


class Trainer:
    """Trains a model, or all runs of a stack, epoch by epoch; what it does in an epoch depends on nothing before it.

    The order of the batches and all random numbers of a step come from the seed, the epoch and the step alone. So a
    run can stop after any step and go on in another process, to the same bits.

    Args:
        model: trained in place.
        data: the training split.
        recipe: how.
        seeds: of the batches, one for each run; neighbouring runs of one seed share their batches, and then one matrix
            product serves them all.
        callbacks: called after every step and every epoch, in this order.

    Attributes:
        epoch: epochs that are done. Set it, `step` and `sums` to go on where another trainer stopped.
        step: steps of the present epoch that are done.
        sums: the losses of those steps, summed, (E,).
        seconds: how long the last epoch took.
        failures: runs that are no longer finite, with the reason.
    """

    def __init__(
        self,
        model: PolynomialNetwork,
        data: Dataset,
        recipe: Recipe,
        seeds: Sequence[int],
        callbacks: Sequence[Callback] = (),
    ) -> None:
        if len(data) == 0:
            raise PolyboundError(f"the {data.split} split of {data.name} is empty")
        if data.classes > model.classes:
            raise PolyboundError(f"{data.name} has {data.classes} classes, the model {model.classes}")
        self.model, self.recipe, self.domain, self.callbacks = model, recipe, data.domain, callbacks
        like = next(model.parameters())
        self.x, self.y = data.x.flatten(1).to(like.device, like.dtype), data.y.to(like.device)
        self.runs = model.runs or 1
        self.seeds = _groups(list(seeds), self.runs)
        self.engine = engine_for(model, recipe.method)
        self.plain = engine_for(model) if recipe.method.begins else self.engine
        self.classifier = None if recipe.adversary is None else Classifier(model, data.shape)
        self.after_method = recipe.method.prepare(model)
        self.steps = -(-len(self.x) // recipe.schedule.batch_size)
        self.epoch = self.step = 0
        self.sums = torch.zeros(self.runs, dtype=like.dtype, device=like.device)
        self.seconds = 0.0
        self.failures: dict[int, str] = {}
        self.stopping = False

    def stop(self) -> None:
        """Ask the loop to end after the present step."""
        self.stopping = True

    def run(self, until: int | None = None) -> None:
        """Train until so many epochs are done, all by default, or until a callback asks to stop."""
        self.model.train()
        last = self.recipe.epochs if until is None else until
        while self.epoch < last and not self.stopping:
            begun = time.monotonic()
            self._epoch()
            if self.step < self.steps:
                return
            self.seconds = time.monotonic() - begun
            losses = self.sums / self.steps
            self.epoch, self.step, self.sums = self.epoch + 1, 0, torch.zeros_like(self.sums)
            for callback in self.callbacks:
                callback.after_epoch(self, losses)

    def _epoch(self) -> None:
        """What is left of the present epoch."""
        epoch, size = self.epoch, self.recipe.schedule.batch_size
        orders = torch.stack([torch.randperm(len(self.x), generator=seeded(seed, epoch)) for seed in self.seeds])
        orders = orders.to(self.x.device)
        rate = self.recipe.rate(epoch)
        for step in range(self.step, self.steps):
            batch = my_share(orders[:, step * size : (step + 1) * size])
            x = self.x.index_select(0, batch.flatten()).view(*batch.shape, -1)
            y = self.y.index_select(0, batch.flatten()).view(batch.shape)
            self.sums += self._descend(x, y, rate, StepRandom(self.runs, self.seeds, epoch, step))
            self.step = step + 1
            self._constrain()
            for callback in self.callbacks:
                callback.after_step(self)
            if self.stopping:
                return

    def _descend(self, x: Tensor, y: Tensor, rate: float, random: StepRandom) -> Tensor:
        adversary = self.recipe.adversary
        if adversary is not None and self.classifier is not None and self.epoch >= adversary.start:
            x = adversarial_batch(
                adversary.attack,
                self.classifier,
                x,
                y,
                domain=self.domain,
                protocol=adversary.protocol,
                generators=random,
            )
            y = y.repeat_interleave(len(x) // len(y), 0)
        engine = self.engine if self.epoch >= self.recipe.method.begins else self.plain
        return engine.step_(x, y, rate, random)

    def _constrain(self) -> None:
        """What the method does after a step."""
        if self.after_method is None or self.epoch < self.recipe.method.begins:
            return
        last = self.epoch == self.recipe.epochs - 1 and self.step == self.steps
        try:
            self.after_method(self.step, last)
        except NonFiniteError:
            # A run that has overflowed cannot be projected, and must not keep the others from it.
            for e in range(self.runs):
                parts = [p if self.model.runs is None else p[e] for p in self.model.parameters()]
                if not all(torch.isfinite(part).all() for part in parts):
                    self.sums[e] = torch.nan
                    self.stop_run(e)
            self.after_method(self.step, last)

    @torch.no_grad()
    def stop_run(self, run: int) -> str:
        """Set the weights of a run that is no longer finite to zero; returns where it went wrong."""
        if run not in self.failures:
            model = self.model if self.model.runs is None else self.model.run(run)
            self.failures[run] = model.explain_nonfinite(self.x[:1024])
            for parameter in self.model.parameters():
                (parameter if self.model.runs is None else parameter[run]).zero_()
        return self.failures[run]

    def diagnosis(self, run: int, losses: Tensor) -> str:
        """What went wrong with a run whose loss is not finite in the epoch that is just over; it is stopped."""
        where = "the run" if self.model.runs is None else f"run {run}"
        reason = self.stop_run(run)
        return (
            f"the loss of {where} became {losses[run].item()} in epoch {self.epoch}{': ' + reason if reason else ''}; "
            f"a smaller learning rate than {self.recipe.rate(self.epoch - 1):g} or a bound may help"
        )


def _groups(seeds: list[int], runs: int) -> list[int]:
    """One seed for each group of runs that share their batches: equal groups of neighbours, or every run its own."""
    if len(seeds) != runs:
        raise PolyboundError(f"{len(seeds)} seeds for {runs} runs")
    distinct = list(dict.fromkeys(seeds))
    size, rest = divmod(runs, len(distinct))
    grouped = [seed for seed in distinct for _ in range(size)]
    return distinct if not rest and grouped == seeds else seeds
