"""ONNX graphs made by hand, networks written in plain torch, and onnxruntime as the judge."""

import ast
import logging
import warnings

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import polybound as pb
from helpers.networks import Written
from polybound.deploy.onnx.files import run_onnx
from polybound.models import Bounded, GraphNetwork, Intervals


def run(path, x):
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    [source] = session.get_inputs()
    return torch.from_numpy(session.run(None, {source.name: x.detach().numpy()})[0])


def off(found, wanted):
    """The largest error, relative to the largest output."""
    return float((found - wanted).detach().abs().max() / wanted.detach().abs().max())


def same_after_a_round_trip(graph, path):
    """Write a float32 graph, run it, read it; values and intervals are those of the graph."""
    pb.deploy.to_onnx(GraphNetwork.of(graph), path)
    wanted = graph.double()
    again = pb.deploy.read_onnx(path).graph
    x = torch.rand(5, *graph.shape, generator=torch.Generator().manual_seed(graph.features), dtype=torch.float64) - 0.5
    x = x.float().double()
    values, rows = wanted(x), x.flatten(1)
    size = float(values.abs().max()) + 1e-12
    found, runtime = again(x), run_onnx(path, x.float())
    assert found.shape == values.shape == runtime.shape
    assert float((found - values).abs().max()) <= 1e-12 * size
    # Terms that cancel leave the rounding of float32.
    terms = wanted.transform(torch.abs)(x.abs())
    assert bool(((runtime - values).abs() <= 1e-4 * terms.abs() + 1e-30).all())
    for one, other in ((wanted, again), (again, wanted)):
        box = one.evaluate(Intervals(), Bounded(rows - 0.01, rows + 0.01))
        assert bool(((box.lower <= other(x)) & (other(x) <= box.upper)).all())


def save_graph(
    path, nodes, tensors=None, shape=("batch", 4), out=("batch", 3), kind=TensorProto.FLOAT, opsets=(), opset=13
):
    """A graph of nodes, or of their text, from `input` to `output`; tensors are float32 or arrays of another type."""
    arrays = {
        name: np.asarray(value, dtype=getattr(value, "dtype", np.float32)) for name, value in (tensors or {}).items()
    }
    graph = helper.make_graph(
        nodes_of(nodes) if isinstance(nodes, str) else nodes,
        "made",
        [helper.make_tensor_value_info("input", kind, list(shape))],
        [helper.make_tensor_value_info("output", kind, list(out))],
        [numpy_helper.from_array(value, name) for name, value in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *opsets], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def nodes_of(text):
    """Nodes written as `output = Operator inputs attribute=value`, separated by semicolons; named the_OUTPUT.

    An optional input that is left out is written as `''`.
    """
    found = []
    for line in text.split(";"):
        output, operator, *words = line.replace(" = ", " ", 1).split()
        inputs = ["" if word == "''" else word for word in words if "=" not in word]
        attributes = {k: ast.literal_eval(v) for k, v in (word.split("=") for word in words if "=" in word)}
        found.append(helper.make_node(operator, inputs, [output], name=f"the_{output}", **attributes))
    return found


def export(module, path, example, dynamo):
    """By one of torch's two exporters, for any batch."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    options = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "b"}, "y": {0: "b"}}}
    if dynamo:
        if not hasattr(torch.export.Dim, "DYNAMIC"):
            pytest.skip("this exporter needs torch 2.6")
        options = {"dynamic_shapes": ({0: torch.export.Dim.DYNAMIC},), "external_data": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), (example,), str(path), dynamo=dynamo, **options)
    return path


def linears(*sizes, bias=False):
    return nn.ModuleList(nn.Linear(inputs, outputs, bias=bias) for inputs, outputs in sizes)


def chain(step, flat=lambda x: x.flatten(1), end=lambda y: y):
    """Three products, each `step(A x, y)`."""

    def forward(net, x):
        x = flat(x)
        y = net.maps[0](x)
        for each in net.maps[1:]:
            y = step(each(x), y)
        return end(net.last(y))

    return lambda: Written(forward, maps=linears((16, 5), (16, 5), (16, 5)), last=nn.Linear(5, 3))


def tree(net, x):
    a, b, c, d = (step((x.reshape(-1, 16) - 0.5) / 0.25) for step in net.maps)
    return net.last((a * b) * (c * d))


def stacked(net, x):
    x = x.flatten(1)
    y = x @ net.U[0].T
    for U in net.U[1:]:
        y = (x @ U.T + 1) * y
    return y @ net.C.T


def nested(net, x):
    x = torch.flatten(x, 1)
    y = net.A[0](x)
    for a, s in zip(net.A[1:], net.S, strict=True):
        y = a(x) * s(y)
    return net.last(y)


def convolved(net, x):
    p = net.pre(x)
    y = net.maps[0](p)
    y = net.pool(net.maps[1](p) * y + y)
    y = net.pool(net.maps[2](p)) * y + y
    return net.last(y.flatten(1))


def convolutions():
    maps = nn.ModuleList(nn.Conv2d(3, 3, 3, padding="same", bias=False) for _ in range(3))
    return Written(convolved, pre=nn.Conv2d(1, 3, 3, padding=1), maps=maps, pool=nn.AvgPool2d(2), last=nn.Linear(12, 3))


def strided():
    maps = {name: nn.Conv2d(1, 3, 2, stride=2) for name in ("one", "other")}
    return Written(lambda net, x: net.last((net.one(x) * net.other(x)).flatten(1)), **maps, last=nn.Linear(12, 3))


BY_HAND = {
    # what it is read as, with which rank; how it is made
    "residual": (pb.CCP, 5, chain(lambda h, y: y + h * y)),
    "viewed": (pb.CCP, 5, chain(lambda h, y: torch.addcmul(y, y, h, value=2.0), lambda x: x.view(x.size(0), -1))),
    # The output's constant needs a unit of its own.
    "weighted": (pb.CCP, 6, chain(lambda h, y: 0.5 * h * y - y * 0.25, end=lambda y: y * 2 + 1)),
    "tree": (pb.CCP, 6, lambda: Written(tree, maps=linears(*[(16, 5)] * 4, bias=True), last=nn.Linear(5, 3))),
    "stacked": (pb.CCP, 5, lambda: Written(stacked, U=torch.randn(3, 5, 16) / 4, C=torch.randn(3, 5) / 4)),
    "nested": (
        pb.NCP,
        6,
        lambda: Written(
            nested, A=linears((16, 4), (16, 6), (16, 5)), S=linears((4, 6), (6, 5), bias=True), last=nn.Linear(5, 3)
        ),
    ),
    "convolutions": (pb.ConvCCP, None, convolutions),
    "strided": (pb.CCP, 13, strided),
}
