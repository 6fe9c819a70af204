"""The network of an estimator: how it is made, trained, and evaluated in the arithmetic that certificates speak of."""

from __future__ import annotations

from operator import index
from typing import Any, Protocol

import numpy as np
import torch

from polybound.certificates import Network
from polybound.errors import PolyboundError
from polybound.estimator.samples import Samples, repeated, scaled_weights
from polybound.estimator.scaling import Array
from polybound.models import CCP, NCP, PolynomialNetwork
from polybound.registry import check_choice, norm_name
from polybound.training import METHODS, History, Method, Recipe, fit

__all__ = ["Settings", "check_settings", "evaluate", "make_network", "rounding", "train"]

FORMS = ("residual", "product", "nested")
_PATIENCE = 10
"""Epochs without a better validation after which early stopping stops."""


class Settings(Protocol):
    """What the estimators have in common; `PolynomialClassifier` says what each of it means."""

    degree: Any
    rank: Any
    form: Any
    bound: Any
    norm: Any
    method: Any
    adversary: Any
    optimiser: Any
    learning_rate: Any
    weight_decay: Any
    epochs: Any
    batch_size: Any
    early_stopping: Any
    validation_fraction: Any
    verbose: Any
    device: Any


def check_settings(settings: Settings, **more: Any) -> None:
    """Refuse a parameter that cannot be, whether this training uses it or not.

    Args:
        settings: the estimator.
        **more: further options of the recipe: the loss, the label smoothing.
    """
    check_choice("form", settings.form, FORMS)
    _whole("rank", settings.rank)
    _whole("degree", settings.degree)
    norm_name(settings.norm)
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


def evaluate(net: Network, inputs: Array) -> Array:
    """The outputs (samples, outputs) in float64, off from the polynomial in real numbers by less than `rounding`."""
    with torch.no_grad():
        outputs: Array = net(torch.from_numpy(inputs)).numpy()
    return outputs


def rounding(net: Network, lower: Array, upper: Array) -> Array:
    """How far `evaluate` can be off anywhere in each of some boxes: (samples, outputs)."""
    with torch.no_grad():
        slack: Array = net.slack(torch.from_numpy(np.maximum(np.abs(lower), np.abs(upper)))).numpy()
    return slack
