"""What both estimators share: settings, validation, scaling, the network and its training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from operator import index
from os import PathLike
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from polybound.certificates import PreparedNetwork
from polybound.errors import PolyboundError, check_choice, check_norm
from polybound.estimator import files
from polybound.estimator.scaling import Array, InputScaling, Samples, merged, repeated, scaled_weights
from polybound.models import CCP, NCP, PolynomialNetwork
from polybound.theory import Bound
from polybound.training import METHODS, History, Method, Recipe, fit

__all__ = [
    "PolynomialEstimator",
    "Settings",
    "check_masked",
    "check_settings",
    "evaluate",
    "make_network",
    "rounding",
    "train",
]


# The network of an estimator: how it is made, trained, and evaluated in the arithmetic that certificates speak of.


FORMS = ("residual", "product", "nested")
_PATIENCE = 10
"""Epochs without a better validation after which early stopping stops."""


Settings = Any
"""An estimator, for its parameters: `PolynomialClassifier` says what each of them means."""


def check_settings(settings: Settings, **more: Any) -> None:
    """Refuse a parameter that cannot be, whether this training uses it or not.

    Args:
        settings: the estimator.
        **more: further options of the recipe: the loss, the label smoothing.
    """
    check_choice("form", settings.form, FORMS)
    _whole("rank", settings.rank)
    _whole("degree", settings.degree)
    check_norm(settings.norm)
    if not 0 < _number("validation_fraction", settings.validation_fraction) < 1:
        raise PolyboundError(
            f"validation_fraction must lie between 0 and 1, without them, got {settings.validation_fraction!r}"
        )
    _patience(settings.early_stopping)
    _device(settings.device)
    Recipe.for_data(1, 1, recipe_options(settings, **more))


def make_network(settings: Settings, features: int, outputs: int, seed: int) -> PolynomialNetwork:
    """The network with its initial weights, in float32."""
    sizes = (features, _whole("rank", settings.rank), outputs, _whole("degree", settings.degree))
    if settings.form == "nested":
        return NCP(*sizes, seed=seed)
    return CCP(*sizes, settings.form, seed=seed)


def train(
    settings: Settings, model: PolynomialNetwork, samples: Samples, seed: int, once: bool = False, **more: Any
) -> History:
    """Train the network in place, on the device asked for; afterwards it is on the CPU.

    Args:
        settings: the estimator.
        model: the network.
        samples: scaled ones.
        seed: of the batches and the validation share.
        once: make one pass at a constant rate.
        **more: further options of the recipe.
    """
    if _has_own_loss(settings.method):
        samples = repeated(samples)
    options = recipe_options(settings, **more)
    if once:
        options |= {"schedule": "constant", "epochs": 1}
    elif settings.early_stopping:
        options["early_stopping"] = _patience(settings.early_stopping)
        options["validation"] = _number("validation_fraction", settings.validation_fraction)
    model.to(_device(settings.device))
    try:
        return fit(
            model,
            torch.from_numpy(samples.X.astype(np.float32)),
            torch.from_numpy(samples.y),
            seed=seed,
            sample_weight=scaled_weights(samples.weight),
            domain=(-1.0, 1.0),
            verbose=bool(settings.verbose),
            **options,
        )
    finally:
        model.to("cpu").eval()


def recipe_options(settings: Settings, **more: Any) -> dict[str, Any]:
    """What the parameters change in the default recipe, as options of `fit`; "auto" changes nothing."""
    options = {"optimiser": settings.optimiser, "batch_size": _whole("batch_size", settings.batch_size), **more}
    if settings.epochs != "auto":
        options["epochs"] = _whole("epochs", settings.epochs)
    for name in ("learning_rate", "weight_decay"):
        if (value := getattr(settings, name)) != "auto":
            options[name] = _number(name, value)
    if settings.adversary is not None:
        options["adversary"] = settings.adversary
    if _has_own_loss(settings.method):
        options.pop("label_smoothing", None)
    return options | _method(settings)


def _method(settings: Settings) -> dict[str, Any]:
    method = settings.method
    if settings.bound is not None:
        if method not in (None, "projection"):
            raise PolyboundError(f"a bound goes with method='projection', not with {method!r}")
        return {"method": "projection", "bound": settings.bound, "norm": settings.norm}
    return {} if method is None else {"method": method}


def _has_own_loss(method: Any) -> bool:
    """Whether a method's loss knows neither weights nor label smoothing."""
    part = method if isinstance(method, Method) else METHODS.build("none" if method is None else method)
    return part.own_loss


