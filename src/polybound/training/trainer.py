"""The loop: Algorithm 1, Algorithm 2 and the baselines, for one model or for all runs of a stack at once.

There is one loop. What else happens while training (checkpoints, progress, validation, early ends) are its callbacks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from polybound.attacks import Classifier, adversarial_batch
from polybound.data import Dataset
from polybound.errors import NonFiniteError, PolyboundError
from polybound.models import Norm, PolynomialNetwork
from polybound.seeds import seeded
from polybound.training.augment import augmented
from polybound.training.engine import StepRandom, engine_for
from polybound.training.methods import StepContext
from polybound.training.optim import Descent
from polybound.training.recipe import Adversary, Recipe
from polybound.training.samples import TrainingSet, training_set


class Callback:
    """Something that watches a training, and may ask it to stop (`trainer.stop()`)."""

    def after_step(self, trainer: Trainer) -> None:
        """A step was made; `trainer.step` of this epoch are done."""

    def after_epoch(self, trainer: Trainer, losses: Tensor) -> None:
        """An epoch is over, `trainer.epoch` of them are done; `losses` are the runs' means over its steps, (E,)."""

    def after_training(self, trainer: Trainer) -> None:
        """The training is over: all epochs are done, or a callback asked to stop."""


class Trainer:
    """Trains a model, or all runs of a stack, epoch by epoch.

    The order of the batches and all random numbers of a step come from the seed, the epoch and the step alone; what an
    optimiser remembers is in `descent`. So a run can stop after any step and go on in another process, to the same
    bits.

    Args:
        model: trained in place.
        data: the training split, or samples that `training_set` made.
        recipe: how.
        seeds: of the batches, one for each run; neighbouring runs of one seed share their batches, and then one matrix
            product serves them all.
        callbacks: called after every step and every epoch, in this order.

    Attributes:
        epoch: epochs that are done. Set it, `step` and `sums`, and load `descent`, to go on where another trainer
            stopped.
        step: steps of the present epoch that are done.
        steps: how many an epoch has.
        sums: the losses of those steps, summed, (E,).
        seconds: how long the last epoch took.
        failures: runs that are no longer finite, with the reason.
        descent: the optimiser, with what it remembers.
    """

    def __init__(
        self,
        model: PolynomialNetwork,
        data: Dataset | TrainingSet,
        recipe: Recipe,
        seeds: Sequence[int],
        callbacks: Sequence[Callback] = (),
    ) -> None:
        recipe.check()
        like = next((p for p in model.parameters() if p.is_floating_point() and p.requires_grad), None)
        if like is None:
            raise PolyboundError(f"this {type(model).__name__} has no weights to train")
        method = recipe.method
        samples = self.samples = training_set(model, data, loss=recipe.loss).to(like)
        if samples.weights is not None and method.own_loss:
            raise PolyboundError(f"method {method.name} has a loss of its own: samples have no weights in it")
        if recipe.adversary is not None and samples.domain is None:
            raise PolyboundError("an adversary needs to know the domain of the inputs: give domain=(low, high)")
        self.model, self.recipe, self.callbacks = model, recipe, callbacks
        self.runs = model.runs or 1
        if len(seeds) != self.runs:
            raise PolyboundError(f"{len(seeds)} seeds for {self.runs} runs")
        # One seed for each group of runs that share their batches: equal groups of neighbours, or every run its own.
        distinct = list(dict.fromkeys(seeds))
        grouped = [seed for seed in distinct for _ in range(self.runs // len(distinct))]
        self.seeds = distinct if grouped == list(seeds) else list(seeds)
        self.descent = Descent(model, recipe.optimiser, recipe.clip)
        parts = recipe.loss, self.descent, recipe.precision
        self.engine = engine_for(model, method, *parts)
        self.plain = engine_for(model, None, *parts) if method.begins else self.engine
        self.classifier = None if recipe.adversary is None else Classifier(model, samples.shape)
        self.after_method = method.prepare(model)
        self.steps = -(-len(samples) // recipe.schedule.batch_size)
        self.epoch = self.step = 0
        self.sums = torch.zeros(self.runs, dtype=like.dtype, device=like.device)
        self.seconds = 0.0
        self.failures: dict[int, str] = {}
        self.stopping = False

    def stop(self) -> None:
        """Ask the loop to end after the present step."""
        self.stopping = True

    def run(self, until: int | None = None) -> None:
        """Train until `until` epochs are done, all by default, or until a callback asks to stop.

        Every end leaves the weights inside of the method's bounds, also if a callback asks to stop before they begin.
        If only `until` is reached, the training goes on later, and the weights stay as they are. Afterwards the model
        is in evaluation mode.
        """
        samples, recipe, method = self.samples, self.recipe, self.recipe.method
        size, until = recipe.schedule.batch_size, recipe.epochs if until is None else until
        while self.epoch < until and not self.stopping:
            clock, rate = time.monotonic(), recipe.rate(self.epoch)
            begun = self.epoch >= method.begins
            engine = self.engine if begun else self.plain
            self._set_modes()
            orders = torch.stack(
                [torch.randperm(len(samples), generator=seeded(seed, self.epoch)) for seed in self.seeds]
            ).to(samples.x.device)
            for step in range(self.step, self.steps):
                batch = orders[:, step * size : (step + 1) * size]
                x = samples.x.index_select(0, batch.flatten()).view(*batch.shape, -1)
                y = samples.y.index_select(0, batch.flatten()).view(*batch.shape, *samples.y.shape[1:])
                weights = None if samples.weights is None else samples.weights[batch]
                if recipe.augment:
                    # A stream of its own: no other epoch has a number below zero.
                    streams = [seeded(seed, -1 - self.epoch, step) for seed in self.seeds]
                    pairs = zip(x, streams, strict=True)
                    x = torch.stack([augmented(recipe.augment, own, samples.shape, draw) for own, draw in pairs])
                if recipe.schedule.by_step:
                    rate = recipe.rate(self.epoch + step / self.steps)
                random = StepRandom(self.runs, self.seeds, self.epoch, step)
                if recipe.adversary is not None and self.epoch >= recipe.adversary.start_epoch:
                    x = self._attacked(recipe.adversary, x, y, random)  # each run's own
                    y = y.repeat_interleave(len(x) // len(y), 0)
                    weights = None if weights is None else weights.repeat_interleave(len(x) // len(weights), 0)
                done = (self.epoch - method.begins + step / self.steps) / max(recipe.epochs - method.begins, 1)
                engine.context = StepContext(max(done, 0.0), samples.domain)
                self.sums += engine.step_(x, y, rate, random, weights)
                self.step = step + 1
                if self.after_method is not None and begun:
                    t = self.epoch * self.steps + step  # as the paper's algorithms count
                    last = t + 1 == recipe.epochs * self.steps
                    try:
                        self.after_method(t, last)
                    except NonFiniteError:
                        self._stop_nonfinite()
                        self.after_method(t, last)
                for callback in self.callbacks:
                    callback.after_step(self)
                if self.stopping:
                    break  # type: ignore[unreachable]  # a callback asked for it
            if self.step < self.steps:
                break
            self.seconds, losses = time.monotonic() - clock, self.sums / self.steps
            self.epoch, self.step, self.sums = self.epoch + 1, 0, torch.zeros_like(self.sums)
            for callback in self.callbacks:
                callback.after_epoch(self, losses)
        self.model.eval()
        if self.stopping or self.epoch == recipe.epochs:
            if self.epoch < recipe.epochs and self.after_method is not None:  # else the last step has done so
                self._stop_nonfinite()
                method.settle(self.model)
            for callback in self.callbacks:
                callback.after_training(self)

    def _attacked(self, adversary: Adversary, x: Tensor, y: Tensor, random: StepRandom) -> Tensor:
        classifier, domain = self.classifier, self.samples.domain
        if classifier is None or domain is None:
            raise AssertionError("there is an adversary, and no classifier or domain for it")
        options: dict[str, Any] = {"protocol": adversary.protocol, "generators": random.generators}
        self.model.eval()  # an attack has no part in the statistics of batches
        try:
            return adversarial_batch(adversary.attack, classifier, x, y, domain=domain, **options)
        finally:
            self._set_modes()

    def _set_modes(self) -> None:
        """Everything as it is in a step of the present epoch."""
        self.model.train()
        if self.recipe.method.fixes_statistics and self.epoch >= self.recipe.method.begins:
            for part in self.model.modules():
                if isinstance(part, Norm | nn.modules.batchnorm._BatchNorm):
                    part.eval()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """The weights as they are kept after the present epoch: inside of their bounds, once these have begun."""
        method = self.recipe.method
        if self.after_method is None or not method.begins < self.epoch < self.recipe.epochs:
            yield  # after the last epoch they are settled
            return
        self._stop_nonfinite()
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        method.settle(self.model)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(self.model.parameters(), before, strict=True):
                    parameter.copy_(value)

    def _stop_nonfinite(self) -> None:
        """Stop runs that have overflowed: they cannot be projected, and must not keep the others from it."""
        for e in range(self.runs):
            parts = [p if self.model.runs is None else p[e] for p in self.model.parameters()]
            if not all(torch.isfinite(part).all() for part in parts):
                self.sums[e] = torch.nan
                self.stop_run(e)

    @torch.no_grad()
    def stop_run(self, run: int) -> str:
        """Set the weights of a run that is no longer finite to zero; returns where it went wrong."""
        if run not in self.failures:
            single = self.model.runs is None
            model = self.model if single else self.model.run(run)
            self.failures[run] = model.explain_nonfinite(self.samples.x[:1024])
            for parameter in self.model.parameters():
                (parameter if single else parameter[run]).zero_()
            for buffer in self.model.buffers() if single else ():  # statistics of batches
                buffer.zero_()
            self.descent.forget(None if single else run)
        return self.failures[run]

    def diagnosis(self, run: int, losses: Tensor) -> str:
        """What went wrong with a run whose loss is not finite in the epoch that is just over; it is stopped."""
        where = "the run" if self.model.runs is None else f"run {run}"
        reason = self.stop_run(run)
        return (
            f"the loss of {where} became {losses[run].item()} in epoch {self.epoch}{': ' + reason if reason else ''}; "
            f"a smaller learning rate than {self.recipe.rate(self.epoch - 1):g} or a bound may help"
        )
