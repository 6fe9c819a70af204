"""The bounds of a fitted estimator: Lipschitz, Rademacher, generalisation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from polybound.estimator.scaling import Array, InputScaling
from polybound.models import PolynomialNetwork
from polybound.theory import Bound, generalisation, lipschitz, rademacher, sensitivity

__all__ = ["proven_bounds"]

_SCALED = "inputs are scaled: one unit of a feature is three standard deviations of it"


def proven_bounds(
    model: PolynomialNetwork,
    scaling: InputScaling,
    inputs: Array,
    labels: npt.NDArray[np.int64] | None = None,
    stretch: Array | None = None,
) -> dict[str, Bound]:
    """The bounds by name.

    Args:
        model: the network.
        scaling: of the inputs.
        inputs: the training samples, scaled.
        labels: theirs; None for a regressor, whose errors the margin bound does not speak of.
        stretch: what one unit of each output is in the user's units, for a regressor.
    """
    units = np.ones(model.classes) if stretch is None else stretch
    bounds = {
        "lipschitz": _in_units(model, scaling, units),
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


def _in_units(model: PolynomialNetwork, scaling: InputScaling, units: Array) -> Bound:
    """In the user's units: a clip is 1-Lipschitz, and a division by the width divides a column."""
    with np.errstate(over="ignore"):  # an infinite bound is one
        matrix = units[:, None] * sensitivity(model).numpy() / scaling.width
    # Each entry is rounded twice, their sum once for each feature.
    value = float(matrix.sum(1).max()) * (1 + (matrix.shape[1] + 8) * 2.0**-52)
    return Bound(
        value,
        "Lipschitz constant, l_inf, in the units of the features",
        "Row-wise bound",
        "max_o sum_j (bound of |d f_o / d u_j|) / (3 std_j)",
        ("any two inputs, each feature in its own unit",),
        "in float64",
    )
