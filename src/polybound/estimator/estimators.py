"""A scikit-learn classifier whose predictions can be proven, and a regressor whose predictions can be enclosed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from polybound.certificates import PreparedNetwork, bisected, output_bounds
from polybound.errors import PolyboundError
from polybound.estimator.base import PolynomialEstimator, check_masked, rounding
from polybound.estimator.certify import Labels, Verdicts, checked_eps, decide, proven_bounds, unit_radii
from polybound.estimator.files import read_labels, read_scaling, write_labels
from polybound.estimator.scaling import Array, TargetScaling, WeightedSamples


@dataclass(kw_only=True, eq=False, repr=False)
class PolynomialClassifier(ClassifierMixin, PolynomialEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A polynomial network as a scikit-learn classifier, with proofs about its predictions.

    Inputs are scaled inside, `u = clip((x - mean) / (3 std), -1, 1)`. Everything that is said about inputs (radii,
    boxes, counterexamples, `bounds_["lipschitz"]`) is in the units that X came in, feature by feature. `predict`
    evaluates the network in float64, and certificates are about that very function: `docs/estimators.md` says how.

    Args:
        degree: of the polynomial.
        rank: number of hidden units.
        form: "product" or "residual" (see `CCP`), or "nested" (see `NCP`).
        bound: for every norm of the weights, held by projection; None for no bound.
        norm: of that bound: "inf" or "2".
        method: another method of training, by its name, as a mapping with its options, or as an object; see
            `polybound.training.METHODS`.
        adversary: an attack to train on, such as "pgd-0.1-7"; its radius is in units of u, three standard deviations.
        optimiser: "adamw", "muon", "momentum", "sgd", or a registered one.
        learning_rate: of the first epoch; it falls to zero as a cosine. "auto" shrinks with the number of features.
        weight_decay: of AdamW. "auto" grows with the features and falls with the samples.
        label_smoothing: the share of each label that is spread over all classes; none by methods whose loss is their
            own, such as "jacobian".
        epochs: passes over the data; "auto" makes some 3,000 steps of them.
        batch_size: samples in a step.
        early_stopping: whether to stop, with the best weights, after 10 epochs (or as many as given) in which nothing
            got better on a validation share.
        validation_fraction: that share.
        class_weight: weights by class, or "balanced".
        random_state: of the initial weights and the batches.
        verbose: whether to show the progress.
        device: where to train; predictions and proofs are computed on the CPU.

    Attributes:
        classes_: the labels.
        model_: the network, a `PolynomialNetwork` of scaled inputs.
        scaling_: the scaling; `scaling_.width` is what one unit of u is.
        history_: what was seen while training.
        bounds_: proven bounds by name: "lipschitz" (in the user's units), "lipschitz_scaled", "rademacher",
            "generalisation".
        n_iter_: epochs.
        n_features_in_: number of features.
        feature_names_in_: their names, if X had names.

    >>> from sklearn.datasets import load_iris
    >>> import polybound as pb
    >>> X, y = load_iris(return_X_y=True)
    >>> model = pb.PolynomialClassifier(epochs=20, random_state=0).fit(X, y)
    >>> model.certify(X[:1], y[:1], eps=0.1)
    Verdicts(1 verified, 0 falsified, 0 undecided)
    >>> model.certified_radius(X[:1]).shape
    (1, 4)
    """

    adversary: Any = None
    label_smoothing: Any = 0.1
    class_weight: Any = None
    classes_: npt.NDArray[Any] = field(init=False)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from the beginning.

        Args:
            X: (samples, features): an array, a frame, or a sparse matrix, which is made dense.
            y: labels of any kind.
            sample_weight: a weight of two is a sample given twice, to the bit.
        """
        self._check_settings()
        with self._all_or_nothing():
            X, y, weight = self._training_data(X, y, sample_weight, reset=True)
            check_classification_targets(y)
            self.classes_, labels = np.unique(y, return_inverse=True)
            if len(self.classes_) < 2:
                raise PolyboundError(
                    f"a classifier needs two classes or more, got 1 class, {self.classes_.tolist()[0]!r}"
                )
            self._learn(X, labels, weight, self._fit)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One pass over some samples, from where training is; the scaling follows all samples seen so far.

        Args:
            X: (samples, features).
            y: labels.
            classes: all labels there will be; needed in the first call.
            sample_weight: of each sample.
        """
        self._check_settings()
        first = not hasattr(self, "model_")
        with self._all_or_nothing():
            X, y, weight = self._training_data(X, y, sample_weight, reset=first)
            check_classification_targets(y)
            if first:
                if classes is None or len(np.unique(classes)) < 2:
                    raise PolyboundError("the first partial_fit needs classes, all labels there will be, two or more")
                self.classes_ = np.unique(classes)
            elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
                raise PolyboundError(f"classes are {self.classes_.tolist()} since the first call of partial_fit or fit")
            self._learn(X, self._numbers(y), weight, self._go_on)
        return self

    def _own_options(self) -> dict[str, Any]:
        adversary = {} if self.adversary is None else {"adversary": self.adversary}
        return {"label_smoothing": self.label_smoothing, **adversary}

    def _check_settings(self) -> None:
        super()._check_settings()
        if not isinstance(self.class_weight, Mapping | None) and self.class_weight != "balanced":
            raise PolyboundError(f"class_weight must be 'balanced', a mapping or None, got {self.class_weight!r}")

    def _learn(self, X: Array, labels: Labels, weight: Array, learn: Callable[..., None]) -> None:
        """Train with the weights of samples and classes, and compute the bounds."""
        known, given = self.classes_.tolist(), self.class_weight
        if isinstance(given, Mapping):
            unknown = [label for label in given if label not in known]
            # A fold may lack a class; but a label that is misspelt leaves another without its weight.
            if unknown and not all(label in given for label in known):
                raise PolyboundError(f"class_weight has {unknown[0]!r}, which is not one of the classes {known}")
            shares = np.array([float(given.get(label, 1.0)) for label in known])
            if not (np.isfinite(shares) & (shares >= 0)).all():
                raise PolyboundError("class weights must be finite and not negative")
            weight = weight * shares[labels]
        elif given is not None:
            totals = np.bincount(labels, weight, len(known))
            shares = totals.sum() / (len(totals) * np.where(totals > 0, totals, 1.0))
            weight = weight * shares[labels]
        learn(X, labels, weight, len(known))
        there = weight > 0
        self.bounds_ = proven_bounds(self.model_, self.scaling_, self.scaling_(X[there]), labels[there])

    def _numbers(self, y: Any) -> Labels:
        """The class numbers of labels.

        Raises:
            PolyboundError: a label is not one of the classes.
        """
        number = {label: i for i, label in enumerate(self.classes_.tolist())}
        labels = np.asarray(y).tolist()
        if unknown := [label for label in labels if label not in number]:
            raise PolyboundError(f"label {unknown[0]!r} is not one of the classes {self.classes_.tolist()}")
        return np.array([number[label] for label in labels], dtype=np.int64)

    def decision_function(self, X: Any) -> Array:
        """The network's outputs, (samples, classes); of two classes their difference, (samples,)."""
        outputs = self._outputs(X)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The label whose output is largest, (samples,)."""
        best = self._outputs(X).argmax(1)
        labels: npt.NDArray[Any] = self.classes_[best]
        return labels

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of `predict_proba`."""
        logs: Array = log_softmax(self._outputs(X), axis=1)
        return logs

    def predict_proba(self, X: Any) -> Array:
        """The softmax of the outputs, (samples, classes). Label smoothing keeps it from being sure."""
        return np.exp(self.predict_log_proba(X))

    def certify(self, X: Any, y: Any, eps: Any, *, method: str = "auto", budget: float = 1.0) -> Verdicts:
        """Decide for each sample whether `predict` gives its label for every x' with `|x' - x| <= eps`.

        Args:
            X: (samples, features).
            y: labels, each one of `classes_`.
            eps: radii in the units of X, finite and not negative: a number, one for each feature, or (samples,
                features); a pandas Series or frame is aligned by the names of the features.
            method: as in `polybound.certify`; "first" and "second" are quick, "auto" decides most.
            budget: seconds of branch and bound for each sample.
        """
        given = X
        X, y = self._labelled(X, y)
        radii = checked_eps(eps, given, self._names, self.scaling_.width)
        options = {"method": method, "budget": budget}
        return decide(PreparedNetwork(self.model_), self.scaling_, X, self._numbers(y), radii, **options)

    def certified_score(
        self, X: Any, y: Any, eps: Any, sample_weight: Any = None, *, method: str = "auto", budget: float = 1.0
    ) -> float:
        """The share of samples that are verified: no perturbation within eps brings the accuracy below it.

        Args:
            X: (samples, features).
            y: labels.
            eps: as in `certify`.
            sample_weight: of each sample.
            method: as in `certify`.
            budget: as in `certify`.
        """
        verified = self.certify(X, y, eps, method=method, budget=budget).verified
        return float(np.average(verified, weights=sample_weight))

    def certified_radius(
        self,
        X: Any,
        y: Any = None,
        *,
        scale: Any = None,
        tolerance: float = 1e-3,
        method: str = "auto",
        budget: float = 1.0,
    ) -> Array:
        """How far the features of each sample can move with its prediction proven to stay, (samples, features).

        All features move at once: row i is the largest multiple of `scale` that was found for sample i. It is infinite
        for features that never varied in training, and zero where nothing is proven.

        Args:
            X: (samples, features).
            y: labels; misclassified samples have radius zero. By default what `predict` gives.
            scale: how far the features move in proportion to each other, in their units; by default as their standard
                deviations. A pandas Series is aligned by the names of the features.
            tolerance: how close to the least multiple that was not verified, in units of the scaled input (three
                standard deviations). Multiples above 2 are not tried.
            method: as in `certify`.
            budget: seconds of branch and bound for each sample and each step of the search.
        """
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float | np.number) or not 0 < tolerance <= 1:
            raise PolyboundError(f"tolerance must be above 0 and at most 1, got {tolerance!r}")
        X, y = self._labelled(X, self.predict(X) if y is None else y)
        net, labels = PreparedNetwork(self.model_), self._numbers(y)
        unit = unit_radii(self.scaling_, scale, self._names)

        def radii(multiple: Array) -> Array:
            with np.errstate(invalid="ignore"):
                return np.where(multiple[:, None] > 0, multiple[:, None] * unit, 0.0)

        def tried(rows: Tensor, multiples: Tensor) -> tuple[Tensor, Tensor]:
            at, eps = rows.numpy(), radii(multiples.numpy())
            found = decide(net, self.scaling_, X[at], labels[at], eps, method=method, budget=budget)
            return torch.from_numpy(found.verified), multiples

        return radii(bisected(tried, len(X), 2.0, float(tolerance)).numpy())

    def _labelled(self, X: Any, y: Any) -> tuple[Array, npt.NDArray[Any]]:
        check_masked("y", y)
        X, y = self._inputs(X), np.asarray(y)
        if y.shape != (len(X),):
            raise PolyboundError(f"one label for each of {len(X)} samples, got shape {y.shape}")
        return X, y

    def _more_to_write(self) -> dict[str, Any]:
        return {"classes": write_labels(self.classes_)}

    def _read_more(self, content: dict[str, Any]) -> None:
        self.classes_ = read_labels(content["classes"], self.model_.classes)


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