def _patience(early_stopping: Any) -> int:
    """Epochs without a better validation after which to stop; 0 for no early stopping."""
    if isinstance(early_stopping, bool | np.bool_):
        return _PATIENCE if early_stopping else 0
    return _whole("early_stopping", early_stopping)


def _whole(name: str, value: Any) -> int:
    """A whole number, numpy's among them."""
    try:
        number = index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or number < 1:
        raise PolyboundError(f"{name} must be a whole number of at least 1, got {value!r}")
    return number


def _number(name: str, value: Any) -> float:
    """A number, numpy's among them."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        raise PolyboundError(f"{name} must be a number, got {value!r}")
    return float(value)


def _device(name: Any) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, TypeError, AssertionError) as error:
        raise PolyboundError(f"device {name!r} cannot be used here") from error
    return device


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


class PolynomialEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A polynomial network on scaled inputs; `PolynomialClassifier` and `PolynomialRegressor` say the rest."""

    random_state: Any
    _batch_seed: int
    model_: PolynomialNetwork
    history_: History
    bounds_: dict[str, Bound]
    n_iter_: int
    n_features_in_: int
    scaling_: InputScaling

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
        """Change the estimator as a whole: if anything fails inside, it is what it was before."""
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

    def _fit(self, X: Array, targets: npt.NDArray[Any], weight: Array, outputs: int, **more: Any) -> None:
        """Scale and train from the beginning; targets are class numbers, or values (samples, outputs)."""
        samples = merged(X, targets, weight)
        self._begin(samples, outputs)
        self.scaling_ = InputScaling.of(samples.X, samples.weight)
        self.history_ = self._train(samples, **more)
        self.n_iter_ = len(self.history_)

    def _go_on(self, X: Array, targets: npt.NDArray[Any], weight: Array, outputs: int, **more: Any) -> None:
        """One pass over more samples, at a constant learning rate; the scaling follows all that were seen."""
        samples = merged(X, targets, weight)
        scaling = InputScaling.of(samples.X, samples.weight)
        if hasattr(self, "model_"):
            self.model_, self.history_ = deepcopy(self.model_), deepcopy(self.history_)  # what is there stays whole
            self.scaling_ = self.scaling_.joined(scaling)
        else:
            self._begin(samples, outputs)
            self.scaling_ = scaling
        done = self._train(samples, once=True, **more)
        for line in done:
            self.history_.lines.append(dict(line) | {"epoch": len(self.history_) + 1})
        self.n_iter_ += 1

    def _begin(self, samples: Samples, outputs: int) -> None:
        """The network before its first step."""
        self._batch_seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.model_ = make_network(self, samples.X.shape[1], outputs, self._batch_seed)
        self.history_, self.n_iter_ = History(), 0

    def _train(self, samples: Samples, **more: Any) -> History:
        ready = samples._replace(X=self.scaling_(samples.X), y=self._scaled_targets(samples.y))
        return train(self, self.model_, ready, self._batch_seed + self.n_iter_, **more)

    def _scaled_targets(self, targets: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What the network learns from targets."""
        return targets

    def _outputs(self, X: Any) -> Array:
        """The network's outputs (samples, outputs), in float64."""
        X = self._inputs(X)
        return evaluate(PreparedNetwork(self.model_), self.scaling_(X))

    def _more_to_write(self) -> dict[str, Any]:
        """What else a file needs, as JSON can hold it."""
        raise NotImplementedError

    def _read_more(self, content: dict[str, Any]) -> None:
        """Take out of a file's content what `_more_to_write` put there."""
        raise NotImplementedError

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator to a safetensors file; `load` reads it. Nothing is pickled.

        `polybound.load` reads the network of the same file.
        """
        check_is_fitted(self)
        files.save(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read an estimator that `save` wrote: it predicts, certifies and goes on as the one that was written.

        Raises:
            FileFormatError: the file is damaged, or holds something else.
        """
        return files.load(cls, path)


def check_masked(name: str, values: Any) -> None:
    """Refuse an array whose mask hides entries: nothing here would honour it."""
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        raise PolyboundError(f"{name} is a masked array with masked entries: fill them, or leave the samples out")


def _dense(X: Any) -> Array:
    dense: Array = X.toarray() if hasattr(X, "toarray") else X
    return dense
