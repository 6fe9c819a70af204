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


def run(path, x):
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    [source] = session.get_inputs()
    return torch.from_numpy(session.run(None, {source.name: x.detach().numpy()})[0])


def off(found, wanted):
    """The largest error, relative to the largest output."""
    return float((found - wanted).detach().abs().max() / wanted.detach().abs().max())


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


class Residual(nn.Module):
    kind, rank = pb.CCP, 5

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(16, 5, bias=False) for _ in range(3))
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        x = x.flatten(1)
        y = self.maps[0](x)
        for step in self.maps[1:]:
            y = self.step(step(x), y)
        return self.last(y)

    def step(self, h, y):
        return y + h * y


class Viewed(Residual):
    def forward(self, x):
        return super().forward(x.view(x.size(0), -1))

    def step(self, h, y):
        return torch.addcmul(y, y, h, value=2.0)


class Weighted(Residual):
    rank = 6  # the output's constant needs a unit of its own

    def forward(self, x):
        return super().forward(x) * 2 + 1

    def step(self, h, y):
        return 0.5 * h * y - y * 0.25


class Tree(nn.Module):
    kind, rank = pb.CCP, 6

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(16, 5) for _ in range(4))
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        x = (x.reshape(-1, 16) - 0.5) / 0.25
        a, b, c, d = (step(x) for step in self.maps)
        return self.last((a * b) * (c * d))


class Stacked(nn.Module):
    kind, rank = pb.CCP, 5

    def __init__(self):
        super().__init__()
        self.U = nn.Parameter(torch.randn(3, 5, 16) / 4)
        self.C = nn.Parameter(torch.randn(3, 5))

    def forward(self, x):
        x = x.flatten(1)
        y = x @ self.U[0].T
        for U in self.U[1:]:
            y = (x @ U.T + 1) * y
        return y @ self.C.T


class Nested(nn.Module):
    kind, rank = pb.NCP, 6

    def __init__(self):
        super().__init__()
        self.A = nn.ModuleList(nn.Linear(16, units, bias=False) for units in (4, 6, 5))
        self.S = nn.ModuleList((nn.Linear(4, 6), nn.Linear(6, 5)))
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        x = torch.flatten(x, 1)
        y = self.A[0](x)
        for a, s in zip(self.A[1:], self.S, strict=True):
            y = a(x) * s(y)
        return self.last(y)


class Convolved(nn.Module):
    kind, rank = pb.ConvCCP, None

    def __init__(self):
        super().__init__()
        self.pre = nn.Conv2d(1, 3, 3, padding=1)
        self.maps = nn.ModuleList(nn.Conv2d(3, 3, 3, padding="same", bias=False) for _ in range(3))
        self.pool = nn.AvgPool2d(2)
        self.last = nn.Linear(12, 3)

    def forward(self, x):
        p = self.pre(x)
        y = self.maps[0](p)
        y = self.pool(self.maps[1](p) * y + y)
        y = self.pool(self.maps[2](p)) * y + y
        return self.last(y.flatten(1))


class Strided(nn.Module):
    kind, rank = pb.CCP, 13

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Conv2d(1, 3, 2, stride=2), nn.Conv2d(1, 3, 2, stride=2)
        self.last = nn.Linear(12, 3)

    def forward(self, x):
        return self.last((self.one(x) * self.other(x)).flatten(1))


BY_HAND = (Residual, Viewed, Weighted, Tree, Stacked, Nested, Convolved, Strided)
