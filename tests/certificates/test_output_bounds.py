"""Intervals of outputs hold, and are tight: against brute force over boxes and balls, in rational arithmetic."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64, ccps, convs, ncps, randomise, seeds
from helpers.profiles import examples
from helpers.search import METHODS, Region, inputs_and_radii, judge_interval

ENOUGH = 600.0


@settings(max_examples=examples(110))
@given(
    st.one_of(ccps(max_features=4, max_degree=6), ncps(max_features=4, max_degree=6), convs()),
    seeds,
    st.sampled_from([how for how in METHODS if how[1] != "lipschitz"]),
    st.sampled_from(["one", "feature", "sides"]),
    st.booleans(),
)
def test_no_value_lies_outside_of_its_bounds(model, seed, how, kind, bounded):
    norm, method = how
    x, eps = inputs_and_radii(model.features, seed, 1)
    generator = torch.Generator().manual_seed(seed)
    options = {"weights": torch.randn(2, model.classes, generator=generator, dtype=F64), "constant": [0.5, -1.0]}
    options |= {"method": method, "budget": 0.05, "domain": (-1.0, 1.0) if bounded else None}
    far = torch.full((model.features,), 1.0 if bounded else 1e9, dtype=F64)
    if kind == "sides" and norm == "inf":
        lower, upper = torch.maximum(x - eps, -far), torch.minimum(x + eps.flip(1), far)
        region = Region.box(lower[0], upper[0])
        found = pb.output_bounds(model, None if seed % 2 else x, box=(lower, upper), **options)
    else:
        eps = eps if kind == "feature" else eps[:, :1].expand_as(x)
        region = Region.around(x[0], eps[0], -far, far, norm)
        found = pb.output_bounds(model, x, eps if kind == "feature" else float(eps[0, 0]), norm=norm, **options)
    judge_interval(model, found, 0, region, seed)


@pytest.mark.parametrize(("norm", "tolerance"), [("inf", 0.01), ("2", 0.03)])
@settings(max_examples=examples(20))
@given(model=st.one_of(ccps(max_features=3, max_degree=4), ncps(max_features=3, max_degree=4)), seed=seeds)
def test_small_inputs_are_bounded_as_tightly_as_asked(norm, tolerance, model, seed):
    x, _ = inputs_and_radii(model.features, seed, 2)
    found = pb.output_bounds(model, x, 0.2, norm=norm, tolerance=tolerance, budget=ENOUGH)
    width = found.highest - found.lowest
    size = 1e-9 * (1 + found.upper.abs() + found.lower.abs())
    assert (found.lowest - found.lower <= tolerance * width + size).all()
    assert (found.upper - found.highest <= tolerance * width + size).all()
    assert (found.gap <= 2 * tolerance * width + 2 * size).all()


def test_linear_networks_are_bounded_exactly():
    # f = 2 x_1 - 3 x_2 + 1, feature by feature; over a ball and an ellipse, in the middle of the domain and at its side.
    model = pb.CCP.from_factors(
        torch.eye(2, dtype=F64).unsqueeze(0), torch.tensor([[2.0, -3.0]], dtype=F64), torch.tensor([1.0], dtype=F64)
    )
    x = torch.tensor([[0.25, 0.5], [0.0, 0.0]], dtype=F64)
    eps = torch.tensor([[0.25, 0.0], [0.5, 0.125]], dtype=F64)
    found = pb.output_bounds(model, x, eps)
    assert torch.allclose(found.lower[:, 0], torch.tensor([-0.5, -0.375], dtype=F64), rtol=0, atol=1e-12)
    assert torch.allclose(found.upper[:, 0], torch.tensor([0.5, 2.375], dtype=F64), rtol=0, atol=1e-12)
    assert found.highest_at[1, 0].tolist() == [0.5, -0.125]
    assert repr(found).startswith("OutputBounds(images=2, rows=1, mean width=1.875, mean gap=") and len(found) == 2
    x = torch.tensor([[0.25, 0.5], [0.0, 0.0], [1.0, 0.0]], dtype=F64)
    eps = torch.tensor([[0.1, 0.1], [0.5, 0.125], [0.1, 0.1]], dtype=F64)
    found = pb.output_bounds(model, x, eps, norm="2")
    moves = (eps * torch.tensor([2.0, 3.0], dtype=F64)).norm(dim=1)
    middle = torch.tensor([0.0, 1.0, 3.0], dtype=F64)
    assert torch.allclose(found.lower[:, 0], middle - moves, rtol=0, atol=1e-12)
    up = torch.tensor([*(middle + moves)[:2], 3.0 + 0.3], dtype=F64)  # at the side only x_2 can help
    assert torch.allclose(found.upper[:, 0], up, rtol=0, atol=1e-12)
    assert found.norm == "2" and float(found.gap.max()) < 1e-9


@pytest.mark.parametrize(("norm", "tolerance"), [("inf", 1e-4), ("2", 1e-2)])
def test_margins_are_combinations(norm, tolerance):
    model = randomise(pb.CCP(3, 3, 3, 3, dtype=F64), 3, 0.5)
    x, _ = inputs_and_radii(3, 2, 4)
    y, eye = model(x).argmax(1), torch.eye(3, dtype=F64)
    certified = pb.certify(model, x, y, 0.2, norm=norm, budget=ENOUGH)
    for i in range(4):
        weights = torch.stack([eye[y[i]] - eye[rival] for rival in range(3) if rival != int(y[i])])
        options = {"weights": weights, "budget": ENOUGH, "tolerance": tolerance}
        found = pb.output_bounds(model, x[i : i + 1], 0.2, norm=norm, **options)
        assert certified.margin[i] <= found.lowest.min()
        assert certified.status[i] == "verified" or bool((found.lowest <= 0).any())
        assert certified.status[i] == "falsified" or bool((found.lowest > 0).all())


def test_many_features_are_bounded_without_splitting():
    model = randomise(pb.CCP(40, 6, 3, 3, dtype=F64), 0, 0.2)
    x, _ = inputs_and_radii(40, 0, 2)
    ends = [pb.output_bounds(model, x, 0.3, norm="2", method=name, budget=5.0) for name in ("first", "second", "auto")]
    gaps = [float(found.gap.sum()) for found in ends]
    assert gaps[2] <= gaps[1] < gaps[0]
    assert float((ends[1].gap / (ends[1].highest - ends[1].lowest)).max()) < 0.5


def test_huge_weights_give_no_bounds_rather_than_wrong_ones():
    model = randomise(pb.CCP(4, 3, 2, 10, dtype=F64), 0, 1e60)
    found = pb.output_bounds(model, torch.rand(2, 4, dtype=F64), 0.1, budget=0.1)
    assert (found.lower == -torch.inf).all() and (found.upper == torch.inf).all()


def test_huge_and_tiny_combinations_are_sound():
    model = randomise(pb.CCP(2, 2, 2, 3, dtype=F64), 5, 0.7)
    x = torch.tensor([[0.3, -0.2]], dtype=F64)
    side = torch.tensor([0.1, 0.1], dtype=F64)
    region = Region.around(x[0], side, x[0] - 1, x[0] + 1)
    for weights in ([[1e200, 1.0]], [[1e-300, 0.0]], [[1e16, -1e16 + 2.0]], [[0.0, 0.0]]):
        found = pb.output_bounds(model, x, 0.1, weights=weights, budget=0.2)
        judge_interval(model, found, 0, region, 0)


MODEL = pb.CCP(4, 2, 3, 2)
X = torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either eps or box"),
        ({"eps": 0.1, "weights": [[1.0, 2.0]]}, r"\(rows, 3\)"),
        ({"eps": 0.1, "constant": [1.0]}, "one for each row"),
        ({"eps": 0.1, "weights": [[1.0, torch.nan, 0.0]]}, "finite"),
        ({"eps": 0.1, "tolerance": -1.0}, "tolerance"),
        ({"box": X}, "pair of tensors"),
        ({"eps": 0.1, "domain": (torch.zeros(3), torch.ones(4))}, "domain"),
        ({"norm": "2", "box": (X, X)}, "sides of a box"),
        ({"x": None, "eps": 0.1}, "eps needs the inputs"),
    ],
)
def test_what_is_refused(options, message):
    refuses(message, pb.output_bounds, MODEL, **{"x": X} | options)


def test_boxes_without_inputs_and_no_images():
    assert pb.output_bounds(MODEL, None, box=(X - 0.1, X + 0.1)).lower.shape == (2, 3)
    assert all(pb.output_bounds(MODEL, X[:0], 0.1, norm=norm).lower.shape == (0, 3) for norm in ("inf", "2"))
