"""A graph as ONNX nodes: an algebra whose values are names.

Every value is (batch, size), flat; convolutions and poolings reshape before and after themselves. Operators are
`Gemm, Conv, ConvTranspose, AveragePool, Gather, ReduceSum, MatMul, Mul, Add, Reshape` of opset 13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polybound.errors import PolyboundError
from polybound.models import (
    Affine,
    AveragePool,
    Chain,
    Collect,
    Conv,
    Convolution,
    Dense,
    Graph,
    Identity,
    Pool,
    Repeated,
    Scale,
    Select,
)


def write_graph(graph: Graph, builder: Any, source: str) -> str:
    """Add the nodes of a graph to a builder of the export; returns the name of the output.

    Args:
        graph: whose output is a vector.
        builder: takes tensors and nodes.
        source: name of the input, (batch, features).
    """
    return graph.evaluate(OnnxNodes(builder), source)


class OnnxNodes:
    """What affine maps, sums and products are in ONNX: values are the names of tensors (batch, size)."""

    def __init__(self, builder: Any) -> None:
        self.builder, self.count = builder, 0

    def sum(self, values: Sequence[str]) -> str:
        """Additions, one after the other."""
        total = values[0]
        for value in values[1:]:
            total = self._node("Add", [total, value])
        return total

    def product(self, left: str, right: str) -> str:
        """A multiplication."""
        return self._node("Mul", [left, right])

    def affine(self, step: Affine, value: str) -> str:
        """The operators of a map."""
        if isinstance(step, Chain):
            for part in step.maps:
                value = self.affine(part, value)
            return self._plus(value, torch.full_like(step.constant, step.shift)) if step.shift else value
        if isinstance(step, Identity):
            return value
        write = _WRITERS.get(type(step))
        if write is None:
            raise PolyboundError(f"a map of the kind {type(step).__name__} is not written as ONNX")
        return write(self, step, value)

    def _name(self) -> str:
        self.count += 1
        return f"node{self.count}"

    def _node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        return self.builder.node(operator, self._name(), inputs, **attributes)  # type: ignore[no-any-return]

    def _tensor(self, value: Any) -> str:
        return self.builder.tensor(f"{self._name()}.value", value)  # type: ignore[no-any-return]

    def _reshape(self, value: str, shape: Sequence[int]) -> str:
        return self._node("Reshape", [value, self._tensor(np.array([0, *shape], dtype=np.int64))])

    def _plus(self, value: str, constant: Tensor) -> str:
        return self._node("Add", [value, self._tensor(constant)]) if bool(constant.any()) else value

    def dense(self, step: Dense, value: str) -> str:
        """`x W^T + b`."""
        bias = step.constant if bool(step.constant.any()) else None
        return self.builder.gemm(self._name(), value, step.weight, bias)  # type: ignore[no-any-return]

    def scale(self, step: Scale, value: str) -> str:
        """`w x + b`, entry by entry."""
        if not bool((step.weight == 1).all()):
            value = self._node("Mul", [value, self._tensor(step.weight)])
        return self._plus(value, step.constant)

    def repeated(self, step: Repeated, value: str) -> str:
        """One matrix for every row."""
        rows = self._reshape(value, [step.rows, step.weight.shape[1]])
        rows = self._node("MatMul", [rows, self._tensor(step.weight.T)])
        return self._plus(self._reshape(rows, [step.outputs]), step.constant)

    def select(self, step: Select, value: str) -> str:
        """A gather, and zeros where nothing is gathered."""
        index = self._tensor(step.index.clamp_min(0).numpy().astype(np.int64))
        value = self._node("Gather", [value, index], axis=1)
        gaps = step.index < 0
        if bool(gaps.any()):
            value = self._node("Mul", [value, self._tensor((~gaps).to(step.constant.dtype))])
        return value

    def collect(self, step: Collect, value: str) -> str:
        """Sums of equal blocks as a reduction; all others as a matrix of zeros and ones."""
        size = step.inputs // step.outputs
        if torch.equal(step.index, torch.arange(step.outputs).repeat_interleave(size)):
            blocks = self._reshape(value, [step.outputs, size])
            return self._node("ReduceSum", [blocks, self._tensor(np.array([2], dtype=np.int64))], keepdims=0)
        if step.inputs * step.outputs > 2**24:
            raise PolyboundError(f"a sum of {step.inputs:,} scattered entries is too large for ONNX")
        return self._node("MatMul", [value, self._tensor(step.matrix().T)])

    def convolution(self, step: Conv | Convolution, value: str) -> str:
        """A convolution of the image."""
        image = self._reshape(value, step.shape)
        options: dict[str, Any] = {"kernel_shape": list(step.weight.shape[2:])}
        if isinstance(step, Conv):
            operator, padding = "Conv", [n // 2 for n in step.weight.shape[2:]]
        else:
            operator, padding = ("ConvTranspose" if step.transposed else "Conv"), list(step.padding)
            options |= {"strides": list(step.stride), "dilations": list(step.dilation), "group": step.groups}
            if step.transposed:
                options["output_padding"] = list(step.output_padding)
        inputs = self.builder.inputs(self._name(), image, step.weight, step.bias if bool(step.bias.any()) else None)
        return self._reshape(self._node(operator, inputs, pads=padding * 2, **options), [step.outputs])

    def pool(self, step: Pool | AveragePool, value: str) -> str:
        """Average pooling of the image."""
        window = [2] * step.dims if isinstance(step, Pool) else list(step.size)
        options: dict[str, Any] = {"kernel_shape": window, "strides": window}
        if isinstance(step, AveragePool):
            options |= {"strides": list(step.stride), "pads": list(step.padding) * 2, "count_include_pad": 1}
        image = self._reshape(value, step.shape)
        return self._reshape(self._node("AveragePool", [image], **options), [step.outputs])


_WRITERS: dict[type[Affine], Callable[[OnnxNodes, Any, str], str]] = {
    Dense: OnnxNodes.dense,
    Scale: OnnxNodes.scale,
    Repeated: OnnxNodes.repeated,
    Select: OnnxNodes.select,
    Collect: OnnxNodes.collect,
    Conv: OnnxNodes.convolution,
    Convolution: OnnxNodes.convolution,
    Pool: OnnxNodes.pool,
    AveragePool: OnnxNodes.pool,
}
