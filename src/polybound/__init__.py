"""polybound trains, bounds, attacks, certifies and deploys polynomial networks.

The names below are loaded when first used, so that `import polybound` costs milliseconds; most of them bring in torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polybound._version import __version__
from polybound.errors import FileFormatError, NonFiniteError, PolyboundError

if TYPE_CHECKING:
    from polybound.models import CCP, NCP, ConvCCP, Factors, PolynomialNetwork, load, paper_model, stack
    from polybound.theory import Bound, bounds, gamma, generalisation, lipschitz, rademacher, theta

_HOMES = {
    "models": ("CCP", "NCP", "ConvCCP", "Factors", "PolynomialNetwork", "load", "paper_model", "stack"),
    "theory": ("Bound", "bounds", "gamma", "generalisation", "lipschitz", "rademacher", "theta"),
}
_HOME_OF = {name: f"polybound.{home}" for home, names in _HOMES.items() for name in names}

__all__ = [
    "CCP",
    "NCP",
    "Bound",
    "ConvCCP",
    "Factors",
    "FileFormatError",
    "NonFiniteError",
    "PolyboundError",
    "PolynomialNetwork",
    "__version__",
    "bounds",
    "gamma",
    "generalisation",
    "lipschitz",
    "load",
    "paper_model",
    "rademacher",
    "stack",
    "theta",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return import_module(f"polybound.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'polybound' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES})
