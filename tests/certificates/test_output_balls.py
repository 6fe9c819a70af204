"""Intervals of outputs over l_2 balls hold, and are tight: against brute force, judged in rational arithmetic."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.networks import F64, ccps, convs, ncps, randomise, seeds
from helpers.profiles import examples
from helpers.search import exact_values, in_ball, points_in_ball

SIZES = (0.0, 1e-160, 1e-12, 0.02, 0.1, 0.5, 1.5)
ENOUGH = 600.0


def networks(max_features=4, max_degree=6):
    options = {"max_features": max_features, "max_degree": max_degree}
    return st.one_of(ccps(**options), ncps(**options), convs())


def drawn(model, seed, eps, images=1):
    """Inputs, many of them on the domain's sides; the same radius for all features, or one for each."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(images, model.features, generator=generator, dtype=F64) * 2 - 1
    x = torch.where(torch.rand(x.shape, generator=generator) < 0.3, x.sign(), x)
    radii = torch.tensor(SIZES, dtype=F64)[torch.randint(0, len(SIZES), x.shape, generator=generator)]
    weights = torch.randn(2, model.classes, generator=generator, dtype=F64)
    constant = torch.randn(2, generator=generator, dtype=F64)
    return x, radii if eps is None else torch.full_like(x, eps), weights, constant


def judge(model, found, x, r, side, weights, constant, seed):
    """No value that brute force finds lies outside, and every attained value is one, at a point of the ball."""
    least, most = torch.full_like(x, -side), torch.full_like(x, side)
    points = points_in_ball(model, x, r, least, most, torch.cat([weights, -weights]), seed, 200)
    values = model(points).detach() @ weights.T + constant
    for row in range(len(weights)):
        form = weights[row : row + 1], constant[row : row + 1]
        for at in (values[:, row].argmin(), values[:, row].argmax()):
            if in_ball(points[at], x, r, least, most):
                (exact,) = exact_values(model, points[at], *form)
                assert Fraction(float(found.lower[0, row])) <= exact <= Fraction(float(found.upper[0, row]))
        for bound, at, sign in ((found.lowest, found.lowest_at, 1), (found.highest, found.highest_at, -1)):
            point = at[0, row].reshape(-1)
            assert in_ball(point, x, r, least, most)
            assert sign * exact_values(model, point, *form)[0] <= sign * Fraction(float(bound[0, row]))


@settings(max_examples=examples(50))
@given(networks(), seeds, st.sampled_from([*SIZES, None]), st.booleans(), st.sampled_from(["auto", "second", "first"]))
def test_no_value_lies_outside_of_its_bounds(model, seed, eps, bounded, method):
    x, r, weights, constant = drawn(model, seed, eps)
    found = pb.output_bounds(
        model,
        x,
        r if eps is None else eps,
        norm="2",
        weights=weights,
        constant=constant,
        domain=(-1.0, 1.0) if bounded else None,
        method=method,
        budget=0.05,
    )
    judge(model, found, x[0], r[0], 1.0 if bounded else 1e9, weights, constant, seed)


@settings(max_examples=examples(16), deadline=None)
@given(st.one_of(ccps(max_features=3, max_degree=4), ncps(max_features=3, max_degree=4)), seeds)
def test_small_inputs_are_bounded_as_tightly_as_asked(model, seed):
    x, _, _, _ = drawn(model, seed, 0.3, images=2)
    found = pb.output_bounds(model, x, 0.3, norm="2", tolerance=0.03, budget=ENOUGH)
    width = found.highest - found.lowest
    size = 1e-9 * (1 + found.upper.abs() + found.lower.abs())
    assert (found.gap <= 0.06 * width + 2 * size).all()


