"""Random graphs are either refused or read as exactly what they compute: nothing is read wrongly."""

from collections import Counter

import numpy as np
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import polybound as pb
from helpers.onnx_graphs import save_graph
from polybound.deploy import read_onnx


class Grown:
    """A graph that grows by one random operator after another; most choices are such that polynomials fit."""

    def __init__(self, seed, shape):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.tensors, self.values = [], {}, [("input", shape)]

    def constant(self, *shape):
        name = f"c{len(self.tensors)}"
        values = self.rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0], size=shape)
        self.tensors[name] = values if self.rng.random() < 0.5 else np.full(shape, self.rng.choice([1.0, 2.0]))
        return name

    def numbers(self, *values):
        name = f"c{len(self.tensors)}"
        self.tensors[name] = np.array(values)
        return name

    def add(self, operator, inputs, shape, **attributes):
        output = f"v{len(self.values)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], name=f"n{len(self.nodes)}", **attributes))
        self.values.append((output, shape))

    def pick(self, shape=None):
        """A value, late ones more often; of a shape if one is asked for."""
        fitting = [value for value in self.values if shape is None or value[1] == shape]
        return fitting[-1 - min(int(self.rng.exponential(1.5)), len(fitting) - 1)]

    def grow(self):
        name, shape = self.pick()
        size = int(np.prod(shape))
        kind = self.rng.choice(
            ["gemm", "two", "constant", "neg", "reshape", "slice", "transpose"],
            p=[0.3, 0.4, 0.1, 0.05, 0.05, 0.05, 0.05],
        )
        if kind == "gemm" and len(shape) == 1:
            wide = int(self.rng.choice([2, 3]))
            bias = [self.constant(wide)] if self.rng.random() < 0.5 else []
            self.add("Gemm", [name, self.constant(wide, size), *bias], (wide,), transB=1)
        elif kind == "two":
            operator = str(self.rng.choice(["Mul", "Mul", "Add", "Sub"]))
            pair = [name, self.pick(shape)[0]]
            self.add(operator, pair if self.rng.random() < 0.5 else pair[::-1], shape)
        elif kind == "constant":
            operand = self.constant(*shape) if self.rng.random() < 0.5 else self.constant(shape[-1])
            self.add(str(self.rng.choice(["Mul", "Add", "Sub"])), [name, operand], shape)
        elif kind == "neg" and len(shape) < 3:
            self.add("Neg", [name], shape)
        elif kind == "reshape":
            new = (size,) if len(shape) > 1 else ((size // 2, 2) if size % 2 == 0 else (1, size))
            self.add("Reshape", [name, self.numbers(0, *new)], new)
        elif kind == "slice" and shape[0] > 1:
            self.add(
                "Slice", [name, self.numbers(1), self.numbers(shape[0]), self.numbers(1)], (shape[0] - 1, *shape[1:])
            )
        elif kind == "gemm" and len(shape) == 3:
            wide = int(self.rng.choice([1, 2]))
            attributes = {"pads": [1, 1, 1, 1]} if self.rng.random() < 0.9 else {"pads": [0, 1, 2, 1]}
            bias = [self.constant(wide)] if self.rng.random() < 0.5 else []
            self.add("Conv", [name, self.constant(wide, shape[0], 3, 3), *bias], (wide, *shape[1:]), **attributes)
        elif kind == "neg" and len(shape) == 3 and min(shape[1:]) > 1:
            self.add(
                "AveragePool", [name], (shape[0], shape[1] // 2, shape[2] // 2), kernel_shape=[2, 2], strides=[2, 2]
            )
        elif kind == "transpose" and len(shape) == 2:
            self.add("Transpose", [name], shape[::-1], perm=[0, 2, 1])

    def saved(self, path):
        name, shape = self.values[-1]
        self.nodes.append(helper.make_node("Identity", [name], ["output"], name="last"))
        sizes = {"shape": ("batch", *self.values[0][1]), "out": ("batch", *shape)}
        return save_graph(path, self.nodes, self.tensors, kind=TensorProto.DOUBLE, **sizes)


def judged(file, shape, seed):
    """How a graph was read: "refused", "factors" if no model has them, or "model"; the degree."""
    try:
        network = read_onnx(file)
    except pb.PolyboundError as error:
        assert "node 'n" in str(error)  # noqa: PT017
        return "refused", 0
    x = torch.randn(7, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    # Not onnxruntime, which has no convolutions in float64.
    wanted = torch.from_numpy(ReferenceEvaluator(str(file)).run(None, {"input": x.numpy()})[0]).reshape(7, -1)
    allowed = 1e-9 * float(wanted.abs().max()) + 1e-9
    assert float((network.factors(x.flatten(1)) - wanted).abs().max()) <= allowed
    try:
        model = network.model()
    except pb.PolyboundError as error:
        assert "constant" in str(error)  # noqa: PT017
        return "factors", network.factors.degree
    assert float((model(x).detach() - wanted).abs().max()) <= allowed
    return "model", model.degree


def test_what_is_read_is_what_is_computed(tmp_path):
    found = []
    for seed in range(500):
        shape = [(3,), (2, 2), (1, 4, 4)][seed % 3]
        graph = Grown(seed, shape)
        for _ in range(1 + seed % 12):
            graph.grow()
        found.append(judged(graph.saved(tmp_path / "net.onnx"), shape, seed))
    kinds = Counter(kind for kind, _ in found)
    assert kinds["model"] > 150 and kinds["refused"] > 20 and kinds["factors"] > 0, kinds
    assert sum(kind == "model" and degree > 2 for kind, degree in found) > 40
