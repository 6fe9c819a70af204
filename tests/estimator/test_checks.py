"""scikit-learn's own checks, all of them; with fewer epochs than the defaults, which test_estimator.py is about."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import polybound as pb


@pytest.mark.slow
@parametrize_with_checks([pb.PolynomialClassifier(epochs=20), pb.PolynomialRegressor(epochs=20)])
def test_scikit_learn_accepts_the_estimators(estimator, check):
    check(estimator)