def test_linear_networks_are_bounded_exactly():
    # f = 2 x_1 - 3 x_2 + 1 over a ball and over an ellipse, in the middle of the domain and at its side.
    model = pb.CCP.from_factors(
        torch.eye(2, dtype=F64).unsqueeze(0), torch.tensor([[2.0, -3.0]], dtype=F64), torch.tensor([1.0], dtype=F64)
    )
    x = torch.tensor([[0.25, 0.5], [0.0, 0.0], [1.0, 0.0]], dtype=F64)
    eps = torch.tensor([[0.1, 0.1], [0.5, 0.125], [0.1, 0.1]], dtype=F64)
    found = pb.output_bounds(model, x, eps, norm="2")
    moves = torch.tensor([13**0.5 / 10, (1 + 0.375**2) ** 0.5, 13**0.5 / 10], dtype=F64)
    middle = torch.tensor([0.0, 1.0, 3.0], dtype=F64)
    assert torch.allclose(found.lower[:, 0], middle - moves, rtol=0, atol=1e-12)
    up = torch.tensor([*(middle + moves)[:2], 3.0 + 0.3], dtype=F64)  # at the side only x_2 can help
    assert torch.allclose(found.upper[:, 0], up, rtol=0, atol=1e-12)
    assert found.norm == "2" and float(found.gap.max()) < 1e-9


def test_a_ball_lies_between_its_boxes():
    model = randomise(pb.NCP(4, 4, 3, 4, dtype=F64), 1, 0.5)
    x, _, _, _ = drawn(model, 5, 0.2, images=6)
    outer, ball, inner = (
        pb.output_bounds(model, x, eps, norm=norm, budget=ENOUGH, tolerance=0.05)
        for eps, norm in ((0.2, "inf"), (0.2, "2"), (0.1, "inf"))
    )
    assert (ball.lower <= inner.lowest).all() and (ball.upper >= inner.highest).all()
    assert (outer.lower <= ball.lowest).all() and (outer.upper >= ball.highest).all()


def test_margins_are_combinations():
    model = randomise(pb.CCP(3, 3, 3, 3, dtype=F64), 3, 0.5)
    x, _, _, _ = drawn(model, 2, 0.2, images=4)
    y = model(x).argmax(1)
    certified = pb.certify(model, x, y, 0.2, norm="2", budget=ENOUGH)
    eye = torch.eye(3, dtype=F64)
    for i in range(4):
        weights = torch.stack([eye[y[i]] - eye[rival] for rival in range(3) if rival != int(y[i])])
        found = pb.output_bounds(model, x[i : i + 1], 0.2, norm="2", weights=weights, budget=ENOUGH, tolerance=1e-2)
        assert certified.margin[i] <= found.lowest.min()
        assert certified.status[i] == "verified" or bool((found.lowest <= 0).any())
        assert certified.status[i] == "falsified" or bool((found.lowest > 0).all())


def test_many_features_are_bounded_without_splitting():
    model = randomise(pb.CCP(40, 6, 3, 3, dtype=F64), 0, 0.2)
    x, _, _, _ = drawn(model, 0, 0.1, images=2)
    ends = [pb.output_bounds(model, x, 0.3, norm="2", method=name, budget=5.0) for name in ("first", "second", "auto")]
    gaps = [float(found.gap.sum()) for found in ends]
    assert gaps[2] <= gaps[1] < gaps[0]
    assert float((ends[1].gap / (ends[1].highest - ends[1].lowest)).max()) < 0.5


def test_what_is_refused():
    model = pb.CCP(4, 2, 3, 2)
    x = torch.zeros(2, 4)
    for options, words in (
        ({"norm": "1", "eps": 0.1}, "norm must be"),
        ({"norm": "2", "box": (x, x)}, "sides of a box"),
        ({"norm": "2", "eps": 0.1, "method": "crown"}, "crown"),
        ({"norm": "2", "eps": 0.1, "method": "lipschitz"}, "method must be one of"),
    ):
        with pytest.raises(pb.PolyboundError, match=words):
            pb.output_bounds(model, x, **options)
    assert pb.output_bounds(model, x[:0], 0.1, norm="2").lower.shape == (0, 3)
