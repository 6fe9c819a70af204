"""What both estimators share: settings, validation, scaling, the network and its training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from polybound.certificates import PreparedNetwork
from polybound.errors import PolyboundError, check_choice, check_int, check_norm
from polybound.estimator.files import Stored
from polybound.estimator.scaling import Array, InputScaling, WeightedSamples, merged, repeated, scaled_weights
from polybound.models import CCP, NCP, PolynomialNetwork
from polybound.theory import Bound
from polybound.training import METHODS, History, Method, Recipe, fit

FORMS = ("residual", "product", "nested")
_PATIENCE = 10
"""Epochs without a better validation after which early stopping stops."""


@dataclass(kw_only=True, eq=False, repr=False)
class PolynomialEstimator(Stored, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A polynomial network on scaled inputs; `PolynomialClassifier` and `PolynomialRegressor` say the rest."""

    degree: Any = 3
    rank: Any = 64
    form: Any = "product"
    bound: Any = None
    norm: Any = "inf"
    method: Any = None
    optimiser: Any = "adamw"
    learning_rate: Any = "auto"
    weight_decay: Any = "auto"
    epochs: Any = "auto"
    batch_size: Any = 64
    early_stopping: Any = False
    validation_fraction: Any = 0.1
    random_state: Any = None
    verbose: Any = False
    device: Any = "cpu"
    # What training adds.
    model_: PolynomialNetwork = field(init=False)
    history_: History = field(init=False)
    bounds_: dict[str, Bound] = field(init=False)
    n_iter_: int = field(init=False)
    n_features_in_: int = field(init=False)
    scaling_: InputScaling = field(init=False)
    _batch_seed: int = field(init=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    @property
    def _names(self) -> Sequence[str] | None:
        """The names of the features, if there are any."""
        names: Sequence[str] | None = getattr(self, "feature_names_in_", None)
        return names

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Undo all changes of the estimator if anything fails inside."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _inputs(self, X: Any) -> Array:
        """Inputs as float64, (samples, features), of a fitted estimator."""
        check_is_fitted(self)
        check_masked("X", X)
        return _dense(validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float64))

    def _training_data(
        self, X: Any, y: Any, sample_weight: Any, reset: bool, **options: Any
    ) -> tuple[Array, Any, Array]:
        """Inputs, targets and weights, checked as scikit-learn does."""
        for name, values in (("X", X), ("y", y), ("sample_weight", sample_weight)):
            check_masked(name, values)
        X, y = validate_data(self, X, y, reset=reset, accept_sparse="csr", dtype=np.float64, **options)
        X = _dense(X)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        return X, y, weight

    def _check_settings(self) -> None:
        """Refuse a parameter that cannot be, whether this training uses it or not."""
        check_choice("form", self.form, FORMS)
        _whole("rank", self.rank)
        _whole("degree", self.degree)
        check_norm(self.norm)
        share = self.validation_fraction
        if isinstance(share, bool) or not isinstance(share, int | float | np.number) or not 0 < share < 1:
            raise PolyboundError(f"validation_fraction must lie between 0 and 1, without them, got {share!r}")
        self._patience()
        self._device()
        Recipe.for_data(1, 1, self._recipe_options())

    def _own_options(self) -> dict[str, Any]:
        """The options of the recipe that only this kind of estimator has: the loss, the label smoothing."""
        raise NotImplementedError

    def _recipe_options(self) -> dict[str, Any]:
        """What the parameters change in the default recipe, as options of `fit`; "auto" changes nothing."""
        options = {"optimiser": self.optimiser, "batch_size": _whole("batch_size", self.batch_size)}
        options |= self._own_options()
        if self.epochs != "auto":
            options["epochs"] = _whole("epochs", self.epochs)
        for name in ("learning_rate", "weight_decay"):
            if (value := getattr(self, name)) != "auto":
                options[name] = _plain(value)
        if self._has_own_loss():
            options.pop("label_smoothing", None)
        if self.bound is not None:
            if self.method not in (None, "projection"):
                raise PolyboundError(f"a bound goes with method='projection', not with {self.method!r}")
            return options | {"method": "projection", "bound": self.bound, "norm": self.norm}
        return options if self.method is None else options | {"method": self.method}

    def _has_own_loss(self) -> bool:
        """Whether the method's loss knows neither weights nor label smoothing."""
        method = "none" if self.method is None else self.method
        return (method if isinstance(method, Method) else METHODS.build(method)).own_loss

    def _patience(self) -> int:
        """Epochs without a better validation after which to stop; 0 for no early stopping."""
        if isinstance(self.early_stopping, bool | np.bool_):
            return _PATIENCE if self.early_stopping else 0
        return _whole("early_stopping", self.early_stopping)

    def _device(self) -> torch.device:
        try:
            device = torch.device(self.device)
            torch.empty(1, device=device)
        except (RuntimeError, TypeError, AssertionError) as error:
            raise PolyboundError(f"device {self.device!r} cannot be used here") from error
        return device

    def _fit(self, X: Array, targets: npt.NDArray[Any], weight: Array, outputs: int) -> None:
        """Scale and train from the beginning; targets are class numbers, or values (samples, outputs)."""
        samples = merged(X, targets, weight)
        self._begin(samples, outputs)
        self.scaling_ = InputScaling.of(samples.X, samples.weight)
        options = self._recipe_options()
        if self.early_stopping:
            options |= {"early_stopping": self._patience(), "validation": float(self.validation_fraction)}
        self.history_ = self._train(samples, options)
        self.n_iter_ = len(self.history_)

    def _go_on(self, X: Array, targets: npt.NDArray[Any], weight: Array, outputs: int) -> None:
        """One pass over more samples, at a constant learning rate; the scaling follows all that were seen."""
        samples = merged(X, targets, weight)
        scaling = InputScaling.of(samples.X, samples.weight)
        if hasattr(self, "model_"):
            self.model_, self.history_ = deepcopy(self.model_), deepcopy(self.history_)  # what is there stays whole
            self.scaling_ = self.scaling_.joined(scaling)
        else:
            self._begin(samples, outputs)
            self.scaling_ = scaling
        done = self._train(samples, self._recipe_options() | {"schedule": "constant", "epochs": 1})
        for line in done:
            self.history_.lines.append(dict(line) | {"epoch": len(self.history_) + 1})
        self.n_iter_ += 1

    def _begin(self, samples: WeightedSamples, outputs: int) -> None:
        """The network before its first step, in float32."""
        self._batch_seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        sizes = (samples.X.shape[1], _whole("rank", self.rank), outputs, _whole("degree", self.degree))
        if self.form == "nested":
            self.model_ = NCP(*sizes, seed=self._batch_seed)
        else:
            self.model_ = CCP(*sizes, self.form, seed=self._batch_seed)
        self.history_, self.n_iter_ = History(), 0

    def _train(self, samples: WeightedSamples, options: dict[str, Any]) -> History:
        """Train the network in place, on the device asked for; afterwards it is on the CPU."""
        samples = samples._replace(X=self.scaling_(samples.X), y=self._scaled_targets(samples.y))
        if self._has_own_loss():
            samples = repeated(samples)
        self.model_.to(self._device())
        try:
            return fit(
                self.model_,
                torch.from_numpy(samples.X.astype(np.float32)),
                torch.from_numpy(samples.y),
                seed=self._batch_seed + self.n_iter_,
                sample_weight=scaled_weights(samples.weight),
                domain=(-1.0, 1.0),
                verbose=bool(self.verbose),
                **options,
            )
        finally:
            self.model_.to("cpu").eval()

    def _scaled_targets(self, targets: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The targets as the network learns them."""
        return targets

    def _outputs(self, X: Any) -> Array:
        """The network's outputs (samples, outputs), in float64."""
        X = self._inputs(X)
        return evaluate(PreparedNetwork(self.model_), self.scaling_(X))

    def _more_to_write(self) -> dict[str, Any]:
        """Further content of a file, as JSON can hold it."""
        raise NotImplementedError

    def _read_more(self, content: dict[str, Any]) -> None:
        """Read the content that `_more_to_write` wrote."""
        raise NotImplementedError


def check_masked(name: str, values: Any) -> None:
    """Refuse an array whose mask hides entries: nothing here would honour it."""
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        raise PolyboundError(f"{name} is a masked array with masked entries: fill them, or leave the samples out")


def _dense(X: Any) -> Array:
    dense: Array = X.toarray() if hasattr(X, "toarray") else X
    return dense


def _plain(value: Any) -> Any:
    """A number as Python's, numpy's among them."""
    return value.item() if isinstance(value, np.generic) else value


def _whole(name: str, value: Any) -> int:
    return check_int(name, _plain(value))


def evaluate(net: PreparedNetwork, inputs: Array) -> Array:
    """The outputs (samples, outputs) in float64, off from the polynomial in real numbers by less than `rounding`."""
    with torch.no_grad():
        outputs: Array = net(torch.from_numpy(inputs)).numpy()
    return outputs


def rounding(net: PreparedNetwork, lower: Array, upper: Array) -> Array:
    """How far `evaluate` can be off anywhere in each of some boxes: (samples, outputs)."""
    with torch.no_grad():
        slack: Array = net.slack(torch.from_numpy(np.maximum(np.abs(lower), np.abs(upper)))).numpy()
    return slack
