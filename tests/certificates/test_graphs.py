"""Certificates of networks that are no chain: judged in fractions, and against attacks."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.graphs import F64, graphs, two_products
from polybound.certificates.bounds.graphs import GraphBoxes, through_planes
from polybound.certificates.graphs import PreparedGraph
from polybound.models import Fractions, GraphNetwork, PolyNet


def corners(x, radius, count, seed):
    generator = torch.Generator().manual_seed(seed)
    lower, upper = x - radius, x + radius
    yield x
    for _ in range(count):
        signs = torch.randint(-1, 2, x.shape, generator=generator)
        yield torch.maximum(torch.minimum(x + radius * signs, upper), lower)


@given(graphs(most=8, degree=6), st.integers(0, 99), st.booleans())
def test_planes_are_least_at_their_lowest_inputs(graph, seed, ball):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(2, graph.features, generator=generator, dtype=F64) - 1
    r, one = torch.rand(x.shape, generator=generator, dtype=F64), torch.ones_like(x)
    limits = (x, r, (-one, one)) if ball else None
    boxes = GraphBoxes.over(graph.double(), x - r, x + r)
    found = through_planes(boxes, torch.randn(2, graph.classes, generator=generator, dtype=F64), 0.5)
    lowest, bound = found.lowest(limits), found.least(0, limits)
    u = (lowest - x) / r
    assert bool((u.norm(dim=1) <= 1).all()) if ball else bool((u.abs() <= 1 + 1e-9).all())
    value = found.constant + (found.at[0] * lowest).sum(1)
    size = found.constant.abs() + (found.at[0].abs() * (x.abs() + r)).sum(1) + found.lost
    assert bool(((value - bound).abs() <= 1e-6 * size).all())


@given(graphs(most=8, degree=6), st.integers(0, 99), st.sampled_from(["inf", "2"]))
def test_no_point_contradicts_a_certificate(graph, seed, norm):
    if graph.classes < 2:
        return
    network = GraphNetwork.of(graph)
    x = 2 * torch.rand(3, graph.features, generator=torch.Generator().manual_seed(seed), dtype=F64) - 1
    labels = graph.double()(x).argmax(1)
    found = pb.certify(PreparedGraph(network.graph()), x, labels, 0.1, norm=norm, domain=None)
    for image, status in enumerate(found.status):
        if status == "falsified":
            point = found.counterexample[image].reshape(-1)
            values = graph.evaluate(Fractions(), [Fraction(v) for v in point.tolist()])
            assert values[int(found.rival[image])] >= values[int(labels[image])]
            away = (point - x[image]).abs()
            assert float(away.max() if norm == "inf" else away.square().sum().sqrt()) <= 0.1 * (1 + 1e-12)
        elif status == "verified":
            reach = 0.1 if norm == "inf" else 0.1 / graph.features**0.5
            for point in corners(x[image : image + 1], reach * (1 - 1e-12), 8, seed):
                assert int(graph.double()(point).argmax()) == int(labels[image])


@given(graphs(most=8, degree=6), st.integers(0, 99), st.sampled_from(["inf", "2"]))
def test_output_bounds_hold_what_points_attain(graph, seed, norm):
    x = 2 * torch.rand(2, graph.features, generator=torch.Generator().manual_seed(seed), dtype=F64) - 1
    found = pb.output_bounds(PreparedGraph(graph), x, 0.1, norm=norm, domain=None)
    assert bool((found.lower <= found.lowest).all() and (found.highest <= found.upper).all())
    reach = 0.1 if norm == "inf" else 0.1 / graph.features**0.5
    for point in corners(x, reach * (1 - 1e-12), 4, seed):
        values = graph.double()(point)
        slack = 1e-9 * (1 + values.abs())
        assert bool((found.lower <= values + slack).all() and (values - slack <= found.upper).all())
    for image in range(2):
        for row in range(graph.classes):
            for name, at in (("lowest", found.lowest_at), ("highest", found.highest_at)):
                values = graph.evaluate(Fractions(), [Fraction(v) for v in at[image, row].tolist()])
                end = Fraction(float(getattr(found, name)[image, row]))
                assert values[row] <= end if name == "lowest" else values[row] >= end


@pytest.mark.parametrize("seed", range(4))
def test_boxes_in_which_few_inputs_move_are_cut_until_they_are_decided(seed):
    graph = two_products(seed)
    x = 2 * torch.rand(8, 3, generator=torch.Generator().manual_seed(seed), dtype=F64) - 1
    labels = graph(x).argmax(1)
    found = pb.certify(PreparedGraph(graph), x, labels, 0.15, domain=None, nodes=300)
    assert not found.count("undecided")
    steps = torch.linspace(-1, 1, 9, dtype=F64)
    grid = 0.15 * (1 - 1e-9) * torch.cartesian_prod(steps, steps, steps)
    for image, status in enumerate(found.status):
        if status == "verified":
            assert bool((graph(x[image] + grid).argmax(1) == labels[image]).all())
    without = pb.certify(PreparedGraph(graph), x, labels, 0.15, domain=None, nodes=0)
    branched = [stage == "branch" for stage in found.stage]
    assert branched == [status == "undecided" for status in without.status]


class Flat(torch.nn.Module):
    """A margin of `1/4 - x^2`, whose slope is zero at zero."""

    def forward(self, x):
        x = x.reshape(-1, 1)
        return torch.cat([0.25 - x * x, 0 * x], 1)


def test_attacks_start_from_where_planes_are_least_where_the_network_is_flat():
    net, x = pb.polynomial(Flat(), (1,)), torch.zeros(1, 1)
    near, far = (pb.certify(net, x, torch.tensor([0]), eps, method="first") for eps in (0.4, 0.6))
    assert near.status == ["verified"] and (far.status, far.stage) == (["falsified"], ["corners"])


def trained():
    net = PolyNet((1, 8, 8), width=4, blocks=(1, 1), seed=0)
    pb.fit(net, pb.data.load_digits("train").subset(800), epochs=12, verbose=False)
    return net.eval()


@pytest.fixture(scope="module")
def network():
    return trained()


def test_deep_networks_are_certified_like_any_other(network):
    test = pb.data.load_digits("test")
    small, large = (pb.certify(network, test.x[:12], test.y[:12], eps) for eps in (1e-4, 0.5))
    assert small.count("verified") >= 6 and small.count("verified") + small.stage.count("clean") == 12
    assert large.count("falsified") >= 8 and large.count("verified") == 0
    for image, point in enumerate(large.counterexample):
        if point is not None:
            assert float((point - test.x[image]).abs().max()) <= 0.5
    radius = pb.certified_radius(network, test.x[:3], test.y[:3], largest=0.1)
    assert bool((radius.certified <= radius.attacked).all())
    assert 0 < pb.certified_accuracy(network, test, 1e-4, images=12) <= 1


def test_stages_are_ordered_by_strength(network):
    test = pb.data.load_digits("test")
    found = {m: pb.certify(network, test.x[:12], test.y[:12], 0.002, method=m) for m in ("interval", "crown", "auto")}
    margins = {method: one.margin for method, one in found.items()}
    assert bool((margins["crown"] >= margins["interval"]).all())
    assert found["auto"].count("verified") >= found["crown"].count("verified") >= found["interval"].count("verified")


def test_what_deep_networks_do_not_have_is_said(network):
    test, message = (
        pb.data.load_digits("test"),
        "'second' is for chains of products; deep networks have auto, first, crown",
    )
    refuses(message, pb.certify, network, test.x[:2], test.y[:2], 0.01, method="second")


def test_networks_that_were_trained_by_intervals_are_spared_the_joint_bounds():
    net = pb.example("mnist-certified-0.3")
    x = torch.full((1, 1, 28, 28), -0.9)
    found = pb.certify(net, x, net(x).argmax(1), 0.7, domain=(-1.0, 1.0))
    assert "generators" in found.cost or found.count("falsified") == 1
    assert "layers" not in found.cost
