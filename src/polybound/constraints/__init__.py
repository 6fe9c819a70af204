"""Projections as pure functions, and the object that applies them to a model."""

from polybound.constraints.l1 import project_l1_rows, project_linf_operator
from polybound.constraints.product import project_product
from polybound.constraints.projection import Projection
from polybound.constraints.spectral import project_spectral, project_spectral_conv

__all__ = [
    "Projection",
    "project_l1_rows",
    "project_linf_operator",
    "project_product",
    "project_spectral",
    "project_spectral_conv",
]
