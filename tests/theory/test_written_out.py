"""A convolution after the pre-convolution is written out in float64, and its bounds have what that rounds off."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import polybound as pb
from helpers.networks import F64, convs, exact_map
from polybound.theory import lifted_norm, operator_norm, sensitivity

numbers = st.floats(0.1, 10.0)


def cancelling(p: float, q: float) -> tuple[pb.ConvCCP, Fraction]:
    """A network of one pixel whose two paths cancel but for a rounding, and its only slope, exactly."""
    other = q * p
    pre = torch.tensor([[[p]], [[other]]], dtype=F64)
    K = torch.tensor([[[[q], [-1.0]], [[0.0], [0.0]]]], dtype=F64)
    C = torch.tensor([[1.0, 0.0]], dtype=F64)
    return pb.ConvCCP.from_factors(K, C, shape=(1, 1), pre=pre), abs(Fraction(q) * Fraction(p) - Fraction(other))


@given(numbers, numbers)
@example(0.1, 3.0)
@example(0.7, 0.9)
def test_bounds_are_above_a_slope_that_only_rounding_hid(p: float, q: float):
    model, slope = cancelling(p, q)
    step = model.factors().double().A[0]
    found = {
        f"{method} {norm}": float(pb.lipschitz(model, norm, method))
        for method in ("paper", "rowwise", "local")
        for norm in (1.0, 1.5, 2.0, math.inf)
    }
    found |= {f"operator {norm}": float(operator_norm(step, norm)) for norm in (1.0, 2.0, math.inf)}
    found |= {f"written {norm}": float(operator_norm(step.dense(), norm)) for norm in (1.0, 2.0, math.inf)}
    found |= {f"lifted {norm}": float(lifted_norm(step.dense(), False, norm)) for norm in (1.0, 2.0, math.inf)}
    found["sensitivity"] = float(sensitivity(model).max())
    for name, value in found.items():
        assert Fraction(value) >= slope, name
        assert value <= float(slope) + 1e-12 * p * q or name.startswith(("paper", "operator")), name


@given(convs())
def test_a_written_out_map_is_within_its_rounding(model: pb.ConvCCP):
    for step in model.factors().double().A:
        dense = step.dense()
        rows, constants = dense.rounding()
        matrix, shifts = exact_map(step)
        for row, line, off in zip(dense.weight.tolist(), matrix, rows.tolist(), strict=True):
            assert sum(abs(Fraction(a) - b) for a, b in zip(row, line, strict=True)) <= Fraction(off)
        for value, shift, off in zip(dense.constant.tolist(), shifts, constants.tolist(), strict=True):
            assert abs(Fraction(value) - shift) <= Fraction(off)


@pytest.mark.parametrize("runs", [None, 2])
def test_a_network_without_chains_is_written_out_exactly(runs: int | None):
    step = pb.ConvCCP((1, 4), 2, 3, degree=1, kernel=3, runs=runs, seed=0, dtype=F64).factors().double().A[0].dense()
    assert not step.rounding()[0].any() or float(step.rounding()[0].max()) < 1e-300
