"""Encrypted inference of any graph: plans, errors beside their estimates, refusals, and evaluations that end early."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

pytest.importorskip("tenseal")

import polybound as pb
from helpers.graphs import graphs
from polybound.deploy import Client, GraphPlan, PublicPlan, Server, plan_encryption
from polybound.deploy.encrypted.graph.moduli import Moduli
from polybound.deploy.encrypted.graph.plan import plan_graph
from polybound.deploy.encrypted.http import Service
from polybound.errors import PolyboundError
from polybound.models import Builder, Dense, Quadratic

SHAPE = (1, 8, 8)


def small(blocks=(1, 1)):
    return pb.PolyNet(SHAPE, width=4, blocks=blocks, seed=0).eval()


def quadratics():
    layers = (torch.nn.Conv2d(1, 4, 3, stride=2), Quadratic(4), torch.nn.Flatten(), torch.nn.Linear(36, 3))
    torch.manual_seed(0)
    return pb.polynomial(torch.nn.Sequential(*layers), SHAPE).eval()


def images(features, count=3):
    return np.random.default_rng(0).uniform(-1, 1, (count, features))


def errors(plan, graph, x):
    """The largest error of a logit at each image, by a client and a server of a plan."""
    server, client = Server(plan), Client(PublicPlan.from_json(plan.public.to_json()))
    keys = server.load_keys(client.keys())
    want = graph.double()(torch.from_numpy(x)).numpy()
    got = np.stack([client.decrypt(server.classify(client.encrypt(image), keys)) for image in x])
    return np.abs(got - want).max(1)


@pytest.mark.parametrize(
    "model", [small, quadratics, lambda: pb.NCP(12, 4, 3, degree=3, seed=0)], ids=["residual", "quadratics", "NCP"]
)
def test_the_logits_are_within_their_estimate(model):
    network = model()
    plan = plan_graph(network.graph(), (-1.0, 1.0), list(map(str, range(network.classes))), 1.0)
    assert plan.error <= 1
    found = errors(plan, network.graph(), images(network.features))
    assert found.max() <= plan.error
    # The estimate is not far off either: seven standard deviations, and some of them counted at their largest.
    assert found.max() > plan.error / 1000


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(graphs(most=12))
def test_random_graphs_are_within_their_estimate_or_refused(graph):
    try:
        plan = plan_graph(graph, (-1.0, 1.0), list(map(str, range(graph.classes))), 1.0)
    except PolyboundError as refusal:
        if any(reason in str(refusal) for reason in ("does not fit", "constant", "too large")):
            return
        raise
    assert errors(plan, graph, images(graph.features, 1)).max() <= plan.error


def test_what_masks_a_reply_is_in_the_estimate():
    """Logits that are zero err by nothing else."""
    builder = Builder()
    x = builder.input((3,))
    zero = Dense(torch.zeros(2, 3, dtype=torch.float64))
    graph = builder.finish(builder.affine(zero, builder.product(builder.product(x, x), x)), fused=False)
    moduli = Moduli(8192, 38, 60, (0, 1, 1), (37.5, 31.0, 18.0), 36.85)
    plan = replace(plan_graph(graph, (-1.0, 1.0), ["a", "b"], 1.0), moduli=moduli, bits=moduli.bits, pixels=37.5)
    found, estimate = errors(plan, graph, images(3, 5)).max(), plan.error_at(images(3, 5))
    assert 1e-3 * estimate < found <= estimate < 1e-6


def test_ranges_are_proven_where_they_fit_and_else_checked_on_images():
    network = small()
    plan = plan_encryption(network)
    assert isinstance(plan, GraphPlan) and plan.basis == "proven over the domain"
    with torch.no_grad():
        network.head.weight *= 1e9
    checked = plan_encryption(network, tolerance=1e9, images=images(64, 5))
    assert checked.basis == "checked on 5 images, with a margin of 4"


def test_a_network_that_does_not_fit_is_refused_with_its_number_of_products():
    builder = Builder()
    y = builder.input((4,))
    for _ in range(20):
        y = builder.product(y, y)
    with pytest.raises(PolyboundError, match="does not fit any ring: it has 20 products in a row"):
        plan_graph(builder.finish(y), (-1.0, 1.0), list("abcd"), 1.0)


def test_what_a_lost_client_asked_for_ends_at_its_next_block():
    plan = plan_encryption(small())
    service, client = Service(plan), Client(plan.public)
    name = service.keep(*service.read_keys(client.keys()))
    request, asked, seen = client.encrypt(images(64)[0]), iter([True, True, False]), list[int]()

    def wanted():
        seen.append(service.progress.get(name, 0))
        return next(asked)

    with pytest.raises(PolyboundError, match="the client is gone"):
        service.classify(request, name, wanted)
    assert seen == [0, 0, 1] and service.progress == {}
    assert client.decrypt(service.classify(request, name)).shape == (10,)
    service.close()
    with pytest.raises(PolyboundError, match="the client is gone"):
        service.classify(request, name)
