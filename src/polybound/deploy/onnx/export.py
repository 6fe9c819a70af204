"""`to_onnx`: any network as an ONNX file, written by an algebra on its graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import inf, prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from polybound import models
from polybound._version import __version__
from polybound.deploy.onnx.files import OnnxMetadata, write_proto
from polybound.errors import PolyboundError, existing_folder
from polybound.models import Affine, Chain, Conv, Convolution, Dense, PolynomialNetwork, Pool
from polybound.theory import lipschitz

OPSET = 13
INPUT, OUTPUT = "input", "logits"
_IR_VERSION = 8  # of the ONNX release with this opset's tools; newer ones are refused by older runtimes
_TYPES = {"torch.float32": TensorProto.FLOAT, "torch.float64": TensorProto.DOUBLE}


def to_onnx(
    model: PolynomialNetwork,
    path: str | PathLike[str],
    *,
    class_names: Sequence[str] = (),
    domain: tuple[float, float] | None = None,
    scaling: tuple[float, float] | None = None,
    bounds: bool = True,
) -> list[Path]:
    """Write a model as an ONNX file; a stack as one file for each run, `name-0.onnx`, `name-1.onnx` and so on.

    The input has the model's shape after a batch dimension of any size. The graph of a CCP, NCP or ConvCCP consists of
    `Gemm, Conv, Mul, AveragePool, Flatten`, which verifiers read; a residual step `h y + y` is written as `(h + 1) y`.
    That of a deep network has `Add`, `Reshape` and some more. The metadata hold, as JSON, what `OnnxMetadata` lists.

    Args:
        model: a model or a stack.
        path: the file, ending in .onnx; the files appear whole or not at all.
        class_names: one name for each class.
        domain: the smallest and largest value of an input entry. The bounds hold for `||x||_inf <= max |domain|`;
            without a domain, for `||x||_inf <= 1`.
        scaling: factor and offset of `input = factor * raw + offset`.
        bounds: whether to prove bounds of the l_inf Lipschitz constant; for PN-Conv this takes some seconds.

    Returns:
        The files that were written.

    Raises:
        PolyboundError: the model, the file's name or an option does not fit.

    >>> import tempfile, polybound as pb
    >>> model = pb.CCP(features=4, rank=3, classes=2, degree=2, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [file] = pb.deploy.to_onnx(model, f"{folder}/net.onnx", class_names=["no", "yes"])
    ...     bool((pb.deploy.from_onnx(file).V == model.V).all())
    True
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise PolyboundError(f"{path}: the name of an ONNX file ends in .onnx")
    existing_folder(path.parent)
    model = models.polynomial(model)
    if class_names and len(class_names) != model.classes:
        raise PolyboundError(f"{len(class_names)} class names for {model.classes} classes")
    metadata = OnnxMetadata(tuple(class_names), domain, scaling)
    singles = {path: model}
    if model.runs is not None:
        singles = {path.with_name(f"{path.stem}-{e}.onnx"): model.run(e) for e in range(model.runs)}
    for file, single in singles.items():
        proto = _plain_graph(single)
        rows: tuple[dict[str, Any], ...] = ()
        deep = isinstance(single, models.DeepNetwork)
        if bounds and not deep:
            # Upper bounds of the Lipschitz constant, from the paper's to the sharpest.
            radius = 1.0 if domain is None else max(abs(side) for side in domain)
            factors = single.factors().double()
            found = (lipschitz(factors, inf, method, radius=radius) for method in ("paper", "rowwise", "local"))
            rows = tuple(bound.as_dict() for bound in found)
        config = {} if deep else single.config()
        write_proto(file, proto, replace(metadata, bounds=rows, kind=type(single).__name__, config=config))
    return list(singles)


def _plain_graph(model: PolynomialNetwork) -> onnx.ModelProto:
    """The graph of one model, in float32 or float64."""
    dtype = str(next((tensor.dtype for tensor in model.parameters()), torch.float32))
    if dtype not in _TYPES:
        raise PolyboundError(f"ONNX files are written of float32 and float64 models, not of {dtype}")
    written = OnnxNodes()
    with torch.no_grad():
        output = written.flat(model.graph().evaluate(written, Written(INPUT, tuple(model.shape))))
    last = written.nodes[-1] if written.nodes else None
    if last is not None and last.output[0] == output.name:
        last.output[0] = OUTPUT
    else:
        written.nodes.append(helper.make_node("Identity", [output.name], [OUTPUT], name="output"))
    kind = _TYPES[dtype]
    inputs = [helper.make_tensor_value_info(INPUT, kind, ["batch", *model.shape])]
    outputs = [helper.make_tensor_value_info(OUTPUT, kind, ["batch", output.shape[0]])]
    return helper.make_model(
        helper.make_graph(written.nodes, "polybound", inputs, outputs, written.tensors),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
        producer_name="polybound",
        producer_version=__version__,
    )


@dataclass(frozen=True)
class Written:
    """A tensor of the file, by its name, and the shape that it has for one input."""

    name: str
    shape: tuple[int, ...]


class OnnxNodes:
    """What affine maps, sums and products are in ONNX: an algebra whose values are tensors of the file.

    Images stay images as long as the next map takes them; a map of the same tensor is written once.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.known: dict[Any, tuple[Written, Any]] = {}

    def sum(self, values: Sequence[Written]) -> Written:
        """Additions, one after the other."""
        return reduce(lambda one, other: self._two("Add", one, other), values)

    def product(self, left: Written, right: Written) -> Written:
        """A multiplication."""
        return self._two("Mul", left, right)

    def affine(self, step: Affine, value: Written) -> Written:
        """The operators of a map; of a chain, of one map after the other."""
        maps, shift = (list(step.maps), step.shift) if isinstance(step, Chain) else ([step], 0.0)
        # A constant goes through average poolings as it is: it is written as the bias of what comes before them.
        place = max((n for n, part in enumerate(maps) if not isinstance(part, Pool)), default=0)
        head = maps[place]
        if shift and isinstance(head, Conv | Dense) and not bool(head.constant.any()):
            bias = torch.full_like(head.bias if isinstance(head, Conv) else head.constant, shift)
            maps[place] = Conv(head.weight, bias, head.shape) if isinstance(head, Conv) else Dense(head.weight, bias)
            shift = 0.0
        for part in maps:
            if (id(part), value.name) not in self.known:
                made = self.affine(part, value) if isinstance(part, Chain) else self._single(part, value)
                self.known[id(part), value.name] = made, part  # the part stays, and so does its id
            value = self.known[id(part), value.name][0]
        return self._plus(value, torch.full_like(step.constant[:1], shift)) if shift else value

    def flat(self, value: Written) -> Written:
        """The tensor as (batch, size)."""
        if len(value.shape) == 1:
            return value
        return self._once("Flatten", value, (prod(value.shape),), axis=1)

    def _single(self, step: Affine, value: Written) -> Written:
        match step:
            case models.Identity():
                return value
            case Dense():
                return self._weighted("Gemm", self.flat(value), step.weight, step.constant, (step.outputs,), transB=1)
            case models.Scale():
                if not bool((step.weight == 1).all()):
                    scale = self._tensor(_by_channel(step.weight, value.shape))
                    value = self._node("Mul", [value.name, scale], value.shape)
                return self._plus(value, step.constant)
            case models.Repeated():
                rows = self._image(value, (step.rows, step.weight.shape[1]))
                weight = self._tensor(step.weight.T)
                product = self._node("MatMul", [rows.name, weight], (step.rows, len(step.weight)))
                if not bool(step.bias.any()):
                    return product
                return self._node("Add", [product.name, self._tensor(step.bias)], product.shape)
            case models.Select():
                index = self._tensor(step.index.clamp_min(0).numpy().astype(np.int64))
                value = self._node("Gather", [self.flat(value).name, index], (step.outputs,), axis=1)
                gaps = step.index < 0
                if not bool(gaps.any()):
                    return value
                return self._node("Mul", [value.name, self._tensor((~gaps).to(step.constant.dtype))], value.shape)
            case models.Collect():
                # Sums of equal blocks are a reduction, all others a matrix of zeros and ones.
                size = step.inputs // step.outputs
                if torch.equal(step.index, torch.arange(step.outputs).repeat_interleave(size)):
                    axes = self._tensor(np.array([2], dtype=np.int64))
                    blocks = self._image(value, (step.outputs, size))
                    return self._node("ReduceSum", [blocks.name, axes], (step.outputs,), keepdims=0)
                if step.inputs * step.outputs > 2**24:
                    raise PolyboundError(f"a sum of {step.inputs:,} scattered entries is too large for ONNX")
                return self._node("MatMul", [self.flat(value).name, self._tensor(step.matrix().T)], (step.outputs,))
            case Conv() | Convolution():
                operator, padding = "Conv", [n // 2 for n in step.weight.shape[2:]]
                options: dict[str, Any] = {"kernel_shape": list(step.weight.shape[2:])}
                if isinstance(step, Convolution):
                    padding = list(step.padding)
                    options |= {"strides": list(step.stride), "dilations": list(step.dilation), "group": step.groups}
                    if step.transposed:
                        operator, options["output_padding"] = "ConvTranspose", list(step.output_padding)
                image, options["pads"] = self._image(value, step.shape), padding * 2
                return self._weighted(operator, image, step.weight, step.bias, step.out_shape, **options)
            case Pool() | models.AveragePool():
                window = [2] * step.dims if isinstance(step, Pool) else list(step.size)
                options = {"kernel_shape": window, "strides": window}
                if isinstance(step, models.AveragePool):
                    options["strides"] = list(step.stride)
                    if any(step.padding):
                        options |= {"pads": list(step.padding) * 2, "count_include_pad": 1}
                return self._node("AveragePool", [self._image(value, step.shape).name], step.out_shape, **options)
            case _:
                raise PolyboundError(f"a map of the kind {type(step).__name__} is not written as ONNX")

    def _two(self, operator: str, one: Written, other: Written) -> Written:
        if one.shape != other.shape:
            one, other = self.flat(one), self.flat(other)
        return self._node(operator, [one.name, other.name], one.shape)

    def _plus(self, value: Written, constant: Tensor) -> Written:
        if not bool(constant.any()):
            return value
        return self._node("Add", [value.name, self._tensor(_by_channel(constant, value.shape))], value.shape)

    def _image(self, value: Written, shape: Sequence[int]) -> Written:
        """The tensor in a shape; 0 stands for the batch."""
        if value.shape == tuple(shape):
            return value
        target = np.array([0, *shape], dtype=np.int64)
        return self._once("Reshape", value, tuple(shape), target)

    def _once(self, operator: str, value: Written, shape: tuple[int, ...], *given: Any, **attributes: Any) -> Written:
        """A node that is written once for its tensor."""
        key = operator, value.name, shape
        if key not in self.known:
            names = [value.name, *(self._tensor(array) for array in given)]
            self.known[key] = self._node(operator, names, shape, **attributes), None
        return self.known[key][0]

    def _weighted(
        self, operator: str, value: Written, weight: Tensor, bias: Tensor, shape: Sequence[int], **options: Any
    ) -> Written:
        """A node with a weight and, unless it is zero, a bias."""
        names = [value.name, *(self._tensor(tensor) for tensor in (weight, *([bias] if bool(bias.any()) else [])))]
        return self._node(operator, names, shape, **options)

    def _node(self, operator: str, names: Sequence[str], shape: Sequence[int], **attributes: Any) -> Written:
        name = f"{operator.lower()}{len(self.nodes) + 1}"
        self.nodes.append(helper.make_node(operator, list(names), [f"{name}.out"], name=name, **attributes))
        return Written(f"{name}.out", tuple(shape))

    def _tensor(self, value: Tensor | npt.NDArray[Any]) -> str:
        array = value if isinstance(value, np.ndarray) else value.detach().cpu().contiguous().numpy()
        self.tensors.append(numpy_helper.from_array(array, f"tensor{len(self.tensors) + 1}"))
        return str(self.tensors[-1].name)


def _by_channel(constant: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A constant of every entry in the shape of a tensor; of images one number a channel, where that says all."""
    if len(constant) == 1 or len(shape) == 1:
        return constant
    rows = constant.reshape(shape[0], -1)
    if bool((rows == rows[:, :1]).all()):
        return rows[:, 0].reshape(-1, *(1,) * (len(shape) - 1))
    return constant.reshape(shape)
