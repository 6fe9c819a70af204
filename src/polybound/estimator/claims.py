"""What is proven about an estimator's predictions, in the user's units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from polybound.certificates import Network, certify
from polybound.errors import PolyboundError
from polybound.estimator.network import evaluate, rounding
from polybound.estimator.scaling import Array, InputScaling

__all__ = ["Verdicts", "checked_eps", "decide", "largest_radii", "unit_radii"]

Labels = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Verdicts:
    """One verdict for each sample, about `predict` itself.

    Attributes:
        status: (samples,), "verified": `predict` gives the label everywhere in the box. "falsified": at
            `counterexample`, a point of the box, it does not. "undecided": neither was shown.
        margin: (samples,), proven lower bounds of how far the label's output stays above all others, rounding taken
            off.
        counterexample: (samples, features) in the user's units; NaN where there is none.
    """

    status: npt.NDArray[np.str_]
    margin: Array
    counterexample: Array

    @property
    def verified(self) -> Flags:
        """Which samples are verified."""
        return np.asarray(self.status == "verified")

    def __len__(self) -> int:
        return len(self.status)

    def __repr__(self) -> str:
        counts = {word: int((self.status == word).sum()) for word in ("verified", "falsified", "undecided")}
        return f"Verdicts({', '.join(f'{count} {word}' for word, count in counts.items())})"


def checked_eps(eps: Any, samples: int, features: int) -> Array:
    """Radii (samples, features): from a number, one for each feature, or one for each sample and feature."""
    try:
        radii = np.asarray(eps, dtype=np.float64)
        radii = np.broadcast_to(radii, (samples, features))
    except (TypeError, ValueError) as error:
        raise PolyboundError(
            f"eps must be a number, {features} numbers, one for each feature, or ({samples}, {features}) numbers"
        ) from error
    if not (radii >= 0).all():
        raise PolyboundError("eps must not be negative or NaN")
    return radii


def decide(net: Network, scaling: InputScaling, X: Array, labels: Labels, eps: Array, **options: Any) -> Verdicts:
    """Verdicts on boxes `|x' - x| <= eps`.

    `certify` speaks of the polynomial in real numbers over the box of `InputScaling.box`, which contains u(x') as
    computed for every x'. `predict` evaluates the polynomial there in float64, off by at most the slack of each
    output; so a margin above the slack of both outputs is one that `predict` sees. A counterexample is one of
    `predict`, or it is none.

    Args:
        net: the network.
        scaling: of the inputs.
        X: (samples, features).
        labels: which output should be the largest; -1 for a label that the estimator does not know.
        eps: (samples, features).
        **options: of `certify`.
    """
    lower, upper = scaling.box(X, eps)
    box = (torch.from_numpy(lower), torch.from_numpy(upper))
    asked = torch.from_numpy(np.maximum(labels, 0))
    found = certify(net, torch.from_numpy(scaling(X)), asked, box=box, **options)
    wrong = evaluate(net, scaling(X)).argmax(1) != labels
    # Taken off: the slack of the label and of any rival, and the rounding of these sums.
    margin = found.margin.numpy() - 2 * rounding(net, lower, upper).max(1) * (1 + 2.0**-40)
    margin[labels < 0] = -np.inf
    status = np.where(wrong, "falsified", np.where(margin > 0, "verified", "undecided"))
    counterexample = np.where(wrong[:, None], X, np.nan)
    for row, point in enumerate(found.counterexample):
        if point is not None and not wrong[row]:
            near = _inside(scaling, point.reshape(-1).numpy(), X[row], eps[row])
            if evaluate(net, scaling(near[None])).argmax(1)[0] != labels[row]:
                status[row], counterexample[row] = "falsified", near
    return Verdicts(status, margin, counterexample)


def _inside(scaling: InputScaling, u: Array, x: Array, eps: Array) -> Array:
    """The input with scaled values u, moved into the box around x, whose sides are rounded inwards."""
    near = scaling.back(u, x)
    low, high = np.nextafter(x - eps, np.inf), np.nextafter(x + eps, -np.inf)
    # A box that is narrower than the steps between numbers has x alone.
    return np.where(low <= high, np.clip(near, low, high), x)


def unit_radii(scaling: InputScaling, proportions: Any) -> Array:
    """Radii (features,) in the given proportions whose fastest feature moves by one unit of its scaled value."""
    width = scaling.width
    if proportions is None:
        return width
    shares = checked_eps(proportions, 1, len(width))[0]
    moves = (shares > 0) & np.isfinite(width)
    if not np.isfinite(shares).all() or not moves.any():
        raise PolyboundError("scale must be finite, and positive for a feature that varied in training")
    unit: Array = shares * (width[moves] / shares[moves]).min()
    return unit


def largest_radii(verified: Callable[[npt.NDArray[np.intp], Array], Flags], samples: int, tolerance: float) -> Array:
    """For each sample the largest multiple that was verified, by doubling and bisection; 0 if none was.

    Args:
        verified: tells of some rows, each with a multiple, which are verified.
        samples: how many rows there are.
        tolerance: how close to the least multiple that was not verified; multiples above 2 are not tried.
    """
    if not 0 < tolerance <= 1:
        raise PolyboundError(f"tolerance must be above 0 and at most 1, got {tolerance!r}")
    proven, failed = np.zeros(samples), np.full(samples, np.inf)
    tried = np.full(samples, min(2.0, 8 * tolerance))
    open_rows = np.arange(samples)
    while len(open_rows):
        held = verified(open_rows, tried[open_rows])
        proven[open_rows[held]] = tried[open_rows[held]]
        failed[open_rows[~held]] = tried[open_rows[~held]]
        going = (proven < 2.0) & (failed - proven > tolerance)
        open_rows = np.flatnonzero(going)
        tried = np.where(np.isinf(failed), np.minimum(2 * tried, 2.0), (proven + np.where(going, failed, 0.0)) / 2)
    return proven
