"""Random ONNX graphs, and onnxruntime as the judge of how polybound reads them: equal, or refused."""

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import polybound as pb
from helpers.onnx_operators import Further
from polybound.deploy import read_onnx

BATCH = 7  # no other size of a graph is a multiple of it
OPSETS = [6, 8, 10, 11, 12, 13, 15, 18, 20]


class Graph(Further):
    """A graph that grows by one random operator after another; most choices are such that polynomials fit.

    Shapes are whole, with the batch. What goes wrong for onnxruntime as well is part of it: parts of the batch, ranks
    that grow, sizes that do not fit.
    """

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.choose(OPSETS, [1, 1, 2, 2, 1, 10, 1, 1, 1]))
        self.batch = [BATCH, BATCH, 1][seed % 3] if seed % 5 == 0 else "batch"  # a size, or open
        self.size = 1 if self.batch == 1 else BATCH
        shape = [(3,), (2, 2), (1, 4, 4), (2, 6)][seed % 4]
        self.nodes, self.tensors, self.shapes, self.values = [], {}, {}, [("input", (self.size, *shape))]
        for _ in range(1 + seed % 12):
            self.grow()
        wanted = {self.values[-1][0]}
        for node in reversed(self.nodes):
            if wanted & set(node.output):
                wanted |= set(node.input)
        self.nodes = [node for node in self.nodes if wanted & set(node.output)]
        self.old = any(attribute.name == "broadcast" for node in self.nodes for attribute in node.attribute)

    def choose(self, options, weights=None):
        p = None if weights is None else np.array(weights) / sum(weights)
        return options[int(self.rng.choice(len(options), p=p))]

    def chance(self, share):
        return self.rng.random() < share

    def tensor(self, array):
        name = f"c{len(self.tensors)}"
        self.tensors[name] = array
        return name

    def whole(self, *values):
        return self.tensor(np.array(values, dtype=np.int64))

    def node(self, operator, inputs, outputs=1, **attributes):
        names = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, name=f"n{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def add(self, operator, inputs, shape, **attributes):
        self.values.append((self.node(operator, inputs, **attributes), tuple(int(size) for size in shape)))

    def constant(self, *shape):
        """The name of a constant: as it stands, or computed by nodes of its own."""
        values = self.rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0], size=shape).astype(np.float32)
        if self.chance(0.5):
            values = np.full(shape, self.choose([1.0, 2.0]), dtype=np.float32)
        way = self.choose(["plain", "node", "computed", "sliced", "moved", "expanded"], [60, 10, 10, 10, 10, 3])
        if way == "node":
            value = numpy_helper.from_array(values)
            return self.node("Constant", [], value=value)
        if way == "computed":
            other = self.rng.choice([0.5, 1.0, 2.0, 4.0, 3.0], size=shape).astype(np.float32)
            operator = self.choose(["Add", "Sub", "Mul", "Div"])
            return self.node(operator, [self.tensor(values), self.tensor(other)])
        if way == "sliced" and shape and self.opset >= 10:
            # Every second entry along the last axis, by steps with axes or without.
            wide = np.repeat(values, 2, axis=-1)
            starts = [0] * len(shape)
            ends = [*shape[:-1], 2 * shape[-1]]
            steps = [1] * (len(shape) - 1) + [2]
            return self.node(
                "Slice", [self.tensor(wide), self.whole(*starts), self.whole(*ends), "", self.whole(*steps)]
            )
        if way == "moved" and shape:
            return self.node("Transpose", [self.tensor(np.ascontiguousarray(values.T))])
        if way == "expanded" and shape:
            return self.node("Expand", [self.tensor(values[..., :1]), self.whole(*shape)])
        return self.tensor(values)

    def pick(self, shape=None):
        """A value, late ones more often; of a shape if one is asked for."""
        fitting = [value for value in self.values if shape is None or value[1] == shape]
        return fitting[-1 - min(int(self.rng.exponential(1.5)), len(fitting) - 1)]

    def grow(self):
        name, shape = self.pick()
        if len(shape) < 2 or 0 in shape:  # nothing is left to work with
            return
        kinds = {"map": 30, "two": 40, "broadcast": 18, "negate": 2, "shape": 10, "part": 12, "transpose": 3, "pool": 4}
        kinds["further"] = 40
        getattr(self, str(self.choose(list(kinds), list(kinds.values()))))(name, shape)

    def map(self, name, shape):
        """Gemm, MatMul or a convolution, whichever fits."""
        wide = int(self.choose([2, 3]))
        if len(shape) == 2 and self.chance(0.8):
            transposed = int(self.chance(0.7))
            inputs = [name, self.constant(*((wide, shape[1]) if transposed else (shape[1], wide)))]
            attributes = {"transB": transposed}
            if self.chance(0.5) or self.opset < 11:
                inputs.append(self.constant(*self.choose([(wide,), (1, wide), (1,), ()], [6, 2, 1, 1])))
            for option in ("alpha", "beta"):
                if self.chance(0.2):
                    attributes[option] = float(self.choose([0.5, 2.0, 3.0]))
            if self.opset < 7 and self.chance(0.5):
                attributes["broadcast"] = 1
            self.add("Gemm", inputs, (shape[0], wide), **attributes)
        elif len(shape) >= 3 and self.chance(0.7):
            dims = len(shape) - 2
            kernel = [int(self.choose([1, 2, 3], [1, 1, 4])) for _ in range(dims)]
            group = 2 if shape[1] % 2 == 0 and self.chance(0.2) else 1
            wide = wide - wide % group
            attributes = self.window(kernel, shape) | ({"group": group} if group > 1 else {})
            bias = [self.constant(wide)] if self.chance(0.5) else []
            inputs = [name, self.constant(wide, shape[1] // group, *kernel), *bias]
            self.add("Conv", inputs, (shape[0], wide, *self.swept(shape, kernel, attributes)), **attributes)
        else:
            self.add("MatMul", [name, self.constant(shape[-1], wide)], (*shape[:-1], wide))

    def window(self, kernel, shape):
        """Attributes of a sliding window."""
        dims = len(kernel)
        if all(size % 2 for size in kernel) and self.chance(0.7):
            pads = [size // 2 for size in kernel] * 2
            return {"auto_pad": str(self.choose(["SAME_UPPER", "SAME_LOWER"]))} if self.chance(0.2) else {"pads": pads}
        attributes = {"pads": [int(self.choose([0, 1])) for _ in range(2 * dims)]}
        if self.chance(0.3):
            attributes["strides"] = [int(self.choose([1, 2])) for _ in range(dims)]
        if self.chance(0.2):
            attributes["dilations"] = [int(self.choose([1, 2])) for _ in range(dims)]
        if self.chance(0.1):
            attributes["auto_pad"] = "VALID"
            del attributes["pads"]
        return attributes

    def swept(self, shape, kernel, attributes):
        """The sizes that a window leaves; those of auto_pad are of stride one."""
        if attributes.get("auto_pad", "").startswith("SAME"):
            return shape[2:]
        dims, sizes = len(kernel), []
        for d, (size, wide) in enumerate(zip(shape[2:], kernel, strict=True)):
            pads = attributes.get("pads", [0] * 2 * dims)
            stride, step = attributes.get("strides", [1] * dims)[d], attributes.get("dilations", [1] * dims)[d]
            left = size + pads[d] + pads[d + dims] - (wide - 1) * step - 1
            sizes.append(max(0, (-(-left // stride) if attributes.get("ceil_mode") else left // stride) + 1))
        return sizes

    def pool(self, name, shape):
        if len(shape) < 3:
            return
        kernel = [int(self.choose([2, 3], [3, 1]))] * (len(shape) - 2)
        attributes = {"strides": kernel} if self.chance(0.7) else self.window(kernel, shape)
        attributes.pop("dilations", None)
        if self.opset >= 7 and self.chance(0.3):
            attributes["count_include_pad"] = 1
        if self.opset >= 10 and self.chance(0.1):
            attributes["ceil_mode"] = 1
        sizes = self.swept(shape, kernel, attributes)
        self.add("AveragePool", [name], (*shape[:2], *sizes), kernel_shape=kernel, **attributes)

    def two(self, name, shape):
        operator = self.choose(["Mul", "Add", "Sub"], [3, 1, 1])
        other, wide = self.pick(shape) if self.chance(0.97) else self.pick()
        try:
            result = np.broadcast_shapes(shape, wide)
        except ValueError:
            return
        self.add(operator, [name, other] if self.chance(0.5) else [other, name], result)

    def broadcast(self, name, shape):
        """A value and a constant whose shape broadcasts, in one of many ways."""
        operator = self.choose(["Mul", "Add", "Sub", "Div"], [4, 3, 3, 1])
        sizes = list(shape[1:])[int(self.rng.integers(len(shape))) :]
        sizes = [1 if self.chance(0.2) else size for size in sizes]
        if self.chance(0.3):
            sizes = [1] * (len(shape) - len(sizes)) + sizes
        if self.chance(0.15):
            sizes = [1] * int(self.choose([1, 2])) + sizes
        if self.chance(0.05):
            sizes = [int(self.choose([2, 4])), *sizes]
        attributes, inputs = {}, [name, self.constant(*sizes)]
        if self.opset < 7 and sizes != list(shape):
            # Old opsets align a shape anywhere, by attributes, and do not repeat single entries.
            place = int(self.rng.integers(1, len(shape)))
            inputs[1] = self.constant(*shape[place : place + 1])
            attributes, sizes = {"broadcast": 1, "axis": place}, list(shape)
        elif operator in ("Sub", "Add", "Mul") and self.chance(0.3):
            inputs.reverse()
        try:
            self.add(operator, inputs, np.broadcast_shapes(shape, tuple(sizes)), **attributes)
        except ValueError:
            return

    def negate(self, name, shape):
        self.add(str(self.choose(["Neg", "Identity"])), [name], shape)

    def transpose(self, name, shape):
        order = [0, *(1 + self.rng.permutation(len(shape) - 1)).tolist()]
        if self.chance(0.1):
            order = self.rng.permutation(len(shape)).tolist()
        self.add("Transpose", [name], [shape[place] for place in order], perm=order)

    def shape(self, name, shape):
        """Reshape, Flatten, Squeeze or Unsqueeze."""
        size = int(np.prod(shape[1:]))
        kind = str(self.choose(["reshape", "flatten", "squeeze", "unsqueeze", "dynamic"]))
        if kind == "flatten":
            axis = int(self.choose([1, 1 - len(shape), 2, 0], [6, 2, 1, 1]))
            if abs(axis) > len(shape) or (axis < 0 and self.opset < 11):
                return
            at = axis % len(shape) if axis < 0 else axis
            self.add("Flatten", [name], (np.prod(shape[:at]), np.prod(shape[at:])), axis=axis)
        elif kind == "squeeze" and 1 in shape:
            axes = [place for place, wide in enumerate(shape) if wide == 1 and self.chance(0.8)]
            if not axes or self.chance(0.1):
                self.add("Squeeze", [name], [wide for wide in shape if wide != 1])
            else:
                left = [wide for place, wide in enumerate(shape) if place not in axes]
                self.axes("Squeeze", name, [self.maybe_negative(axis, shape) for axis in axes], left)
        elif kind == "unsqueeze":
            axis = int(self.choose([1, 2, len(shape), 0], [4, 2, 2, 1]))
            if axis <= len(shape):
                self.axes("Unsqueeze", name, [axis], [*shape[:axis], 1, *shape[axis:]])
        elif kind == "dynamic" and self.opset >= 10:
            batch = self.node("Slice", [self.node("Shape", [name]), self.whole(0), self.whole(1), self.whole(0)])
            target = self.node("Concat", [batch, self.whole(-1)], axis=0)
            self.add("Reshape", [name, target], (shape[0], size))
        elif kind == "reshape":
            rest = self.choose([(size,), (-1,), (2, -1), (1, -1), (size, 1)])
            known = int(np.prod([wide for wide in rest if wide > 0]))
            new = [size // known if wide < 0 else wide for wide in rest]
            if int(np.prod(new)) != size:
                return
            first = int(self.choose([0, -1, 1, self.size], [8, 1, 1, 1]))
            if first == -1:
                rest = tuple(new)
            allow = {"allowzero": 1} if self.opset >= 14 and self.chance(0.1) else {}
            self.add("Reshape", [name, self.whole(first, *rest)], (1 if first == 1 else shape[0], *new), **allow)

    def maybe_negative(self, axis, shape):
        """The axis, or the same counted from the end, which opsets from 11 on know."""
        return axis - len(shape) if self.opset >= 11 and self.chance(0.3) else axis

    def axes(self, operator, name, axes, shape):
        """An operator whose axes are an attribute in old opsets and an operand in new ones."""
        if self.opset < 13:
            self.add(operator, [name], shape, axes=axes)
        else:
            self.add(operator, [name, self.whole(*axes)], shape)

    def part(self, name, shape):
        """Slice, Gather or Split, now and then of the batch."""
        kind = self.choose(["slice", "slice", "gather", "split"])
        axis = int(self.rng.integers(0 if self.chance(0.1) else 1, len(shape)))
        size = shape[axis]
        if kind == "slice":
            self.slice(name, shape, axis)
        elif kind == "gather":
            index = self.rng.integers(-size, size, size=self.choose([(), (1,), (2,), (2, 1)])).astype(np.int64)
            wide = [*shape[:axis], *index.shape, *shape[axis + 1 :]]
            self.add("Gather", [name, self.tensor(index)], wide, axis=self.maybe_negative(axis, shape))
        elif size > 1:
            first = size // 2 if size % 2 == 0 and self.chance(0.5) else int(self.rng.integers(1, size))
            inputs, attributes = [name], {"axis": axis}
            if self.opset < 13:
                attributes["split"] = [first, size - first]
            elif size % 2 == 0 and first == size // 2 and self.chance(0.5):
                attributes |= {"num_outputs": 2} if self.opset >= 18 else {}
            else:
                inputs.append(self.whole(first, size - first))
            parts = self.node("Split", inputs, outputs=2, **attributes)
            for part, wide in zip(parts, (first, size - first), strict=True):
                self.values.append((part, (*shape[:axis], wide, *shape[axis + 1 :])))

    def slice(self, name, shape, axis):
        size = shape[axis]
        start, end = int(self.choose([0, 1, -2, -size])), int(self.choose([size, 2**31, -1, size - 1], [4, 2, 1, 1]))
        step = int(self.choose([1, 2, 3, -1], [4, 3, 1, 1]))
        if step < 0:
            start, end = size - 1, -size - 1
        left = len(range(size)[slice(start, None if end < -size else end, step)])
        new = (*shape[:axis], left, *shape[axis + 1 :])
        if self.opset < 10:
            if step == 1:
                self.add("Slice", [name], new, starts=[start], ends=[end], axes=[axis])
            return
        steps = [] if step == 1 and self.chance(0.5) else [step]
        if self.chance(0.5):  # axes by their places: those before are taken whole
            whole = [2**31 if place == 0 and self.chance(0.8) else size for place, size in enumerate(shape[:axis])]
            starts, ends, axes = [0] * axis + [start], [*whole, end], ""
            steps = [1] * axis + steps if steps else []
        else:
            starts, ends, axes = [start], [end], self.whole(self.maybe_negative(axis, shape))
        inputs = [name, self.whole(*starts), self.whole(*ends)]
        if steps:
            inputs += [axes, self.whole(*steps)]
        elif axes:
            inputs.append(axes)
        self.add("Slice", inputs, new)

    def model(self, kind, opset=None):
        """The graph as a file's content, in float32 or float64."""
        dtype = {TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64}[kind]
        name, shape = self.values[-1]
        nodes = [helper.make_node("Identity", [name], ["output"], name="last")]
        nodes = [*(_doubled(node) if kind == TensorProto.DOUBLE else node for node in self.nodes), *nodes]
        graph = helper.make_graph(
            nodes,
            "grown",
            [helper.make_tensor_value_info("input", kind, [self.batch, *self.values[0][1][1:]])],
            [helper.make_tensor_value_info("output", kind, [f"size{place}" for place in range(len(shape))])],
            [
                numpy_helper.from_array(array.astype(dtype) if array.dtype == np.float32 else array, name)
                for name, array in self.tensors.items()
            ],
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset or self.opset)], ir_version=8
        ).SerializeToString()

    def inputs(self):
        """Inputs that float32 computes exactly with, as far as it goes."""
        return self.rng.integers(-4, 5, size=self.values[0][1]).astype(np.float64) / 2


def _doubled(node):
    """A node whose constant, if it has one, is float64."""
    if node.op_type != "Constant":
        return node
    value = numpy_helper.from_array(numpy_helper.to_array(node.attribute[0].t).astype(np.float64))
    return helper.make_node("Constant", [], list(node.output), name=node.name, value=value)


def computed(graph, x):
    """What onnxruntime makes of the inputs; None if it does not run the graph."""
    options = onnxruntime.SessionOptions()
    # As it stands: the optimiser has made models (of a slice, a product and a quotient) that are then refused.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    # It has no operators of opset 6; without the attributes of that opset the graph means the same in the next.
    content = graph.model(TensorProto.FLOAT, max(graph.opset, 7))
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        [output] = session.run(None, {"input": x.astype(np.float32)})
    except Exception:
        return None
    return output.astype(np.float64)


def judged(seed, path):
    """How the graph of a seed is read: "chain", "deep", "refused" or "beyond float32", and its degree.

    Raises:
        AssertionError: it is read as something else than it computes.
    """
    graph = Graph(seed)
    path.write_bytes(graph.model(TensorProto.FLOAT))
    try:
        network = read_onnx(path)
    except pb.PolyboundError as error:
        assert "\n" not in str(error), f"seed {seed}: {error}"  # noqa: PT017
        return "refused", 0
    assert not graph.old, f"seed {seed}: attributes of an old opset are ignored"
    x = graph.inputs()
    wanted = computed(graph, x)
    assert wanted is not None, f"seed {seed}: onnxruntime does not run it, and it is read"
    if not np.isfinite(wanted).all():
        return "beyond float32", 0
    assert wanted.shape[:1] == x.shape[:1], f"seed {seed}: the batch became {wanted.shape}"
    rows = torch.from_numpy(x).flatten(1)
    _compare(f"seed {seed}, graph", graph, network.graph(rows), wanted, x)
    chain = network.graph.chain()
    if chain is not None:
        _compare(f"seed {seed}, chain", graph, chain(rows), wanted, x)
    model = network.model().double()
    _compare(f"seed {seed}, model", graph, model(rows).detach(), wanted, x)
    return "deep" if chain is None else "chain", network.graph.degree


def _compare(what, graph, found, wanted, x):
    wanted = torch.from_numpy(wanted).reshape(len(x), -1)
    assert found.shape == wanted.shape, f"{what}: {tuple(found.shape)} instead of {tuple(wanted.shape)}"
    size = float(wanted.abs().max()) if wanted.numel() else 0.0
    off = float((found - wanted).abs().max()) if wanted.numel() else 0.0
    if off <= 1e-5 * size + 1e-6:
        return
    # Where large numbers cancel, float32 itself is off; the reference of ONNX computes in float64.
    try:
        [precise] = ReferenceEvaluator(graph.model(TensorProto.DOUBLE, max(graph.opset, 7))).run(None, {"input": x})
    except Exception as error:
        raise AssertionError(f"{what}: off by {off:g} of {size:g}, and no reference ({error})") from None
    precise = torch.from_numpy(precise).reshape(len(x), -1)
    assert float((precise - wanted).abs().max()) <= off + 1e-6, f"{what}: off by {off:g} of {size:g}"
    assert float((found - precise).abs().max()) <= 1e-9 * (1 + size + off), f"{what}: off by {off:g} of {size:g}"
