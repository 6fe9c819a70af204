"""The network of an estimator: how it is made, trained, and evaluated in the arithmetic that certificates speak of."""

from __future__ import annotations

from math import ceil, sqrt
from operator import index
from typing import Any, Protocol

import numpy as np
import torch

from polybound.certificates import Network
from polybound.errors import PolyboundError
from polybound.estimator.samples import Samples, repeated, scaled_weights
from polybound.estimator.scaling import Array
from polybound.models import CCP, NCP, PolynomialNetwork
from polybound.registry import check_choice
from polybound.training import METHODS, History, Method, fit

__all__ = ["Settings", "evaluate", "make_network", "rounding", "train"]

FORMS = ("residual", "product", "nested")
_RATES = {"adamw": 3e-3, "momentum": 0.02, "sgd": 0.2}
_PATIENCE = 10
"""Epochs without a better validation after which early stopping stops."""
_STEPS, _LEAST_EPOCHS, _MOST_EPOCHS = 3000, 20, 200


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


def make_network(settings: Settings, features: int, outputs: int, seed: int) -> PolynomialNetwork:
    """The network with its initial weights, in float32."""
    check_choice("form", settings.form, FORMS)
    sizes = (features, _whole("rank", settings.rank), outputs, _whole("degree", settings.degree))
    if settings.form == "nested":
        return NCP(*sizes, seed=seed)
    return CCP(*sizes, settings.form, seed=seed)


def train(settings: Settings, model: PolynomialNetwork, samples: Samples, seed: int, **more: Any) -> History:
    """Train the network in place, on the device asked for; afterwards it is on the CPU.

    Args:
        settings: the estimator.
        model: the network.
        samples: scaled ones.
        seed: of the batches and the validation share.
        **more: further options of `fit`; `once` for one pass at a constant rate.
    """
    if _has_own_loss(settings.method):
        samples = repeated(samples)
    options = recipe_options(settings, samples, **more)
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


def recipe_options(settings: Settings, samples: Samples, once: bool = False, **more: Any) -> dict[str, Any]:
    """The recipe, as flat options of `fit`."""
    count, features = samples.X.shape
    batch = min(_whole("batch_size", settings.batch_size), count)
    options: dict[str, Any] = {
        "optimiser": settings.optimiser,
        "schedule": "constant" if once else "cosine",
        "epochs": 1 if once else _epochs(settings.epochs, count, batch),
        "batch_size": batch,
        "learning_rate": _rate(settings, features),
    }
    if settings.optimiser == "adamw" or settings.weight_decay != "auto":
        options["weight_decay"] = _decay(settings.weight_decay, count, features)
    if settings.adversary is not None:
        options["adversary"] = settings.adversary
    if settings.early_stopping and not once:
        patience = _PATIENCE if settings.early_stopping is True else _whole("early_stopping", settings.early_stopping)
        options |= {
            "validation": _number("validation_fraction", settings.validation_fraction),
            "early_stopping": patience,
        }
    options |= _method(settings) | more
    if _has_own_loss(settings.method):
        options.pop("label_smoothing", None)
    return options


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


def _rate(settings: Settings, features: int) -> float:
    """`rate sqrt(64 / features)`, at most the rate: a step moves the sum over all features."""
    if settings.learning_rate != "auto":
        return _number("learning_rate", settings.learning_rate)
    if settings.optimiser not in _RATES:
        raise PolyboundError(f"optimiser {settings.optimiser!r} needs a learning_rate")
    return _RATES[settings.optimiser] * min(1.0, sqrt(64 / features))


def _epochs(epochs: object, samples: int, batch: int) -> int:
    """As asked for, or as many as make some 3,000 steps, from 20 to 200."""
    if epochs != "auto":
        return _whole("epochs", epochs)
    return min(_MOST_EPOCHS, max(_LEAST_EPOCHS, ceil(_STEPS / ceil(samples / batch))))


def _decay(decay: Any, samples: int, features: int) -> float:
    """As asked for, or `25 features / samples`, from 0.1 to 1: what few samples leave open is kept small."""
    return min(1.0, max(0.1, 25 * features / samples)) if decay == "auto" else _number("weight_decay", decay)


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
    try:
        return float(value)
    except (TypeError, ValueError):
        raise PolyboundError(f"{name} must be a number, got {value!r}") from None


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
