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
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from polybound._version import __version__
from polybound.deploy.onnx.files import OnnxMetadata, write_proto
from polybound.errors import PolyboundError, existing_folder
from polybound.models import CCP, NCP, ConvCCP, PolynomialNetwork, polynomial
from polybound.theory import lipschitz

__all__ = ["plain_graph", "to_onnx"]


# Models as plain ONNX graphs: only operators that verifiers of neural networks read.


OPSET = 13
INPUT, OUTPUT = "input", "logits"
_IR_VERSION = 8  # of the ONNX release with this opset's tools; newer ones are refused by older runtimes
_TYPES = {"torch.float32": TensorProto.FLOAT, "torch.float64": TensorProto.DOUBLE}


def plain_graph(model: PolynomialNetwork) -> onnx.ModelProto:
    """The graph of one model: `Gemm, Conv, Mul, AveragePool, Flatten` and nothing else.

    A residual step `h y + y` is written as `(h + 1) y`, the 1 in the bias of the map: one node less, and the same
    polynomial.

    Raises:
        PolyboundError: the model is a stack, of a kind that is not known, or neither float32 nor float64.
    """
    if model.runs is not None:
        raise PolyboundError("an ONNX file holds one model; take model.run(e) of a stack")
    dtype = str(next(model.parameters()).dtype)
    if dtype not in _TYPES:
        raise PolyboundError(f"ONNX files are written of float32 and float64 models, not of {dtype}")
    builder = _Builder()
    if isinstance(model, CCP):
        last = _ccp(builder, model)
    elif isinstance(model, NCP):
        last = _ncp(builder, model)
    elif isinstance(model, ConvCCP):
        last = _conv(builder, model)
    else:
        raise PolyboundError(f"a {type(model).__name__} is not written as ONNX; CCP, NCP and ConvCCP are")
    kind = _TYPES[dtype]
    graph = helper.make_graph(
        [*builder.nodes[:-1], _renamed(builder.nodes[-1], last)],
        "polybound",
        [helper.make_tensor_value_info(INPUT, kind, ["batch", *model.shape])],
        [helper.make_tensor_value_info(OUTPUT, kind, ["batch", model.classes])],
        builder.tensors,
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(
        graph,
        opset_imports=opsets,
        ir_version=_IR_VERSION,
        producer_name="polybound",
        producer_version=__version__,
    )


def _renamed(node: onnx.NodeProto, output: str) -> onnx.NodeProto:
    """The last node, its output called as the graph's."""
    if list(node.output) != [output]:
        raise AssertionError("the last node is not the last")
    node.output[0] = OUTPUT
    return node


class _Builder:
    """Nodes and tensors in the order in which they are added, each by a name of its own."""

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

    def flat(self, name: str, source: str, dims: int) -> str:
        """The input as (batch, features); a flat one as it is."""
        return source if dims == 1 else self.node("Flatten", name, [source], axis=1)

    def gemm(self, name: str, source: str, weight: Tensor, bias: Tensor | None) -> str:
        inputs = [source, self.tensor(f"{name}.weight", weight)]
        if bias is not None:
            inputs.append(self.tensor(f"{name}.bias", bias))
        return self.node("Gemm", name, inputs, transB=1)


def _ccp(builder: _Builder, model: CCP) -> str:
    x = builder.flat("flatten", INPUT, len(model.shape))
    residual = model.form == "residual"
    y = ""
    for n in range(1, model.degree + 1):
        if residual:
            weight = model.V[n - 1]
            bias = weight.new_ones(model.rank) if n > 1 else None
        else:
            weight, bias = model.U[n - 1, :, :-1], model.U[n - 1, :, -1]
        factor = builder.gemm(f"factor{n}", x, weight, bias)
        y = builder.node("Mul", f"product{n}", [factor, y]) if y else factor
    if residual:
        return builder.gemm("output", y, model.C[:, :-1], model.C[:, -1])
    return builder.gemm("output", y, model.C, None)


def _ncp(builder: _Builder, model: NCP) -> str:
    x = builder.flat("flatten", INPUT, len(model.shape))
    first = builder.gemm("factor1", x, model.V[0], None)
    y = builder.node("Mul", "product1", [first, builder.tensor("product1.scale", model.b)])
    for n in range(2, model.degree + 1):
        factor = builder.gemm(f"factor{n}", x, model.V[n - 1], None)
        step = model.S[n - 2]
        between = builder.gemm(f"between{n}", y, step[:, :-1], step[:, -1])
        y = builder.node("Mul", f"product{n}", [factor, between])
    return builder.gemm("output", y, model.C[:, :-1], model.C[:, -1])


def _conv(builder: _Builder, model: ConvCCP) -> str:
    def convolve(name: str, source: str, kernel: Tensor, bias: Tensor | None) -> str:
        inputs = [source, builder.tensor(f"{name}.weight", kernel)]
        if bias is not None:
            inputs.append(builder.tensor(f"{name}.bias", bias))
        sizes = list(kernel.shape[2:])
        pads = [size // 2 for size in sizes] * 2
        return builder.node("Conv", name, inputs, kernel_shape=sizes, pads=pads)

    def halve(name: str, source: str) -> str:
        window = [2] * model.dims
        return builder.node("AveragePool", name, [source], kernel_shape=window, strides=window)

    x = INPUT if model.pre is None else convolve("pre", INPUT, model.P, model.c)
    y, poolings = "", 0
    for n in range(1, model.degree + 1):
        ones = model.K.new_ones(model.channels)
        factor = convolve(f"factor{n}", x, model.K[n - 1], ones if n > 1 else None)
        for time in range(1, poolings + 1):
            factor = halve(f"factor{n}.pool{time}", factor)
        y = builder.node("Mul", f"product{n}", [factor, y]) if y else factor
        if n in model.pool:
            y = halve(f"product{n}.pool", y)
            poolings += 1
    flat = builder.node("Flatten", "flatten", [y], axis=1)
    return builder.gemm("output", flat, model.C[:, :-1], model.C[:, -1])


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
        run: the only run of a stack to write, to the path as it is.
        class_names: one name for each class.
        domain: the smallest and largest value of an entry of an input; the bounds are then about inputs that the
            domain allows, `||x||_inf <= max |domain|`, else about `||x||_inf <= 1`.
        scaling: factor and offset that made inputs of raw values: `input = factor * raw + offset`.
        bounds: whether to prove bounds of the Lipschitz constant in the l_inf norm; for PN-Conv that takes some
            seconds.

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
    written = []
    for file, single in _singles(model, path, run):
        proto = plain_graph(single)
        rows = _proven(single, domain) if bounds else ()
        write_proto(file, proto, replace(metadata, bounds=rows, kind=type(single).__name__, config=single.config()))
        written.append(file)
    return written


def _singles(model: PolynomialNetwork, path: Path, run: int | None) -> list[tuple[Path, PolynomialNetwork]]:
    """The models to write, and where to."""
    if run is not None:
        return [(path, model.run(run))]
    if model.runs is None:
        return [(path, model)]
    return [(path.with_name(f"{path.stem}-{e}.onnx"), model.run(e)) for e in range(model.runs)]


def _proven(model: PolynomialNetwork, domain: tuple[float, float] | None) -> tuple[dict[str, Any], ...]:
    """Upper bounds of the Lipschitz constant, from the paper's to the sharpest."""
    radius = 1.0 if domain is None else max(abs(side) for side in domain)
    factors = model.factors().double()
    return tuple(lipschitz(factors, inf, method, radius=radius).as_dict() for method in ("paper", "rowwise", "local"))
