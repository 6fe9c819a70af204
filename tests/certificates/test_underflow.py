"""Exact values and certificates of networks whose weights are at the ends of the number range, in rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64, ExactChain, ccps, convs, ncps
from helpers.profiles import examples
from helpers.search import METHODS
from polybound.certificates import PreparedNetwork
from polybound.certificates.proofs.exact import exact_logits
from polybound.models import Dense, Factors, Identity


def power(scales: list[float], output: float, constant: float, between: bool = False) -> Factors:
    """`f_0 = constant + output prod_i (scale_i x)`, `f_1 = 0`; with maps of their own between products, or without."""
    A = tuple(Dense(torch.tensor([[scale]], dtype=F64)) for scale in scales)
    one = torch.ones(1, dtype=F64)
    S = tuple(Dense(one[:, None]) if between else Identity(1, (), one) for _ in A[1:])
    C = Dense(torch.tensor([[output], [0.0]], dtype=F64), torch.tensor([constant, 0.0], dtype=F64))
    return Factors("NCP" if between else "CCP", A, S, one, C, constant=False)


def margin_at(scales: list[float], output: float, constant: float, x: float) -> Fraction:
    value = Fraction(output)
    for scale in scales:
        value *= Fraction(scale) * Fraction(x)
    return value + Fraction(constant)


def judge(scales: list[float], output: float, constant: float, between: bool, methods=METHODS) -> set[str]:
    """Certify around 0.9 by all methods; no margin may be above the least one at the points that are tried."""
    f = power(scales, output, constant, between)
    points = [0.875, 0.890625, 0.90625, 0.921875, 0.9375]
    truth = min(margin_at(scales, output, constant, x) for x in points)
    seen = set()
    for norm, method in methods:
        x = torch.tensor([[0.90625]], dtype=F64)
        found = pb.certify(f, x, [0], 0.03125, norm=norm, method=method, nodes=20, budget=60.0)
        assert Fraction(max(float(found.margin[0]), -1e300)) <= max(truth, Fraction(-1e300)), (method, norm)
        assert found.status != ["verified"] or truth > 0, (method, norm)
        seen.add(found.status[0])
    return seen


@pytest.mark.parametrize("between", [False, True])
def test_what_underflows_between_factors_is_in_the_slack(between: bool):
    # The first product is 2^-1076, which is zero in float64; all of them are 2^-56.
    assert judge([2.0**-538] * 2 + [2.0**510] * 2, -1.0, 3e-18, between) <= {"falsified", "undecided"}


@given(
    st.lists(st.integers(-600, 600), min_size=1, max_size=4),
    st.integers(-300, 300),
    st.sampled_from([-1.0, 1.0]),
    st.floats(-2.0, 2.0),
    st.booleans(),
)
@example([-538, -538, 510, 510], 0, -1.0, 1.0, False)
@example([510, -538, -538, 510], 0, -1.0, 1.0, True)
@example([-700, 600, 100], 0, -1.0, 0.5, False)
@settings(max_examples=examples(30))
def test_no_margin_is_above_the_truth_at_any_scale(
    exponents: list[int], output: int, sign: float, share: float, between: bool
):
    total = sum(exponents) + output
    constant = share * 2.0 ** max(-1000, min(1000, total))
    fast = [how for how in METHODS if how[1] != "auto"]
    judge([2.0**e for e in exponents], sign * 2.0**output, constant, between, fast)


@st.composite
def scaled_networks(draw):
    """Small networks with every parameter, and every factor of it, at a scale of its own."""
    model = draw(st.one_of(ccps(max_degree=3), ncps(max_degree=3), convs()))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    reach = draw(st.sampled_from([0, 30, 200, 400]))
    with torch.no_grad():
        for parameter in model.parameters():
            lead = parameter.shape[:1]
            scales = torch.randint(-reach, reach + 1, lead, generator=generator).double()
            parameter.mul_(torch.exp2(scales).reshape(*lead, *(1,) * (parameter.ndim - 1)))
    return model, generator


@given(scaled_networks())
@settings(max_examples=examples(30))
def test_bounds_and_margins_hold_of_networks_at_any_scale(drawn):
    model, generator = drawn
    factors = model.factors().double()
    x = torch.rand(1, model.features, generator=generator, dtype=F64) * 1.5 - 0.75
    eps = 0.125
    points = x + eps * torch.sign(torch.randn(6, model.features, generator=generator, dtype=F64))
    points = torch.cat([x, (x + points) / 2, points])
    exact = [exact_logits(factors, point) for point in points]
    label = max(range(model.classes), key=lambda c: exact[0][c])
    rivals = [c for c in range(model.classes) if c != label]
    for p in (float("inf"), 1.0):
        bounds = [float(pb.lipschitz(model, p, method)) for method in ("paper", "rowwise", "local")]
        for point, values in zip(points[1:], exact[1:], strict=True):
            moved = [abs(Fraction(a) - Fraction(b)) for a, b in zip(point.tolist(), x[0].tolist(), strict=True)]
            away = [abs(a - b) for a, b in zip(values, exact[0], strict=True)]
            gather = max if p > 1 else sum
            assert all(b == float("inf") or gather(away) <= Fraction(b) * gather(moved) for b in bounds)
    if not rivals:
        return
    truth = min(values[label] - values[c] for values in exact for c in rivals)
    for norm, method in METHODS:
        if method != "auto":
            ball = eps * (1 + 1e-9) * (model.features**0.5 if norm == "2" else 1.0)
            found = pb.certify(model, x, [label], ball, norm=norm, method=method, domain=None)
            margin = float(found.margin[0])
            assert margin < -1e300 or Fraction(margin) <= truth, (method, norm)


def test_the_maps_of_a_chain_have_a_part_in_what_underflow_grows_by():
    pre = torch.tensor([[[2.0**-600]]], dtype=F64)
    K = torch.tensor([[[[2.0**-500]]], [[[2.0**900]]]], dtype=F64)
    model = pb.ConvCCP.from_factors(K, torch.tensor([[2.0**400], [0.0]], dtype=F64), shape=(1, 1), pre=pre)
    assert PreparedNetwork(model).slack(torch.ones(1, 1, dtype=F64)).isinf().all()


def test_a_margin_below_the_least_number_is_not_rounded_up():
    # f_0 - f_1 = 2^-1100 x, positive at x = 1 and too small for float64.
    f = power([2.0**-550, 2.0**-550], 1.0, 0.0)
    found = pb.certify(f, torch.ones(1, 1, dtype=F64), [0], 0.0)
    assert float(found.margin[0]) <= 0.0
    assert found.status == ["undecided"]


@pytest.mark.parametrize("norm", ["inf", "2"])
def test_weights_whose_norms_overflow_leave_images_undecided(tmp_path, norm: str):
    model = pb.CCP(4, 3, 2, 3, seed=0, dtype=F64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e160)
    x = torch.full((1, 4), 0.5, dtype=F64)
    found = pb.certify(model, x, [0], 0.01, norm=norm, keep=True)
    assert found.status == ["undecided"]
    assert pb.output_bounds(model, x, 0.01, norm=norm).lower.tolist() == [[-torch.inf, -torch.inf]]
    refuses("overflow", pb.certificates.save_certificates, tmp_path / "proof.json", model, found, x, (-1.0, 1.0))


def test_proofs_of_a_bfloat16_model_are_saved_and_checked(tmp_path):
    model = pb.CCP(4, 3, 2, 2, seed=0, dtype=torch.bfloat16)
    x = torch.tensor([[0.5, -0.5, 0.25, 0.0]], dtype=F64)
    label = PreparedNetwork(model)(x).argmax(1)
    found = pb.certify(model, x, label, 0.001, keep=True)
    pb.certificates.save_certificates(tmp_path / "proof.json", model, found, x, (-1.0, 1.0))
    assert pb.certificates.check_file(tmp_path / "proof.json", model)["verified"] == 1


@settings(max_examples=examples(30), deadline=None)
@given(model=st.one_of(ccps(), ncps(), convs()), seed=st.integers(0, 1000), size=st.sampled_from([1e-300, 1.0, 1e150]))
def test_exact_outputs_are_those_of_the_definition(model, seed, size):
    factors = model.factors().double()
    x = size * torch.randn(model.features, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x[0] = [0.0, 5e-324, -1.0][seed % 3]
    assert exact_logits(factors, x) == ExactChain(factors)(x.tolist())
