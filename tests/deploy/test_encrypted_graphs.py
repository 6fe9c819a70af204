"""Encrypted inference of any graph: plans, errors beside their estimates, refusals, and a server of its own."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

pytest.importorskip("tenseal")

import polybound as pb
from helpers.encrypted_server import ServerProcess
from helpers.graphs import graphs
from polybound.deploy import Client, GraphPlan, PublicPlan, RemoteClassifier, Server, plan_encryption
from polybound.deploy.encrypted.graph.layout import Layout
from polybound.deploy.encrypted.graph.moduli import Moduli
from polybound.deploy.encrypted.graph.plan import plan_graph
from polybound.deploy.encrypted.http import Service
from polybound.deploy.encrypted.plan import PLAN_HEADER
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ring": 4096}, "ring must be one of"),
        ({"bits": (60,) * 8}, "not secure"),
        ({"packing": Layout(SHAPE, (), ())}, "packing does not fit its images"),
        ({"steps": (0,)}, "rotations do not fit"),
        ({"steps": (1, 1)}, "repeated"),
        ({"places": (0,) * 9}, "class names do not fit"),
        ({"places": (2**14,) * 10}, "logits do not fit"),
        ({"blocks": 0}, "1 to 10000 blocks"),
        ({"domain": (1.0, -1.0)}, "time is not a number"),
        ({"basis": "\x1b[2J"}, "printable"),
    ],
)
def test_a_client_refuses_plans_that_it_must_not_follow(change, message):
    public = plan_encryption(small()).public
    with pytest.raises(PolyboundError, match=message):
        replace(public, **change)
    content = {name: value.public() if name == "packing" else value for name, value in change.items()}
    with pytest.raises(PolyboundError):
        PublicPlan.from_json(json.dumps({**json.loads(public.to_json()), **content}))


@pytest.mark.parametrize("text", ["{}", '{"version": 1}', '{"version": 2}', "[]", "nothing"])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(PolyboundError):
        PublicPlan.from_json(text)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("graph"), cli=True, model=small()) as process:
        yield process
        assert process.alive() and "Traceback" not in process.log.read_text()
    assert not [path for path in process.files.rglob("*") if path.is_file()]


def test_four_clients_at_once_get_their_own_answers(server):
    x = images(64, 4)
    want = small().graph().double()(torch.from_numpy(x)).numpy()

    def ask(image):
        with RemoteClassifier(server.url) as remote:
            return remote.classify(image, lambda _: None).logits, remote.plan

    with ThreadPoolExecutor(4) as pool:
        for logits, (found, plan) in zip(want, pool.map(ask, x), strict=True):
            assert np.abs(found - logits).max() <= plan.error
            assert plan.blocks == 3 and plan.class_names == tuple(map(str, range(10)))


def test_garbage_is_refused_and_the_server_goes_on(server):
    with RemoteClassifier(server.url) as remote:
        good = remote.classify(images(64)[0])
        keys, request = remote.client.keys(), remote.client.encrypt(images(64)[0])
        digest = {PLAN_HEADER: remote.plan.digest}
        assert server.ask("POST", "/keys", keys[:-1], **digest)[0] == 400
        status, answer = server.ask("POST", "/keys", keys, **digest)
        assert status == 201
        path = f"/classify/{json.loads(answer)['keys']}"
        damaged = bytearray(request)
        damaged[len(request) // 2 :] = bytes(len(request) - len(request) // 2)
        assert server.ask("POST", path, bytes(damaged), **digest)[0] == 400
        assert server.ask("POST", path, request + b"x" * 10**6, **digest)[0] == 413
        assert server.ask("POST", path, request, **{PLAN_HEADER: "0" * 64})[0] == 409
        assert server.ask("GET", path.replace("classify", "progress"), b"")[0] == 404
        again = remote.classify(images(64)[0])
        assert np.abs(again.logits - good.logits).max() <= 2 * remote.plan.error


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
