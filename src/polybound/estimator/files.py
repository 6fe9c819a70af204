"""Estimators on disk: the network's safetensors file, with everything else as JSON in its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from os import PathLike
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from polybound._version import __version__
from polybound.attacks import Attack
from polybound.errors import FileFormatError, PolyboundError, reason
from polybound.estimator.scaling import Array, InputScaling
from polybound.models import load as load_network
from polybound.models import read_metadata
from polybound.models import save as save_network
from polybound.registry import Component
from polybound.theory import Bound, Generalisation
from polybound.training import Adversary, History

_KEY = "polybound-estimator"
_PARTS = ("margin_error", "complexity", "deviation")


class Stored:
    """An estimator that can be written to a file and read."""

    def save(self: Any, path: str | PathLike[str]) -> None:
        """Write the fitted estimator to a safetensors file; `load` reads it. Nothing is pickled.

        `polybound.load` reads the network of the same file.
        """
        check_is_fitted(self)
        content: dict[str, Any] = {
            "version": __version__,
            "kind": type(self).__name__,
            "parameters": {name: _parameter(name, value) for name, value in self.get_params(deep=False).items()},
            "scaling": self.scaling_.as_dict(),
            "seed": self._batch_seed,
            "epochs": self.n_iter_,
            "history": self.history_.lines,
            "bounds": {name: _bound(bound) for name, bound in self.bounds_.items()},
            "feature names": [str(name) for name in getattr(self, "feature_names_in_", ())],
        } | self._more_to_write()
        save_network(self.model_, path, {_KEY: json.dumps(content, allow_nan=False, default=_plain)})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read an estimator that `save` wrote: it predicts, certifies and goes on as the one that was written.

        Raises:
            FileFormatError: the file is damaged, or holds something else.
        """
        network, text, kind = load_network(path), read_metadata(path).get(_KEY), cls.__name__
        if text is None:
            raise FileFormatError(f"{path}: a network, but not an estimator; polybound.load reads it")
        try:
            content = json.loads(text)
            if content["kind"] != kind:
                raise FileFormatError(f"{path}: holds a {content['kind']}, not a {kind}")
            parameters = dict(content["parameters"])
            if isinstance(parameters.get("class_weight"), list):
                parameters["class_weight"] = dict(parameters["class_weight"])
            estimator: Any = cls(**parameters)
            estimator.model_ = network.eval()
            mean, std = read_scaling(content["scaling"], network.features)
            estimator.scaling_ = InputScaling(mean, std, float(content["scaling"]["weight"]))
            estimator._batch_seed, estimator.n_iter_ = int(content["seed"]), int(content["epochs"])
            estimator.n_features_in_ = network.features
            estimator.history_ = History([dict(line) for line in content["history"]])
            estimator.bounds_ = {}
            for name, bound in content["bounds"].items():
                made = Generalisation if set(_PARTS) <= set(bound) else Bound
                numbers = {part: float(bound[part]) for part in ("value", *_PARTS) if part in bound}
                estimator.bounds_[name] = made(**bound | numbers | {"assumptions": tuple(bound["assumptions"])})
            if names := content["feature names"]:
                estimator.feature_names_in_ = np.array(names, dtype=object)
            estimator._read_more(content)
        except FileFormatError:
            raise
        except (PolyboundError, TypeError, KeyError, ValueError, AttributeError, RecursionError) as error:
            raise FileFormatError(f"{path}: its metadata are not those of a {kind} ({reason(error)})") from error
        return estimator  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r} cannot be written as JSON")


def _parameter(name: str, value: Any) -> Any:
    """A parameter as JSON can hold it."""
    if name == "random_state" and not isinstance(value, int | np.integer):
        return None  # a generator is not part of what was fitted
    if isinstance(value, Component):
        return value.as_dict()
    if name == "class_weight" and isinstance(value, Mapping):
        return [[label, float(weight)] for label, weight in value.items()]  # keys of JSON are texts
    if isinstance(value, Adversary):
        return value.as_dict()
    if isinstance(value, Attack):
        return value.name
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=_plain))
    except (TypeError, ValueError) as error:
        raise PolyboundError(f"{name}={value!r} cannot be saved: give it as text, numbers or a mapping") from error


def write_labels(labels: npt.NDArray[Any]) -> dict[str, Any]:
    """Labels with their type, as JSON can hold them: texts, numbers, truth values."""
    values = labels.tolist()
    if not all(isinstance(value, str | int | float) for value in values):
        raise PolyboundError(f"labels of type {type(values[0]).__name__} cannot be saved; use texts or numbers")
    return {"type": labels.dtype.str, "values": values}


def read_labels(content: dict[str, Any], count: int) -> npt.NDArray[Any]:
    """Labels as `write_labels` wrote them."""
    dtype = np.dtype(content["type"])
    labels = np.array(content["values"], dtype=dtype)
    if dtype.kind not in "biufUO" or labels.shape != (count,) or len(np.unique(labels)) != count:
        raise PolyboundError("its labels do not fit its network")
    return labels


def read_scaling(content: dict[str, Any], size: int) -> tuple[Array, Array]:
    """Means and standard deviations as the `as_dict` of a scaling wrote them."""
    mean, std = (np.array(content[name], dtype=np.float64) for name in ("mean", "std"))
    if mean.shape != (size,) or std.shape != (size,) or not (np.isfinite(mean) & (std >= 0)).all():
        raise PolyboundError("its scaling does not fit its network")
    return mean, std


def _bound(bound: Bound) -> dict[str, Any]:
    """A bound with all its fields; those of `as_dict`, and the parts of a generalisation statement.

    JSON has no infinity, which a bound of denormal data can be: it is written as a text.
    """
    content = bound.as_dict() | {name: getattr(bound, name) for name in ("value", *_PARTS) if hasattr(bound, name)}
    endless = {name: str(value) for name, value in content.items() if isinstance(value, float) and not isfinite(value)}
    return content | endless
