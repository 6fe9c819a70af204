"""Certificates and bounds of an estimator, in the user's units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from polybound.certificates import PreparedNetwork, certify
from polybound.errors import PolyboundError
from polybound.estimator.base import check_masked, evaluate, rounding
from polybound.estimator.scaling import Array, InputScaling
from polybound.models import PolynomialNetwork
from polybound.theory import Bound, generalisation, lipschitz, rademacher, sensitivity

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


def checked_eps(eps: Any, X: Any, names: Sequence[str] | None, width: Array) -> Array:
    """Radii (samples, features): from a number, one for each feature, or one for each sample and feature.

    They are finite and not negative; a feature that never varied in training, of infinite `width`, may also have an
    infinite radius. A pandas Series or frame is aligned by the names of the features.
    """
    samples, features = len(X) if hasattr(X, "__len__") else X.shape[0], len(width)
    wanted = f"eps must be a number, {features} numbers, one for each feature, or ({samples}, {features}) numbers"
    radii = np.asarray(aligned("eps", eps, names, features, getattr(X, "index", None)))
    if radii.dtype == bool or radii.dtype.kind not in "iuf":
        raise PolyboundError(f"{wanted}; got {eps!r}" if radii.ndim == 0 else wanted)
    try:
        radii = np.broadcast_to(radii.astype(np.float64), (samples, features))
    except ValueError as error:
        raise PolyboundError(wanted) from error
    if not (radii >= 0).all():
        raise PolyboundError("eps must not be negative or NaN")
    if not np.isfinite(radii[:, np.isfinite(width)]).all():
        raise PolyboundError("eps must be finite, but for features that never varied in training")
    return radii


def aligned(what: str, values: Any, names: Sequence[str] | None, features: int, rows: Any = None) -> Any:
    """Values in the order of the features: a number or an array as it is, a Series or frame by its names, or refused.

    Features without names count as 0, 1, 2 ...; a frame must have the names of the samples, `rows`, too.
    """
    check_masked(what, values)
    axis = getattr(values, "columns", getattr(values, "index", None))
    if axis is None or callable(axis):
        return values
    found, known = list(axis), list(range(features)) if names is None else list(names)
    if len(found) != len(set(found)) or set(found) != set(known):
        shown = known if names is not None else f"without names, so {what} must be an array: use {what}.to_numpy()"
        raise PolyboundError(f"{what} is for {found}, but the features are {shown}")
    if hasattr(values, "columns"):
        own = getattr(values, "index", None)
        if rows is not None and not callable(rows) and own is not None and list(own) != list(rows):
            raise PolyboundError(f"the rows of {what} are not those of X: their indices differ")
        return values[known].to_numpy()
    return values.loc[known].to_numpy()


def decide(
    net: PreparedNetwork, scaling: InputScaling, X: Array, labels: Labels, eps: Array, **options: Any
) -> Verdicts:
    """Verdicts on boxes `|x' - x| <= eps`.

    `certify` speaks of the polynomial in real numbers over the box of `InputScaling.box`, which contains u(x') as
    computed for every x'. `predict` evaluates the polynomial there in float64, off by at most the slack of each
    output; so a margin above the slack of both outputs is one that `predict` sees. A point is a counterexample only if
    `predict` gives another label there.

    The radii `eps` are (samples, features); the options are those of `certify`.
    """
    lower, upper = scaling.box(X, eps)
    box = (torch.from_numpy(lower), torch.from_numpy(upper))
    found = certify(net, torch.from_numpy(scaling(X)), torch.from_numpy(labels), box=box, **options)
    wrong = evaluate(net, scaling(X)).argmax(1) != labels
    # Taken off: the slack of the label and of any rival, and the rounding of these sums.
    margin = found.margin.numpy() - 2 * rounding(net, lower, upper).max(1) * (1 + 2.0**-40)
    status = np.where(wrong, "falsified", np.where(margin > 0, "verified", "undecided"))
    counterexample = np.where(wrong[:, None], X, np.nan)
    for row, point in enumerate(found.counterexample):
        if point is not None and not wrong[row]:
            # The input with these scaled values, moved into the box, whose sides are rounded inwards. A box that is
            # narrower than the steps between numbers has x alone.
            x, near = X[row], scaling.back(point.reshape(-1).numpy(), X[row])
            low, high = np.nextafter(x - eps[row], np.inf), np.nextafter(x + eps[row], -np.inf)
            near = np.where(low <= high, np.clip(near, low, high), x)
            if evaluate(net, scaling(near[None])).argmax(1)[0] != labels[row]:
                status[row], counterexample[row] = "falsified", near
    return Verdicts(status, margin, counterexample)


def unit_radii(scaling: InputScaling, proportions: Any, names: Sequence[str] | None) -> Array:
    """Radii (features,) in the given proportions whose fastest feature moves by one unit of its scaled value."""
    width = scaling.width
    if proportions is None:
        return width
    shares = np.asarray(aligned("scale", proportions, names, len(width)))
    if shares.dtype.kind not in "iuf" or shares.shape not in ((), (len(width),)):
        raise PolyboundError(f"scale must be a number or {len(width)} numbers, one for each feature")
    shares = np.broadcast_to(shares.astype(np.float64), width.shape)
    moves = (shares > 0) & np.isfinite(width)
    if not (np.isfinite(shares) & (shares >= 0)).all() or not moves.any():
        raise PolyboundError("scale must be finite, not negative, and positive for a feature that varied in training")
    unit: Array = shares * (width[moves] / shares[moves]).min()
    return unit


# The bounds of a fitted estimator: Lipschitz, Rademacher, generalisation.


_SCALED = "inputs are scaled: one unit of a feature is three standard deviations of it"


def proven_bounds(
    model: PolynomialNetwork,
    scaling: InputScaling,
    inputs: Array,
    labels: npt.NDArray[np.int64] | None = None,
    stretch: Array | None = None,
) -> dict[str, Bound]:
    """The bounds by name, from the scaled training samples.

    A regressor has no labels, and errors that the margin bound does not speak of; its `stretch` is what one unit of
    each output is in the user's units.
    """
    units = np.ones(model.classes) if stretch is None else stretch
    # In the user's units: a clip is 1-Lipschitz, and a division by the width divides a column.
    with np.errstate(over="ignore"):  # an infinite bound is one
        matrix = units[:, None] * sensitivity(model).numpy() / scaling.width
    # Each entry is rounded twice, their sum once for each feature.
    value = float(matrix.sum(1).max()) * (1 + (matrix.shape[1] + 8) * 2.0**-52)
    bounds = {
        "lipschitz": Bound(
            value,
            "Lipschitz constant, l_inf, in the units of the features",
            "Row-wise bound",
            "max_o sum_j (bound of |d f_o / d u_j|) / (3 std_j)",
            ("any two inputs, each feature in its own unit",),
            "in float64",
        ),
        "lipschitz_scaled": _scaled(lipschitz(model, method="local"), units),
        "rademacher": _scaled(rademacher(model, len(inputs), formula="sharper"), units),
    }
    if labels is not None:
        x = torch.from_numpy(inputs.astype(np.float32))
        bounds["generalisation"] = _scaled(generalisation(model, x, torch.from_numpy(labels)), units)
    return bounds


def _scaled(bound: Bound, units: Array) -> Bound:
    """A bound of the network as one of the estimator's outputs."""
    note = (*bound.assumptions, _SCALED)
    most = float(units.max())
    if most == 1.0:
        return replace(bound, assumptions=note)
    value = float(np.nextafter(float(bound) * most, np.inf))
    return replace(bound, value=value, formula=f"({bound.formula}) std of the targets", assumptions=note)
