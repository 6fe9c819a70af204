"""Norms, Rademacher and Lipschitz bounds; each result carries its formula and its assumptions.

rounding     float64 rounded outwards; networks scaled by powers of two, so that nothing over- or underflows
norms        operator norms of maps; theta, gamma and the Gram norm of a network's factors
bound        a bound with its formula, its assumptions and how it was computed
lipschitz    the paper's, row-wise and local bounds of the Lipschitz constant
rademacher   bounds of the Rademacher complexity and of the error on unseen data
table        all of them for one model
"""

from polybound.theory.bound import Bound, BoundTable
from polybound.theory.lipschitz import lipschitz, sensitivity
from polybound.theory.norms import (
    DENSE_LIMIT,
    factor_norms,
    gamma,
    gram_norm,
    lifted_norm,
    operator_norm,
    theta,
    torus_norm,
    torus_sizes,
)
from polybound.theory.rademacher import Generalisation, generalisation, rademacher
from polybound.theory.rounding import ULP, mantissa_product
from polybound.theory.table import bounds

__all__ = [
    "DENSE_LIMIT",
    "ULP",
    "Bound",
    "BoundTable",
    "Generalisation",
    "bounds",
    "factor_norms",
    "gamma",
    "generalisation",
    "gram_norm",
    "lifted_norm",
    "lipschitz",
    "mantissa_product",
    "operator_norm",
    "rademacher",
    "sensitivity",
    "theta",
    "torus_norm",
    "torus_sizes",
]
