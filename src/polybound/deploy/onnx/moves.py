"""Operators that only move entries: ONNX's own reference evaluator moves the numbers of the entries.

So what `Reshape`, `Slice`, `Gather` and the like mean in each opset is taken from ONNX itself. Its inference of shapes
is left alone: it ends the process where a tensor is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from polybound.deploy.onnx.constants import Constant
from polybound.errors import PolyboundError
from polybound.models import Traced
from polybound.theory import DENSE_LIMIT

MOVES = (
    *("DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice"),
    *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
)

_INDEXED = ("Gather", "GatherElements", "Slice")

LARGEST = 2**21
"""Entries that a tensor that depends on the input may have."""


def check_size(shape: Sequence[int], most: int = LARGEST) -> None:
    """Refuse tensors that are empty or too large."""
    if not 0 < prod(shape) <= most:
        raise PolyboundError(f"it makes a tensor of shape {list(shape)}: from 1 to {most:,} entries fit")


_ENDLESS = 2**31 - 1
"""An end of a slice from which on it means that of the axis, however long it is."""


@dataclass(frozen=True)
class Node:
    """A node of a graph: its protocol buffer, its attributes as plain types, and its opset.

    Attributes:
        proto: the node as it stands in the file.
        attributes: by name.
        opset: of the graph.
        kind: ONNX's number of the type of the input, and of all that depends on it.
        batch: the size of the batch; None where the graph takes any.
    """

    proto: onnx.NodeProto
    attributes: Mapping[str, Any]
    opset: int
    kind: int
    batch: int | None

    @property
    def operator(self) -> str:
        """Its operator."""
        return str(self.proto.op_type)

    def get(self, name: str, default: Any) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor that depends on the input, with the batch.

    Attributes:
        tensor: of which entry of which node of the graph every entry is.
        roundings: the number of roundings that a product of constants in it has met, at most; see `constants`.
    """

    tensor: Traced
    roundings: float = 0.0


Operand = Value | Constant | None
"""What an input of a node is; None where it is left out."""


def moved(node: Node, operands: Sequence[Operand]) -> list[Operand]:
    """The results of an operator that takes entries of its first operand to other places."""
    source, *others = operands
    if source is None:
        raise PolyboundError("its first operand is left out")
    settings = [other for other in others if not isinstance(other, Value)]  # None in the place of what is left out
    if len(settings) < len(others):
        raise PolyboundError("which entries it takes depends on the input")
    if node.operator == "Slice" and isinstance(source, Value):
        _check_ends(node, source.tensor, settings)
    places = np.arange(source.tensor.numel()).reshape(tuple(source.tensor.shape))
    sizes = any(setting is not None and setting.sizes for setting in settings)
    return [_taken(source, torch.from_numpy(result), sizes) for result in _evaluated(node, places, settings)]


def _taken(source: Value | Constant, places: torch.Tensor, sizes: bool) -> Operand:
    """The entries at some places of a tensor, in their shape."""
    if isinstance(source, Constant):
        return replace(source, tensor=source.tensor.reshape(-1)[places], sizes=source.sizes or sizes)
    traced = source.tensor
    return replace(source, tensor=Traced(traced.tracer, traced.node, traced.places.reshape(-1)[places]))


