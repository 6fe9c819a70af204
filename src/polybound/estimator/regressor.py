"""`PolynomialRegressor`: a scikit-learn regressor whose predictions can be enclosed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin

from polybound.certificates import PreparedNetwork, output_bounds
from polybound.errors import PolyboundError
from polybound.estimator.base import PolynomialEstimator, rounding
from polybound.estimator.certify import checked_eps, proven_bounds
from polybound.estimator.files import read_scaling
from polybound.estimator.scaling import Array, TargetScaling, WeightedSamples


class PredictionIntervals(NamedTuple):
    """Proven sides of the predictions over boxes, and what was attained; each of the shape of `predict`.

    Attributes:
        lower: no prediction in the box is below.
        upper: no prediction in the box is above.
        lowest: the least prediction seen in the box.
        highest: the largest prediction seen in the box.
    """

    lower: Array
    upper: Array
    lowest: Array
    highest: Array


@dataclass(kw_only=True, eq=False, repr=False)
class PolynomialRegressor(RegressorMixin, PolynomialEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A polynomial network as a scikit-learn regressor, with proven intervals of its predictions.

    Inputs are scaled as by `PolynomialClassifier`, targets by their mean and standard deviation; both is undone in all
    that is said. Several targets are predicted by one network.

    Args:
        degree: of the polynomial.
        rank: number of hidden units.
        form: "product" or "residual" (see `CCP`), or "nested" (see `NCP`).
        bound: for every norm of the weights, held by projection; None for no bound.
        norm: of that bound: "inf" or "2".
        method: another method of training; see `PolynomialClassifier`.
        optimiser: "adamw", "muon", "momentum", "sgd", or a registered one.
        learning_rate: of the first epoch; it falls to zero as a cosine. "auto" shrinks with the number of features.
        weight_decay: of AdamW. "auto" grows with the features and falls with the samples.
        epochs: passes over the data; "auto" makes some 3,000 steps of them.
        batch_size: samples in a step.
        early_stopping: whether to stop, with the best weights, after 10 epochs (or as many as given) in which nothing
            got better on a validation share.
        validation_fraction: that share.
        random_state: of the initial weights and the batches.
        verbose: whether to show the progress.
        device: where to train; predictions and proofs are computed on the CPU.

    Attributes:
        model_: the network, a `PolynomialNetwork` of scaled inputs.
        scaling_: the scaling of the inputs.
        target_scaling_: the scaling of the targets.
        history_: what was seen while training.
        bounds_: proven bounds by name: "lipschitz" (in the user's units), "lipschitz_scaled", "rademacher".
        n_iter_: epochs.
        n_features_in_: number of features.
        feature_names_in_: their names, if X had names.

    >>> from sklearn.datasets import load_diabetes
    >>> import polybound as pb
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = pb.PolynomialRegressor(epochs=20, random_state=0).fit(X, y)
    >>> inside = model.predict_interval(X[:5], eps=0.001)
    >>> bool(((inside.lower <= model.predict(X[:5])) & (model.predict(X[:5]) <= inside.upper)).all())
    True
    """

    target_scaling_: TargetScaling = field(init=False)
    _shape: tuple[int, ...] = field(init=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from the beginning.

        Args:
            X: (samples, features): an array, a frame, or a sparse matrix, which is made dense.
            y: targets, (samples,) or (samples, outputs).
            sample_weight: a weight of two is a sample given twice, to the bit.
        """
        self._check_settings()
        with self._all_or_nothing():
            X, y, weight = self._training_data(X, y, sample_weight, reset=True, multi_output=True, y_numeric=True)
            self._learn(X, y, weight, self._fit)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """One pass over some samples, from where training is.

        The scaling of the inputs follows all samples seen so far; that of the targets is that of the first call.

        Args:
            X: (samples, features).
            y: targets.
            sample_weight: of each sample.
        """
        self._check_settings()
        first = not hasattr(self, "model_")
        with self._all_or_nothing():
            X, y, weight = self._training_data(X, y, sample_weight, reset=first, multi_output=True, y_numeric=True)
            if not first and self._shape != y.shape[1:]:
                raise PolyboundError(f"targets had shape (samples,) + {self._shape} before, got {y.shape}")
            self._learn(X, y, weight, self._go_on)
        return self

    def _own_options(self) -> dict[str, Any]:
        return {"loss": "squared"}

    def _learn(self, X: Array, y: Array, weight: Array, learn: Callable[..., None]) -> None:
        self._shape = y.shape[1:]
        targets = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        learn(X, targets, weight, targets.shape[1])
        there, stretch = weight > 0, self.target_scaling_.std
        self.bounds_ = proven_bounds(self.model_, self.scaling_, self.scaling_(X[there]), stretch=stretch)

    def _begin(self, samples: WeightedSamples, outputs: int) -> None:
        super()._begin(samples, outputs)
        self.target_scaling_ = TargetScaling.of(samples.y, samples.weight)

    def _scaled_targets(self, targets: Array) -> Array:
        return self.target_scaling_.shrink(targets)

    def predict(self, X: Any) -> Array:
        """Predictions, (samples,) or (samples, outputs) as the targets were."""
        outputs = self._outputs(X)
        return self._shaped(self.target_scaling_(outputs))

    def predict_interval(self, X: Any, eps: Any, *, method: Any = "auto", budget: float = 1.0) -> PredictionIntervals:
        """Proven sides of `predict` over all x' with `|x' - x| <= eps`, and the extremes that were seen there.

        `output_bounds` encloses the polynomial in real numbers; the sides are moved by what float64 can be off in
        `predict`, and rounded outwards where the scaling of the targets is undone.

        Args:
            X: (samples, features).
            eps: radii in the units of X, as in `PolynomialClassifier.certify`.
            method: as in `polybound.output_bounds`.
            budget: seconds of branch and bound for each sample.
        """
        given, X = X, self._inputs(X)
        lower, upper = self.scaling_.box(X, checked_eps(eps, given, self._names, self.scaling_.width))
        box = (torch.from_numpy(lower), torch.from_numpy(upper))
        net, inputs = PreparedNetwork(self.model_), torch.from_numpy(self.scaling_(X))
        found = output_bounds(net, inputs, box=box, method=method, budget=budget)
        slack = rounding(net, lower, upper) * (1 + 2.0**-40)
        low = np.nextafter(found.lower.numpy() - slack, -np.inf)
        high = np.nextafter(found.upper.numpy() + slack, np.inf)
        sides = self.target_scaling_.outwards(low, high)
        seen = (self.target_scaling_(found.lowest.numpy()), self.target_scaling_(found.highest.numpy()))
        return PredictionIntervals(*map(self._shaped, (*sides, *seen)))

    def _shaped(self, outputs: Array) -> Array:
        return outputs.reshape(len(outputs), *self._shape)

    def _more_to_write(self) -> dict[str, Any]:
        return {"targets": self.target_scaling_.as_dict(), "several": bool(self._shape)}

    def _read_more(self, content: dict[str, Any]) -> None:
        self.target_scaling_ = TargetScaling(*read_scaling(content["targets"], self.model_.classes))
        if not (self.target_scaling_.std > 0).all():
            raise PolyboundError("the scaling of its targets does not fit its network")
        self._shape = (self.model_.classes,) if content["several"] else ()
