"""Further operators for random ONNX graphs; ONNX itself infers the shapes of their results."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Further:
    """Operators that a growing graph takes now and then; for `onnx_random.Graph`."""

    KINDS = (
        *("transposed", "normal", "global_pool", "reduce", "many", "power", "cumulated", "tile", "expand", "pad"),
        *("concat", "depth", "gather", "resize", "matmul", "gemm", "dropout", "matmul", "reduce", "concat", "stack"),
    )

    def further(self, name, shape):
        getattr(self, f"further_{self.choose(self.KINDS)}")(name, shape)

    def grown(self, operator, inputs, outputs=1, **attributes):
        """Add a node, with the shapes that ONNX infers; none where it does not."""
        results = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        node = helper.make_node(operator, inputs, results, name=f"n{len(self.nodes)}", **attributes)
        known = dict(self.values) | self.shapes
        given = dict.fromkeys(word for word in inputs if word)
        fixed = [numpy_helper.from_array(self.tensors[word], word) for word in given if word in self.tensors]
        rest = [word for word in given if word not in self.tensors]
        if any(word not in known for word in rest):
            return None
        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_tensor_value_info(word, TensorProto.FLOAT, known[word]) for word in rest],
            [helper.make_tensor_value_info(word, TensorProto.FLOAT, None) for word in results],
            fixed,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        try:
            found = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph.output
        except Exception:
            return None
        self.nodes.append(node)
        for output in found:
            sizes = [size.dim_value for size in output.type.tensor_type.shape.dim]
            if output.type.tensor_type.HasField("shape") and 0 < np.prod(sizes) < 2000:
                self.values.append((output.name, tuple(sizes)))
        return results[0]

    def values_of(self, *shape):
        """A float tensor of the file."""
        return self.tensor(self.rng.choice([-1.0, 0.5, 1.0, 2.0, 3.0], size=shape).astype(np.float32))

    def further_transposed(self, name, shape):
        if not 3 <= len(shape) <= 4:
            return
        dims = len(shape) - 2
        kernel = [int(self.choose([1, 2, 3])) for _ in range(dims)]
        group = 2 if shape[1] % 2 == 0 and self.chance(0.3) else 1
        attributes = {"group": group} if group > 1 else {}
        strides = [int(self.choose([1, 2])) for _ in range(dims)]
        if self.chance(0.6):
            attributes["strides"] = strides
        if self.chance(0.4):
            attributes["pads"] = [int(self.choose([0, 1])) for _ in range(2 * dims)]
        if self.chance(0.3):
            attributes["dilations"] = [int(self.choose([1, 2])) for _ in range(dims)]
        if self.chance(0.3):
            attributes["output_padding"] = [int(self.choose([0, 1])) for _ in range(dims)]
        if self.chance(0.1):
            attributes["auto_pad"] = str(self.choose(["SAME_UPPER", "VALID"]))
            attributes.pop("pads", None)
        wide = int(self.choose([1, 2]))
        bias = self.choose([[], [""], [self.values_of(wide * group)]])
        self.grown("ConvTranspose", [name, self.values_of(shape[1], wide, *kernel), *bias], **attributes)

    def further_normal(self, name, shape):
        statistics = [self.values_of(shape[1]) for _ in range(3)]
        var = self.tensor(self.rng.choice([0.25, 1.0, 2.0], size=shape[1]).astype(np.float32))
        attributes = {"epsilon": float(self.choose([1e-5, 0.5]))} if self.chance(0.7) else {}
        if self.opset >= 14 and self.chance(0.3):
            attributes["training_mode"] = 0
        self.grown("BatchNormalization", [name, *statistics, var], **attributes)

    def further_global_pool(self, name, shape):
        if len(shape) >= 3:
            self.grown("GlobalAveragePool", [name])

    def further_reduce(self, name, shape):
        operator = str(self.choose(["ReduceSum", "ReduceMean", "ReduceSumSquare"]))
        first = 0 if self.chance(0.05) else 1
        axes = sorted({int(a) for a in self.rng.integers(first, len(shape), size=self.choose([1, 2]))})
        axes = [self.maybe_negative(axis, shape) for axis in axes]
        attributes = {"keepdims": int(self.chance(0.6))} if self.chance(0.8) else {}
        if self.opset >= (13 if operator == "ReduceSum" else 18):
            if self.chance(0.2):
                attributes["noop_with_empty_axes"] = 1
            self.grown(
                operator, [name, *self.choose([[self.whole(*axes)], [self.whole(*axes)], [""], []])], **attributes
            )
        else:
            self.grown(operator, [name], **attributes, **({"axes": axes} if self.chance(0.9) else {}))

    def further_many(self, name, shape):
        others = [self.pick(shape)[0] for _ in range(int(self.choose([0, 1, 2])))]
        if self.chance(0.4):
            others.append(self.values_of(*self.choose([shape[1:], shape[-1:], (1,)])))
        inputs = [name, *others]
        self.grown(str(self.choose(["Sum", "Mean"])), [inputs[i] for i in self.rng.permutation(len(inputs))])

    def further_power(self, name, shape):
        value = float(self.choose([2, 3, 1, 4, 0.5, -1, 0], [8, 4, 1, 1, 1, 1, 1]))
        sizes = self.choose([(), (1,), (1,) * (len(shape) + 1), shape[-1:]], [6, 3, 1, 1])
        kind = np.int64 if self.opset >= 12 and value == int(value) and self.chance(0.3) else np.float32
        self.grown("Pow", [name, self.tensor(np.full(sizes, value, dtype=kind))])

    def further_cumulated(self, name, shape):
        axis = int(self.rng.integers(1, len(shape)))
        place = self.tensor(np.array(self.maybe_negative(axis, shape), dtype=np.int64))
        flags = {flag: 1 for flag in ("exclusive", "reverse") if self.chance(0.3)}
        self.grown("CumSum", [name, place], **flags)

    def further_tile(self, name, shape):
        repeats = [1, *(int(self.choose([1, 2])) for _ in shape[1:])]
        self.grown("Tile", [name, self.whole(*(repeats if self.chance(0.9) else [2, *repeats[1:]]))])

    def further_expand(self, name, shape):
        sizes = [int(self.choose([1, size if size > 1 else 2])) for size in shape]
        sizes = sizes[int(self.choose([0, 1])) :]
        if len(sizes) == len(shape):
            sizes[0] = 1 if self.chance(0.8) else shape[0]
        self.grown("Expand", [name, self.whole(*sizes)])

    def further_pad(self, name, shape):
        mode = str(self.choose(["constant", "reflect", "edge"], [4, 1, 1]))
        one, other = ([0, *(int(self.choose([0, 1, 2])) for _ in shape[1:])] for _ in range(2))
        if self.chance(0.05):
            one[0] = 1
        attributes = {} if mode == "constant" and self.chance(0.5) else {"mode": mode}
        if self.opset < 11:
            fill = {"value": 2.0} if self.chance(0.3) else {}
            self.grown("Pad", [name], pads=one + other, **attributes, **fill)
            return
        fill = self.choose([[], [""], [self.tensor(np.float32(self.choose([0.0, 1.5])))]])
        if self.opset >= 18 and self.chance(0.5):
            axis = int(self.rng.integers(1, len(shape)))
            inputs = [name, self.whole(one[axis], other[axis]), *(fill or [""]), self.whole(axis)]
        else:
            inputs = [name, self.whole(*one, *other), *fill]
        self.grown("Pad", inputs, **attributes)

    def further_concat(self, name, shape):
        axis = int(self.rng.integers(0 if self.chance(0.05) else 1, len(shape)))
        others = [
            other
            for other, sizes in self.values
            if (*sizes[:axis], *sizes[axis + 1 :]) == (*shape[:axis], *shape[axis + 1 :]) and len(sizes) == len(shape)
        ]
        chosen = [str(self.choose(others)) for _ in range(int(self.choose([1, 2])))]
        if self.chance(0.2):
            chosen.append(self.values_of(*shape))
        self.grown("Concat", [name, *chosen], axis=self.maybe_negative(axis, shape))

    def further_stack(self, name, shape):
        """Two tensors along a new dimension, each by Unsqueeze."""
        other, _ = self.pick(shape)
        axes = [
            self.grown("Unsqueeze", [one, self.whole(1)])
            if self.opset >= 13
            else self.grown("Unsqueeze", [one], axes=[1])
            for one in (name, other)
        ]
        if all(axes):
            self.grown("Concat", axes, axis=1)

    def further_depth(self, name, shape):
        if len(shape) != 4:
            return
        if self.chance(0.5):
            self.grown("SpaceToDepth", [name], blocksize=2)
        else:
            mode = {"mode": str(self.choose(["DCR", "CRD"]))} if self.opset >= 11 and self.chance(0.6) else {}
            self.grown("DepthToSpace", [name], blocksize=2, **mode)

    def further_gather(self, name, shape):
        axis = int(self.rng.integers(1, len(shape)))
        if self.opset >= 11 and self.chance(0.6):
            sizes = list(shape)
            sizes[axis] = int(self.choose([1, 2]))
            index = self.tensor(self.rng.integers(-shape[axis], shape[axis], size=sizes).astype(np.int64))
            self.grown("GatherElements", [name, index], axis=self.maybe_negative(axis, shape))
        elif self.opset >= 12:
            rows = self.rng.integers(0, shape[1], size=(shape[0], 2, 1)).astype(np.int64)
            if self.chance(0.7):
                rows[:] = rows[:1]
            self.grown("GatherND", [name, self.tensor(rows)], batch_dims=1)

    def further_resize(self, name, shape):
        factors = np.array(
            [1, 1, *(float(self.choose([1, 2, 3, 0.5], [3, 4, 2, 1])) for _ in shape[2:])], dtype=np.float32
        )
        if self.opset < 10:
            if self.opset >= 9:
                self.grown("Upsample", [name, self.tensor(factors)], mode="nearest")
            elif self.opset >= 7:
                self.grown("Upsample", [name], mode="nearest", scales=[float(f) for f in factors])
            return
        attributes = {"mode": str(self.choose(["nearest", "linear"], [6, 1]))} if self.chance(0.9) else {}
        if self.opset == 10:
            self.grown("Resize", [name, self.tensor(factors)], **attributes)
            return
        if self.chance(0.8):
            ways = ["asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"]
            attributes["coordinate_transformation_mode"] = str(self.choose(ways, [6, 2, 1, 1]))
        if self.chance(0.8):
            attributes["nearest_mode"] = str(self.choose(["floor", "round_prefer_floor", "ceil"], [4, 2, 1]))
        empty = "" if self.opset >= 13 else self.tensor(np.zeros(0, dtype=np.float32))
        if self.chance(0.7):
            self.grown("Resize", [name, empty, self.tensor(factors)], **attributes)
        else:
            sizes = [int(size * factor) for size, factor in zip(shape, factors, strict=True)]
            none = "" if self.opset >= 13 else self.tensor(np.zeros(0, dtype=np.float32))
            self.grown("Resize", [name, empty, none, self.whole(*sizes)], **attributes)

    def further_matmul(self, name, shape):
        wide = int(self.choose([1, 2, 3]))
        kind = self.choose(["values", "left", "stack", "vector"])
        if kind == "values" and len(shape) >= 3:
            order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
            turned = self.grown("Transpose", [self.pick(shape)[0]], perm=order)
            self.grown("MatMul", [name, turned] if self.chance(0.5) else [turned, name])
        elif kind == "left":
            self.grown("MatMul", [self.values_of(wide, shape[-2]), name])
        elif kind == "stack" and len(shape) >= 3:
            lead = self.choose([(1,), shape[-3:-2]])
            self.grown("MatMul", [name, self.values_of(*lead, shape[-1], wide)])
        elif kind == "vector":
            self.grown("MatMul", [name, self.values_of(shape[-1])])

    def further_gemm(self, name, shape):
        if len(shape) != 2:
            return
        wide = int(self.choose([2, 3]))
        fitting = [other for other, sizes in self.values if sizes in ((shape[0], wide), (shape[0], 1))]
        bias = self.choose([[], [""], [str(self.choose(fitting))]] if fitting else [[], [""]])
        attributes = {key: float(self.choose([0.5, 3.0])) for key in ("alpha", "beta") if self.chance(0.4)}
        self.grown("Gemm", [name, self.values_of(shape[1], wide), *bias], **attributes)

    def further_dropout(self, name, shape):
        inputs, attributes = [name], {}
        if self.opset >= 12:
            training = self.tensor(np.array(self.chance(0.2)))
            inputs += self.choose([[], ["", training], [self.tensor(np.float32(0.3))]])
        elif self.chance(0.5):
            attributes["ratio"] = 0.25
        self.grown("Dropout", inputs, **attributes)
