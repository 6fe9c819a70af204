"""theta, gamma and the Gram closed forms against the explicitly built matrices of size d^k."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce
from math import inf

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64, ccps, convs, exact_map, ncps, networks
from polybound.models import Conv, Dense, Factors, Identity, lift, windows
from polybound.models.windows import Windowed
from polybound.theory import factor_norms, gamma, gram_norm, lifted_norm, operator_norm, sensitivity, theta
from polybound.theory.rounding import product

CLOSE = {"rtol": 1e-9, "atol": 1e-300}


def big_matrix(model):
    """The paper's lifted matrix: the face-splitting product of CCP, Phi of Theorem 3 of NCP."""
    matrices = model.factors().matrices()
    matrices.pop("C")
    if "U1" in matrices:
        rows = [[u[j] for u in matrices.values()] for j in range(matrices["U1"].shape[0])]
        return torch.stack([reduce(torch.kron, row) for row in rows])
    degree = len(matrices) // 2
    d = matrices["A1"].shape[1]
    S = {1: matrices["s1"].unsqueeze(1)} | {n: matrices[f"S{n}"] for n in range(2, degree + 1)}
    phi = None
    for n in range(degree, 0, -1):
        A = matrices[f"A{n}"]
        step = torch.stack([torch.kron(a, s) for a, s in zip(A, S[n], strict=True)])
        eye = torch.eye(d ** (degree - n), dtype=F64)
        phi = step if phi is None else phi @ torch.kron(eye, step)
    return phi


@given(st.one_of(ccps(), ncps()))
def test_theta_and_gram_norm_are_those_of_the_lifted_matrix(model):
    big = big_matrix(model)
    torch.testing.assert_close(gram_norm(model), torch.linalg.matrix_norm(big, 2), **CLOSE)
    exact = big.abs().sum(1).max()
    if isinstance(model, pb.CCP) or model.degree == 1:  # then NCP is a CCP, and exact
        torch.testing.assert_close(theta(model), exact, **CLOSE)
    assert theta(model) >= exact * (1 - 1e-15)


@given(ncps())
def test_the_lifted_matrix_is_the_function(model):
    big = big_matrix(model)
    x = torch.randn(4, model.features, dtype=F64)
    z = torch.cat([x, torch.ones(4, 1, dtype=F64)], dim=1)
    powers = torch.stack([reduce(torch.kron, [row] * model.degree) for row in z])
    C = model.factors().matrices()["C"]
    torch.testing.assert_close(powers @ big.T @ C.T, model(x))


@given(networks())
def test_factor_norms_are_those_of_the_lemmas_matrices(model):
    matrices = model.factors().matrices()
    for p in (1, 2, inf):
        norms = factor_norms(model, p)
        assert list(norms) == [name.replace("s", "S") for name in matrices]
        for name, matrix in matrices.items():
            key = {"s1": "S1"}.get(name, name)
            norm = matrix.abs().amax() if name == "s1" else torch.linalg.matrix_norm(matrix, p)
            torch.testing.assert_close(norms[key], norm, **CLOSE)


@given(networks())
def test_lemmas_1_and_2_exact_is_never_above_relaxed(model):
    assert theta(model) <= gamma(model) * (1 + 1e-12)
    assert gram_norm(model) <= gamma(model, 2) * (1 + 1e-12)
    names = [name for name in factor_norms(model) if name != "C"]
    product = torch.stack([factor_norms(model)[name] for name in names]).prod()
    torch.testing.assert_close(gamma(model), product, **CLOSE)


@given(networks(runs=(3,)))
def test_a_stack_has_the_norms_of_its_members(model):
    together = theta(model), gram_norm(model), {p: factor_norms(model, p) for p in (1, 2, inf, 3)}
    for e in range(3):
        run = model.run(e)
        torch.testing.assert_close(together[0][e], theta(run))
        torch.testing.assert_close(together[1][e], gram_norm(run))
        for p, norms in together[2].items():
            alone = factor_norms(run, p)
            assert alone.keys() == norms.keys()
            for name, value in norms.items():
                torch.testing.assert_close(value[e], alone[name])


