"""scikit-learn's own checks, all of them, with the defaults."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import polybound as pb


@pytest.mark.slow
@parametrize_with_checks([pb.PolynomialClassifier(), pb.PolynomialRegressor()])
def test_scikit_learn_accepts_the_estimators(estimator, check):
    check(estimator)
