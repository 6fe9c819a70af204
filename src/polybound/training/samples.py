"""Checked samples to train on, made of data sets, arrays, tensors or frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polybound.data import Dataset, carve_indices
from polybound.errors import PolyboundError, check_domain
from polybound.models import PolynomialNetwork
from polybound.training.losses import Loss


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Samples that fit a model and a loss.

    Attributes:
        x: inputs, (samples, features).
        y: labels, (samples,); or numbers, (samples, outputs).
        weights: of the samples, (samples,), 1 on average; None if all are alike.
        shape: of one input.
        domain: the smallest and largest value an input entry can have; None if unknown.
        name: what messages call it.
    """

    x: Tensor
    y: Tensor
    shape: tuple[int, ...]
    weights: Tensor | None = None
    domain: tuple[float, float] | None = None
    name: str = "the data"

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, chosen: Tensor) -> TrainingSet:
        weights = None if self.weights is None else self.weights[chosen]
        return replace(self, x=self.x[chosen], y=self.y[chosen], weights=weights)

    def to(self, like: Tensor) -> TrainingSet:
        """The same where a model's parameter lies, and in its precision; labels stay whole numbers."""
        y = self.y.to(like.device, like.dtype) if self.y.is_floating_point() else self.y.to(like.device)
        weights = None if self.weights is None else self.weights.to(like.device, like.dtype)
        return replace(self, x=self.x.to(like.device, like.dtype), y=y, weights=weights)

    def split(self, share: float, seed: int) -> tuple[TrainingSet, TrainingSet]:
        """The remaining samples and a carved share, stratified by class if there are classes."""
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise PolyboundError(f"the validation share must lie between 0 and 1, got {share!r}")
        labels = self.y.cpu().numpy() if self.y.ndim == 1 else np.zeros(len(self), dtype=np.int64)
        left, carved = (torch.from_numpy(part) for part in carve_indices(labels, share, seed))
        return self[left], self[carved]


def training_set(
    model: PolynomialNetwork, X: Any, y: Any = None, *, loss: Loss, domain: Sequence[float] | None = None
) -> TrainingSet:
    """Checked samples for a model: each thing that is wrong with them is one line.

    Args:
        model: what shall be trained.
        X: a `Dataset`; or inputs (samples, *shape) as a numpy array, tensor, pandas frame or nested list.
        y: labels from 0 on, (samples,), or for a loss of numbers (samples,) or (samples, outputs); a `Dataset` has its
            own labels.
        loss: says whether targets are labels or numbers.
        domain: the smallest and largest value an input entry can have; a `Dataset` has its own.
    """
    if isinstance(X, TrainingSet):
        return X
    name, known = "the data", None
    if isinstance(X, Dataset):
        name, known = f"the {X.split} split of {X.name}", X.domain
        if loss.classifies and y is not None:
            raise PolyboundError(f"{X.name} has labels of its own: give either the data set or X and y")
        if X.classes > model.classes and loss.classifies:
            raise PolyboundError(f"{X.name} has {X.classes} classes, the model {model.classes}")
        X, y = X.x, X.y if y is None else y
    if y is None:
        raise PolyboundError("arrays need targets: fit(model, X, y)")
    x = _tensor(X, "inputs")
    if x.ndim and not len(x):
        raise PolyboundError(f"{name} is empty")
    if x.ndim < 2 or x[0].numel() != model.features:
        raise PolyboundError(
            f"the model takes inputs of shape {tuple(model.shape)}, {model.features} numbers each; "
            f"X has the shape {tuple(x.shape)}"
        )
    x = x.flatten(1) if x.is_floating_point() else x.flatten(1).float()
    _check_finite(x, "X")
    if domain is not None:
        known = low, high = check_domain(domain)
        if float(x.min()) < low or float(x.max()) > high:
            raise PolyboundError(f"inputs from {x.min():g} to {x.max():g} are not in the domain [{low:g}, {high:g}]")
    targets = _labels(model, y) if loss.classifies else _numbers(model, y)
    if len(x) != len(targets):
        raise PolyboundError(f"{len(x):,} inputs have {len(targets):,} {'labels' if loss.classifies else 'targets'}")
    return TrainingSet(x, targets, tuple(model.shape), None, known, name)


