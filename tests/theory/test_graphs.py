"""Lipschitz constants of graphs: no quotient of two points is above them, no Jacobian's entry above its bound."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import polybound as pb
from helpers.graphs import F64, graphs
from polybound.models import GraphNetwork
from polybound.theory.lipschitz import composed_lipschitz, jacobian_bounds
from polybound.theory.norms import matrix_norm, operator_norm


def box(graph, seed, radius):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(1, graph.features, generator=generator, dtype=F64) - 1
    points = x + radius * (2 * torch.rand(6, graph.features, generator=generator, dtype=F64) - 1)
    return x - radius, x + radius, points


@given(graphs(), st.integers(0, 99), st.sampled_from([1e-6, 0.1, 1.0]), st.sampled_from([1.0, 2.0, 3.0, torch.inf]))
def test_no_quotient_is_above_the_bounds(graph, seed, radius, p):
    lower, upper, points = box(graph, seed, radius)
    values, away = graph(points), torch.linalg.vector_norm(points[:1] - points[1:], p, dim=1)
    quotients = torch.linalg.vector_norm(values[:1] - values[1:], p, dim=1) / away
    largest = float(quotients.nan_to_num(0.0).max())
    noise = 1e-9 * (1 + float(values.abs().max()) / float(away.min()))
    assert largest <= composed_lipschitz(graph, lower, upper, p) + noise
    assert largest <= float(matrix_norm(jacobian_bounds(graph, lower, upper).size[0], p)) + noise


@given(graphs(), st.integers(0, 99), st.sampled_from([0.0, 1e-6, 0.3]))
def test_jacobians_lie_within_their_bounds(graph, seed, radius):
    lower, upper, points = box(graph, seed, radius)
    bounds = jacobian_bounds(graph, lower, upper).size[0]
    for point in points:
        jacobian = torch.autograd.functional.jacobian(lambda x: graph(x.unsqueeze(0))[0], point)
        assert bool((jacobian.abs() <= bounds * (1 + 1e-9) + 1e-9 * float(bounds.max()) + 1e-12).all())
        if radius == 0.0:
            torch.testing.assert_close(jacobian.abs(), bounds, rtol=1e-6, atol=1e-9 * (1 + float(bounds.max())))


@given(graphs(), st.sampled_from([1.0, 2.0, torch.inf]))
def test_operator_norms_bound_every_map(graph, p):
    for node in graph.nodes:
        if hasattr(node, "map"):
            exact = float(torch.linalg.matrix_norm(node.map.matrix(), p))
            assert exact <= operator_norm(node.map, p) * (1 + 1e-12)


@given(graphs(dtype=torch.float32, most=8))
def test_lipschitz_and_bounds_take_deep_networks(graph):
    network = GraphNetwork.of(graph)
    paper, local = (float(pb.lipschitz(network, method=method)) for method in ("paper", "local"))
    assert local >= 0 and paper >= 0
    assert len(pb.bounds(network)) > 0


def test_the_bounds_of_a_polynet_say_what_they_rest_on():
    network = pb.PolyNet((1, 4, 4), 3, width=2, blocks=(1,), seed=0)
    bound = pb.lipschitz(network, radius=0.5)
    assert bound.assumptions == ("x in the box [-0.5, 0.5]",) and "Jacobian" in bound.how
    assert float(pb.lipschitz(network, radius=0.1)) < float(bound) <= float(pb.lipschitz(network, radius=1.0))
    with pytest.raises(pb.PolyboundError, match="box sides must be"):
        pb.lipschitz(network, method="local", box=(torch.zeros(3), torch.ones(3)))
    assert "degree 2" in str(pb.bounds(network))
