"""Deep networks: trained by fit, saved as graphs, and what files may claim."""

import json

import pytest
import torch
from hypothesis import given
from safetensors.torch import load_file, save_file
from torch import nn

import polybound as pb
from helpers.errors import refuses
from helpers.graphs import graphs
from helpers.networks import Written, layers
from helpers.training import digits
from polybound.errors import FileFormatError
from polybound.models import GraphNetwork, PolyNet, Quadratic, TracedNetwork, graph_of, graph_spec, trace


def plain():
    def forward(m, x):
        x = x.flatten(1)
        return m.c(m.a(x) * m.b(x) + m.b(x))

    return Written(forward, **layers(64, 8, "ab"), c=nn.Linear(8, 10))


@pytest.mark.parametrize(
    "build", [lambda: PolyNet((1, 8, 8), width=4, blocks=(1, 1), seed=0), lambda: TracedNetwork(plain(), (1, 8, 8))]
)
def test_fit_trains_in_place_and_ends_in_evaluation_of_its_graph(build):
    net = build()
    history = pb.fit(net, digits(100), epochs=3, verbose=False)
    assert history["loss"][-1] < history["loss"][0]
    test = pb.data.load_digits("test")
    net.eval()
    torch.testing.assert_close(net.graph()(test.x[:9].flatten(1)), net(test.x[:9]), rtol=1e-4, atol=1e-4)


def test_training_is_determined_by_its_seed():
    digests = []
    for _ in range(2):
        net = PolyNet((1, 8, 8), width=2, blocks=(1,), seed=3)
        pb.fit(net, digits(100), epochs=1, seed=5, verbose=False)
        digests.append(net.graph().digest)
    assert digests[0] == digests[1]
    assert PolyNet((1, 8, 8), width=2, blocks=(1,), seed=4).graph().digest != digests[0]


def test_a_composition_of_quadratics_is_flat_on_one_side():
    f = Quadratic(1)
    x = torch.tensor([[-2.5], [-2.0], [-1.5], [0.0], [1.0]])
    torch.testing.assert_close(f(x), ((x + 2) ** 2 / 4) ** 2 / 2)


def test_every_model_shows_its_graph():
    for model in (
        pb.CCP(6, 4, 3, 4, seed=0),
        pb.CCP(6, 4, 3, 3, "product", seed=0),
        pb.NCP(6, 4, 3, 3, seed=0),
        pb.paper_model("pn-conv", shape=(1, 12, 12), seed=0),
    ):
        x = torch.rand(3, model.features)
        torch.testing.assert_close(model.graph()(x), model(x), rtol=1e-4, atol=1e-5)
        chain = model.graph().chain()
        assert chain.degree == model.degree
        torch.testing.assert_close(chain(x), model(x), rtol=1e-4, atol=1e-5)


def test_chains_are_recognised_in_plain_modules():
    graph = trace(plain(), (1, 8, 8))
    assert graph.chain().degree == 2
    assert PolyNet((1, 8, 8), width=2, blocks=(1,), seed=0).graph().chain() is None
    refuses("a PolyNet is no single chain of products", PolyNet((1, 8, 8), width=2, blocks=(1,), seed=0).factors)


def test_a_stack_has_no_graph():
    refuses("a stack of 2: take one run", graph_of, pb.CCP(4, 3, 2, 2, runs=2, seed=0).factors())


@given(graphs(dtype=torch.float32))
def test_graphs_come_back_from_files(tmp_path_factory, graph):
    network = GraphNetwork.of(graph)
    if not network.state_dict():
        return
    path = tmp_path_factory.mktemp("graph") / "net.safetensors"
    network.save(path)
    again = pb.load(path)
    x = torch.rand(3, graph.features)
    assert again.graph().digest == network.graph().digest
    # Where weights lie in memory may decide in which order some versions of PyTorch sum.
    assert torch.allclose(again.graph()(x), network.graph()(x), rtol=1e-5)
    assert (again.shape, again.classes, again.degree) == (network.shape, network.classes, network.degree)


