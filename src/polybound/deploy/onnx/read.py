"""`from_onnx`: the CCP, NCP or ConvCCP that an ONNX graph of affine maps and products is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, cast

import onnx
import torch
from onnx import TensorProto

from polybound.certificates import PreparedNetwork
from polybound.deploy.onnx.affine import as_affine
from polybound.deploy.onnx.constants import FOLDED, PARTS, Constant, Node, constant_of, fold
from polybound.deploy.onnx.expressions import Polynomial, Value
from polybound.deploy.onnx.files import OnnxMetadata, read_proto, type_name
from polybound.deploy.onnx.models import build_model
from polybound.deploy.onnx.operators import ATTRIBUTES, OPERATORS, Operand, parts_of, why_not
from polybound.errors import PolyboundError
from polybound.models import Affine, Factors, PolynomialNetwork
from polybound.theory import DENSE_LIMIT


@dataclass(frozen=True, eq=False)
class OnnxNetwork:
    """The polynomial network of an ONNX file.

    Attributes:
        path: the file.
        shape: shape of one input.
        metadata: the file's metadata.
        polynomial: the graph as a chain of products.
    """

    path: Path
    shape: tuple[int, ...]
    metadata: OnnxMetadata
    polynomial: Polynomial

    @cached_property
    def factors(self) -> Factors:
        """The factors, which bounds and certificates take, even if no model of the package fits."""
        found = self.polynomial
        features = found.features
        A = [as_affine(found.first, features), *(as_affine(step.A, features) for step in found.steps)]
        S: list[Affine] = []
        for step, before in zip(found.steps, A, strict=False):
            S.append(as_affine(step.S, before.outputs))
        last = as_affine(found.last, A[-1].outputs)
        ones = torch.ones(A[0].outputs, dtype=torch.float64)
        nested = any(step.S for step in found.steps)
        return Factors("NCP" if nested else "CCP", tuple(A), tuple(S), ones, last, constant=True)

    @cached_property
    def network(self) -> PreparedNetwork:
        """The factors prepared for bounding, once for all properties; about a minute for PN-Conv."""
        network = PreparedNetwork(self.factors)
        _ = network.stretch, network.norms_S
        return network

    def model(self) -> PolynomialNetwork:
        """The model; float32 if the graph is float32 and nothing is lost by it, else float64.

        Raises:
            PolyboundError: no model of the package is this polynomial; the message names the node that does not fit.
        """
        try:
            return build_model(self.polynomial, self.shape, self.metadata)
        except PolyboundError as error:
            raise PolyboundError(f"{self.path}: {error}") from None


def from_onnx(path: str | PathLike[str]) -> PolynomialNetwork:
    """The CCP, NCP or ConvCCP of an ONNX file.

    Any graph of affine maps and products that is such a network is read, whichever tool wrote it: `Gemm, MatMul, Conv,
    Add, Sub, Mul, AveragePool, Flatten, Reshape, Identity` and some more. Constants are folded in float64; `verify`
    bounds the error of that.

    Args:
        path: the file.

    Raises:
        FileFormatError: the file is damaged or no ONNX.
        PolyboundError: its graph is not such a network; the message names the node and says why.
        OSError: the file cannot be opened.
    """
    return read_onnx(path).model()


def read_onnx(path: str | PathLike[str]) -> OnnxNetwork:
    """The polynomial network of an ONNX file, as products of affine maps.

    This also reads networks that have factors but are no model of the package, such as an NCP with constants in the
    maps of its input: `polybound.certify(read_onnx(path).factors, ...)`.

    Raises:
        FileFormatError, PolyboundError, OSError: as `from_onnx`.
    """
    path = Path(path)
    proto = read_proto(path)
    try:
        metadata = OnnxMetadata.read(proto)
        reader = _Reader(proto)
        polynomial = Polynomial.of(reader.output(), reader.single)
    except PolyboundError as error:
        raise type(error)(f"{path}: {error}") from None
    return OnnxNetwork(path, reader.shape, metadata, polynomial)


# What torch and Python raise for windows, axes and shapes that no tensor has; files may hold any.
_UNFIT = (RuntimeError, ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, OverflowError)
_READ = {*OPERATORS, *PARTS, *FOLDED, "Shape"}
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


class _Reader:
    """A walk through a graph: each tensor as a constant, or as a value of the input."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.graph = proto.graph
        self.found: dict[str, Operand] = {"": None}
        self.tensors = {tensor.name: tensor for tensor in self.graph.initializer}
        inputs = [info for info in self.graph.input if info.name not in self.tensors]
        if len(inputs) != 1 or len(self.graph.output) != 1:
            count = f"{len(inputs)} inputs and {len(self.graph.output)} outputs"
            raise PolyboundError(f"a classifier has one input and one output, this graph has {count}")
        name, tensor = inputs[0].name, inputs[0].type.tensor_type
        if tensor.elem_type not in (TensorProto.FLOAT, TensorProto.DOUBLE):
            kind = type_name(tensor.elem_type)
            raise PolyboundError(f"the input {name!r} has type {kind}; FLOAT and DOUBLE are read")
        sizes = [size.dim_value if size.HasField("dim_value") else size.dim_param for size in tensor.shape.dim]
        if len(sizes) < 2:
            raise PolyboundError(f"the input {name!r} has shape {sizes}: no batch, or nothing but a batch")
        if not all(isinstance(size, int) and size > 0 for size in sizes[1:]):
            raise PolyboundError(f"the input {name!r} has shape {sizes}: only its first size, the batch, may be open")
        if prod(sizes[1:]) > DENSE_LIMIT:
            raise PolyboundError(f"the input {name!r} has shape {sizes}, which is too large")
        self.shape: tuple[int, ...] = tuple(sizes[1:])
        self.batch = tensor.shape.dim[0].dim_value  # 0 for any
        self.single = tensor.elem_type == TensorProto.FLOAT
        self.found[name] = Value(None, (), self.shape, prod(self.shape))

    def output(self) -> Value:
        """The output of the graph as a value of the input."""
        name = self.graph.output[0].name
        wanted, needed = {name}, []
        for node in reversed(self.graph.node):
            if wanted & set(node.output):
                wanted.update(node.input)
                needed.append(node)
        for node in reversed(needed):
            # A node without a name has that of the tensor that it makes.
            label = str(node.name or node.output[0])
            try:
                self.found |= zip(node.output, self._results(node, label), strict=False)
            except PolyboundError as error:
                raise PolyboundError(f"node {label!r} ({node.op_type}): {error}") from None
            except _UNFIT as error:
                why = f"its attributes and operands do not fit each other ({str(error).partition(chr(10))[0]})"
                raise PolyboundError(f"node {label!r} ({node.op_type}): {why}") from None
        value = self._operand(name)
        if not isinstance(value, Value):
            raise PolyboundError(f"the output {name!r} does not depend on the input")
        return value

    def _operand(self, name: str) -> Operand:
        if name not in self.found:
            if name not in self.tensors:
                raise PolyboundError(f"no node makes the tensor {name!r}")
            self.found[name] = constant_of(self.tensors[name])
        return self.found[name]

    def _results(self, proto: onnx.NodeProto, label: str) -> Sequence[Operand]:
        """The outputs of a node."""
        if proto.domain not in ("", "ai.onnx"):
            raise PolyboundError(f"operators of the domain {proto.domain!r} are not read")
        if any(attribute.type in _GRAPHS for attribute in proto.attribute):
            raise PolyboundError(why_not(proto.op_type))
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in proto.attribute}
        if proto.op_type == "Constant":
            if len(proto.attribute) != 1:
                raise PolyboundError("a constant has one value")
            return [_constant(*attributes.items())]
        for name, value in attributes.items():
            attributes[name] = value.decode(errors="replace") if isinstance(value, bytes) else value
        known = ATTRIBUTES.get(proto.op_type, ())
        if proto.op_type in _READ and (strange := sorted(set(attributes) - set(known))):
            raise PolyboundError(f"the attribute {strange[0]!r} is not read; newer opsets do without it")
        operands = [self._operand(name) for name in proto.input]
        if proto.op_type in PARTS:
            node = Node(proto.op_type, label, attributes | {"outputs": len(proto.output)})
            return self._parts(node, operands)
        if len([name for name in proto.output if name]) != 1:
            raise PolyboundError("nodes of several outputs are not read")
        node = Node(proto.op_type, label, attributes)
        if node.operator == "Shape" and isinstance(source := operands[0], Value):
            # 0 stands for the batch, which may be of any size.
            sizes = [0, *source.shape][node.get("start", 0) : node.get("end", None)]
            return [Constant(torch.tensor(sizes, dtype=torch.long), sizes=True)]
        if not any(isinstance(operand, Value) for operand in operands):
            return [fold(node, cast("list[Constant | None]", operands))]
        if node.operator not in OPERATORS:
            raise PolyboundError(why_not(node.operator))
        if node.operator == "Reshape" and self.batch != 1 and isinstance(operands[1], Constant):
            first = operands[1].tensor.reshape(-1)[:1]
            if bool((first == 1).any()):
                raise PolyboundError("the new shape begins with 1, but the batch may be of any size")
        return [OPERATORS[node.operator](node, operands)]

    def _parts(self, node: Node, operands: Sequence[Operand]) -> Sequence[Operand]:
        """The outputs of a node that takes parts of a tensor."""
        source, *others = operands
        places = [other for other in others if not isinstance(other, Value)]  # None in the place of what is left out
        if len(places) < len(others):
            raise PolyboundError("which part it takes depends on the input")
        if isinstance(source, Value):
            return parts_of(node, source, places)
        if node.operator != "Split":
            return [fold(node, [source, *places])]
        if source is None or source.sizes:
            raise PolyboundError("it splits the sizes of a tensor")
        sizes = [None if place is None else place.tensor for place in places]
        parts = PARTS["Split"](source.tensor, node.attributes, sizes)
        return [Constant(part, roundings=source.roundings) for part in parts]


def _constant(attribute: tuple[str, Any]) -> Constant:
    """The tensor of a Constant node."""
    name, value = attribute
    if name == "value":
        return constant_of(value)
    if name in ("value_float", "value_floats"):
        return Constant(torch.tensor(value, dtype=torch.float64))
    if name in ("value_int", "value_ints"):
        return Constant(torch.tensor(value))
    raise PolyboundError(f"constants given as {name} are not read")
