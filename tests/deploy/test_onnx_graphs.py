"""Deep networks as ONNX files: onnxruntime computes what the graph does."""

import onnxruntime
import torch
from hypothesis import given
from hypothesis import strategies as st

import polybound as pb
from helpers.graphs import graphs
from polybound.deploy.onnx.files import run_onnx
from polybound.models import GraphNetwork


@given(graphs(most=12, dtype=torch.float32), st.integers(0, 99))
def test_random_graphs_are_written_as_what_they_compute(tmp_path_factory, graph, seed):
    network = GraphNetwork.of(graph)
    if not list(network.parameters()):
        return
    [file] = pb.deploy.to_onnx(network, tmp_path_factory.mktemp("onnx") / "net.onnx")
    x = torch.randn(3, *graph.shape, generator=torch.Generator().manual_seed(seed))
    found, wanted = run_onnx(file, x), graph.double()(x.double())
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) <= 1e-3 * (1 + float(wanted.abs().max()))


def test_a_polynet_has_any_batch(tmp_path):
    network = pb.PolyNet((1, 8, 8), 3, width=2, blocks=(1, 1), seed=0).eval()
    [file] = pb.deploy.to_onnx(network, tmp_path / "net.onnx", class_names=["a", "b", "c"])
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for batch in (1, 5):
        x = torch.rand(batch, 1, 8, 8)
        [logits] = session.run(None, {"input": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), network(x), rtol=1e-4, atol=1e-5)
