"""`to_onnx`: models as ONNX files, as a plain graph of affine maps and products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from polybound._version import __version__
from polybound.deploy.onnx.files import OnnxMetadata, write_proto
from polybound.deploy.onnx.graphs import write_graph
from polybound.errors import PolyboundError, existing_folder
from polybound.models import CCP, NCP, ConvCCP, DeepNetwork, PolynomialNetwork, polynomial
from polybound.theory import lipschitz

OPSET = 13
INPUT, OUTPUT = "input", "logits"
_IR_VERSION = 8  # of the ONNX release with this opset's tools; newer ones are refused by older runtimes
_TYPES = {"torch.float32": TensorProto.FLOAT, "torch.float64": TensorProto.DOUBLE}


def to_onnx(
    model: PolynomialNetwork,
    path: str | PathLike[str],
    *,
    run: int | None = None,
    class_names: Sequence[str] = (),
    domain: tuple[float, float] | None = None,
    scaling: tuple[float, float] | None = None,
    bounds: bool = True,
) -> list[Path]:
    """Write a model as an ONNX file; a stack as one file for each run, `name-0.onnx`, `name-1.onnx` and so on.

    The input has the model's shape after a batch dimension of any size. The graph consists of `Gemm, Conv, Mul,
    AveragePool, Flatten`, which verifiers read. The metadata hold, as JSON, what `OnnxMetadata` lists.

    Args:
        model: a model or a stack.
        path: the file, ending in .onnx; the files appear whole or not at all.
        run: write only this run of a stack, to the path itself.
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
    model = polynomial(model)
    if class_names and len(class_names) != model.classes:
        raise PolyboundError(f"{len(class_names)} class names for {model.classes} classes")
    metadata = OnnxMetadata(tuple(class_names), domain, scaling)
    if run is not None or model.runs is None:
        singles = {path: model if run is None else model.run(run)}
    else:
        singles = {path.with_name(f"{path.stem}-{e}.onnx"): model.run(e) for e in range(model.runs)}
    for file, single in singles.items():
        proto = _plain_graph(single)
        rows: tuple[dict[str, Any], ...] = ()
        deep = isinstance(single, DeepNetwork)
        if bounds and not deep:
            # Upper bounds of the Lipschitz constant, from the paper's to the sharpest.
            radius = 1.0 if domain is None else max(abs(side) for side in domain)
            factors = single.factors().double()
            found = (lipschitz(factors, inf, method, radius=radius) for method in ("paper", "rowwise", "local"))
            rows = tuple(bound.as_dict() for bound in found)
        write_proto(
            file,
            proto,
            replace(metadata, bounds=rows, kind=type(single).__name__, config={} if deep else single.config()),
        )
    return list(singles)


def _plain_graph(model: PolynomialNetwork) -> onnx.ModelProto:
    """The graph of one model: `Gemm, Conv, Mul, AveragePool, Flatten`, which verifiers of neural networks read.

    A residual step `h y + y` is written as `(h + 1) y`, the 1 in the bias of the map: one node less, and the same
    polynomial.

    Raises:
        PolyboundError: the model is of a kind that is not known, or neither float32 nor float64.
    """
    dtype = str(next((p.dtype for p in model.parameters()), torch.float32))
    if dtype not in _TYPES:
        raise PolyboundError(f"ONNX files are written of float32 and float64 models, not of {dtype}")
    builder = _Builder()
    if isinstance(model, CCP):
        builder.ccp(model)
    elif isinstance(model, NCP):
        builder.ncp(model)
    elif isinstance(model, ConvCCP):
        builder.conv(model)
    else:
        output = write_graph(model.graph(), builder, builder.flat(len(model.shape)))
        builder.node("Identity", "output", [output])
    builder.nodes[-1].output[0] = OUTPUT
    kind = _TYPES[dtype]
    inputs = [helper.make_tensor_value_info(INPUT, kind, ["batch", *model.shape])]
    outputs = [helper.make_tensor_value_info(OUTPUT, kind, ["batch", model.classes])]
    return helper.make_model(
        helper.make_graph(builder.nodes, "polybound", inputs, outputs, builder.tensors),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
        producer_name="polybound",
        producer_version=__version__,
    )


class _Builder:
    """Nodes and tensors in the order in which they are added, each by a name of its own. The output is a Gemm."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def tensor(self, name: str, value: Tensor | npt.NDArray[Any]) -> str:
        array = value if isinstance(value, np.ndarray) else value.detach().cpu().contiguous().numpy()
        self.tensors.append(numpy_helper.from_array(array, name))
        return name

    def node(self, operator: str, name: str, inputs: Sequence[str], **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, list(inputs), [f"{name}.out"], name=name, **attributes))
        return f"{name}.out"

    def gemm(self, name: str, source: str, weight: Tensor, bias: Tensor | None) -> str:
        return self.node("Gemm", name, self.inputs(name, source, weight, bias), transB=1)

    def inputs(self, name: str, source: str, weight: Tensor, bias: Tensor | None) -> list[str]:
        names = [source, self.tensor(f"{name}.weight", weight)]
        return names if bias is None else [*names, self.tensor(f"{name}.bias", bias)]

    def flat(self, dims: int) -> str:
        """The input as (batch, features)."""
        return INPUT if dims == 1 else self.node("Flatten", "flatten", [INPUT], axis=1)

    def ccp(self, model: CCP) -> None:
        x, y = self.flat(len(model.shape)), ""
        residual = model.form == "residual"
        for n in range(1, model.degree + 1):
            if residual:
                weight = model.V[n - 1]
                bias = weight.new_ones(model.rank) if n > 1 else None
            else:
                weight, bias = model.U[n - 1, :, :-1], model.U[n - 1, :, -1]
            factor = self.gemm(f"factor{n}", x, weight, bias)
            y = self.node("Mul", f"product{n}", [factor, y]) if y else factor
        self.gemm("output", y, *((model.C[:, :-1], model.C[:, -1]) if residual else (model.C, None)))

    def ncp(self, model: NCP) -> None:
        x = self.flat(len(model.shape))
        first = self.gemm("factor1", x, model.V[0], None)
        y = self.node("Mul", "product1", [first, self.tensor("product1.scale", model.b)])
        for n in range(2, model.degree + 1):
            factor, step = self.gemm(f"factor{n}", x, model.V[n - 1], None), model.S[n - 2]
            between = self.gemm(f"between{n}", y, step[:, :-1], step[:, -1])
            y = self.node("Mul", f"product{n}", [factor, between])
        self.gemm("output", y, model.C[:, :-1], model.C[:, -1])

    def conv(self, model: ConvCCP) -> None:
        def convolve(name: str, source: str, kernel: Tensor, bias: Tensor | None) -> str:
            sizes = list(kernel.shape[2:])
            pads = [size // 2 for size in sizes] * 2
            return self.node("Conv", name, self.inputs(name, source, kernel, bias), kernel_shape=sizes, pads=pads)

        def halve(name: str, source: str) -> str:
            window = [2] * model.dims
            return self.node("AveragePool", name, [source], kernel_shape=window, strides=window)

        x = INPUT if model.pre is None else convolve("pre", INPUT, model.P, model.c)
        y, poolings = "", 0
        for n in range(1, model.degree + 1):
            factor = convolve(f"factor{n}", x, model.K[n - 1], model.K.new_ones(model.channels) if n > 1 else None)
            for time in range(1, poolings + 1):
                factor = halve(f"factor{n}.pool{time}", factor)
            y = self.node("Mul", f"product{n}", [factor, y]) if y else factor
            if n in model.pool:
                y = halve(f"product{n}.pool", y)
                poolings += 1
        flat = self.node("Flatten", "flatten", [y], axis=1)
        self.gemm("output", flat, model.C[:, :-1], model.C[:, -1])
