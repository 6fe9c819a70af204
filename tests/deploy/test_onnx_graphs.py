"""Any network as an ONNX file: onnxruntime computes what the graph does, and the file is read as the same graph."""

import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given

import polybound as pb
from helpers.graphs import graphs
from helpers.onnx_graphs import same_after_a_round_trip
from polybound.deploy import to_onnx
from polybound.models import Builder, GraphNetwork


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