def test_convolutions_too_large_to_write_out_get_upper_bounds(monkeypatch):
    model = pb.paper_model("pn-conv", shape=(1, 12, 12), rank=3, dtype=F64, seed=0)
    exact = {p: factor_norms(model, p) for p in (1, 2, inf, 3)}
    exact_theta = theta(model)
    monkeypatch.setattr("polybound.theory.norms.DENSE_LIMIT", 0)
    monkeypatch.setattr("polybound.theory.norms.EXACT_LIMIT", 0)
    for p, norms in exact.items():
        relaxed = factor_norms(model, p)
        for name, norm in norms.items():
            assert norm <= relaxed[name] * (1 + 1e-12), (p, name)
    assert exact_theta <= theta(model)
    assert gram_norm(model) is None


def test_lifted_norm_of_convolution_with_bias():
    conv = Conv(torch.randn(2, 1, 3, 3, dtype=F64), torch.randn(2, dtype=F64), (1, 4, 4))
    for p in (1, inf):
        torch.testing.assert_close(lifted_norm(conv, True, p), torch.linalg.matrix_norm(lift(conv, True), p), **CLOSE)
    assert lifted_norm(conv, True, 2) >= torch.linalg.matrix_norm(lift(conv, True), 2)


@pytest.mark.parametrize("p", [0.5, 0, -1, "three", None, float("nan")])
def test_bad_exponents(p):
    refuses("", operator_norm, torch.eye(2), p)


WINDOWED = [
    {"shape": (1, 12, 12), "channels": 2, "degree": 4, "kernel": 3, "pre": 3, "pool": (2, 3)},
    {"shape": (2, 30), "channels": 3, "degree": 3, "kernel": 3, "pre": 3, "pool": (1,)},
]


@pytest.mark.parametrize("config", WINDOWED, ids=["2d", "1d"])
def test_bounds_of_convolutions_window_by_window_are_those_of_matrices(config, monkeypatch):
    model = pb.ConvCCP(classes=3, **config, seed=0, dtype=F64)
    with torch.no_grad():
        model.c.copy_(torch.randn_like(model.c))
    factors = model.factors().double()
    assert any(isinstance(a, Windowed) for a in factors.written_out.A)
    assert all(isinstance(a, pb.models.Dense) for a in factors.dense.A)
    for whole, by_windows in zip(factors.dense.A, factors.written_out.A, strict=True):
        for p in (1.0, 1.5, 2.0, 3.0, inf):
            for unit in (True, False):
                one, other = (float(lifted_norm(step, unit, p)) for step in (whole, by_windows))
                assert other == pytest.approx(one, rel=1e-8)
            one, other = (float(operator_norm(step, p)) for step in (whole, by_windows))
            assert other == pytest.approx(one, rel=1e-8) and other >= one * (1 - 1e-12)
    values = [float(row) for row in pb.bounds(model, radius=1.5)] + [float(pb.lipschitz(model, 1.5))]
    reach = pb.theory.sensitivity(model)
    monkeypatch.setattr(windows, "SAVING", 10**9)
    assert values == pytest.approx(
        [float(row) for row in pb.bounds(model, radius=1.5)] + [float(pb.lipschitz(model, 1.5))], rel=1e-8
    )
    torch.testing.assert_close(pb.theory.sensitivity(model), reach, rtol=1e-8, atol=0.0)


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


def test_high_degrees_do_not_underflow():
    f = diagonal_ccp([0.5625] * 600, size=1)
    truth = Fraction(9, 16) ** 600
    assert Fraction(float(pb.gamma(f))) >= truth
    assert Fraction(float(pb.theta(f))) >= truth
    for p, method in ((math.inf, "paper"), (math.inf, "rowwise"), (2.0, "paper")):
        assert Fraction(float(pb.lipschitz(f, p, method))) >= 600 * truth


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