def test_models_by_class_come_back_from_files(tmp_path):
    net = PolyNet((1, 8, 8), width=2, blocks=(1, 1), seed=0)
    pb.fit(net, digits(64), epochs=1, verbose=False)
    net.save(tmp_path / "net.safetensors")
    again = pb.load(tmp_path / "net.safetensors")
    assert isinstance(again, PolyNet) and again.graph().digest == net.graph().digest


def test_a_users_module_comes_back_as_its_graph(tmp_path):
    net = TracedNetwork(plain(), (1, 8, 8))
    net.save(tmp_path / "net.safetensors")
    again, x = pb.load(tmp_path / "net.safetensors"), torch.rand(3, 1, 8, 8)
    assert isinstance(again, GraphNetwork) and again.degree == 2
    torch.testing.assert_close(again(x), net(x))
    again.save(tmp_path / "again.safetensors")
    assert pb.load(tmp_path / "again.safetensors").graph().digest == again.graph().digest


def spec_and_tensors():
    spec, tensors = graph_spec(trace(PolyNet((1, 4, 4), 3, width=2, blocks=(1,), seed=0), (1, 4, 4), fused=False))
    return spec, {f"t{name}": tensor.detach().contiguous().clone() for name, tensor in tensors.items()}


def node(spec, kind):
    return next(told for told in spec["nodes"] if kind in told)


def chains(depth):
    return {"kind": "Chain", "maps": [chains(depth - 1)] if depth else []}


def save_spec(path, spec, tensors):
    header = {"kind": "GraphNetwork", "config": {"graph": spec}}
    save_file(tensors, path, metadata={"polybound": json.dumps(header)})


def map_of(spec, kind):
    return next(n["map"] for n in spec["nodes"] if n.get("map", {}).get("kind") == kind)


DAMAGE = {
    "refers to itself": lambda s: s["nodes"][3].update(of=3),
    "refers to what comes later": lambda s: node(s, "product").update(product=[1, 10**6]),
    "a negative source": lambda s: node(s, "sum").update(sum=[-1, 1]),
    "a source that is no number": lambda s: s["nodes"][1].update(of=True),
    "missing tensors": lambda s: map_of(s, "Conv").update(weight="99"),
    "another tensor": lambda s: map_of(s, "Conv").update(weight=map_of(s, "Scale")["weight"]),
    "an unknown map": lambda s: map_of(s, "Conv").update(kind="Relu"),
    "a product of three": lambda s: node(s, "product").update(product=[1, 1, 1]),
    "an empty sum": lambda s: node(s, "sum").update(sum=[]),
    "no node": lambda s: s.update(nodes=[]),
    "too many nodes": lambda s: s.update(nodes=s["nodes"] + [{"sum": [1, 1]}] * 10**5),
    "an output that is none": lambda s: s.update(output=10**6),
    "no output": lambda s: s.pop("output"),
    "a shape of zeros": lambda s: s["nodes"][0].update(input=[0, 4]),
    "a shape that does not fit": lambda s: map_of(s, "Conv").update(shape=[2, 4, 4]),
    "a huge shape": lambda s: map_of(s, "Conv").update(shape=[10**9, 10**9, 4]),
    "two inputs": lambda s: s["nodes"].append({"input": [4]}),
    "a node of nothing": lambda s: s["nodes"].append({}),
    "an origin that is none": lambda s: s["nodes"][1].update(origin=5),
    "a chain without end": lambda s: map_of(s, "Conv").update(chains(5)),
    "tensors of no shape": lambda s: s.update(tensors={"0": "x"}),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_graphs_are_refused_in_one_line(tmp_path, what):
    (spec, tensors), path = spec_and_tensors(), tmp_path / "net.safetensors"
    DAMAGE[what](spec)
    save_spec(path, spec, tensors)
    text = refuses("", pb.load, path, error=FileFormatError)
    assert str(path) in text and len(text) < 600


def test_the_honest_file_is_read(tmp_path):
    spec, tensors = spec_and_tensors()
    save_spec(tmp_path / "net.safetensors", spec, tensors)
    assert len(load_file(tmp_path / "net.safetensors")) == len(tensors)
    assert pb.load(tmp_path / "net.safetensors").classes == 3
