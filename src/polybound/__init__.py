"""polybound trains, bounds, attacks and certifies polynomial networks.

The names below are loaded when first used, so that `import polybound` costs milliseconds; most of them bring in torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polybound._version import __version__
from polybound.errors import FileFormatError, NonFiniteError, PolyboundError

if TYPE_CHECKING:
    from polybound import (
        attacks,
        certificates,
        constraints,
        data,
        defences,
        deploy,
        estimator,
        evaluation,
        experiments,
        models,
        report,
        runs,
        theory,
        training,
    )
    from polybound.attacks import APGD, APGDT, FGSM, PGD, TPGD, Attack, parse_attack
    from polybound.certificates import (
        Certificates,
        OutputBounds,
        Radius,
        certified_accuracy,
        certified_radius,
        certify,
        output_bounds,
    )
    from polybound.constraints import (
        Projection,
        project_l1_rows,
        project_linf_operator,
        project_product,
        project_spectral,
        project_spectral_conv,
    )
    from polybound.estimator import PolynomialClassifier, PolynomialRegressor
    from polybound.evaluation import Evaluation, Score, Table, evaluate
    from polybound.models import CCP, NCP, ConvCCP, Factors, PolynomialNetwork, example, load, paper_model, stack
    from polybound.runs import DataSpec, ModelSpec, Run, Spec, evaluate_run, evaluate_runs, train_together
    from polybound.theory import Bound, bounds, gamma, generalisation, lipschitz, rademacher, theta
    from polybound.training import History, Recipe, accuracy, fit

__all__ = [
    "APGD",
    "APGDT",
    "CCP",
    "FGSM",
    "NCP",
    "PGD",
    "TPGD",
    "Attack",
    "Bound",
    "Certificates",
    "ConvCCP",
    "DataSpec",
    "Evaluation",
    "Factors",
    "FileFormatError",
    "History",
    "ModelSpec",
    "NonFiniteError",
    "OutputBounds",
    "PolyboundError",
    "PolynomialClassifier",
    "PolynomialNetwork",
    "PolynomialRegressor",
    "Projection",
    "Radius",
    "Recipe",
    "Run",
    "Score",
    "Spec",
    "Table",
    "__version__",
    "accuracy",
    "attacks",
    "bounds",
    "certificates",
    "certified_accuracy",
    "certified_radius",
    "certify",
    "constraints",
    "data",
    "defences",
    "deploy",
    "estimator",
    "evaluate",
    "evaluate_run",
    "evaluate_runs",
    "evaluation",
    "example",
    "experiments",
    "fit",
    "gamma",
    "generalisation",
    "lipschitz",
    "load",
    "models",
    "output_bounds",
    "paper_model",
    "parse_attack",
    "project_l1_rows",
    "project_linf_operator",
    "project_product",
    "project_spectral",
    "project_spectral_conv",
    "rademacher",
    "report",
    "runs",
    "stack",
    "theory",
    "theta",
    "train_together",
    "training",
]

_ROOMS = (
    "models",
    "theory",
    "constraints",
    "certificates",
    "deploy",
    "data",
    "attacks",
    "defences",
    "training",
    "evaluation",
    "runs",
    "estimator",
    "experiments",
    "report",
)


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
