"""`read_onnx`: the polynomial network that an ONNX graph of affine maps, sums and products is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto

from polybound.certificates import PreparedGraph, PreparedNetwork
from polybound.deploy.onnx.constants import Constant, constant_of, given_constant
from polybound.deploy.onnx.files import OnnxMetadata, read_proto, type_name
from polybound.deploy.onnx.moves import MOVES, Node, Operand, Value, moved
from polybound.deploy.onnx.operators import ALIKE, ATTRIBUTES, OPERATORS, why_not
from polybound.errors import PolyboundError
from polybound.models import Graph, GraphNetwork, PolynomialNetwork, Tracer, as_model

_MOST_ENTRIES = 2**21
_MOST_NODES = 100_000
_IN_ALL = 2**24
"""Entries of the input, nodes, and entries of all tensors of one input that a graph may have."""


@dataclass(frozen=True, eq=False)
class OnnxNetwork:
    """The polynomial network of an ONNX file.

    Attributes:
        path: the file.
        shape: shape of one input.
        metadata: the file's metadata.
        graph: the network in float64, with the numbers of the file.
        roundings: the number of roundings that a product of computed constants has met, see `constants`; 0 if all are
            exact.
        single: whether the file computes in float32.
    """

    path: Path
    shape: tuple[int, ...]
    metadata: OnnxMetadata
    graph: Graph
    roundings: float
    single: bool

    @cached_property
    def network(self) -> PreparedNetwork | PreparedGraph:
        """The network prepared for bounding, once for all properties; about a minute for PN-Conv."""
        chain = self.graph.chain()
        if chain is None:
            return PreparedGraph(self.graph)
        network = PreparedNetwork(chain)
        _ = network.stretch, network.norms_S
        return network

    def model(self) -> PolynomialNetwork:
        """The model: a CCP, NCP or ConvCCP where the network is one, else a network of its own graph.

        It is float32 if the file is float32 and nothing is lost by it, else float64.
        """
        chain = self.graph.chain()
        model = None if chain is None else as_model(chain, self.shape, self.metadata.kind, self.metadata.config)
        if model is None:
            model = GraphNetwork.of(self.graph)
        floating = [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
        exact = all(torch.equal(tensor.float().double(), tensor) for tensor in floating)
        return model.float() if self.single and exact else model


def from_onnx(path: str | PathLike[str]) -> PolynomialNetwork:
    """The network of an ONNX file: a CCP, NCP or ConvCCP where it is one, else a network of its graph.

    Any graph of affine maps, sums and products is read, whichever tool wrote it. Constants are folded in float64;
    `verify` bounds the error of that.

    Args:
        path: the file.

    Raises:
        FileFormatError: the file is damaged or no ONNX.
        PolyboundError: its graph is no polynomial; the message names the node and says why.
        OSError: the file cannot be opened.
    """
    return read_onnx(path).model()


def read_onnx(path: str | PathLike[str]) -> OnnxNetwork:
    """The network of an ONNX file as a graph, with the numbers of the file.

    Raises:
        FileFormatError, PolyboundError, OSError: as `from_onnx`.
    """
    path = Path(path)
    proto = read_proto(path)
    try:
        metadata = OnnxMetadata.read(proto)
        reader = _Reader(proto)
        graph, roundings = reader.graph()
    except PolyboundError as error:
        raise type(error)(f"{path}: {error}") from None
    return OnnxNetwork(path, reader.shape, metadata, graph, roundings, reader.single)


# What torch and Python raise for windows, axes and shapes that no tensor has; files may hold any.
_UNFIT = (RuntimeError, ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, OverflowError)
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


class _Reader:
    """A walk through a graph in its order: each tensor is a constant, or depends on the input."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.opset = ([one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")] or [1])[-1]
        graph = proto.graph
        self.tensors: dict[str, onnx.TensorProto | Constant] = {tensor.name: tensor for tensor in graph.initializer}
        inputs = [info for info in graph.input if info.name not in self.tensors]
        if len(inputs) != 1 or len(graph.output) != 1:
            count = f"{len(inputs)} inputs and {len(graph.output)} outputs"
            raise PolyboundError(f"a classifier has one input and one output, this graph has {count}")
        if len(graph.node) > _MOST_NODES:
            raise PolyboundError(f"it has {len(graph.node):,} nodes; at most {_MOST_NODES:,} are read")
        self.input, self.output = inputs[0].name, graph.output[0].name
        tensor = inputs[0].type.tensor_type
        if tensor.elem_type not in (TensorProto.FLOAT, TensorProto.DOUBLE):
            kind = type_name(tensor.elem_type)
            raise PolyboundError(f"the input {self.input!r} has type {kind}; FLOAT and DOUBLE are read")
        sizes = [size.dim_value if size.HasField("dim_value") else size.dim_param for size in tensor.shape.dim]
        if len(sizes) < 2:
            raise PolyboundError(f"the input {self.input!r} has shape {sizes}: no batch, or nothing but a batch")
        if not all(isinstance(size, int) and size > 0 for size in sizes[1:]):
            raise PolyboundError(f"the input {self.input!r} has shape {sizes}: only its first size may be open")
        self.shape: tuple[int, ...] = tuple(sizes[1:])
        batch = tensor.shape.dim[0].dim_value
        self.batch: int | None = batch if batch > 0 else None
        if prod(self.shape) * max(1, batch) > _MOST_ENTRIES:
            raise PolyboundError(f"the input {self.input!r} has shape {sizes}, which is too large")
        self.kind, self.single = tensor.elem_type, tensor.elem_type == TensorProto.FLOAT
        # The nodes that the output depends on, in their order.
        wanted, needed = {self.output}, list[onnx.NodeProto]()
        for node in reversed(graph.node):
            if wanted & set(node.output):
                wanted.update(node.input)
                needed.append(node)
        self.nodes = needed[::-1]

    def graph(self) -> tuple[Graph, float]:
        """The graph of one input, and the roundings of its constants.

        Of an open batch, three inputs are followed as well: where they meet, or are treated otherwise than one alone,
        the network is refused.
        """
        if self.batch is not None:
            return self._followed(self.batch)
        try:
            several, _ = self._followed(3)
        except PolyboundError as error:
            try:
                self._followed(1)
            except PolyboundError:
                raise error from None
            raise PolyboundError(f"{error}; a batch of one would be read, and the file's may be of any size") from None
        graph, roundings = self._followed(1)
        if graph.digest != several.digest:
            raise PolyboundError("what it computes of one input depends on the size of the batch")
        return graph, roundings

    def _followed(self, batch: int) -> tuple[Graph, float]:
        """The graph, as a batch of this size shows it."""
        tracer = Tracer(torch.zeros((), dtype=torch.float64), batch)
        found: dict[str, Operand] = {"": None, self.input: Value(tracer.start(self.shape))}
        uses = Counter(name for node in self.nodes for name in set(node.input))
        uses[self.output] += 1
        entries, astray = 0, ""
        for proto in self.nodes:
            # A node without a name has that of the tensor that it makes.
            tracer.label = f"node {str(proto.name or proto.output[0])!r} ({proto.op_type})"
            try:
                results = self._results(proto, [self._operand(name, found) for name in proto.input])
            except PolyboundError as error:
                inside = tracer.label in str(error)
                raise error if inside else PolyboundError(f"{tracer.label}: {error}") from None
            except _UNFIT as error:
                why = f"its attributes and operands do not fit each other ({str(error).partition(chr(10))[0]})"
                raise PolyboundError(f"{tracer.label}: {why}") from None
            entries += sum(result.tensor.numel() for result in results if isinstance(result, Value)) // batch
            if entries > _IN_ALL:
                raise PolyboundError(f"{tracer.label}: all tensors together have more than {_IN_ALL:,} entries")
            if not astray and any(isinstance(result, Value) and not _is_whole(result) for result in results):
                astray = f"{tracer.label}: "
            found |= {name: result for name, result in zip(proto.output, results, strict=False) if name}
            for name in set(proto.input) - {""}:
                uses[name] -= 1
                if not uses[name]:
                    found.pop(name, None)
        value = self._operand(self.output, found)
        if not isinstance(value, Value):
            raise PolyboundError(f"the output {self.output!r} does not depend on the input")
        tracer.label = f"the output {self.output!r}"
        if astray and not _is_whole(value):
            raise PolyboundError(f"{astray}it takes the inputs of a batch apart, or moves the batch from the front")
        node, _ = tracer.regular(value.tensor, "an operation")
        return tracer.builder.finish(node), value.roundings

    def _operand(self, name: str, found: dict[str, Operand]) -> Operand:
        if name in found:
            return found[name]
        tensor = self.tensors.get(name)
        if tensor is None:
            raise PolyboundError(f"no node makes the tensor {name!r}")
        if not isinstance(tensor, Constant):
            tensor = self.tensors[name] = constant_of(tensor)
        return tensor

    def _results(self, proto: onnx.NodeProto, operands: Sequence[Operand]) -> Sequence[Operand]:
        """The outputs of a node."""
        if proto.domain not in ("", "ai.onnx"):
            raise PolyboundError(f"operators of the domain {proto.domain!r} are not read")
        if any(attribute.type in _GRAPHS for attribute in proto.attribute):
            raise PolyboundError(why_not(proto.op_type))
        attributes: dict[str, Any] = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
        if proto.op_type == "Constant":
            if len(attributes) != 1:
                raise PolyboundError("a constant has one value")
            return [given_constant(*item) for item in attributes.items()]
        for name, value in attributes.items():
            attributes[name] = value.decode(errors="replace") if isinstance(value, bytes) else value
        node = Node(proto, attributes, self.opset, self.kind, self.batch)
        if proto.op_type in MOVES:
            return moved(node, operands)
        if proto.op_type not in OPERATORS:
            raise PolyboundError(why_not(proto.op_type))
        if strange := sorted(set(attributes) - set(ATTRIBUTES[proto.op_type])):
            raise PolyboundError(f"the attribute {strange[0]!r} is not read; newer opsets do without it")
        if len([name for name in proto.output if name]) != 1:
            raise PolyboundError("of its outputs only the first is read")
        given = [operand for operand in operands if operand is not None]
        kinds = {self.kind if isinstance(operand, Value) else operand.kind for operand in given}
        if proto.op_type in ALIKE and len(kinds) > 1:
            raise PolyboundError(f"its operands have the types {' and '.join(sorted(map(type_name, kinds)))}")
        return [OPERATORS[proto.op_type](node, operands)]


def _is_whole(value: Value) -> bool:
    """Whether the first dimension of a tensor is the batch, each of its inputs in its place."""
    tensor = value.tensor
    if tensor.ndim == 0 or tensor.shape[0] != tensor.tracer.batch:
        return False
    sample = torch.div(tensor.places, tensor.tracer.builder.size(tensor.node), rounding_mode="floor")
    return bool((sample.reshape(len(sample), -1) == torch.arange(len(sample)).unsqueeze(1)).all())
