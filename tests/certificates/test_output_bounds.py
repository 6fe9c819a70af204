"""Bounds of outputs hold, and are tight: against search by brute force, judged in rational arithmetic."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.networks import F64, ccps, convs, ncps, randomise, seeds
from helpers.profiles import examples
from helpers.search import exact_values, inside, points_in
from polybound.certificates.bounds.first_order import slopes_over
from polybound.certificates.forms import Cells, chunks
from polybound.certificates.input_sets import centre
from polybound.certificates.network import PreparedNetwork

METHODS = ("auto", "auto", "auto", "second", "first", "crown", "interval")


def networks(max_features=4):
    options = {"max_features": max_features, "max_degree": 6}
    return st.one_of(ccps(**options), ncps(**options), convs())


def random_box(features, seed):
    """A box around a point: some features fixed, widths over many orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, features, generator=generator, dtype=F64) * 2 - 1
    sizes = torch.tensor([0.0, 1e-9, 1e-3, 0.05, 0.3, 1.0], dtype=F64)
    down, up = (sizes[torch.randint(0, 6, (1, features), generator=generator)] for _ in range(2))
    return x, x - down, x + up


def forms(classes, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = 1 + seed % 3
    return (
        torch.randn(rows, classes, generator=generator, dtype=F64),
        torch.randn(rows, generator=generator, dtype=F64),
    )


@settings(max_examples=examples(30))
@given(networks(), seeds, st.sampled_from(METHODS))
def test_no_value_lies_outside_of_its_bounds(model, seed, method):
    x, lower, upper = random_box(model.features, seed)
    weights, constant = forms(model.classes, seed)
    found = pb.output_bounds(
        model, x, box=(lower, upper), weights=weights, constant=constant, domain=None, method=method, budget=0.05
    )
    points = points_in(model, lower[0], upper[0], weights, seed)
    values = model(points).detach() @ weights.T + constant
    for row in range(len(weights)):
        for at, value in ((values[:, row].argmin(), "least"), (values[:, row].argmax(), "largest")):
            exact = exact_values(model, points[at], weights[row : row + 1], constant[row : row + 1])[0]
            assert Fraction(float(found.lower[0, row])) <= exact <= Fraction(float(found.upper[0, row])), value
        for bound, at, sign in ((found.lowest, found.lowest_at, 1), (found.highest, found.highest_at, -1)):
            point = at[0, row].reshape(-1)
            assert inside(point, lower[0].tolist(), upper[0].tolist())
            exact = exact_values(model, point, weights[row : row + 1], constant[row : row + 1])[0]
            assert sign * exact <= sign * Fraction(float(bound[0, row]))


@settings(max_examples=examples(24))
@given(st.one_of(ccps(max_features=3, max_degree=5), ncps(max_features=3, max_degree=5)), seeds)
def test_small_inputs_are_bounded_as_tightly_as_asked(model, seed):
    x = torch.rand(2, model.features, generator=torch.Generator().manual_seed(seed), dtype=F64) * 1.6 - 0.8
    found = pb.output_bounds(model, x, 0.2, tolerance=0.01, budget=600.0)  # far more than is needed
    width = found.highest - found.lowest
    size = 1e-9 * (1 + found.upper.abs() + found.lower.abs())
    assert (found.lowest - found.lower <= 0.01 * width + size).all()
    assert (found.upper - found.highest <= 0.01 * width + size).all()
    assert (found.gap <= 0.02 * width + 2 * size).all()


@settings(max_examples=examples(30))
@given(networks(), seeds)
def test_slopes_over_a_box_enclose_the_gradient_at_every_point(model, seed):
    net = PreparedNetwork(model)
    _, lower, upper = random_box(model.features, seed)
    weights, _ = forms(model.classes, seed)
    c, r = (t.expand(len(weights), -1) for t in centre(lower, upper))
    slope, away = slopes_over(net, c, r, weights @ net.C)
    points = points_in(model, lower[0], upper[0], weights[:1], seed, 40)
    slack = net.slack(torch.maximum(lower.abs(), upper.abs())) @ weights.T.abs()
    for row in range(len(weights)):
        at = points.clone().requires_grad_()
        actual = torch.autograd.grad((net(at) @ weights[row]).sum(), at)[0] * r[row]
        # As `fix_monotone` has it; autograd's own rounding is another part of the same.
        off = away[row] * (1 + 4 * net.roundings * 2.0**-52) + 2 * net.degree * slack[0, row]
        assert ((actual - slope[row]).abs() <= off).all()


def test_groups_of_cells_stay_small_when_different_coordinates_move():
    lower = torch.zeros(64, 256, dtype=F64)
    upper = torch.zeros_like(lower)
    for i in range(64):
        upper[i, 4 * i : 4 * i + 4] = 1.0
    one, index = torch.ones(64, dtype=F64), torch.arange(64)
    cells = Cells(lower, upper, one.unsqueeze(1), one, one, index, index, one, one, one, index, index)
    groups = list(chunks(cells, units=16, limit=2**14))
    assert torch.equal(torch.cat([group.image for group in groups]), index)
    assert all(len(g) == 1 or len(g) * len(g.moving()) * max(16, len(g.moving())) <= 2**14 for g in groups)
    assert len(groups) > 2
    assert len(list(chunks(cells, units=16, limit=1))) == 64 and not list(chunks(cells[:0], units=16))


def test_linear_networks_are_bounded_exactly_feature_by_feature():
    # f = 2 x_1 - 3 x_2 + 1: the interval is known.
    model = pb.CCP.from_factors(
        torch.eye(2, dtype=F64).unsqueeze(0), torch.tensor([[2.0, -3.0]], dtype=F64), torch.tensor([1.0], dtype=F64)
    )
    x = torch.tensor([[0.25, 0.5], [0.0, 0.0]], dtype=F64)
    eps = torch.tensor([[0.25, 0.0], [0.5, 0.125]], dtype=F64)
    found = pb.output_bounds(model, x, eps)
    assert torch.allclose(found.lower[:, 0], torch.tensor([-0.5, -0.375], dtype=F64), rtol=0, atol=1e-12)
    assert torch.allclose(found.upper[:, 0], torch.tensor([0.5, 2.375], dtype=F64), rtol=0, atol=1e-12)
    assert found.highest_at[1, 0].tolist() == [0.5, -0.125]
    assert repr(found) == "OutputBounds(images=2, rows=1, mean width=1.875, mean gap=" + repr(found).rsplit("=", 1)[1]
    assert len(found) == 2 and len(repr(found)) < 90


def test_margins_are_combinations():
    model = randomise(pb.CCP(4, 3, 3, 3, dtype=F64), 3, 0.5)
    x = torch.rand(4, 4, dtype=F64) - 0.5
    y = model(x).argmax(1)
    certified = pb.certify(model, x, y, 0.1, budget=600.0)
    for i in range(4):
        rivals = [rival for rival in range(3) if rival != int(y[i])]
        eye = torch.eye(3, dtype=F64)
        weights = torch.stack([eye[y[i]] - eye[rival] for rival in rivals])
        found = pb.output_bounds(model, x[i : i + 1], 0.1, weights=weights, tolerance=1e-4, budget=600.0)
        assert (certified.status[i] == "verified") == bool((found.lower > 0).all())
        assert certified.status[i] == "verified" or bool((found.lowest <= 0).any())
        assert certified.margin[i] <= found.lowest.min()


def test_huge_weights_give_no_bounds_rather_than_wrong_ones():
    model = randomise(pb.CCP(4, 3, 2, 10, dtype=F64), 0, 1e60)
    found = pb.output_bounds(model, torch.rand(2, 4, dtype=F64), 0.1, budget=0.1)
    assert (found.lower == -torch.inf).all() and (found.upper == torch.inf).all()


def test_huge_and_tiny_combinations_are_sound():
    model = randomise(pb.CCP(2, 2, 2, 3, dtype=F64), 5, 0.7)
    x = torch.tensor([[0.3, -0.2]], dtype=F64)
    points = points_in(model, x[0] - 0.1, x[0] + 0.1, torch.eye(2, dtype=F64), 0)
    for weights in ([[1e200, 1.0]], [[1e-300, 0.0]], [[1e16, -1e16 + 2.0]], [[0.0, 0.0]]):
        found = pb.output_bounds(model, x, 0.1, weights=weights, budget=0.2)
        rows = torch.tensor(weights, dtype=F64)
        for point in points[::20]:
            (exact,) = exact_values(model, point, rows, torch.zeros(1))
            assert found.lower[0, 0] == -torch.inf or Fraction(float(found.lower[0, 0])) <= exact
            assert found.upper[0, 0] == torch.inf or exact <= Fraction(float(found.upper[0, 0]))


def test_what_is_refused():
    model = pb.CCP(4, 2, 3, 2)
    x = torch.zeros(2, 4)
    box = (x - 0.1, x + 0.1)
    for options, message in (
        ({}, "either eps or box"),
        ({"eps": 0.1, "box": box}, "either eps or box"),
        ({"eps": 0.1, "weights": [[1.0, 2.0]]}, r"\(rows, 3\)"),
        ({"eps": 0.1, "weights": [["a", 2.0]]}, "weights must be numbers"),
        ({"eps": 0.1, "constant": [1.0]}, "one for each row"),
        ({"eps": 0.1, "weights": [[1.0, torch.nan, 0.0]]}, "finite"),
        ({"eps": 0.1, "method": "lipschitz"}, "method must be one of"),
        ({"eps": 0.1, "tolerance": -1.0}, "tolerance"),
        ({"box": (x + 0.1, x + 0.2)}, "outside of its box"),
        ({"box": (x - 2, x + 2)}, "leaves the domain"),
        ({"box": x}, "pair of tensors"),
        ({"eps": torch.zeros(3, 4)}, r"\(1, 4\) or \(2, 4\)"),
        ({"eps": 0.1, "domain": (torch.zeros(3), torch.ones(4))}, "domain"),
    ):
        with pytest.raises(pb.PolyboundError, match=message):
            pb.output_bounds(model, x, **options)
    with pytest.raises(pb.PolyboundError, match="eps needs the inputs"):
        pb.output_bounds(model, None, 0.1)
    assert pb.output_bounds(model, None, box=box).lower.shape == (2, 3)
    assert pb.output_bounds(model, x[:0], 0.1).lower.shape == (0, 3)
