"""Estimators for scikit-learn: polynomial networks on anyone's table, with proofs in the table's own units.

estimators  the classifier, with certificates and certified radii; the regressor, with proven intervals
base        what both share: parameters, validation, training
certify     verdicts, radii and bounds in the user's units
scaling     inputs to [-1, 1] and targets back; weighted samples
files       estimators as safetensors files
"""

from polybound.estimator.certify import Verdicts as Verdicts
from polybound.estimator.estimators import PolynomialClassifier as PolynomialClassifier
from polybound.estimator.estimators import PolynomialRegressor as PolynomialRegressor
from polybound.estimator.estimators import PredictionIntervals as PredictionIntervals
from polybound.estimator.scaling import InputScaling as InputScaling
from polybound.estimator.scaling import TargetScaling as TargetScaling
