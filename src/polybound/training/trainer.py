"""The loop: Algorithm 1, Algorithm 2 and the baselines, for one model or for all runs of a stack at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from polybound.constraints import Projection
from polybound.data import Dataset
from polybound.errors import NonFiniteError, PolyboundError
from polybound.models import PolynomialNetwork
from polybound.seeds import seeded
from polybound.training.adversary import perturb
from polybound.training.distributed import my_share
from polybound.training.engine import Engine, engine_for
from polybound.training.recipe import Recipe

__all__ = ["Trainer", "accuracy", "fit"]


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
    """

    def __init__(self, model: PolynomialNetwork, data: Dataset, recipe: Recipe, seeds: Sequence[int]) -> None:
        if len(data) == 0:
            raise PolyboundError(f"the {data.split} split of {data.name} is empty")
        if data.classes > model.classes:
            raise PolyboundError(f"{data.name} has {data.classes} classes, the model {model.classes}")
        self.model, self.recipe, self.domain = model, recipe, data.domain
        device = next(model.parameters()).device
        self.x = data.x.flatten(1).to(device, next(model.parameters()).dtype)
        self.y = data.y.to(device)
        self.seeds = _groups(list(seeds), model.runs or 1)
        penalty = torch.as_tensor(recipe.penalty, dtype=torch.float64)
        jacobian = recipe.jacobian if recipe.regulariser == "jacobian" else None
        certified = recipe.eps if recipe.regulariser == "certified" else None
        self.engine: Engine = engine_for(model, jacobian, penalty, certified)
        self.plain = engine_for(model) if certified is not None else self.engine  # before `start`
        self.decay = recipe.penalty if recipe.regulariser == "l2" else 0.0
        self.projection: Projection | None = None
        if recipe.regulariser == "projection":
            self.projection = Projection(model, recipe.bound, norm=recipe.norm, on=recipe.on)
        self.steps = -(-len(self.x) // recipe.batch_size)
        self.failures: dict[int, str] = {}
        self.before_projection: Callable[[Projection], None] | None = None
        self.random = recipe.regulariser == "jacobian" or recipe.random_start

    def epoch(self, epoch: int, first_step: int = 0, after_step: Callable[[int, Tensor], bool] | None = None) -> Tensor:
        """Train for one epoch, from `first_step` on. Returns the sum over its steps of the runs' mean losses, (E,).

        `after_step(steps done, losses summed so far)` may ask to stop by returning True.
        """
        recipe = self.recipe
        orders = torch.stack([torch.randperm(len(self.x), generator=seeded(seed, epoch)) for seed in self.seeds])
        orders = orders.to(self.x.device)
        rate = recipe.rate(epoch)
        constrained = epoch >= recipe.start
        total = torch.zeros(self.engine.runs, dtype=self.x.dtype, device=self.x.device)
        for step in range(first_step, self.steps):
            batch = my_share(orders[:, step * recipe.batch_size : (step + 1) * recipe.batch_size])
            x = self.x.index_select(0, batch.flatten()).view(*batch.shape, -1)
            y = self.y.index_select(0, batch.flatten()).view(batch.shape)
            generators = [seeded(seed, epoch, step + 1) for seed in self.seeds] if self.random else []
            if recipe.adversarial and epoch >= recipe.adversary_from:
                x = perturb(self.engine, x, y, recipe, self.domain, generators)
                y = y.repeat_interleave(len(x) // len(y), 0)
            engine = self.engine if constrained else self.plain
            total += engine.step_(x, y, rate, self.decay, generators)
            last = epoch == recipe.epochs - 1 and step == self.steps - 1
            if self.projection is not None and constrained and ((step + 1) % recipe.every == 0 or last):
                self._project(self.projection, total)
            if after_step is not None and after_step(step + 1, total):
                break
        return total

    def _project(self, projection: Projection, total: Tensor) -> None:
        if self.before_projection is not None:
            self.before_projection(projection)
        try:
            projection.apply_()
        except NonFiniteError:
            # A run that has overflowed cannot be projected, and must not keep the others from it.
            for e in range(self.engine.runs):
                parts = [p if self.model.runs is None else p[e] for p in self.model.parameters()]
                if not all(torch.isfinite(part).all() for part in parts):
                    total[e] = torch.nan
                    self.silence(e)
            projection.apply_()

    @torch.no_grad()
    def silence(self, run: int) -> str:
        """Set the weights of a run that is no longer finite to zero; returns where it went wrong."""
        if run not in self.failures:
            model = self.model if self.model.runs is None else self.model.run(run)
            self.failures[run] = model.explain_nonfinite(self.x[:1024])
            for parameter in self.model.parameters():
                (parameter if self.model.runs is None else parameter[run]).zero_()
        return self.failures[run]

    def diagnosis(self, run: int, losses: Tensor, epoch: int) -> str:
        """What went wrong with a run whose loss is not finite, and when; silences it."""
        where = "the run" if self.model.runs is None else f"run {run}"
        reason = self.silence(run)
        return (
            f"the loss of {where} became {losses[run].item()} in epoch {epoch + 1}{': ' + reason if reason else ''}; "
            f"a smaller learning rate than {self.recipe.rate(epoch):g} or a bound may help"
        )


def _groups(seeds: list[int], runs: int) -> list[int]:
    """One seed for each group of runs that share their batches: equal groups of neighbours, or every run its own."""
    if len(seeds) != runs:
        raise PolyboundError(f"{len(seeds)} seeds for {runs} runs")
    distinct = list(dict.fromkeys(seeds))
    size, rest = divmod(runs, len(distinct))
    grouped = [seed for seed in distinct for _ in range(size)]
    return distinct if not rest and grouped == seeds else seeds


def fit(
    model: PolynomialNetwork,
    data: Dataset,
    recipe: Recipe | None = None,
    *,
    seed: int | Sequence[int] = 0,
    on_epoch: Callable[[int, Tensor], None] | None = None,
    **changes: Any,
) -> None:
    """Train a model, or all runs of a stack at once, in place.

    >>> import polybound as pb
    >>> data = pb.data.load_digits("train")
    >>> model = pb.paper_model("pn-4", shape=data.shape, seed=0)
    >>> pb.fit(model, data, method="projection", bound=1.0, epochs=2, start=1, learning_rate=0.02)
    >>> pb.Projection(model, bound=1.0).contains()
    True

    Args:
        model: what to train.
        data: the training split.
        recipe: how; the paper's by default.
        seed: of the batches, one for all runs of a stack or one for each.
        on_epoch: called after each epoch with its number and the mean loss, one value for each run.
        **changes: fields of the recipe to change, `epochs=10`.

    Raises:
        NonFiniteError: the loss of a run became infinite or NaN; the message says which run, when and where.
    """
    plan = Recipe.of(changes) if recipe is None else replace(recipe, **changes)
    seeds = [seed] * (model.runs or 1) if isinstance(seed, int) else seed
    trainer = Trainer(model, data, plan, seeds)
    model.train()
    for epoch in range(plan.epochs):
        losses = trainer.epoch(epoch) / trainer.steps
        # One look an epoch, so that nothing in the loop waits for the device; a NaN cannot heal in between.
        if not torch.isfinite(losses).all():
            bad = int((~torch.isfinite(losses)).nonzero()[0])
            raise NonFiniteError(trainer.diagnosis(bad, losses, epoch))
        if on_epoch is not None:
            on_epoch(epoch, losses if model.runs is not None else losses[0])


@torch.no_grad()
def accuracy(model: PolynomialNetwork, data: Dataset) -> Tensor:
    """The share of correctly classified samples, one value for each run."""
    model.eval()
    like = next(model.parameters())
    hits = []
    for x, y in zip(torch.split(data.x.flatten(1), 4096), torch.split(data.y, 4096), strict=True):
        hits.append(model(x.to(like.device, like.dtype)).argmax(-1).cpu() == y)
    return torch.cat(hits, dim=-1).double().mean(-1)
