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

    def several(self, options, count):
        """Some whole numbers, each drawn from the options."""
        return [int(self.choose(options)) for _ in range(count)]

    def tensor(self, array):
        name = f"c{len(self.tensors)}"
        self.tensors[name] = array
        return name

    def whole(self, *values):
        return self.tensor(np.array(values, dtype=np.int64))

    def values_of(self, *shape):
        """A float tensor of the file."""
        return self.tensor(self.rng.choice([-1.0, 0.5, 1.0, 2.0, 3.0], size=shape).astype(np.float32))

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
        given = dict.fromkeys(word for word in inputs if word)
        fixed = [numpy_helper.from_array(self.tensors[word], word) for word in given if word in self.tensors]
        info = [(word, known.get(word)) for word in given if word not in self.tensors]
        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_tensor_value_info(word, TensorProto.FLOAT, shape) for word, shape in info],
            [helper.make_tensor_value_info(word, TensorProto.FLOAT, None) for word in node.output],
            fixed,
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
            if output.type.tensor_type.HasField("shape") and 0 < np.prod(sizes) < 2000:
                self.values.append((output.name, tuple(sizes)))
        return node.output[0]

    def constant(self, *shape):
        """The name of a constant: as it stands, or computed by nodes of its own."""
        values = self.rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0], size=shape).astype(np.float32)
        if self.chance(0.5):
            values = np.full(shape, self.choose([1.0, 2.0]), dtype=np.float32)
        way = self.choose(["plain", "node", "computed", "sliced", "moved", "expanded"], [60, 10, 10, 10, 10, 3])
        if way == "node":
            name = self.node("Constant", [], value=numpy_helper.from_array(values))
        elif way == "computed":
            other = self.rng.choice([0.5, 1.0, 2.0, 4.0, 3.0], size=shape).astype(np.float32)
            operator = self.choose(["Add", "Sub", "Mul", "Div"])
            name = self.node(operator, [self.tensor(values), self.tensor(other)])
        elif way == "sliced" and shape and self.opset >= 10:
            # Every second entry along the last axis, by steps with axes or without.
            starts, ends, steps = [0] * len(shape), [*shape[:-1], 2 * shape[-1]], [1] * (len(shape) - 1) + [2]
            wide = self.tensor(np.repeat(values, 2, axis=-1))
            name = self.node("Slice", [wide, self.whole(*starts), self.whole(*ends), "", self.whole(*steps)])
        elif way == "moved" and shape:
            name = self.node("Transpose", [self.tensor(np.ascontiguousarray(values.T))])
        elif way == "expanded" and shape:
            name = self.node("Expand", [self.tensor(values[..., :1]), self.whole(*shape)])
        else:
            name = self.tensor(values)
        self.shapes[name] = shape
        return name

    def pick(self, shape=None):
        """A value, late ones more often; of a shape if one is asked for."""
        fitting = [value for value in self.values if shape is None or value[1] == shape]
        return fitting[-1 - min(int(self.rng.exponential(1.5)), len(fitting) - 1)]

    def grow(self):
        name, shape = self.pick()
        if len(shape) >= 2:  # else nothing is left to work with
            getattr(self, f"add_{self.choose(list(KINDS), list(KINDS.values()))}")(name, shape)

    def axis(self, axis, shape):
        """The axis, or the same counted from the end, which opsets from 11 on know."""
        return axis - len(shape) if self.opset >= 11 and self.chance(0.3) else axis

    def inner(self, shape, of_batch=0.0):
        """An axis, now and then that of the batch."""
        return int(self.rng.integers(0 if self.chance(of_batch) else 1, len(shape)))

    def add_map(self, name, shape):
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
            self.add("Gemm", inputs, **attributes)
        elif len(shape) >= 3 and self.chance(0.7):
            kernel = [int(self.choose([1, 2, 3], [1, 1, 4])) for _ in shape[2:]]
            group = 2 if shape[1] % 2 == 0 and self.chance(0.2) else 1
            wide = wide - wide % group
            bias = [self.constant(wide)] if self.chance(0.5) else []
            inputs = [name, self.constant(wide, shape[1] // group, *kernel), *bias]
            self.add("Conv", inputs, **self.window(kernel), **({"group": group} if group > 1 else {}))
        else:
            self.add("MatMul", [name, self.constant(shape[-1], wide)])

    def window(self, kernel):
        """Attributes of a sliding window."""
        dims = len(kernel)
        if all(size % 2 for size in kernel) and self.chance(0.7):
            pads = [size // 2 for size in kernel] * 2
            return {"auto_pad": str(self.choose(["SAME_UPPER", "SAME_LOWER"]))} if self.chance(0.2) else {"pads": pads}
        attributes = {"pads": self.several([0, 1], 2 * dims)}
        if self.chance(0.3):
            attributes["strides"] = self.several([1, 2], dims)
        if self.chance(0.2):
            attributes["dilations"] = self.several([1, 2], dims)
        if self.chance(0.1):
            attributes["auto_pad"] = "VALID"
            del attributes["pads"]
        return attributes

    def add_transposed(self, name, shape):
        dims = len(shape) - 2
        if not 1 <= dims <= 2:
            return
        kernel, wide = self.several([1, 2, 3], dims), int(self.choose([1, 2]))
        group = 2 if shape[1] % 2 == 0 and self.chance(0.3) else 1
        attributes = {"group": group} if group > 1 else {}
        for option, share, options in (
            ("strides", 0.6, [1, 2]),
            ("dilations", 0.3, [1, 2]),
            ("output_padding", 0.3, [0, 1]),
        ):
            if self.chance(share):
                attributes[option] = self.several(options, dims)
        if self.chance(0.4):
            attributes["pads"] = self.several([0, 1], 2 * dims)
        if self.chance(0.1):
            attributes["auto_pad"] = str(self.choose(["SAME_UPPER", "VALID"]))
            attributes.pop("pads", None)
        bias = self.choose([[], [""], [self.values_of(wide * group)]])
        self.add("ConvTranspose", [name, self.values_of(shape[1], wide, *kernel), *bias], **attributes)

    def add_pool(self, name, shape):
        if len(shape) < 3:
            return
        kernel = [int(self.choose([2, 3], [3, 1]))] * (len(shape) - 2)
        attributes = {"strides": kernel} if self.chance(0.7) else self.window(kernel)
        attributes.pop("dilations", None)
        if self.opset >= 7 and self.chance(0.3):
            attributes["count_include_pad"] = 1
        if self.opset >= 10 and self.chance(0.1):
            attributes["ceil_mode"] = 1
        self.add("AveragePool", [name], kernel_shape=kernel, **attributes)

    def add_global_pool(self, name, shape):
        if len(shape) >= 3:
            self.add("GlobalAveragePool", [name])

    def add_normal(self, name, shape):
        statistics = [self.values_of(shape[1]) for _ in range(3)]
        var = self.tensor(self.rng.choice([0.25, 1.0, 2.0], size=shape[1]).astype(np.float32))
        attributes = {"epsilon": float(self.choose([1e-5, 0.5]))} if self.chance(0.7) else {}
        if self.opset >= 14 and self.chance(0.3):
            attributes["training_mode"] = 0
        self.add("BatchNormalization", [name, *statistics, var], **attributes)

    def add_two(self, name, shape):
        operator = self.choose(["Mul", "Add", "Sub"], [3, 1, 1])
        other, _ = self.pick(shape) if self.chance(0.97) else self.pick()
        self.add(operator, [name, other] if self.chance(0.5) else [other, name])

    def add_broadcast(self, name, shape):
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
        if self.opset < 7 and sizes != list(shape):
            # Old opsets align a shape anywhere, by attributes, and do not repeat single entries.
            place = int(self.rng.integers(1, len(shape)))
            self.add(operator, [name, self.constant(*shape[place : place + 1])], broadcast=1, axis=place)
            return
        inputs = [name, self.constant(*sizes)]
        if operator != "Div" and self.chance(0.3):
            inputs.reverse()
        self.add(operator, inputs)

    def add_many(self, name, shape):
        others = [self.pick(shape)[0] for _ in range(int(self.choose([0, 1, 2])))]
        if self.chance(0.4):
            others.append(self.values_of(*self.choose([shape[1:], shape[-1:], (1,)])))
        inputs = [name, *others]
        self.add(str(self.choose(["Sum", "Mean"])), [inputs[i] for i in self.rng.permutation(len(inputs))])

    def add_power(self, name, shape):
        value = float(self.choose([2, 3, 1, 4, 0.5, -1, 0], [8, 4, 1, 1, 1, 1, 1]))
        sizes = self.choose([(), (1,), (1,) * (len(shape) + 1), shape[-1:]], [6, 3, 1, 1])
        kind = np.int64 if self.opset >= 12 and value == int(value) and self.chance(0.3) else np.float32
        self.add("Pow", [name, self.tensor(np.full(sizes, value, dtype=kind))])

    def add_cumulated(self, name, shape):
        place = self.tensor(np.array(self.axis(self.inner(shape), shape), dtype=np.int64))
        self.add("CumSum", [name, place], **{flag: 1 for flag in ("exclusive", "reverse") if self.chance(0.3)})

    def add_negate(self, name, shape):
        self.add(str(self.choose(["Neg", "Identity"])), [name])

    def add_transpose(self, name, shape):
        order = [0, *(1 + self.rng.permutation(len(shape) - 1)).tolist()]
        if self.chance(0.1):
            order = self.rng.permutation(len(shape)).tolist()
        self.add("Transpose", [name], perm=order)

    def add_shape(self, name, shape):
        """Reshape, Flatten, Squeeze or Unsqueeze."""
        size = int(np.prod(shape[1:]))
        kind = str(self.choose(["reshape", "flatten", "squeeze", "unsqueeze", "dynamic"]))
        if kind == "flatten":
            axis = int(self.choose([1, 1 - len(shape), 2, 0], [6, 2, 1, 1]))
            if axis >= 0 or self.opset >= 11:
                self.add("Flatten", [name], axis=axis)
        elif kind == "squeeze" and 1 in shape:
            axes = [place for place, wide in enumerate(shape) if wide == 1 and self.chance(0.8)]
            if not axes or self.chance(0.1):
                self.add("Squeeze", [name])
            else:
                self.along("Squeeze", name, *(self.axis(axis, shape) for axis in axes))
        elif kind == "unsqueeze":
            self.along("Unsqueeze", name, int(self.choose([1, 2, len(shape), 0], [4, 2, 2, 1])))
        elif kind == "dynamic" and self.opset >= 10:
            batch = self.node("Slice", [self.node("Shape", [name]), self.whole(0), self.whole(1), self.whole(0)])
            target = self.node("Concat", [batch, self.whole(-1)], axis=0)
            self.values.append((self.node("Reshape", [name, target]), (shape[0], size)))
        elif kind == "reshape":
            rest = self.choose([(size,), (-1,), (2, -1), (1, -1), (size, 1)])
            known = int(np.prod([wide for wide in rest if wide > 0]))
            first = int(self.choose([0, -1, 1, self.size], [8, 1, 1, 1]))
            if first == -1:
                rest = tuple(size // known if wide < 0 else wide for wide in rest)
            allow = {"allowzero": 1} if self.opset >= 14 and self.chance(0.1) else {}
            self.add("Reshape", [name, self.whole(first, *rest)], **allow)

    def along(self, operator, name, *axes):
        """An operator whose axes are an attribute in old opsets and an operand in new ones."""
        if self.opset < 13:
            return self.add(operator, [name], axes=axes)
        return self.add(operator, [name, self.whole(*axes)])

    def add_part(self, name, shape):
        """Slice, Gather or Split, now and then of the batch."""
        kind, axis = self.choose(["slice", "slice", "gather", "split"]), self.inner(shape, of_batch=0.1)
        size = shape[axis]
        if kind == "slice":
            self.add_slice(name, shape, axis)
        elif kind == "gather":
            index = self.rng.integers(-size, size, size=self.choose([(), (1,), (2,), (2, 1)])).astype(np.int64)
            self.add("Gather", [name, self.tensor(index)], axis=self.axis(axis, shape))
        elif size > 1:
            first = size // 2 if size % 2 == 0 and self.chance(0.5) else int(self.rng.integers(1, size))
            inputs, attributes = [name], {"axis": axis}
            if self.opset < 13:
                attributes["split"] = [first, size - first]
            elif size % 2 == 0 and first == size // 2 and self.chance(0.5):
                attributes |= {"num_outputs": 2} if self.opset >= 18 else {}
            else:
                inputs.append(self.whole(first, size - first))
            self.add("Split", inputs, outputs=2, **attributes)

    def add_slice(self, name, shape, axis):
        size = shape[axis]
        start, end = int(self.choose([0, 1, -2, -size])), int(self.choose([size, 2**31, -1, size - 1], [4, 2, 1, 1]))
        step = int(self.choose([1, 2, 3, -1], [4, 3, 1, 1]))
        if step < 0:
            start, end = size - 1, -size - 1
        if self.opset < 10:
            if step == 1:
                self.add("Slice", [name], starts=[start], ends=[end], axes=[axis])
            return
        steps = [] if step == 1 and self.chance(0.5) else [step]
        if self.chance(0.5):  # axes by their places: those before are taken whole
            whole = [2**31 if place == 0 and self.chance(0.8) else size for place, size in enumerate(shape[:axis])]
            starts, ends, axes = [0] * axis + [start], [*whole, end], ""
            steps = [1] * axis + steps if steps else []
        else:
            starts, ends, axes = [start], [end], self.whole(self.axis(axis, shape))
        inputs = [name, self.whole(*starts), self.whole(*ends)]
        if steps:
            inputs += [axes, self.whole(*steps)]
        elif axes:
            inputs.append(axes)
        self.add("Slice", inputs)

    def add_gather(self, name, shape):
        axis = self.inner(shape)
        if self.opset >= 11 and self.chance(0.6):
            sizes = list(shape)
            sizes[axis] = int(self.choose([1, 2]))
            index = self.tensor(self.rng.integers(-shape[axis], shape[axis], size=sizes).astype(np.int64))
            self.add("GatherElements", [name, index], axis=self.axis(axis, shape))
        elif self.opset >= 12:
            rows = self.rng.integers(0, shape[1], size=(shape[0], 2, 1)).astype(np.int64)
            if self.chance(0.7):
                rows[:] = rows[:1]
            self.add("GatherND", [name, self.tensor(rows)], batch_dims=1)

    def add_reduce(self, name, shape):
        operator = str(self.choose(["ReduceSum", "ReduceMean", "ReduceSumSquare"]))
        first = 0 if self.chance(0.05) else 1
        axes = sorted({int(a) for a in self.rng.integers(first, len(shape), size=self.choose([1, 2]))})
        axes = [self.axis(axis, shape) for axis in axes]
        attributes = {"keepdims": int(self.chance(0.6))} if self.chance(0.8) else {}
        if self.opset >= (13 if operator == "ReduceSum" else 18):
            if self.chance(0.2):
                attributes["noop_with_empty_axes"] = 1
            given = self.choose([[self.whole(*axes)], [self.whole(*axes)], [""], []])
            self.add(operator, [name, *given], **attributes)
        else:
            self.add(operator, [name], **attributes, **({"axes": axes} if self.chance(0.9) else {}))

    def add_tile(self, name, shape):
        repeats = [1, *self.several([1, 2], len(shape) - 1)]
        self.add("Tile", [name, self.whole(*(repeats if self.chance(0.9) else [2, *repeats[1:]]))])

    def add_expand(self, name, shape):
        sizes = [int(self.choose([1, size if size > 1 else 2])) for size in shape]
        sizes = sizes[int(self.choose([0, 1])) :]
        if len(sizes) == len(shape):
            sizes[0] = 1 if self.chance(0.8) else shape[0]
        self.add("Expand", [name, self.whole(*sizes)])

    def add_pad(self, name, shape):
        mode = str(self.choose(["constant", "reflect", "edge"], [4, 1, 1]))
        one, other = ([0, *self.several([0, 1, 2], len(shape) - 1)] for _ in range(2))
        if self.chance(0.05):
            one[0] = 1
        attributes = {} if mode == "constant" and self.chance(0.5) else {"mode": mode}
        if self.opset < 11:
            self.add("Pad", [name], pads=one + other, **attributes, **({"value": 2.0} if self.chance(0.3) else {}))
            return
        fill = self.choose([[], [""], [self.tensor(np.float32(self.choose([0.0, 1.5])))]])
        if self.opset >= 18 and self.chance(0.5):
            axis = self.inner(shape)
            inputs = [name, self.whole(one[axis], other[axis]), *(fill or [""]), self.whole(axis)]
        else:
            inputs = [name, self.whole(*one, *other), *fill]
        self.add("Pad", inputs, **attributes)

    def add_concat(self, name, shape):
        axis = self.inner(shape, of_batch=0.05)
        left = (*shape[:axis], *shape[axis + 1 :])
        sizes_of = {other: sizes for other, sizes in self.values if len(sizes) == len(shape)}
        others = [other for other, sizes in sizes_of.items() if (*sizes[:axis], *sizes[axis + 1 :]) == left]
        chosen = [str(self.choose(others)) for _ in range(int(self.choose([1, 2])))]
        if self.chance(0.2):
            chosen.append(self.values_of(*shape))
        self.add("Concat", [name, *chosen], axis=self.axis(axis, shape))

    def add_stack(self, name, shape):
        """Two tensors along a new dimension, each by Unsqueeze."""
        axes = [self.along("Unsqueeze", one, 1) for one in (name, self.pick(shape)[0])]
        if all(axes):
            self.add("Concat", axes, axis=1)

    def add_depth(self, name, shape):
        if len(shape) == 4 and self.chance(0.5):
            self.add("SpaceToDepth", [name], blocksize=2)
        elif len(shape) == 4:
            mode = {"mode": str(self.choose(["DCR", "CRD"]))} if self.opset >= 11 and self.chance(0.6) else {}
            self.add("DepthToSpace", [name], blocksize=2, **mode)

    def add_resize(self, name, shape):
        factors = np.float32([1, 1, *(self.choose([1, 2, 3, 0.5], [3, 4, 2, 1]) for _ in shape[2:])])
        if self.opset < 10:
            if self.opset >= 9:
                self.add("Upsample", [name, self.tensor(factors)], mode="nearest")
            elif self.opset >= 7:
                self.add("Upsample", [name], mode="nearest", scales=[float(f) for f in factors])
            return
        attributes = {"mode": str(self.choose(["nearest", "linear"], [6, 1]))} if self.chance(0.9) else {}
        if self.opset == 10:
            self.add("Resize", [name, self.tensor(factors)], **attributes)
            return
        if self.chance(0.8):
            ways = ["asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"]
            attributes["coordinate_transformation_mode"] = str(self.choose(ways, [6, 2, 1, 1]))
        if self.chance(0.8):
            attributes["nearest_mode"] = str(self.choose(["floor", "round_prefer_floor", "ceil"], [4, 2, 1]))
        empty = "" if self.opset >= 13 else self.tensor(np.zeros(0, dtype=np.float32))
        if self.chance(0.7):
            self.add("Resize", [name, empty, self.tensor(factors)], **attributes)
        else:
            sizes = [int(size * factor) for size, factor in zip(shape, factors, strict=True)]
            self.add("Resize", [name, empty, empty, self.whole(*sizes)], **attributes)

    def add_matmul(self, name, shape):
        wide = int(self.choose([1, 2, 3]))
        kind = self.choose(["values", "left", "stack", "vector"])
        if kind == "values" and len(shape) >= 3:
            order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
            turned = self.add("Transpose", [self.pick(shape)[0]], perm=order)
            self.add("MatMul", [name, turned] if self.chance(0.5) else [turned, name])
        elif kind == "left":
            self.add("MatMul", [self.values_of(wide, shape[-2]), name])
        elif kind == "stack" and len(shape) >= 3:
            self.add("MatMul", [name, self.values_of(*self.choose([(1,), shape[-3:-2]]), shape[-1], wide)])
        elif kind == "vector":
            self.add("MatMul", [name, self.values_of(shape[-1])])

    def add_gemm(self, name, shape):
        if len(shape) != 2:
            return
        wide = int(self.choose([2, 3]))
        fitting = [other for other, sizes in self.values if sizes in ((shape[0], wide), (shape[0], 1))]
        bias = self.choose([[], [""], [str(self.choose(fitting))]] if fitting else [[], [""]])
        attributes = {key: float(self.choose([0.5, 3.0])) for key in ("alpha", "beta") if self.chance(0.4)}
        self.add("Gemm", [name, self.values_of(shape[1], wide), *bias], **attributes)

    def add_dropout(self, name, shape):
        inputs, attributes = [name], {}
        if self.opset >= 12:
            training = self.tensor(np.array(self.chance(0.2)))
            inputs += self.choose([[], ["", training], [self.tensor(np.float32(0.3))]])
        elif self.chance(0.5):
            attributes["ratio"] = 0.25
        self.add("Dropout", inputs, **attributes)

    def model(self, kind, opset=None):
        """The graph as a file's content, in float32 or float64."""
        dtype = {TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64}[kind]
        name, shape = self.values[-1]
        nodes = [helper.make_node("Identity", [name], ["output"], name="last")]
        nodes = [*(_doubled(node) if kind == TensorProto.DOUBLE else node for node in self.nodes), *nodes]
        arrays = {n: a.astype(dtype) if a.dtype == np.float32 else a for n, a in self.tensors.items()}
        graph = helper.make_graph(
            nodes,
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


# How often each operator, or group of them, is taken.
KINDS = {"map": 30, "two": 40, "broadcast": 18, "negate": 2, "shape": 10, "part": 12, "transpose": 3, "pool": 4}
KINDS |= dict.fromkeys(("reduce", "concat", "matmul"), 4)
FURTHER = "transposed normal global_pool many power cumulated tile expand pad depth gather resize gemm dropout stack"
KINDS |= dict.fromkeys(FURTHER.split(), 2)


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