def _evaluated(node: Node, places: np.ndarray, settings: Sequence[Constant | None]) -> list[np.ndarray]:
    """What ONNX's reference evaluator makes of a tensor of numbers, as floats, which all operators take."""
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    del proto.input[:], proto.output[:]
    proto.input.extend(["data", *("" if setting is None else f"given{k}" for k, setting in enumerate(settings))])
    proto.output.extend([f"result{k}" for k in range(len(node.proto.output))])
    known = [(k, setting.tensor) for k, setting in enumerate(settings) if setting is not None]
    given = [numpy_helper.from_array(tensor.contiguous().numpy(), f"given{k}") for k, tensor in known]
    # Weights may be larger, but do not grow.
    if _size(node, places.shape, settings) > max(LARGEST, places.size):
        raise PolyboundError(f"it makes a tensor that is too large: {LARGEST:,} entries fit")
    source = helper.make_tensor_value_info("data", TensorProto.DOUBLE, list(places.shape))
    results_of = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in proto.output]
    graph = helper.make_graph([proto], "one", [source], results_of, given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", node.opset)], ir_version=8)
    try:
        results: list[Any] = list(ReferenceEvaluator(model).run(None, {"data": places.astype(np.float64)}))
    except Exception as error:  # the evaluator's have no common base
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise PolyboundError(f"its attributes and operands do not fit each other ({first})") from None
    if any(result.dtype != np.float64 for result in results):
        raise PolyboundError("its attributes and operands do not fit each other")
    if any(not result.size for result in results):
        raise PolyboundError("nothing is left of its tensor")
    return [np.asarray(result).astype(np.int64) for result in results]


def _size(node: Node, shape: Sequence[int], settings: Sequence[Constant | None]) -> int:
    """How many entries the result has; of operators that only take entries, at most."""
    given = settings[0].tensor if settings and settings[0] is not None else None
    if given is None:
        return prod(shape)
    kinds = (TensorProto.INT64, TensorProto.INT32) if node.operator in _INDEXED else (TensorProto.INT64,)
    if any(setting is not None and setting.kind not in kinds for setting in settings):
        raise PolyboundError("which entries it takes is not told by whole numbers of the type INT64")
    if node.operator in ("Expand", "Tile"):
        sizes = [int(size) for size in given.reshape(-1).tolist()]
        if node.operator == "Expand":
            return prod(np.broadcast_shapes(tuple(shape), tuple(sizes)))
        if len(sizes) != len(shape):
            raise PolyboundError(f"{len(sizes)} repeats do not fit {len(shape)} dimensions")
        return prod(shape) * prod(sizes)
    if node.operator == "Gather":
        axis = int(node.get("axis", 0))
        return prod(shape) // shape[axis] * given.numel()
    if node.operator == "GatherElements" and any(n > m for n, m in zip(given.shape, shape, strict=True)):
        raise PolyboundError(f"an index of shape {tuple(given.shape)} does not fit {tuple(shape)}")
    if node.operator == "GatherND":
        known = int(node.get("batch_dims", 0)) + int(given.shape[-1])
        return prod(given.shape[:-1]) * prod(shape[known:])
    return prod(shape)


def _check_ends(node: Node, source: Traced, settings: Sequence[Constant | None]) -> None:
    """Refuse slices of an open batch that take all of it only because it happens to be no larger."""
    if node.batch is not None:
        return
    rank = source.ndim
    starts, ends, axes = (
        given.tensor.reshape(-1).tolist() if given is not None else node.get(name, None)
        for name, given in zip(("starts", "ends", "axes"), (*settings, None, None, None), strict=False)
    )
    size = source.tracer.builder.size(source.node)
    samples = torch.div(source.places, size, rounding_mode="floor")
    for axis, start, end in zip(axes or range(rank), starts, ends, strict=False):
        along = samples.movedim(axis, 0)
        beyond = any(abs(side) > len(along) and abs(side) < _ENDLESS for side in (start, end))
        if beyond and not bool((along == along[:1]).all()):
            raise PolyboundError("it takes a part of the batch, which may be of any size")


def joined(node: Node, operands: Sequence[Operand]) -> Operand:
    """Concat: tensors side by side."""
    if any(operand is None for operand in operands):
        raise PolyboundError("an operand is left out")
    tensors = [operand.tensor for operand in operands if operand is not None]
    axis = node.get("axis", 1 if node.opset < 4 else 0)
    fixed = not any(isinstance(operand, Value) for operand in operands)
    check_size([sum(tensor.numel() for tensor in tensors)], DENSE_LIMIT if fixed else LARGEST)
    roundings = max(operand.roundings for operand in operands if operand is not None)
    sizes = any(isinstance(operand, Constant) and operand.sizes for operand in operands)
    if fixed:
        first = next(operand for operand in operands if isinstance(operand, Constant))
        return Constant(torch.cat(tensors, axis), sizes, roundings, first.kind)
    if sizes:
        raise PolyboundError("it computes with the size of the batch, which is not fixed")
    return Value(torch.cat(tensors, axis), roundings)  # type: ignore[arg-type]


def padded(node: Node, operands: Sequence[Operand]) -> Operand:
    """Pad: constants, or copies of entries, around a tensor; negative widths cut."""
    source, *settings = operands
    if source is None or any(isinstance(setting, Value) for setting in settings):
        raise PolyboundError("its widths or its value depend on the input")
    widths, fill, axes = (*settings, None, None, None)[:3]
    rank = source.tensor.ndim
    flat = widths.tensor.tolist() if isinstance(widths, Constant) else node.get("pads", node.get("paddings", []))
    number = float(fill.tensor) if isinstance(fill, Constant) else float(node.get("value", 0.0))
    chosen = [int(a) % rank for a in axes.tensor.tolist()] if isinstance(axes, Constant) else list(range(rank))
    if len(flat) != 2 * len(chosen) or len(set(chosen)) < len(chosen):
        raise PolyboundError(f"widths {flat} do not fit {rank} dimensions")
    both = {axis: (flat[k], flat[k + len(chosen)]) for k, axis in enumerate(chosen)}
    sides = [side for axis in reversed(range(rank)) for side in both.get(axis, (0, 0))]
    shape = [size + sum(both.get(axis, (0, 0))) for axis, size in enumerate(source.tensor.shape)]
    check_size([max(size, 0) for size in shape])
    if node.get("mode", "constant") != "constant":
        if any(not 0 <= side < source.tensor.shape[axis] for axis, pair in both.items() for side in pair):
            raise PolyboundError(f"widths {flat} are not all from 0 to below the size of their dimension")
        return moved(node, operands)[0]
    while sides and sides[-2:] == [0, 0]:
        del sides[-2:]
    if not sides:
        return source
    roundings = max(source.roundings, fill.roundings if isinstance(fill, Constant) else 0.0)
    if isinstance(source, Constant):
        return replace(source, tensor=F.pad(source.tensor, sides, value=number), roundings=roundings)
    result = F.pad(source.tensor, sides)
    if number:
        inside = torch.zeros((1, *source.tensor.shape[1:]), dtype=torch.float64)
        result = result + F.pad(inside, sides, value=number)
    return Value(result, roundings)  # type: ignore[arg-type]


def copied(node: Node, operands: Sequence[Operand]) -> Operand:
    """Resize and Upsample to the nearest entry, by whole factors: every entry becomes a block of copies."""
    source, *settings = operands
    if not isinstance(source, Value) or any(isinstance(setting, Value) for setting in settings):
        raise PolyboundError("only its first operand may depend on the input")
    shape = source.tensor.shape
    given = [setting for setting in settings[-2:] if isinstance(setting, Constant) and setting.tensor.numel()]
    scales = given[-1].tensor.tolist() if given else node.get("scales", [])
    if given and not given[-1].tensor.is_floating_point():
        scales = [wide / size for wide, size in zip(scales, shape, strict=True)]
    way = node.get("coordinate_transformation_mode", "half_pixel")
    nearest = node.get("nearest_mode", "round_prefer_floor")
    halves = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
    plain = (way == "asymmetric" and nearest == "floor") or (way in halves and nearest.startswith("round_prefer"))
    if node.operator == "Resize" and node.opset >= 11 and not plain:
        raise PolyboundError(f"coordinates by {way} and {nearest} are not read; asymmetric and floor are")
    if node.get("mode", "nearest") != "nearest" or node.get("axes", None) is not None:
        raise PolyboundError(f"mode {node.get('mode', 'nearest')!r} is not read; nearest is")
    if len(scales) != len(shape) or any(scale < 1 or scale != int(scale) for scale in scales):
        raise PolyboundError(f"factors {scales} are not read; whole ones, one for each dimension, are")
    check_size([int(scale) * size for scale, size in zip(scales, shape, strict=True)])
    places = torch.arange(source.tensor.numel()).reshape(shape)
    for axis, scale in enumerate(scales):
        places = places.repeat_interleave(int(scale), dim=axis)
    return _taken(source, places, False)
