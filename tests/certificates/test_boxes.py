"""Certificates over boxes with a radius for each feature, and over boxes that are given by their sides."""

from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.networks import F64, ccps, convs, ncps, randomise, seeds
from helpers.profiles import examples
from helpers.search import exact_values, inside, points_in
from polybound.certificates.input_sets import box_around

SIZES = torch.tensor([0.0, 1e-12, 1e-4, 0.02, 0.1, 0.5], dtype=F64)
ENOUGH = 600.0


def networks():
    return st.one_of(ccps(max_features=4, max_degree=6), ncps(max_features=4, max_degree=6), convs())


def drawn(model, seed, images=2):
    """Inputs, and for each feature of each a radius of any size."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(images, model.features, generator=generator, dtype=F64) * 2 - 1
    return x, SIZES[torch.randint(0, 6, x.shape, generator=generator)], model(x).argmax(1)


def true_sides(x, eps, least, most):
    """The sides of a box as fractions, for one input."""
    rows = list(zip(x.tolist(), eps.tolist(), least.tolist(), most.tolist(), strict=True))
    return (
        [max(Fraction(v) - Fraction(e), Fraction(low)) for v, e, low, _ in rows],
        [min(Fraction(v) + Fraction(e), Fraction(high)) for v, e, _, high in rows],
    )


def judged(model, x, label, status, counterexample, rival, sides, seed):
    """A certificate agrees with all that is found by brute force."""
    low, high = sides
    weights = torch.eye(model.classes, dtype=F64)[label] - torch.eye(model.classes, dtype=F64)
    weights = torch.cat([weights[:label], weights[label + 1 :]])
    if status == "verified":
        lower, upper = (torch.tensor([float(v) for v in side], dtype=F64) for side in sides)
        points = points_in(model, lower, upper, weights, seed)
        margins = model(points).detach() @ weights.T
        point = points[margins.amin(1).argmin()]
        # Sides that are no float64 numbers are rounded to the nearest one, which may lie outside.
        assert not inside(point, low, high) or min(exact_values(model, point, weights, weights[:, 0] * 0)) > 0
    if status == "falsified":
        point = counterexample.reshape(-1)
        assert inside(point, low, high)
        weights = torch.zeros(1, model.classes, dtype=F64)
        weights[0, label], weights[0, rival] = 1.0, -1.0
        assert exact_values(model, point, weights, torch.zeros(1))[0] <= 0


@settings(max_examples=examples(30))
@given(networks(), seeds, st.booleans())
def test_a_radius_for_each_feature(model, seed, one_for_all):
    assume(model.classes > 1)
    x, eps, y = drawn(model, seed)
    if one_for_all:
        eps = eps[:1].expand(2, -1)
    generator = torch.Generator().manual_seed(seed + 1)
    least = (x.amin(0) - torch.rand(model.features, generator=generator, dtype=F64) * 0.2).clamp_min(-1.0)
    most = (x.amax(0) + torch.rand(model.features, generator=generator, dtype=F64) * 0.2).clamp_max(1.0)
    asked = eps[:1] if one_for_all else eps
    found = pb.certify(model, x, y, asked, domain=(least, most), budget=0.1)
    for i, status in enumerate(found.status):
        sides = true_sides(x[i], eps[i], least, most)
        judged(model, x[i], int(y[i]), status, found.counterexample[i], int(found.rival[i]), sides, seed)
    assert found.eps.shape == x.shape and found.box is None


@settings(max_examples=examples(50))
@given(networks(), seeds)
def test_boxes_that_are_not_symmetric(model, seed):
    assume(model.classes > 1)
    x, down, y = drawn(model, seed)
    _, up, _ = drawn(model, seed + 1)
    lower, upper = x - down, x + up
    found = pb.certify(model, x, y, box=(lower, upper), domain=None, budget=0.1)
    assert found.eps is None
    for i, status in enumerate(found.status):
        sides = [Fraction(v) for v in lower[i].tolist()], [Fraction(v) for v in upper[i].tolist()]
        judged(model, x[i], int(y[i]), status, found.counterexample[i], int(found.rival[i]), sides, seed)


@settings(max_examples=examples(20))
@given(networks(), seeds, st.sampled_from([0.0, 0.01, 0.1, 0.3]))
def test_a_constant_radius_is_the_scalar_one(model, seed, eps):
    x, _, y = drawn(model, seed)
    scalar = pb.certify(model, x, y, eps, method="second")
    each = torch.full((1, *model.shape), eps, dtype=F64)
    for same in (torch.full((2,), eps, dtype=F64), each, each.expand(2, *model.shape)):
        found = pb.certify(model, x.reshape(2, *model.shape), y, same, method="second")
        assert found.status == scalar.status and torch.equal(found.margin, scalar.margin)


@given(seeds)
@settings(max_examples=examples(30))
def test_sides_are_rounded_outwards_feature_by_feature(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, 12, generator=generator, dtype=F64) - 0.5
    eps = torch.rand(1, 12, generator=generator, dtype=F64) * 10.0 ** torch.randint(
        -18, 0, (1, 12), generator=generator
    )
    least, most = x[0] - 0.05, x[0] + 0.05
    outer, inner = box_around(x, eps, (least, most))
    low, high = true_sides(x[0], eps[0], least, most)
    for values in zip(*(t[0].tolist() for t in (*outer, *inner)), low, high, strict=True):
        outer_low, outer_high, inner_low, inner_high = (Fraction(v) for v in values[:4])
        assert outer_low <= values[4] <= inner_low <= inner_high <= values[5] <= outer_high


def test_features_that_matter_little_may_move_much():
    # f = (x_1 + x_2 / 1000, 0) at (0.5, 0): the second feature may move 300 times as far as the first.
    model = pb.CCP.from_factors(torch.tensor([[[1.0, 1e-3]]], dtype=F64), torch.tensor([[1.0], [0.0]], dtype=F64))
    x = torch.tensor([[0.5, 0.0]], dtype=F64)
    assert pb.certify(model, x, [0], torch.tensor([[0.1, 300.0]]), domain=None).status == ["verified"]
    assert pb.certify(model, x, [0], torch.tensor([[0.3, 300.0]]), domain=None).status == ["falsified"]
    assert pb.certify(model, x, [0], torch.tensor([[0.499, 0.0]]), domain=None).status == ["verified"]
    scale = torch.tensor([1.0, 1000.0])
    radius = pb.certified_radius(model, x, [0], scale=scale, domain=None, tolerance=1e-4)
    assert 0.2499 <= float(radius.certified) <= 0.25 <= float(radius.attacked) <= 0.251
    still = pb.certified_radius(
        model, x, [0], scale=torch.tensor([0.0, 1.0]), domain=None, largest=400.0, tolerance=0.1
    )
    assert float(still.certified) == 400.0 and float(still.attacked) == torch.inf


@settings(max_examples=examples(20))
@given(st.one_of(ccps(max_features=3), ncps(max_features=3)), seeds)
def test_the_scaled_radius_is_proven_and_the_attacked_one_is_reached(model, seed):
    assume(model.classes > 1)
    x, _, y = drawn(model, seed)
    scale = torch.rand(model.features, generator=torch.Generator().manual_seed(seed), dtype=F64) * 3
    radius = pb.certified_radius(model, x, y, scale=scale, domain=None, tolerance=0.02, budget=0.5)
    assert (radius.certified <= radius.attacked).all()
    eps = radius.certified.unsqueeze(1) * scale * (1 - 1e-12)
    found = pb.certify(model, x, y, eps, domain=None, budget=5.0)
    assert all(status != "falsified" or radius.certified[i] == 0 for i, status in enumerate(found.status))
    for i in torch.nonzero(torch.isfinite(radius.attacked)).squeeze(1).tolist():
        around = radius.attacked[i] * scale * (1 + 1e-12)
        beyond = pb.certify(model, x[i : i + 1], y[i : i + 1], around.unsqueeze(0), domain=None, budget=0.0)
        assert beyond.status != ["verified"]


def test_accuracy_takes_them_too():
    model = randomise(pb.CCP(64, 4, 10, 2, shape=(1, 8, 8), dtype=F64), 0, 0.1)
    data = pb.data.load_digits("test")
    scalar = pb.certified_accuracy(model, data, 0.01, images=4)
    eps = torch.full((1, *data.shape), 0.01, dtype=F64)
    assert pb.certified_accuracy(model, data, eps, images=4) == scalar
    x = data.x[:4].double()
    assert pb.certified_accuracy(model, data, box=(x, x), images=4) >= scalar


def test_what_is_refused():
    model = pb.ConvCCP((1, 2, 3), 2, 3, 2, 3)
    x = torch.zeros(5, 1, 2, 3)
    for options, message in (
        ({"eps": torch.zeros(4)}, r"\(5,\)"),
        ({"eps": torch.zeros(2, 3)}, r"\(1, 1, 2, 3\) or \(5, 1, 2, 3\)"),
        ({"eps": -torch.ones(1, 1, 2, 3)}, "not negative"),
        ({"box": (x, torch.full_like(x, torch.inf))}, "finite"),
        ({"box": (x[:2], x[:2])}, "shape of the inputs"),
        ({"eps": 0.1, "domain": 3}, "domain"),
        ({"eps": 0.1, "domain": ("a", "b")}, "domain"),
        ({"eps": "wide"}, "eps must be numbers"),
        ({"eps": {}}, "eps must be numbers"),
        ({"x": x.numpy(), "eps": 0.1}, "inputs must be floats"),
        ({"x": x.long(), "eps": 0.1}, "inputs must be floats"),
    ):
        with pytest.raises(pb.PolyboundError, match=message):
            pb.certify(model, **({"x": x, "y": [0] * 5} | options))
    for scale, message in (
        (torch.zeros(1, 2, 3), "zero"),
        (torch.ones(7), "shape"),
        (-torch.ones(1, 2, 3), "negative"),
    ):
        with pytest.raises(pb.PolyboundError, match=message):
            pb.certified_radius(model, x, [0] * 5, scale=scale)
