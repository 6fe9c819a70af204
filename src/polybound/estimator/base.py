"""What both estimators share: validation, scaling, training, certificates' boxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from os import PathLike
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from polybound.certificates import Network
from polybound.errors import PolyboundError
from polybound.estimator import files
from polybound.estimator.network import evaluate, make_network, train
from polybound.estimator.samples import Samples, merged
from polybound.estimator.scaling import Array, InputScaling
from polybound.models import PolynomialNetwork
from polybound.theory import Bound
from polybound.training import History

__all__ = ["PolynomialEstimator", "check_masked"]


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
        return evaluate(Network(self.model_), self.scaling_(X))

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
