"""Samples in an order of their own, equal ones merged: a weight of two is a sample given twice, to the bit."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from polybound.errors import PolyboundError
from polybound.estimator.scaling import Array

__all__ = ["MOST", "Samples", "merged", "repeated", "scaled_weights"]

MOST = 2**27
"""The most numbers that repeated rows may have: 1 GiB of float64."""


class Samples(NamedTuple):
    """What to train on: inputs (samples, features), targets (samples,) or (samples, outputs), and positive weights."""

    X: Array
    y: npt.NDArray[Any]
    weight: Array


def merged(X: Array, y: npt.NDArray[Any], weight: Array) -> Samples:
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
    return Samples(rows[chosen], targets[chosen], np.array([sums[key] for key in keys]))


def repeated(samples: Samples) -> Samples:
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
    return Samples(samples.X[rows], samples.y[rows], np.ones(len(rows)))


def scaled_weights(weight: Array) -> Array | None:
    """Weights with a mean of one; None where all are equal."""
    if (weight == weight[0]).all():
        return None
    share: Array = weight / weight.max()
    return share / float(share.mean())
