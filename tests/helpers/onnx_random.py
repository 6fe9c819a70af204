"""Random ONNX graphs, and onnxruntime as the judge of how polybound reads them: equal, or refused."""

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import polybound as pb
from polybound.deploy import read_onnx

BATCH = 7  # no other size of a graph is a multiple of it
OPSETS = [6, 8, 10, 11, 12, 13, 15, 18, 20]


class Graph:
    """A graph that grows by one random operator after another; most choices are such that polynomials fit.

    ONNX infers the shapes, which are whole, with the batch. What goes wrong for onnxruntime as well is part of it:
    parts of the batch, ranks that grow, sizes that do not fit.
    """

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.opset = self.choose(OPSETS, [1, 1, 2, 2, 1, 10, 1, 1, 1])
        self.batch = [BATCH, BATCH, 1][seed % 3] if seed % 5 == 0 else "batch"  # a size, or open
        self.size = 1 if self.batch == 1 else BATCH
        shape = [(3,), (2, 2), (1, 4, 4), (2, 6)][seed % 4]
        self.nodes, self.tensors, self.shapes, self.values = [], {}, {}, [("input", (self.size, *shape))]
        for _ in range(1 + seed % 12):
            name, shape = self.pick()
            fitting = {way: often for way, (often, dims) in KINDS.items() if len(shape) >= dims}
            if fitting:  # else nothing is left to work with
                getattr(Ways, self.choose(list(fitting), list(fitting.values())))(self, name, shape)
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

    def several(self, options, count):
        return [self.choose(options) for _ in range(count)]

    def some(self, **options):
        """Attributes, each with a share and its values, of those that are there."""
        return {name: self.choose(values) for name, (share, values) in options.items() if self.chance(share)}

    def lists(self, count, **shares):
        """Attributes of ones and twos, a number for each dimension."""
        return {name: self.several([1, 2], count) for name, share in shares.items() if self.chance(share)}

    def tensor(self, array):
        name = f"c{len(self.tensors)}"
        self.tensors[name] = array
        return name

    def whole(self, *values):
        return self.tensor(np.array(values, dtype=np.int64))

    def number(self, value):
        return self.tensor(np.array(value, dtype=np.float32))

    def values_of(self, *shape):
        """A float tensor of the file."""
        return self.number(self.rng.choice([-1.0, 0.5, 1.0, 2.0, 3.0], size=shape))

    def made(self, operator, inputs, outputs=1, **attributes):
        names = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        return helper.make_node(operator, inputs, names, name=f"n{len(self.nodes)}", **attributes)

    def node(self, operator, inputs, **attributes):
        """Add a node that computes no value of the input."""
        self.nodes.append(self.made(operator, inputs, **attributes))
        return self.nodes[-1].output[0]

    def add(self, operator, inputs, outputs=1, **attributes):
        """Add a node with the shapes that ONNX infers; where it infers none, now and then as the last one."""
        node = self.made(operator, inputs, outputs, **attributes)
        known = dict(self.values) | self.shapes
        given = [word for word in dict.fromkeys(inputs) if word]
        graph = helper.make_graph(
            [node],
            "one",
            [_info(word, known.get(word)) for word in given if word not in self.tensors],
            [_info(word, None) for word in node.output],
            [numpy_helper.from_array(self.tensors[word], word) for word in given if word in self.tensors],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        try:
            found = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph.output
        except Exception:
            if self.chance(0.1):
                self.nodes.append(node)
                self.values.append((node.output[0], ()))
            return None
        self.nodes.append(node)
        for output in found:
            sizes = [size.dim_value for size in output.type.tensor_type.shape.dim]
            if output.type.tensor_type.HasField("shape") and min(sizes, default=1) > 0 and np.prod(sizes) < 2000:
                self.values.append((output.name, tuple(sizes)))
        return node.output[0]

    def constant(self, *shape):
        """The name of a constant: as it stands, or computed by nodes of its own."""
        values = self.rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0], size=shape).astype(np.float32)
        if self.chance(0.5):
            values = np.full(shape, self.choose([1.0, 2.0]), dtype=np.float32)
        ways = ["plain", "node", "computed", *(["sliced"] if self.opset >= 10 else []), "moved", "expanded"]
        way = self.choose(ways if shape else ways[:3])
        if way == "plain" or self.chance(0.5):
            name = self.tensor(values)
        elif way == "node":
            name = self.node("Constant", [], value=numpy_helper.from_array(values))
        elif way == "computed":
            other = self.number(self.rng.choice([0.5, 1.0, 2.0, 4.0, 3.0], size=shape))
            name = self.node(self.choose(["Add", "Sub", "Mul", "Div"]), [self.tensor(values), other])
        elif way == "sliced":  # every second entry along the last axis, by steps with axes or without
            starts, ends, steps = [0] * len(shape), [*shape[:-1], 2 * shape[-1]], [1] * (len(shape) - 1) + [2]
            wide = self.tensor(np.repeat(values, 2, axis=-1))
            name = self.node("Slice", [wide, self.whole(*starts), self.whole(*ends), "", self.whole(*steps)])
        elif way == "moved":
            name = self.node("Transpose", [self.tensor(np.ascontiguousarray(values.T))])
        else:
            name = self.node("Expand", [self.tensor(values[..., :1]), self.whole(*shape)])
        self.shapes[name] = shape
        return name

    def pick(self, shape=None):
        """A value, late ones more often; of a shape if one is asked for."""
        fitting = [value for value in self.values if shape is None or value[1] == shape]
        return fitting[-1 - min(int(self.rng.exponential(1.5)), len(fitting) - 1)]

    def axis(self, axis, shape):
        """The axis, or the same counted from the end, which opsets from 11 on know."""
        return axis - len(shape) if self.opset >= 11 and self.chance(0.3) else axis

    def inner(self, shape, of_batch=0.0):
        """An axis, now and then that of the batch."""
        return int(self.rng.integers(0 if self.chance(of_batch) else 1, len(shape)))

    def window(self, kernel):
        """Attributes of a sliding window."""
        if all(size % 2 for size in kernel) and self.chance(0.7):
            same = {"auto_pad": self.choose(["SAME_UPPER", "SAME_LOWER"])}
            return same if self.chance(0.2) else {"pads": [size // 2 for size in kernel] * 2}
        pads = {"auto_pad": "VALID"} if self.chance(0.1) else {"pads": self.several([0, 1], 2 * len(kernel))}
        return pads | self.lists(len(kernel), strides=0.3, dilations=0.2)

    def along(self, operator, name, *axes):
        """An operator whose axes are an attribute in old opsets and an operand in new ones."""
        if self.opset < 13:
            return self.add(operator, [name], axes=axes)
        return self.add(operator, [name, self.whole(*axes)])

    def model(self, kind, opset=None):
        """The graph as a file's content, in float32 or float64."""
        dtype = {TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64}[kind]
        name, shape = self.values[-1]
        nodes = [*self.nodes, helper.make_node("Identity", [name], ["output"], name="last")]
        arrays = {n: a.astype(dtype) if a.dtype == np.float32 else a for n, a in self.tensors.items()}
        graph = helper.make_graph(
            [_doubled(node) if kind == TensorProto.DOUBLE else node for node in nodes],
            "grown",
            [helper.make_tensor_value_info("input", kind, [self.batch, *self.values[0][1][1:]])],
            [helper.make_tensor_value_info("output", kind, [f"size{place}" for place in range(len(shape))])],
            [numpy_helper.from_array(array, name) for name, array in arrays.items()],
        )
        opsets = [helper.make_opsetid("", opset or self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()

    def inputs(self):
        """Inputs that float32 computes exactly with, as far as it goes."""
        return self.rng.integers(-4, 5, size=self.values[0][1]).astype(np.float64) / 2


def _info(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _doubled(node):
    """A node whose constant, if it has one, is float64."""
    if node.op_type != "Constant":
        return node
    value = numpy_helper.from_array(numpy_helper.to_array(node.attribute[0].t).astype(np.float64))
    return helper.make_node("Constant", [], list(node.output), name=node.name, value=value)


class Ways:
    """How a graph `g` grows by an operator at a value `x` of shape `s`."""

    def map(g, x, s):
        wide = g.choose([2, 3])
        if len(s) == 2 and g.chance(0.8):
            turned, bias = int(g.chance(0.7)), []
            if g.chance(0.5) or g.opset < 11:
                bias = [g.constant(*g.choose([(wide,), (1, wide), (1,), ()], [6, 2, 1, 1]))]
            scales = g.some(**dict.fromkeys(("alpha", "beta"), (0.2, [0.5, 2.0, 3.0])))
            old = {"broadcast": 1} if g.opset < 7 and g.chance(0.5) else {}
            g.add("Gemm", [x, g.constant(*[s[1], wide][:: 1 - 2 * turned]), *bias], transB=turned, **scales, **old)
        elif len(s) >= 3 and g.chance(0.7):
            kernel = [g.choose([1, 2, 3], [1, 1, 4]) for _ in s[2:]]
            group = 2 if s[1] % 2 == 0 and g.chance(0.2) else 1
            wide -= wide % group
            bias = [g.constant(wide)] if g.chance(0.5) else []
            g.add("Conv", [x, g.constant(wide, s[1] // group, *kernel), *bias], group=group, **g.window(kernel))
        else:
            g.add("MatMul", [x, g.constant(s[-1], wide)])

    def transposed(g, x, s):
        n, wide = len(s) - 2, g.choose([1, 2])
        if n > 2:
            return
        group = 2 if s[1] % 2 == 0 and g.chance(0.3) else 1
        given = g.lists(n, strides=0.6, dilations=0.3) | g.some(output_padding=(0.3, [g.several([0, 1], n)]))
        pads = g.some(pads=(0.4, [g.several([0, 1], 2 * n)]))
        pads = g.some(auto_pad=(0.1, ["SAME_UPPER", "VALID"])) or pads
        bias = g.choose([[], [""], [g.values_of(wide * group)]])
        kernel = g.values_of(s[1], wide, *g.several([1, 2, 3], n))
        g.add("ConvTranspose", [x, kernel, *bias], group=group, **given, **pads)

    def pool(g, x, s):
        kernel = [g.choose([2, 3], [3, 1])] * (len(s) - 2)
        given = {"strides": kernel} if g.chance(0.7) else g.window(kernel)
        given.pop("dilations", None)
        given |= g.some(count_include_pad=(0.3 * (g.opset >= 7), [1]), ceil_mode=(0.1 * (g.opset >= 10), [1]))
        g.add("AveragePool", [x], kernel_shape=kernel, **given)

    def normal(g, x, s):
        var = g.number(g.rng.choice([0.25, 1.0, 2.0], size=s[1]))
        given = g.some(epsilon=(0.7, [1e-5, 0.5]), training_mode=(0.3 * (g.opset >= 14), [0]))
        g.add("BatchNormalization", [x, *(g.values_of(s[1]) for _ in range(3)), var], **given)

    def two(g, x, s):
        other, _ = g.pick(s) if g.chance(0.97) else g.pick()
        g.add(g.choose(["Mul", "Add", "Sub"], [3, 1, 1]), [x, other] if g.chance(0.5) else [other, x])

    def broadcast(g, x, s):
        """A value and a constant whose shape broadcasts, in one of many ways."""
        operator = g.choose(["Mul", "Add", "Sub", "Div"], [4, 3, 3, 1])
        sizes = [1 if g.chance(0.2) else size for size in s[1:][int(g.rng.integers(len(s))) :]]
        if g.chance(0.3):
            sizes = [1] * (len(s) - len(sizes)) + sizes
        sizes = [*g.choose([[], [1], [1, 1], [2], [4]], [32, 3, 3, 1, 1]), *sizes]
        if g.opset < 7 and sizes != list(s):
            # Old opsets align a shape anywhere, by attributes, and do not repeat single entries.
            place = int(g.rng.integers(1, len(s)))
            g.add(operator, [x, g.constant(s[place])], broadcast=1, axis=place)
        else:
            inputs = [x, g.constant(*sizes)]
            g.add(operator, inputs[::-1] if operator != "Div" and g.chance(0.3) else inputs)

    def many(g, x, s):
        inputs = [x, *(g.pick(s)[0] for _ in range(g.choose([0, 1, 2])))]
        if g.chance(0.4):
            inputs.append(g.values_of(*g.choose([s[1:], s[-1:], (1,)])))
        g.add(g.choose(["Sum", "Mean"]), [inputs[i] for i in g.rng.permutation(len(inputs))])

    def power(g, x, s):
        value = g.choose([2.0, 3.0, 1.0, 4.0, 0.5, -1.0, 0.0], [8, 4, 1, 1, 1, 1, 1])
        sizes = g.choose([(), (1,), (1,) * (len(s) + 1), s[-1:]], [6, 3, 1, 1])
        whole = g.opset >= 12 and value == int(value) and g.chance(0.3)
        g.add("Pow", [x, g.tensor(np.full(sizes, value, dtype=np.int64 if whole else np.float32))])

    def cumulated(g, x, s):
        place = g.tensor(np.array(g.axis(g.inner(s), s), dtype=np.int64))
        g.add("CumSum", [x, place], **g.some(exclusive=(0.3, [1]), reverse=(0.3, [1])))

    def transpose(g, x, s):
        order = g.rng.permutation(len(s)) if g.chance(0.1) else [0, *(1 + g.rng.permutation(len(s) - 1))]
        g.add("Transpose", [x], perm=[int(axis) for axis in order])

    def shape(g, x, s):
        """Reshape, Flatten, Squeeze or Unsqueeze."""
        size, way = int(np.prod(s[1:])), g.choose(["reshape", "flatten", "squeeze", "unsqueeze", "dynamic"])
        if way == "flatten":
            axis = g.choose([1, 1 - len(s), 2, 0], [6, 2, 1, 1])
            if axis >= 0 or g.opset >= 11:
                g.add("Flatten", [x], axis=axis)
        elif way == "squeeze" and 1 in s:
            axes = [g.axis(place, s) for place, wide in enumerate(s) if wide == 1 and g.chance(0.7)]
            g.along("Squeeze", x, *axes) if axes else g.add("Squeeze", [x])
        elif way == "unsqueeze":
            g.along("Unsqueeze", x, g.choose([1, 2, len(s), 0], [4, 2, 2, 1]))
        elif way == "dynamic" and g.opset >= 10:
            batch = g.node("Slice", [g.node("Shape", [x]), g.whole(0), g.whole(1), g.whole(0)])
            target = g.node("Concat", [batch, g.whole(-1)], axis=0)
            g.values.append((g.node("Reshape", [x, target]), (s[0], size)))
        elif way == "reshape":
            rest = g.choose([(size,), (-1,), (2, -1), (1, -1), (size, 1)])
            first = g.choose([0, -1, 1, g.size], [8, 1, 1, 1])
            if first == -1:
                known = int(np.prod([wide for wide in rest if wide > 0]))
                rest = tuple(size // known if wide < 0 else wide for wide in rest)
            g.add("Reshape", [x, g.whole(first, *rest)], **g.some(allowzero=(0.1 * (g.opset >= 14), [1])))

    def slice(g, x, s):
        axis = g.inner(s, of_batch=0.1)
        size, step = s[axis], g.choose([1, 2, 3, -1], [4, 3, 1, 1])
        start, end = g.choose([0, 1, -2, -size]), g.choose([size, 2**31, -1, size - 1], [4, 2, 1, 1])
        if step < 0:
            start, end = size - 1, -size - 1
        if g.opset < 10:
            if step == 1:
                g.add("Slice", [x], starts=[start], ends=[end], axes=[axis])
            return
        steps = [] if step == 1 and g.chance(0.5) else [step]
        if g.chance(0.5):  # axes by their places: those before are taken whole
            whole = [2**31 if place == 0 and g.chance(0.8) else size for place, size in enumerate(s[:axis])]
            starts, ends, axes = [0] * axis + [start], [*whole, end], ""
            steps = [1] * axis + steps if steps else []
        else:
            starts, ends, axes = [start], [end], g.whole(g.axis(axis, s))
        more = [axes, g.whole(*steps)] if steps else [axes] if axes else []
        g.add("Slice", [x, g.whole(*starts), g.whole(*ends), *more])

    def part(g, x, s):
        """Gather or Split, now and then of the batch."""
        axis = g.inner(s, of_batch=0.1)
        size, first = s[axis], int(g.rng.integers(1, max(2, s[axis])))
        if g.chance(0.5):
            index = g.rng.integers(-size, size, size=g.choose([(), (1,), (2,), (2, 1)])).astype(np.int64)
            g.add("Gather", [x, g.tensor(index)], axis=g.axis(axis, s))
        elif size > 1:
            if g.opset < 13:
                g.add("Split", [x], outputs=2, axis=axis, split=[first, size - first])
            elif size % 2 == 0 and g.chance(0.5):
                g.add("Split", [x], outputs=2, axis=axis, **({"num_outputs": 2} if g.opset >= 18 else {}))
            else:
                g.add("Split", [x, g.whole(first, size - first)], outputs=2, axis=axis)

    def gather(g, x, s):
        axis = g.inner(s)
        if g.opset >= 11 and g.chance(0.6):
            sizes = [*s[:axis], g.choose([1, 2]), *s[axis + 1 :]]
            index = g.tensor(g.rng.integers(-s[axis], s[axis], size=sizes).astype(np.int64))
            g.add("GatherElements", [x, index], axis=g.axis(axis, s))
        elif g.opset >= 12:
            rows = g.rng.integers(0, s[1], size=(s[0], 2, 1)).astype(np.int64)
            g.add("GatherND", [x, g.tensor(rows if g.chance(0.3) else rows[:1].repeat(s[0], 0))], batch_dims=1)

    def reduce(g, x, s):
        operator, first = g.choose(["ReduceSum", "ReduceMean", "ReduceSumSquare"]), 0 if g.chance(0.05) else 1
        axes = sorted({int(a) for a in g.rng.integers(first, len(s), size=g.choose([1, 2]))})
        axes, given = [g.axis(axis, s) for axis in axes], g.some(keepdims=(0.8, [0, 1]))
        if g.opset < (13 if operator == "ReduceSum" else 18):
            g.add(operator, [x], **given, **g.some(axes=(0.9, [axes])))
        else:
            operand = g.choose([[g.whole(*axes)], [g.whole(*axes)], [""], []])
            g.add(operator, [x, *operand], **given, **g.some(noop_with_empty_axes=(0.2, [1])))

    def expand(g, x, s):
        sizes = [g.choose([1, size if size > 1 else 2]) for size in s]
        sizes[0] = 1 if g.chance(0.8) else s[0]
        g.add("Expand", [x, g.whole(*sizes[g.choose([0, 1]) :])])

    def pad(g, x, s):
        mode = g.choose(["constant", "reflect", "edge"], [4, 1, 1])
        one, other = ([0, *g.several([0, 1, 2], len(s) - 1)] for _ in range(2))
        one[0] = int(g.chance(0.05))
        given = {} if mode == "constant" and g.chance(0.5) else {"mode": mode}
        if g.opset < 11:
            g.add("Pad", [x], pads=one + other, **given, **g.some(value=(0.3, [2.0])))
            return
        fill = g.choose([[], [""], [g.number(g.choose([0.0, 1.5]))]])
        if g.opset >= 18 and g.chance(0.5):
            axis = g.inner(s)
            g.add("Pad", [x, g.whole(one[axis], other[axis]), *(fill or [""]), g.whole(axis)], **given)
        else:
            g.add("Pad", [x, g.whole(*one, *other), *fill], **given)

    def concat(g, x, s):
        axis = g.inner(s, of_batch=0.05)

        def rest(sizes):
            return len(sizes), sizes[:axis], sizes[axis + 1 :]

        others = [other for other, sizes in g.values if rest(sizes) == rest(s)]
        chosen = g.several(others, g.choose([1, 2])) + ([g.values_of(*s)] if g.chance(0.2) else [])
        g.add("Concat", [x, *chosen], axis=g.axis(axis, s))

    def stack(g, x, s):
        """Two tensors along a new dimension, each by Unsqueeze."""
        axes = [g.along("Unsqueeze", one, 1) for one in (x, g.pick(s)[0])]
        if all(axes):
            g.add("Concat", axes, axis=1)

    def depth(g, x, s):
        modes = g.some(mode=(0.6 * (g.opset >= 11), ["DCR", "CRD"]))
        g.add("SpaceToDepth", [x], blocksize=2) if g.chance(0.5) else g.add("DepthToSpace", [x], blocksize=2, **modes)

    def resize(g, x, s):
        factors = [1.0, 1.0, *(g.choose([1.0, 2.0, 3.0, 0.5], [3, 4, 2, 1]) for _ in s[2:])]
        if g.opset < 7:
            return
        if g.opset < 10:
            new = g.opset >= 9
            given = {} if new else {"scales": factors}
            g.add("Upsample", [x, *([g.number(factors)] if new else [])], mode="nearest", **given)
            return
        given = {"mode": g.choose(["nearest", "linear"], [6, 1])} if g.chance(0.9) else {}
        if g.opset == 10:
            g.add("Resize", [x, g.number(factors)], **given)
            return
        ways = ["asymmetric"] * 6 + ["half_pixel"] * 2 + ["align_corners", "pytorch_half_pixel"]
        nearest = ["floor"] * 4 + ["round_prefer_floor"] * 2 + ["ceil"]
        given |= g.some(coordinate_transformation_mode=(0.8, ways), nearest_mode=(0.8, nearest))
        empty = "" if g.opset >= 13 else g.number([])
        sizes = [int(size * factor) for size, factor in zip(s, factors, strict=True)]
        g.add("Resize", [x, empty, *([g.number(factors)] if g.chance(0.7) else [empty, g.whole(*sizes)])], **given)

    def matmul(g, x, s):
        wide, way = (
            g.choose([1, 2, 3]),
            g.choose(["values", "left", "stack", "vector"] if len(s) >= 3 else ["left", "vector"]),
        )
        if way == "values":
            turned = g.add("Transpose", [g.pick(s)[0]], perm=[*range(len(s) - 2), len(s) - 1, len(s) - 2])
            g.add("MatMul", [x, turned][:: g.choose([1, -1])])
        elif way == "left":
            g.add("MatMul", [g.values_of(wide, s[-2]), x])
        else:
            sizes = (s[-1],) if way == "vector" else (*g.choose([(1,), s[-3:-2]]), s[-1], wide)
            g.add("MatMul", [x, g.values_of(*sizes)])

    def gemm(g, x, s):
        if len(s) == 2:
            wide = g.choose([2, 3])
            fitting = [other for other, sizes in g.values if sizes in ((s[0], wide), (s[0], 1))]
            bias = g.choose([[], [""], *([[g.choose(fitting)]] if fitting else [])])
            scales = g.some(**dict.fromkeys(("alpha", "beta"), (0.4, [0.5, 3.0])))
            g.add("Gemm", [x, g.values_of(s[1], wide), *bias], **scales)

    def dropout(g, x, s):
        if g.opset >= 12:
            training = g.tensor(np.array(g.chance(0.2)))
            g.add("Dropout", [x, *g.choose([[], ["", training], [g.number(0.3)]])])
        else:
            g.add("Dropout", [x], **g.some(ratio=(0.5, [0.25])))

    def negate(g, x, s):
        g.add(g.choose(["Neg", "Identity"]), [x])

    def global_pool(g, x, s):
        g.add("GlobalAveragePool", [x])

    def tile(g, x, s):
        g.add("Tile", [x, g.whole(2 if g.chance(0.1) else 1, *g.several([1, 2], len(s) - 1))])


# How often each way is taken, and how many dimensions its value has at least.
KINDS = {name: (2, 2) for name in vars(Ways) if not name.startswith("_")}
KINDS |= {"map": (30, 2), "two": (50, 2), "broadcast": (18, 2), "shape": (10, 2), "slice": (6, 2), "part": (6, 2)}
KINDS |= {"transpose": (3, 2), "transposed": (2, 3), "global_pool": (2, 3), "depth": (2, 4), "pool": (4, 3)}
KINDS |= dict.fromkeys(("reduce", "concat", "matmul"), (4, 2))


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
