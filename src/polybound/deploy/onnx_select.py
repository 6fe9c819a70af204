"""Operators that take parts of a tensor: Slice, Gather and Split, of constants and of what depends on the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from polybound.deploy.onnx_values import Constant, Value
from polybound.errors import PolyboundError
from polybound.models import Conv, Dense
from polybound.theory import DENSE_LIMIT

__all__ = ["PARTS", "gather", "parts_of", "slice_parts"]

Attributes = dict[str, Any]

_LONGEST = 2**31 - 1
"""An end from here on means that of the axis."""


def slice_parts(source: Tensor, _: Attributes, operands: Sequence[Tensor | None]) -> list[Tensor]:
    """Slice: starts, ends, and perhaps axes and steps."""
    starts, ends, axes, steps = (None if part is None else part.tolist() for part in _four(operands))
    if starts is None or ends is None:
        raise PolyboundError("a slice without its starts and ends as operands is not read")
    for axis, start, end, step in zip(
        range(len(starts)) if axes is None else axes, starts, ends, steps or [1] * len(starts), strict=True
    ):
        if step < 1:
            raise PolyboundError("slices backwards are not read")
        places = range(source.shape[axis])[slice(start, end, step)]
        if not places:
            raise PolyboundError(f"it takes nothing of an axis of size {source.shape[axis]}")
        source = source.index_select(axis, torch.tensor(list(places), dtype=torch.long))
    return [source]


def _four(operands: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Starts, ends, axes and steps of a Slice; None for what is not there."""
    return (*operands, None, None, None, None)[:4]


def _takes_all(place: int, starts: Tensor | None, ends: Tensor | None, steps: Tensor | None) -> bool:
    """Whether a Slice takes an axis whole, however long it is."""
    if starts is None or ends is None:
        return False
    return int(starts[place]) == 0 and int(ends[place]) >= _LONGEST and (steps is None or int(steps[place]) == 1)


def gather(source: Tensor, attributes: Attributes, operands: Sequence[Tensor | None]) -> list[Tensor]:
    """Gather: the entries of an axis that an index names."""
    [index] = operands
    axis = attributes.get("axis", 0)
    axis, size = axis % source.ndim, source.shape[axis]
    if index is None or not bool(((index >= -size) & (index < size)).all()):
        raise PolyboundError(f"it takes what an axis of size {size} does not have")
    chosen = source.index_select(axis, index.reshape(-1).remainder(source.shape[axis]))
    return [chosen.reshape((*source.shape[:axis], *index.shape, *source.shape[axis + 1 :]))]


def _split(source: Tensor, attributes: Attributes, operands: Sequence[Tensor | None]) -> list[Tensor]:
    """Split: parts of given sizes, or of equal ones."""
    axis = attributes.get("axis", 0)
    size, count = source.shape[axis], attributes["outputs"]
    each = -(-size // count)
    sizes = (
        operands[0].tolist()
        if operands and operands[0] is not None
        else attributes.get("split", [each] * (count - 1) + [size - each * (count - 1)])
    )
    if sum(sizes) != size or len(sizes) != count or min(sizes) < 1:
        raise PolyboundError(f"parts of sizes {sizes} are not {count} of an axis of size {size}")
    return [source.narrow(axis, sum(sizes[:n]), length) for n, length in enumerate(sizes)]


PARTS: dict[str, Callable[[Tensor, Attributes, Sequence[Tensor | None]], list[Tensor]]] = {
    "Gather": gather,
    "Slice": slice_parts,
    "Split": _split,
}
"""Each takes the tensor, the node's attributes with the number of `outputs`, and its other operands."""


def parts_of(operator: str, value: Value, attributes: Attributes, operands: Sequence[Constant | None]) -> list[Value]:
    """The parts of a tensor that depends on the input, none of them along the batch.

    Raises:
        PolyboundError: it takes a part of the batch, or computes where with the size of the batch.
    """
    if any(operand is not None and operand.sizes for operand in operands):
        raise PolyboundError("which part it takes depends on the size of the batch")
    # The batch is one input here, so that a part of it is told by its size.
    places = torch.arange(value.size).reshape(1, *value.shape)
    constants = [None if operand is None else operand.tensor for operand in operands]
    axes = [attributes.get("axis", 0)]
    if operator == "Slice":
        starts, ends, chosen, steps = _four(constants)
        axes = list(range(0 if starts is None else len(starts))) if chosen is None else chosen.tolist()
        axes = [axis for place, axis in enumerate(axes) if not _takes_all(place, starts, ends, steps)]
    if any(axis % places.ndim == 0 for axis in axes):
        raise PolyboundError("it takes a part of the batch")
    return [_selected(value, part[0]) for part in PARTS[operator](places, attributes, constants)]


def _selected(value: Value, places: Tensor) -> Value:
    """The entries at some places of a value, in the shape that the places have."""
    flat, shape = places.reshape(-1), tuple(places.shape)
    last = value.steps[-1] if value.steps else None
    if isinstance(last, Dense):
        part: Dense | Conv = Dense(last.weight[flat], last.constant[flat])
        return replace(value, steps=(*value.steps[:-1], part), shape=shape)
    if isinstance(last, Conv) and (channels := _channels(last, flat)) is not None:
        part = Conv(last.weight[channels], last.bias[channels], last.shape)
        return replace(value, steps=(*value.steps[:-1], part), shape=shape)
    if len(flat) * value.size > DENSE_LIMIT:
        raise PolyboundError(f"{len(flat):,} of {value.size:,} numbers are too many to be picked one by one")
    matrix = torch.zeros(len(flat), value.size, dtype=torch.float64)
    matrix[torch.arange(len(flat)), flat] = 1.0
    return value.then(Dense(matrix), shape)


def _channels(step: Conv, flat: Tensor) -> Tensor | None:
    """The channels that are taken, if they are taken whole."""
    space = prod(step.shape[1:])
    channels = flat[::space] // space
    whole = (channels.unsqueeze(1) * space + torch.arange(space)).reshape(-1)
    return channels if torch.equal(whole, flat) else None
