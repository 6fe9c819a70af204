"""Inputs from the user's units to the domain `[-1, 1]` and targets back; repeated and weighted samples."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from polybound.errors import PolyboundError

Array = npt.NDArray[np.float64]

CLIP = 3.0
"""Standard deviations beyond which an input counts as no larger."""
_CONSTANT = 1e-13
_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True, eq=False)
class InputScaling:
    """`u(x) = clip((x - mean) / width, -1, 1)` feature by feature, with a width of three standard deviations.

    A feature that never varied says nothing: its width is infinite and its u is zero, whatever it is later.

    Attributes:
        mean: (features,).
        std: standard deviations, (features,); zero of what never varied.
        weight: of all samples seen, so that more can be joined.
    """

    mean: Array
    std: Array
    weight: float

    @classmethod
    def of(cls, X: Array, weight: Array) -> Self:
        """The scaling of some samples, each with its weight."""
        mean, std = _moments(X, weight)
        return cls(mean, std, float(weight.sum()))

    def joined(self, more: InputScaling) -> InputScaling:
        """The scaling of the samples of both (Chan's formula)."""
        total = self.weight + more.weight
        share = more.weight / total
        away = more.mean - self.mean
        within = np.hypot(np.sqrt(1 - share) * self.std, np.sqrt(share) * more.std)
        std = np.hypot(within, np.sqrt(share * (1 - share)) * away)
        return InputScaling(self.mean + share * away, std, total)

    @property
    def width(self) -> Array:
        """What one unit of u is in the user's units, (features,); infinite of what never varied."""
        with np.errstate(over="ignore"):
            return np.where(self.std > 0, np.minimum(CLIP * self.std, _LARGEST), np.inf)

    def __call__(self, X: Array) -> Array:
        """U of float64 inputs, in float64."""
        width = self.width
        with np.errstate(over="ignore", invalid="ignore"):
            u = np.clip((X - self.mean) / width, -1.0, 1.0)
        return np.where(np.isinf(width), 0.0, u)

    def box(self, X: Array, eps: Array) -> tuple[Array, Array]:
        """Sides `(lower, upper)` with `lower <= u(x') <= upper` for all x' with `|x' - x| <= eps`, cut to the domain.

        That holds for u in real numbers, and for u as `__call__` computes it. Proof: let `a` be the float64 number
        below `fl(x - eps)`. Then `a <= x - eps <= x'`. Subtraction and division by a positive number are rounded to
        nearest, which is monotone, and so is the clip; so `u(a) <= u(x')` as computed. In real numbers `u(a) <= u(x')`
        as well, and the computed u(a) is off by two roundings, a factor within `1 +- 2^-51`, and by 2^-1074 where it
        underflows. The sides are moved by 2^-50 of themselves and by 2^-1000, which is more. With eps = 0, a = x.

        Args:
            X: (samples, features), finite.
            eps: (samples, features), not negative; infinite where a feature may be anything.
        """
        with np.errstate(over="ignore"):
            low = np.where(eps > 0, np.nextafter(X - eps, -np.inf), X)
            high = np.where(eps > 0, np.nextafter(X + eps, np.inf), X)
        lower, upper = self(low), self(high)
        fixed = np.isinf(self.width)
        lower = np.where(fixed, 0.0, lower - (np.abs(lower) * 2.0**-50 + 2.0**-1000))
        upper = np.where(fixed, 0.0, upper + (np.abs(upper) * 2.0**-50 + 2.0**-1000))
        return np.maximum(lower, -1.0), np.minimum(upper, 1.0)

    def back(self, U: Array, nearest: Array) -> Array:
        """Inputs x with `u(x)` near U; where a feature never varied, or x would be cut off, that of `nearest`."""
        width = self.width
        usable = np.isfinite(width)
        x = self.mean + np.where(usable, width, 0.0) * U
        # Many x have the same u beyond the clip: the one closest to where we come from is inside of its box.
        beyond = (self(nearest) == U) | ~usable
        return np.where(beyond, nearest, x)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain types, for JSON, which keeps float64 exactly."""
        return {"mean": self.mean.tolist(), "std": self.std.tolist(), "weight": self.weight}


@dataclass(frozen=True, eq=False)
class TargetScaling:
    """`y = mean + std f`, output by output; a target that never varied has std 1.

    Attributes:
        mean: (outputs,).
        std: (outputs,), positive.
    """

    mean: Array
    std: Array

    @classmethod
    def of(cls, y: Array, weight: Array) -> Self:
        """The scaling of targets (samples, outputs), each sample with its weight."""
        mean, std = _moments(y, weight)
        return cls(mean, np.where(std > 0, std, 1.0))

    def shrink(self, y: Array) -> Array:
        """Targets in units of their standard deviations."""
        return (y - self.mean) / self.std

    def __call__(self, f: Array) -> Array:
        """Predictions (samples, outputs) in the user's units."""
        return self.mean + self.std * f

    def outwards(self, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Sides that contain `mean + std f` for all `lower <= f <= upper`, in real numbers and as computed.

        As computed, both roundings are monotone. In real numbers the product and the sum are each off by half an ulp
        at most; the next numbers outwards, after each of them, are not inside.
        """
        low = np.nextafter(self.mean + np.nextafter(self.std * lower, -np.inf), -np.inf)
        high = np.nextafter(self.mean + np.nextafter(self.std * upper, np.inf), np.inf)
        return low, high

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain types, for JSON, which keeps float64 exactly."""
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}


def _moments(values: Array, weight: Array) -> tuple[Array, Array]:
    """Means and standard deviations of columns; a deviation that is within the rounding of the values is zero."""
    peak = np.abs(values).max(0)
    peak = np.where(peak > 0, peak, 1.0)
    share = weight / weight.max()
    share = (share / share.sum())[:, None]
    scaled = values / peak  # so that no square overflows
    mean = (share * scaled).sum(0)
    std = np.sqrt((share * (scaled - mean) ** 2).sum(0))
    varies = (values.max(0) > values.min(0)) & (std > _CONSTANT)
    return np.clip(mean, -1.0, 1.0) * peak, np.where(varies, std * peak, 0.0)


# WeightedSamples in an order of their own, equal ones merged. Integer weights equal repetition, bit for bit.


MOST = 2**27
"""The most numbers that repeated rows may have: 1 GiB of float64."""


class WeightedSamples(NamedTuple):
    """What to train on: inputs (samples, features), targets (samples,) or (samples, outputs), and positive weights."""

    X: Array
    y: npt.NDArray[Any]
    weight: Array


def merged(X: Array, y: npt.NDArray[Any], weight: Array) -> WeightedSamples:
    """Distinct samples, in the order of a hash of their content, with the sums of their weights.

    Batches are drawn from this order. So a fit depends neither on the order in which samples are given, nor on whether
    a sample is given twice or has a weight of two; a sample whose weight is zero is as good as absent.
    """
    if not (weight > 0).any():
        raise PolyboundError("all sample weights are zero: there is nothing to fit")
    # Adding zero gives -0 and 0 one form.
    rows, targets = np.ascontiguousarray(X + 0.0), np.ascontiguousarray(y)
    sums: dict[bytes, float] = {}
    first: dict[bytes, int] = {}
    for i in np.flatnonzero(weight > 0).tolist():
        key = blake2b(rows[i].tobytes() + targets[i].tobytes(), digest_size=16).digest()
        sums[key] = sums.get(key, 0.0) + float(weight[i])
        first.setdefault(key, i)
    keys = sorted(sums)
    chosen = np.array([first[key] for key in keys])
    return WeightedSamples(rows[chosen], targets[chosen], np.array([sums[key] for key in keys]))


def repeated(samples: WeightedSamples) -> WeightedSamples:
    """The same samples without weights, each as often as its weight says, if all weights are whole numbers.

    Raises:
        PolyboundError: these would be more numbers than `MOST`.
    """
    if (np.floor(samples.weight) != samples.weight).any():
        return samples
    total, features = float(samples.weight.sum()), samples.X.shape[1]
    if total > len(samples.X) and total * features > MOST:
        raise PolyboundError(
            f"this method repeats a sample as often as its weight says: {total:.3g} rows of {features} features, and "
            f"at most {MOST // features:,} are repeated; divide the weights by a common factor"
        )
    counts = samples.weight.astype(np.int64)
    rows = np.repeat(np.arange(len(counts)), counts)
    return WeightedSamples(samples.X[rows], samples.y[rows], np.ones(len(rows)))


def scaled_weights(weight: Array) -> Array | None:
    """Weights with a mean of one; None where all are equal."""
    if (weight == weight[0]).all():
        return None
    share: Array = weight / weight.max()
    return share / float(share.mean())
