"""Sensitivities dominate the Jacobian everywhere, and are the matrix behind the row-wise bound."""

import pytest
import torch
from hypothesis import given, settings

import polybound as pb
from helpers.networks import F64, ccps, jacobian, networks, seeds
from helpers.profiles import examples
from polybound.theory import sensitivity


@settings(max_examples=examples(40))
@given(networks(), seeds)
def test_no_derivative_is_larger(model, seed):
    bound = sensitivity(model)
    assert bound.shape == (model.classes, model.features)
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(10, model.features, generator=generator, dtype=F64) * 2 - 1
    for x in (*points, *points.sign()):
        assert (jacobian(model, x).reshape(bound.shape).abs() <= bound * (1 + 1e-12)).all()


@given(ccps())
def test_the_largest_row_sum_is_the_row_wise_bound(model):
    assert float(sensitivity(model).sum(1).max()) == pytest.approx(
        float(pb.lipschitz(model, method="rowwise")), rel=1e-9
    )


def test_stacks_and_weights_that_are_not_finite_are_refused():
    with pytest.raises(pb.PolyboundError, match="one model"):
        sensitivity(pb.CCP(3, 2, 2, degree=2, runs=2))
    model = pb.CCP(3, 2, 2, degree=2, seed=0)
    with torch.no_grad():
        model.C.fill_(torch.nan)
    with pytest.raises(pb.PolyboundError, match="finite"):
        sensitivity(model)
