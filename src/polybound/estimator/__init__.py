"""Estimators for scikit-learn: polynomial networks on anyone's table, with proofs in the table's own units.

classifier  the classifier, with certificates and certified radii
regressor   the regressor, with proven intervals
base        what both share: parameters, validation, training
certify     verdicts, radii and bounds in the user's units
scaling     inputs to [-1, 1] and targets back; weighted samples
files       estimators as safetensors files
"""

from polybound.estimator.certify import Verdicts as Verdicts
from polybound.estimator.classifier import PolynomialClassifier as PolynomialClassifier
from polybound.estimator.regressor import PolynomialRegressor as PolynomialRegressor
from polybound.estimator.regressor import PredictionIntervals as PredictionIntervals
from polybound.estimator.scaling import InputScaling as InputScaling
from polybound.estimator.scaling import TargetScaling as TargetScaling
