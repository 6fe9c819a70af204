"""polybound trains, bounds, attacks, certifies and deploys polynomial networks.

The names below are loaded when first used, so that `import polybound` costs milliseconds; most of them bring in torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polybound._version import __version__
from polybound.errors import FileFormatError, NonFiniteError, PolyboundError

if TYPE_CHECKING:
    from polybound import certificates, constraints, data, models, theory, training
    from polybound.certificates import Certificates, Radius, certified_accuracy, certified_radius, certify
    from polybound.constraints import (
        Projection,
        project_l1_rows,
        project_linf_operator,
        project_product,
        project_spectral,
        project_spectral_conv,
    )
    from polybound.models import CCP, NCP, ConvCCP, Factors, PolynomialNetwork, load, paper_model, stack
    from polybound.theory import Bound, bounds, gamma, generalisation, lipschitz, rademacher, theta
    from polybound.training import Recipe, accuracy, fit

__all__ = [
    "CCP",
    "NCP",
    "Bound",
    "Certificates",
    "ConvCCP",
    "Factors",
    "FileFormatError",
    "NonFiniteError",
    "PolyboundError",
    "PolynomialNetwork",
    "Projection",
    "Radius",
    "Recipe",
    "__version__",
    "accuracy",
    "bounds",
    "certificates",
    "certified_accuracy",
    "certified_radius",
    "certify",
    "constraints",
    "data",
    "fit",
    "gamma",
    "generalisation",
    "lipschitz",
    "load",
    "models",
    "paper_model",
    "project_l1_rows",
    "project_linf_operator",
    "project_product",
    "project_spectral",
    "project_spectral_conv",
    "rademacher",
    "stack",
    "theory",
    "theta",
    "training",
]

_ROOMS = ("models", "theory", "constraints", "certificates", "data", "training")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"polybound.{name}")
    if name in __all__:
        for room in _ROOMS:
            module = import_module(f"polybound.{room}")
            if name in module.__all__:
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module 'polybound' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
