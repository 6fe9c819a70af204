"""`fit`: training in one call, with a progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from torch import Tensor, nn

from polybound.data import Dataset
from polybound.errors import PolyboundError, check_flag, check_int
from polybound.models import PolynomialNetwork, polynomial
from polybound.progress import Show, progress_bar
from polybound.seeds import check_seed
from polybound.training.callbacks import History, HistoryKeeper, measure
from polybound.training.losses import CrossEntropy
from polybound.training.recipe import Recipe
from polybound.training.samples import TrainingSet, sample_weights, training_set
from polybound.training.trainer import Callback, Trainer


def fit(
    model: nn.Module,
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
        model: what to train; any `torch.nn.Module` of affine maps and products is traced, and trained in place.
        X: a `Dataset`, the training split; or inputs (samples, *shape), as a numpy array, tensor or pandas frame.
        y: labels from 0 on, (samples,); with `loss="squared"`, numbers (samples,) or (samples, outputs). A `Dataset`
            has its own; then a recipe may stand here.
        recipe: how: "default" suits the network and the numbers of samples and features, see `Recipe.for_data` and
            `Recipe.named`; "paper" is the paper's; or a `Recipe`.
        sample_weight: a weight for each sample; only their ratios matter.
        class_weight: "balanced", all classes weigh the same; or weights by label, as a mapping or a sequence.
        validation: what to measure on after every epoch: a share of the samples, which is then not trained on, a
            `Dataset`, or (X, y).
        early_stopping: stop after this number of epochs without a better accuracy on `validation`, a tenth of the
            samples by default, or without a smaller loss for numbers; and restore the best weights.
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
    model = _network(model, X)

    def recipe_for(samples: int) -> Recipe:
        if isinstance(recipe, Recipe):
            return recipe.replace(changes)
        name = "default" if recipe is None else recipe
        return Recipe.named(name, samples, model.features, changes, deep=not model.has_stacks)

    # Options are checked before samples: a recipe for one sample, which differs in other parts, has the loss.
    loss = recipe_for(1).loss
    seeds: list[Any] = list(seed) if isinstance(seed, Iterable) else [seed] * (model.runs or 1)
    seeds = [one.item() if isinstance(one, np.integer) else one for one in seeds]
    for one in seeds:
        check_seed(one)
    check_flag("norms", norms)
    if verbose not in (None, True, False):
        raise PolyboundError(f"verbose must be True, False or None, got {verbose!r}")
    if early_stopping is not None:
        check_int("early_stopping", early_stopping)
        validation = 0.1 if validation is None else validation
    samples = training_set(model, X, y, loss=loss, domain=domain)
    samples = sample_weights(samples, sample_weight, class_weight, model.classes)
    measured_on = None
    if isinstance(validation, Dataset):
        measured_on = training_set(model, validation, loss=loss)
    elif isinstance(validation, tuple | list):
        if len(validation) != 2:
            raise PolyboundError(f"validation takes (X, y), a Dataset or a share, got {len(validation)} things")
        measured_on = training_set(model, *validation, loss=loss)
    elif validation is not None:
        samples, measured_on = samples.split(validation, seeds[0])
    if measured_on is not None:
        measured_on = measured_on.to(next(model.parameters()))
    keeper = HistoryKeeper(measured_on, norms, on_epoch, early_stopping)
    watched = sys.stderr.isatty() and verbose is not False
    with progress_bar() if watched else nullcontext(_print_line if verbose else None) as show:
        shown = [] if show is None else [_Progress(keeper.history, show)]
        Trainer(model, samples, recipe_for(len(samples)), seeds, [keeper, *shown, *callbacks]).run()
    return keeper.history


class _Progress(Callback):
    """Shows how far a training is, and the last line of its history."""

    def __init__(self, history: History, show: Show) -> None:
        self.history, self.show, self.text, self.shown = history, show, "training", 0.0

    def after_step(self, trainer: Trainer) -> None:
        if self.show is not _print_line and trainer.step % 16 == 0 and time.monotonic() - self.shown > 0.2:
            self.shown = time.monotonic()
            self.show(trainer.epoch + trainer.step / trainer.steps, trainer.recipe.epochs, self.text)

    def after_epoch(self, trainer: Trainer, losses: Tensor) -> None:
        del losses  # which the history has
        line, means = self.history.lines[-1], {}
        for name in ("loss", "validation loss", "validation accuracy"):
            if name in line:
                means[name] = float(np.mean(line[name]))
        parts = [f"{name} {value:.4g}" for name, value in means.items() if name != "validation accuracy"]
        if "validation accuracy" in means:
            parts.append(f"validation accuracy {100 * means['validation accuracy']:.1f} %")
        self.text = f"epoch {trainer.epoch}/{trainer.recipe.epochs}: {', '.join(parts)}"
        self.show(trainer.epoch, trainer.recipe.epochs, self.text)


def _print_line(done: float, total: float | None, text: str) -> None:
    """Show progress where there is no terminal: a line an epoch."""
    del done, total  # which the text has
    print(text, file=sys.stderr, flush=True)


def accuracy(model: nn.Module, X: Any, y: Any = None) -> Tensor:
    """The share of correctly classified samples, one value for each run; of a `Dataset`, or of arrays X and y."""
    loss, model = CrossEntropy(), _network(model, X)
    data = training_set(model, X, y, loss=loss).to(next(model.parameters()))
    found = measure(model, data, loss)["accuracy"]
    return found[0] if model.runs is None else found


def _network(model: nn.Module, X: Any) -> PolynomialNetwork:
    """The model; a plain module as the polynomial network that it is for inputs like X."""
    shape = X.shape if isinstance(X, Dataset | TrainingSet) else getattr(X, "shape", ())[1:]
    return polynomial(model, shape or None)
