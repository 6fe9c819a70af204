"""Estimators for scikit-learn: polynomial networks on anyone's table, with proofs in the table's own units."""

from polybound.estimator.certify import Verdicts
from polybound.estimator.classifier import PolynomialClassifier
from polybound.estimator.regressor import PolynomialRegressor, PredictionIntervals
from polybound.estimator.scaling import InputScaling, TargetScaling

__all__ = [
    "InputScaling",
    "PolynomialClassifier",
    "PolynomialRegressor",
    "PredictionIntervals",
    "TargetScaling",
    "Verdicts",
]
