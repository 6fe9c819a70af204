"""ONNX files of every model and graph compute what torch computes, by onnxruntime, for any batch."""

import json

import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given

import polybound as pb
from helpers.errors import refuses
from helpers.graphs import graphs
from helpers.onnx_graphs import off, run, same_after_a_round_trip
from polybound.deploy import OnnxMetadata, to_onnx
from polybound.models import Builder, GraphNetwork

VARIANTS = {
    "residual": lambda: pb.CCP(12, 5, 3, 3, seed=0),
    "product": lambda: pb.CCP(12, 5, 3, 3, "product", seed=0, shape=(3, 4)),
    "degree 1": lambda: pb.CCP(12, 5, 3, 1, seed=0),
    "degree 30": lambda: pb.CCP(12, 5, 3, 30, seed=0),
    "nested": lambda: pb.NCP(12, 5, 3, 3, seed=0, shape=(3, 4)),
    "nested, degree 1": lambda: pb.NCP(12, 5, 3, 1, seed=0),
    "conv 1d": lambda: pb.ConvCCP((2, 9), 3, 4, 3, 3, pool=(1, 3), seed=0),
    "conv 2d": lambda: pb.ConvCCP((3, 7, 6), 2, 4, 3, 5, seed=0),
    "conv 3d": lambda: pb.ConvCCP((1, 5, 6, 4), 2, 3, 2, 3, pre=3, pool=(2,), seed=0),
    "conv, degree 1": lambda: pb.ConvCCP((2, 6, 6), 3, 4, 1, 3, pool=(1,), seed=0),
    "one of all": lambda: pb.CCP(1, 1, 1, 1, seed=0),
    "doubles": lambda: pb.CCP(6, 4, 3, 3, seed=0, dtype=torch.float64),
    "pn-4 trained": lambda: pb.example("pn-4"),
    "pn-4 trained, bound 1": lambda: pb.example("pn-4-bound-1"),
} | {name: lambda name=name: pb.paper_model(name, seed=0) for name in pb.models.PAPER_MODELS}


@pytest.mark.parametrize("name", VARIANTS)
def test_plain_graphs_compute_what_torch_does(name, tmp_path):
    model = VARIANTS[name]()
    [file] = to_onnx(model, tmp_path / "net.onnx", bounds=False)
    generator, dtype = torch.Generator().manual_seed(0), next(model.parameters()).dtype
    for batch in (1, 2, 7, 64):
        x = torch.rand(batch, *model.shape, generator=generator, dtype=dtype) * 2 - 1
        assert off(run(file, x), model(x)) < (1e-12 if dtype == torch.float64 else 1e-5)
    used = {node.op_type for node in onnx.load(file).graph.node}
    assert used <= {"Gemm", "Conv", "Mul", "AveragePool", "Flatten"}


def test_stacks_are_written_run_by_run(tmp_path):
    stack = pb.NCP(6, 4, 3, 3, runs=3, seed=0)
    files = to_onnx(stack, tmp_path / "net.onnx", bounds=False)
    assert [file.name for file in files] == ["net-0.onnx", "net-1.onnx", "net-2.onnx"]
    x = torch.randn(7, 6)
    for e, file in enumerate(files):
        assert off(run(file, x), stack(x)[e]) < 1e-5
    [only] = to_onnx(stack.run(1), tmp_path / "only.onnx", bounds=False)
    assert only.read_bytes() == files[1].read_bytes()


def test_metadata(tmp_path):
    model = pb.CCP(6, 4, 3, 3, seed=0)
    names = ("é", 'quo"te', "c")
    [file] = to_onnx(model, tmp_path / "net.onnx", class_names=names, domain=(-2.0, 1.0), scaling=(2 / 255, -1.0))
    entries = {entry.key: json.loads(entry.value) for entry in onnx.load(file).metadata_props}
    assert entries["class_names"] == list(names) and entries["domain"] == [-2.0, 1.0]
    assert entries["scaling"] == {"factor": 2 / 255, "offset": -1.0}
    assert entries["polybound"]["kind"] == "CCP" and entries["polybound"]["config"] == model.config()
    proven = pb.lipschitz(model, torch.inf, "rowwise", radius=2.0)
    [row] = [row for row in entries["bounds"] if row["name"] == proven.name]
    assert row["value"] == float(proven) and row["assumptions"] == ["||x||_inf <= 2"]
    read = pb.deploy.read_onnx(file).metadata
    assert read.class_names == names and read.domain == (-2.0, 1.0) and read.scaling == (2 / 255, -1.0)
    assert len(read.bounds) == 3


def test_other_peoples_metadata_are_left_alone():
    proto = onnx.ModelProto()
    onnx.helper.set_model_props(proto, {"domain": "www.example.org", "bounds": "many"})
    assert OnnxMetadata.read(proto) == OnnxMetadata()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"path": "net.txt"}, "ends in .onnx"),
        ({"path": "no/such/net.onnx"}, "no such folder"),
        ({"class_names": ["a"]}, "1 class names for 3 classes"),
        ({"domain": (1.0, -1.0)}, "domain"),
        ({"domain": (float("nan"), 1.0)}, "domain"),
        ({"scaling": (float("inf"), 0.0)}, "scaling"),
        ({"dtype": torch.bfloat16}, "float32 and float64"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, options, complaint):
    given = dict(options)
    path, model = tmp_path / given.pop("path", "net.onnx"), pb.CCP(6, 4, 3, 3, dtype=given.pop("dtype", None))
    refuses(complaint, to_onnx, model, path, **given)
    assert not list(tmp_path.iterdir())


@given(graphs(most=12, dtype=torch.float32))
def test_random_graphs_are_written_and_read_as_what_they_compute(tmp_path_factory, graph):
    same_after_a_round_trip(graph, tmp_path_factory.mktemp("onnx") / "net.onnx")


def test_a_polynet_has_any_batch(tmp_path):
    network = pb.PolyNet((1, 8, 8), 3, width=2, blocks=(1, 1), seed=0).eval()
    [file] = to_onnx(network, tmp_path / "net.onnx", class_names=["a", "b", "c"])
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    again = pb.deploy.from_onnx(file)
    for batch in (1, 5):
        x = torch.rand(batch, 1, 8, 8)
        [logits] = session.run(None, {"input": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), network(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(again.double()(x.double()), network(x).double(), rtol=1e-4, atol=1e-5)


def test_images_stay_images_and_shared_maps_are_written_once(tmp_path):
    network = pb.PolyNet((1, 8, 8), 3, width=2, blocks=(1, 1), seed=0).eval()
    [file] = to_onnx(network, tmp_path / "net.onnx")
    operators = [node.op_type for node in onnx.load(file).graph.node]
    assert operators.count("Conv") == sum(isinstance(part, torch.nn.Conv2d) for part in network.modules())
    assert operators.count("Reshape") <= 2 and "Gather" not in operators


@pytest.mark.parametrize("square", [True, False])
def test_networks_without_weights_are_written(square, tmp_path):
    builder = Builder()
    x = builder.input((2, 2))
    network = GraphNetwork.of(builder.finish(builder.product(x, x) if square else x))
    [file] = to_onnx(network, tmp_path / "net.onnx")
    x = torch.randn(3, 2, 2, dtype=torch.float64)
    wanted = (x**2 if square else x).flatten(1)
    assert torch.equal(pb.deploy.from_onnx(file).double()(x), wanted)
