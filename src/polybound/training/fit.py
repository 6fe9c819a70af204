"""`fit`: training in one call, with a progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from polybound.data import Dataset
from polybound.errors import PolyboundError, check_flag, check_int
from polybound.models import PolynomialNetwork, polynomial
from polybound.seeds import check_seed
from polybound.training.callbacks import History, HistoryKeeper, measure
from polybound.training.losses import CrossEntropy, Loss
from polybound.training.recipe import Recipe
from polybound.training.samples import TrainingSet, sample_weights, training_set
from polybound.training.trainer import Callback, Trainer

__all__ = ["accuracy", "fit", "showing_progress"]


# What a person sees of a training: a bar on a terminal, lines elsewhere.


@contextmanager
def showing_progress(verbose: bool | None, history: History, epochs: int) -> Iterator[list[Callback]]:
    """Callbacks that show progress on standard error.

    Args:
        verbose: None for a bar if standard error is a terminal; True for a bar or, elsewhere, a line an epoch; False
            for nothing.
        history: to be shown.
        epochs: how many there will be.
    """
    if verbose not in (None, True, False):
        raise PolyboundError(f"verbose must be True, False or None, got {verbose!r}")
    watched = sys.stderr.isatty()
    if verbose is False or (verbose is None and not watched):
        yield []
    elif not watched:
        yield [_Lines(history)]
    else:
        bar = _Bar(history, epochs)
        try:
            yield [bar]
        finally:
            bar.close()


def _state(history: History) -> str:
    line = history.lines[-1]
    parts = [f"{name} {_number(line[name])}" for name in ("loss", "validation loss") if name in line]
    if "validation accuracy" in line:
        parts.append(f"validation accuracy {100 * _mean(line['validation accuracy']):.1f} %")
    return ", ".join(parts)


def _mean(value: float | list[float]) -> float:
    return sum(value) / len(value) if isinstance(value, list) else value


def _number(value: float | list[float]) -> str:
    return f"{_mean(value):.4g}"


class _Lines(Callback):
    """A line an epoch."""

    def __init__(self, history: History) -> None:
        self.history = history

    def after_epoch(self, trainer: Trainer, losses: Tensor) -> None:
        del losses  # which the history has
        print(f"epoch {trainer.epoch}/{trainer.recipe.epochs}: {_state(self.history)}", file=sys.stderr, flush=True)


class _Bar(Callback):
    """A bar that is gone when the training is over."""

    def __init__(self, history: History, epochs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("epoch {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("{task.description}"),
        )
        self.bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task("", total=epochs)
        self.history, self.shown = history, 0.0
        self.update: Callable[..., None] = lambda **state: self.bar.update(self.task, **state)
        self.bar.start()

    def after_step(self, trainer: Trainer) -> None:
        if trainer.step % 16 == 0 and time.monotonic() - self.shown > 0.2:
            self.shown = time.monotonic()
            self.update(completed=trainer.epoch + trainer.step / trainer.steps)

    def after_epoch(self, trainer: Trainer, losses: Tensor) -> None:
        del losses  # which the history has
        self.update(completed=trainer.epoch, description=_state(self.history))

    def close(self) -> None:
        """Remove the bar."""
        self.bar.stop()


_SHARE = 0.1
"""What early stopping holds out, if nobody says what to measure on."""


def fit(
    model: PolynomialNetwork,
    X: Any,
    y: Any = None,
    recipe: Recipe | str | None = None,
    *,
    sample_weight: Any = None,
    class_weight: Any = None,
    validation: float | Dataset | tuple[Any, Any] | None = None,
    early_stopping: int | None = None,
    domain: Sequence[float] | None = None,
    norms: bool = False,
    verbose: bool | None = None,
    seed: int | Sequence[int] = 0,
    on_epoch: Callable[[int, Tensor], None] | None = None,
    callbacks: Sequence[Callback] = (),
    **changes: Any,
) -> History:
    """Train a model, or all runs of a stack at once, in place.

    >>> import polybound as pb
    >>> data = pb.data.load_digits("train")
    >>> model = pb.paper_model("pn-4", shape=data.shape, seed=0)
    >>> history = pb.fit(model, data, method="projection", bound=1.0, epochs=2)
    >>> len(history), pb.Projection(model, bound=1.0).contains()
    (2, True)

    Arrays, with an end when a tenth of the samples says so:

    >>> model = pb.CCP(64, rank=16, classes=10, degree=3, seed=0)
    >>> history = pb.fit(model, data.x.flatten(1).numpy(), data.y.numpy(), epochs=10, early_stopping=3)
    >>> max(history["validation accuracy"]) > 0.9
    True

    Args:
        model: what to train.
        X: a `Dataset`, the training split; or inputs (samples, *shape), as a numpy array, tensor or pandas frame.
        y: labels from 0 on, (samples,); with `loss="squared"`, numbers (samples,) or (samples, outputs). A `Dataset`
            has its own; then a recipe may stand here.
        recipe: how: "default" suits the numbers of samples and features, see `Recipe.for_data`; "paper" is the
            paper's; or a `Recipe`.
        sample_weight: a weight for each sample; only their ratios matter.
        class_weight: "balanced", all classes weigh the same; or weights by label, as a mapping or a sequence.
        validation: what to measure on after every epoch: a share of the samples, which is then not trained on, a
            `Dataset`, or (X, y).
        early_stopping: stop after so many epochs without a better accuracy on `validation` (by default a tenth of the
            samples), or without a smaller loss for numbers, and restore the best weights.
        domain: smallest and largest value an input entry can have, which an adversary needs; a `Dataset` has its own.
        norms: keep the norms of the weights in the history, once an epoch.
        verbose: None shows a progress bar if standard error is a terminal, True shows progress in any case.
        seed: of the batches and of the validation share; one for all runs of a stack or one for each.
        on_epoch: called after each epoch with its number, from 0, and the mean loss, one value for each run.
        callbacks: more that happens while training.
        **changes: other parts of the recipe, or other options of them: `method="l2", weight=0.1, epochs=10`.

    Raises:
        NonFiniteError: the loss of a run became infinite or NaN; the message says which run, when and where.
        PolyboundError: the samples or an option cannot be used; the message says why.
    """
    if isinstance(y, Recipe | str):
        y, recipe = None, y
    polynomial(model)

    def plan_for(samples: int) -> Recipe:
        if isinstance(recipe, Recipe):
            return recipe.replace(changes)
        return Recipe.named("default" if recipe is None else recipe, samples, model.features, changes)

    loss = plan_for(1).loss  # checks all options before the samples; their number changes other parts alone
    seeds = _checked_seeds(seed, model.runs or 1)
    check_flag("norms", norms)
    if early_stopping is not None:
        check_int("early_stopping", early_stopping)
        validation = _SHARE if validation is None else validation
    samples = training_set(model, X, y, loss=loss, domain=domain)
    samples = sample_weights(samples, sample_weight, class_weight, model.classes)
    samples, measured_on = _validation(model, samples, validation, loss, seeds[0])
    plan = plan_for(len(samples))
    keeper = HistoryKeeper(measured_on, norms, on_epoch, early_stopping)
    with showing_progress(verbose, keeper.history, plan.epochs) as shown:
        Trainer(model, samples, plan, seeds, [keeper, *shown, *callbacks]).run()
    return keeper.history


def _checked_seeds(seed: Any, runs: int) -> list[int]:
    seeds = list(seed) if isinstance(seed, Iterable) else [seed] * runs
    seeds = [one.item() if isinstance(one, np.integer) else one for one in seeds]
    for one in seeds:
        check_seed(one)
    return seeds


def _validation(
    model: PolynomialNetwork, samples: TrainingSet, given: Any, loss: Loss, seed: int
) -> tuple[TrainingSet, TrainingSet | None]:
    """What to train on, and what to measure on."""
    like = next(model.parameters())
    if given is None:
        return samples, None
    if isinstance(given, Dataset):
        return samples, training_set(model, given, loss=loss).to(like)
    if isinstance(given, tuple | list):
        if len(given) != 2:
            raise PolyboundError(f"validation takes (X, y), a Dataset or a share, got {len(given)} things")
        return samples, training_set(model, *given, loss=loss).to(like)
    left, carved = samples.split(given, seed)
    return left, carved.to(like)


def accuracy(model: PolynomialNetwork, X: Any, y: Any = None) -> Tensor:
    """The share of correctly classified samples, one value for each run; of a `Dataset`, or of arrays X and y."""
    loss = CrossEntropy()
    data = training_set(model, X, y, loss=loss).to(next(model.parameters()))
    found = measure(model, data, loss)["accuracy"]
    return found[0] if model.runs is None else found
