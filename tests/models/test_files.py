"""Saving and loading: bit-exact, never pickled, and every bad file refused in one line."""

import json
import struct
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.torch import load_file, save_file
from torch import nn

import polybound as pb
from helpers.errors import refuses
from helpers.graphs import graphs
from helpers.networks import Written, layers, networks
from helpers.training import digits
from polybound.errors import FileFormatError
from polybound.models import GraphNetwork, PolyNet, Quadratic, TracedNetwork, graph_of, graph_spec, trace


@given(model=networks(runs=(None, 2)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip_is_bit_exact(tmp_path, model):
    path = tmp_path / "model.safetensors"
    model.save(path)
    again = pb.load(path)
    assert type(again) is type(model) and again.config() == model.config()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
        assert again.get_parameter(name).requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_type_survives(tmp_path, dtype):
    model = pb.paper_model("pn-4", shape=(1, 4, 4), dtype=torch.float32).to(dtype)
    model.save(tmp_path / "m.safetensors")
    again = pb.load(tmp_path / "m.safetensors")
    assert again.V.dtype == dtype and torch.equal(again.V, model.V)


def refused(path):
    with pytest.raises(pb.FileFormatError) as caught:
        pb.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def test_truncated_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "bad.safetensors"
    pb.NCP(4, 3, 2, 3, seed=0).save(path)
    content = path.read_bytes()
    foreign = [b"PK\x03\x04 not a model", b"\x80\x04\x95pickle", b"\xff" * 64, struct.pack("<Q", 2**63) + b"{}"]
    for bad in (*foreign, *(content[:length] for length in range(0, len(content), 7))):
        path.write_bytes(bad)
        refused(path)
    save_file({"weight": torch.zeros(2)}, path)
    assert "not a polybound model" in refused(path)


@pytest.mark.parametrize(
    "header",
    [
        "no json",
        "[]",
        '{"kind": "CCP"}',
        '{"kind": "Linear", "config": {}}',
        '{"kind": "CCP", "config": {"features": 4}}',
        '{"kind": "CCP", "config": {"features": 4, "rank": 3, "classes": 2, "degree": 2, "colour": "red"}}',
        '{"kind": "CCP", "config": {"features": 4, "rank": -3, "classes": 2, "degree": 2}}',
        # Sizes that no memory could hold: refused by shape, not by running out of memory.
        '{"kind": "CCP", "config": {"features": 4000000, "rank": 4000000, "classes": 2, "degree": 2}}',
    ],
)
def test_bad_configs_are_refused(tmp_path, header):
    path = tmp_path / "bad.safetensors"
    model = pb.CCP(4, 3, 2, 2)
    save_file(dict(model.state_dict()), path, metadata={"polybound": header})
    refused(path)


def test_tensors_that_do_not_fit_the_config_are_refused(tmp_path):
    path = tmp_path / "bad.safetensors"
    model = pb.CCP(4, 3, 2, 2)
    header = {"polybound": json.dumps({"kind": "CCP", "config": model.config()})}
    V, C = model.V.detach(), model.C.detach()
    both = {"V": V, "C": C}
    for tensors in ({"V": V}, both | {"D": C.clone()}, both | {"C": C[:, :2].clone()}, both | {"C": C.int()}):
        save_file(tensors, path, metadata=header)
        refused(path)


def test_missing_file(tmp_path):
    for path in (tmp_path / "nothing.safetensors", tmp_path):
        with pytest.raises(FileNotFoundError):
            pb.load(path)


def test_a_full_disk_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "m.safetensors"
    pb.CCP(4, 3, 2, 2, seed=0).save(path)
    code = (
        "import resource, sys, polybound as pb\n"
        "model = pb.CCP(400, 30, 20, 2)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"  # writing on fails as it does on a full disk
        "try:\n    model.save(sys.argv[1])\nexcept OSError:\n    print('refused')\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120)
    assert result.stdout == "refused\n", result.stderr
    assert torch.equal(pb.load(path).V, pb.CCP(4, 3, 2, 2, seed=0).V)
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_the_digest_is_that_of_kind_config_and_weights(tmp_path):
    V = torch.arange(6, dtype=torch.float64).reshape(2, 1, 3) / 4
    C = torch.tensor([[1.0], [-0.5]], dtype=torch.float64)
    model = pb.CCP.from_factors(V, C)
    # Files of certificates and of scores hold it: it never changes.
    known = "d39fd73b28c6e72c8b4001c1158c9acb41667b62c4fa14e50a4523287cee11fc"
    assert pb.models.weights_digest(model) == known
    model.save(tmp_path / "m.safetensors")
    assert pb.models.weights_digest(pb.load(tmp_path / "m.safetensors")) == known
    changed = [pb.CCP.from_factors(V.float(), C.float()), pb.CCP.from_factors(V, -C), pb.stack([model])]
    assert len({known, *(pb.models.weights_digest(other) for other in changed)}) == 4


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
    "an output that does not exist": lambda s: s.update(output=10**6),
    "no output": lambda s: s.pop("output"),
    "a shape of zeros": lambda s: s["nodes"][0].update(input=[0, 4]),
    "a shape that does not fit": lambda s: map_of(s, "Conv").update(shape=[2, 4, 4]),
    "a huge shape": lambda s: map_of(s, "Conv").update(shape=[10**9, 10**9, 4]),
    "two inputs": lambda s: s["nodes"].append({"input": [4]}),
    "a node of nothing": lambda s: s["nodes"].append({}),
    "an origin that does not exist": lambda s: s["nodes"][1].update(origin=5),
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
