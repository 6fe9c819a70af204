"""Norms and bounds at extreme scales and of maps that were rounded: never below the truth, never NaN, no wider than need be."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import polybound as pb
from helpers.networks import F64, convs, exact_map
from polybound.models import Dense, Factors, Identity
from polybound.theory import gram_norm, lifted_norm, operator_norm, sensitivity
from polybound.theory.rounding import mantissa_product, product

SCALES = (1e-300, 1e-163, 1e-160, 1e-60, 1.0, 1e60, 1e155, 1e300)
tiny_to_huge = st.floats(-307, 307).map(lambda e: 10.0**e)


def diagonal_ccp(scales: list[float], size: int = 2) -> Factors:
    """`f_i(x) = x_i^k` times all scales: every norm and bound of it is known."""
    A = tuple(Dense(scale * torch.eye(size, dtype=torch.float64)) for scale in scales)
    one = torch.ones(size, dtype=torch.float64)
    S = tuple(Identity(size, (), one) for _ in A[1:])
    return Factors("CCP", A, S, one, Dense(torch.eye(size, dtype=torch.float64)), constant=False)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, math.inf])
def test_an_operator_norm_scales_with_its_matrix(scale: float, p: float):
    norm = float(operator_norm(scale * torch.eye(3, dtype=torch.float64), p))
    assert scale <= norm <= scale * (1 + 1e-12)


@given(tiny_to_huge, st.sampled_from([1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 17.0, math.inf]))
def test_a_norm_is_never_below_the_only_entry(entry: float, p: float):
    assert float(operator_norm(torch.tensor([[entry]], dtype=torch.float64), p)) >= entry


@pytest.mark.parametrize("scale", [1e-100, 1e-60, 1e60, 1e100])
def test_three_factors_that_overflow_when_squared(scale: float):
    f = diagonal_ccp([scale] * 3)
    truth = Fraction(scale) ** 3
    for value, exact in (
        (gram_norm(f), truth),
        (pb.theta(f), truth),
        (pb.gamma(f), truth),
        (pb.lipschitz(f, 2), 3 * truth),
        (pb.lipschitz(f), 3 * truth),
        (pb.lipschitz(f, method="local"), 3 * truth),
    ):
        assert exact <= Fraction(float(value)) <= exact * (1 + Fraction(1, 10**10))


@given(st.lists(tiny_to_huge, min_size=1, max_size=4), st.sampled_from([1e-300, 1.0, 1e160, 1e300]))
def test_bounds_are_above_the_truth_at_any_scale_and_radius(scales: list[float], radius: float):
    f = diagonal_ccp(scales)
    truth = math.prod(map(Fraction, scales))
    slope = len(scales) * truth * Fraction(radius) ** (len(scales) - 1)
    bounds = {
        "theta": (pb.theta(f), truth),
        "gram": (gram_norm(f), truth),
        **{
            f"{method} {p}": (pb.lipschitz(f, p, method, radius=radius), slope)
            for p in (1.0, 1.5, 2.0, math.inf)
            for method in ("paper", "rowwise", "local")
        },
    }
    for name, (bound, exact) in bounds.items():
        value = float(bound)
        assert not math.isnan(value), name
        assert value == math.inf or Fraction(value) >= exact, name
    assert not any(math.isnan(float(pb.rademacher(f, 10, norm, radius=radius))) for norm in ("inf", "2"))


def test_weights_that_overflow_or_nearly_do():
    f = diagonal_ccp([1e155] * 2)
    assert float(gram_norm(f)) == float(pb.lipschitz(f, 2)) == math.inf
    small_and_large, small = diagonal_ccp([1e-150, 1e150]), diagonal_ccp([1e-150] * 3)
    for p in (1.0, 1.5, 2.0, 3.0, math.inf):
        assert 2.0 <= float(pb.lipschitz(small_and_large, p)) <= 2.0 * (1 + 1e-12)
        value = float(pb.lipschitz(small, p, radius=1e140))
        assert Fraction(3) * Fraction(1e-150) ** 3 * Fraction(1e140) ** 2 <= Fraction(value) < math.inf


@pytest.mark.parametrize("scales", [[0.0, 1.0], [1e-200, 0.0, 1e300]])
def test_a_network_that_is_zero_has_bounds_of_zero(scales: list[float]):
    f = diagonal_ccp(scales)
    assert float(pb.theta(f)) == float(pb.lipschitz(f)) == float(pb.lipschitz(f, 2)) == float(gram_norm(f)) == 0.0


def test_a_stack_has_the_scale_of_each_run():
    torch.manual_seed(0)
    runs = [
        pb.CCP(features=4, rank=3, classes=2, degree=2, form="product", seed=n, dtype=torch.float64) for n in (0, 1)
    ]
    with torch.no_grad():
        for parameter in runs[1].parameters():
            parameter.mul_(1e-90)
    values = pb.lipschitz(pb.stack(runs), 2).value
    assert values.tolist() == [float(pb.lipschitz(run, 2)) for run in runs]
    assert 0 < float(values[1]) < 1e-260


def test_high_degrees_do_not_underflow():
    f = diagonal_ccp([0.5625] * 600, size=1)
    truth = Fraction(9, 16) ** 600
    assert Fraction(float(pb.gamma(f))) >= truth
    assert Fraction(float(pb.theta(f))) >= truth
    for p, method in ((math.inf, "paper"), (math.inf, "rowwise"), (2.0, "paper")):
        assert Fraction(float(pb.lipschitz(f, p, method))) >= 600 * truth


def test_the_residual_form_of_degree_700_has_bounds_above_its_own_slopes():
    model = pb.CCP(4, 3, 2, degree=700, seed=0, dtype=torch.float64)
    x = torch.zeros(1, 4, dtype=torch.float64)
    slope = float(torch.autograd.functional.jacobian(model, x).squeeze().abs().sum(-1).max())
    assert 0 < slope <= float(pb.lipschitz(model, method="rowwise")) < math.inf


def test_a_unit_that_underflows_may_grow_again():
    """Factors of 2^-11 in the first half and of row sum 2^10 in the second: only the sums are that large."""
    wide = torch.full((1, 1024), 1.0, dtype=torch.float64)
    narrow = torch.zeros(1, 1024, dtype=torch.float64)
    narrow[0, 0] = 2.0**-11
    large = torch.cat([narrow, torch.full((1, 1024), 1.0 - 2.0**-30, dtype=torch.float64)])
    A = [Dense(large)] * 100 + [Dense(torch.cat([wide, narrow]))] * 100
    one = torch.ones(2, dtype=torch.float64)
    C = Dense(torch.eye(2, dtype=torch.float64))
    f = Factors("CCP", tuple(A), tuple(Identity(2, (), one) for _ in A[1:]), one, C, constant=False)
    truth = Fraction(2) ** (10 * 100 - 11 * 100)
    for value, exact in ((pb.theta(f), truth), (pb.lipschitz(f), 200 * truth)):
        assert float(value) == math.inf or Fraction(float(value)) >= exact


# Products of many numbers, rounded outwards: never below the truth, at any length.

factors = st.lists(st.floats(0, exclude_min=True, allow_infinity=False), min_size=1, max_size=6)


@given(factors, st.integers(1, 400))
@example([0.75], 1100)
@example([0.5000001, 2.0**600, 2.0**-600], 700)
def test_a_product_of_many_factors_is_not_below_the_truth(values: list[float], times: int):
    truth = math.prod(map(Fraction, values)) ** times
    found = float(product(torch.tensor(values * times, dtype=torch.float64)))
    assert found == math.inf or Fraction(found) >= truth
    if Fraction(2) ** -1000 < truth < Fraction(2) ** 1000:
        assert Fraction(found) <= truth * (1 + Fraction(1, 10**12))


@given(factors)
def test_mantissas_round_as_the_plain_product_does(values: list[float]):
    plain = math.prod(values)
    mantissa, exponent = mantissa_product(torch.tensor(values, dtype=torch.float64))
    partial = [math.prod(values[:n]) for n in range(1, len(values) + 1)]
    if all(2.0**-1000 < value < 2.0**1000 for value in partial):
        assert math.ldexp(float(mantissa), int(exponent)) == plain


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