def _tensor(values: Any, what: str) -> Tensor:
    """A tensor of numbers, wherever they come from."""
    if isinstance(values, Tensor):
        return values.detach()
    if hasattr(values, "toarray"):  # sparse matrices
        values = values.toarray()
    if hasattr(values, "to_numpy"):  # frames and series, by whatever library
        values = values.to_numpy()
    try:
        array: npt.NDArray[Any] = np.asarray(values)
        if array.dtype == object:
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise PolyboundError(f"{what} must be numbers, one row for each sample") from None
    if array.dtype.kind not in "biuf":
        raise PolyboundError(f"{what} must be numbers, got {array.dtype}")
    wide = array.astype(np.int64 if array.dtype.kind in "biu" else np.float64 if array.itemsize > 4 else np.float32)
    return torch.from_numpy(np.ascontiguousarray(wide))


def _check_finite(values: Tensor, what: str) -> None:
    if not bool(torch.isfinite(values).all()):
        row = int((~torch.isfinite(values)).reshape(len(values), -1).any(1).nonzero()[0])
        kind = "NaN" if bool(values[row].isnan().any()) else "an infinite number"
        raise PolyboundError(f"{what} has {kind} in row {row}")


def _labels(model: PolynomialNetwork, y: Any) -> Tensor:
    labels = _tensor(y, "labels (whole numbers from 0 on; PolynomialClassifier takes any others)")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise PolyboundError(f"labels must be one whole number for each sample, got the shape {tuple(labels.shape)}")
    if labels.is_floating_point():
        _check_finite(labels, "y")
        if not bool((labels == labels.round()).all()):
            raise PolyboundError("labels must be whole numbers; for numbers take loss='squared'")
    labels = labels.long()
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < model.classes:
        bad = int(labels.min()) if int(labels.min()) < 0 else int(labels.max())
        raise PolyboundError(f"labels must be 0 to {model.classes - 1} for a model of {model.classes}; there is {bad}")
    return labels


def _numbers(model: PolynomialNetwork, y: Any) -> Tensor:
    targets = _tensor(y, "targets")
    targets = targets if targets.is_floating_point() else targets.double()
    targets = targets.unsqueeze(1) if targets.ndim == 1 else targets
    if targets.ndim != 2 or targets.shape[1] != model.classes:
        raise PolyboundError(
            f"the model has {model.classes} outputs: targets must be (samples, {model.classes}), "
            f"got the shape {tuple(targets.shape)}"
        )
    _check_finite(targets, "y")
    return targets


def class_weights(given: Any, labels: Tensor, classes: int) -> Tensor:
    """A weight for each class, (classes,).

    Args:
        given: "balanced", all classes weigh the same; a mapping from labels to weights, others weigh 1; or a sequence,
            one for each class.
        labels: those of the training samples.
        classes: how many there are.
    """
    if isinstance(given, str):
        if given != "balanced":
            raise PolyboundError(f"class_weight must be 'balanced', a mapping or one weight a class, got {given!r}")
        counts = torch.bincount(labels, minlength=classes).double()
        return torch.where(counts > 0, len(labels) / (counts.clamp(min=1) * (counts > 0).sum()), 0.0)
    if isinstance(given, Mapping):
        if unknown := [label for label in given if label not in range(classes)]:
            raise PolyboundError(f"class_weight has {unknown[0]!r}, which is no label from 0 to {classes - 1}")
        given = [given.get(label, 1.0) for label in range(classes)]
    weights = _tensor(given, "class weights").double()
    if weights.shape != (classes,):
        raise PolyboundError(f"there are {classes} classes: class_weight needs as many weights")
    _check_weights(weights, "class_weight")
    return weights


def sample_weights(data: TrainingSet, sample_weight: Any, class_weight: Any, classes: int) -> TrainingSet:
    """The samples with their weights times those of their classes, scaled to 1 on average."""
    if sample_weight is None and class_weight is None:
        return data
    weights = torch.ones(len(data), dtype=torch.float64)
    if sample_weight is not None:
        weights = _tensor(sample_weight, "sample weights").double().cpu()
        if weights.shape != (len(data),):
            raise PolyboundError(f"{len(data):,} samples need as many weights, got the shape {tuple(weights.shape)}")
        _check_weights(weights, "sample_weight")
    if class_weight is not None:
        if data.y.ndim != 1:
            raise PolyboundError("class_weight is for labels; numbers have no classes")
        weights = weights * class_weights(class_weight, data.y.cpu(), classes)[data.y.cpu()]
    if not float(weights.sum()) > 0:
        raise PolyboundError("all samples have the weight 0")
    return replace(data, weights=weights / weights.mean())


def _check_weights(weights: Tensor, what: str) -> None:
    if not bool((torch.isfinite(weights) & (weights >= 0)).all()):
        raise PolyboundError(f"{what} must be finite numbers of at least 0")
