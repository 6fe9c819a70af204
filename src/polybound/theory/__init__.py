"""Norms, Rademacher and Lipschitz bounds; each result carries its formula and its assumptions."""

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
from polybound.theory.products import face_splitting, khatri_rao, kronecker
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
    "face_splitting",
    "factor_norms",
    "gamma",
    "generalisation",
    "gram_norm",
    "khatri_rao",
    "kronecker",
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
