"""A graph as JSON and tensors, and back: nothing in a file is code, and nothing in it is believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import prod
from typing import Any

from torch import Tensor

from polybound.errors import PolyboundError
from polybound.models.affine import Affine, Chain, Conv, Dense, Identity, Pool
from polybound.models.graphs.graph import Applied, Builder, Graph, Input, Sum
from polybound.models.graphs.maps import AveragePool, Collect, Convolution, Repeated, Scale, Select

_MOST_NODES = 100_000
_MOST_ENTRIES = 2**31
"""Limits of what a file may ask for."""

# How a map is made of its tensors and settings. `bias` may be absent, for zeros; maps without weights take `like`.
_CLASSES: dict[str, Callable[..., Affine]] = {
    **{kind.__name__: kind for kind in (Dense, Conv, Pool, Select, Collect, Scale, Repeated, Convolution, AveragePool)}
}
_WEIGHTS = dict.fromkeys(("Dense", "Scale", "Repeated", "Conv", "Convolution"), ("weight", "bias"))
_TENSORS: dict[str, tuple[str, ...]] = {**_WEIGHTS, **dict.fromkeys(("Select", "Collect"), ("index",))}
# Counts and flags are settings of these names; all others are lists of whole numbers.
_COUNTS, _FLAGS = ("inputs", "outputs", "rows", "groups"), ("transposed",)
_SETTINGS: dict[str, tuple[str, ...]] = {
    **{"Dense": (), "Scale": (), "Conv": ("shape",), "Pool": ("shape",)},
    **{"Select": ("inputs",), "Collect": ("outputs",), "Repeated": ("rows",)},
    "Convolution": ("shape", "stride", "padding", "dilation", "output_padding", "groups", "transposed"),
    "AveragePool": ("shape", "size", "stride", "padding"),
}
_DIMENSIONS = {"Dense": 2, "Scale": 1, "Repeated": 2}


def graph_spec(graph: Graph) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A graph as JSON can hold it, and its tensors by the names that stand in it."""
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}

    def named(tensor: Tensor) -> str:
        if id(tensor) not in names:
            names[id(tensor)] = str(len(tensors))
            tensors[names[id(tensor)]] = tensor
        return names[id(tensor)]

    def of_map(step: Affine) -> dict[str, Any]:
        if isinstance(step, Chain):
            return {"kind": "Chain", "maps": [of_map(part) for part in step.maps], "shift": step.shift}
        if isinstance(step, Identity):
            return {"kind": "Identity", "size": step.inputs}
        kind = type(step).__name__
        if kind not in _SETTINGS:
            raise PolyboundError(f"a {kind} cannot be written to a file")
        told: dict[str, Any] = {"kind": kind}
        for name in _SETTINGS[kind]:
            value = getattr(step, name)
            told[name] = list(value) if isinstance(value, tuple) else value
        for name in _TENSORS.get(kind, ()):
            value = getattr(step, "constant" if name == "bias" and kind == "Dense" else name)
            if name != "bias" or value.requires_grad or bool(value.any()):
                told[name] = named(value)
        return told

    nodes: list[dict[str, Any]] = []
    for node in graph.nodes:
        if isinstance(node, Input):
            told: dict[str, Any] = {"input": list(node.shape)}
        elif isinstance(node, Applied):
            told = {"map": of_map(node.map), "of": node.source}
        else:
            told = {("sum" if isinstance(node, Sum) else "product"): list(node.sources)}
        nodes.append(told | ({"origin": node.origin} if node.origin else {}))
    sizes = {name: [list(tensor.shape), tensor.is_floating_point()] for name, tensor in tensors.items()}
    return {"nodes": nodes, "output": graph.output, "tensors": sizes}, tensors


def graph_from_spec(spec: Mapping[str, Any], tensors: Mapping[str, Tensor], like: Tensor) -> Graph:
    """The graph that `graph_spec` told of.

    Args:
        spec: from a file; every part of it is checked.
        tensors: by name.
        like: gives the type and device of constants that no tensor holds.

    Raises:
        PolyboundError: something in it is missing, of another kind, out of range, or refers to what comes later.
    """
    nodes = _of(spec, "nodes", list)
    if not 1 <= len(nodes) <= _MOST_NODES:
        raise PolyboundError(f"a graph of {len(nodes):,} nodes; from 1 to {_MOST_NODES:,} are taken")
    builder, numbers = Builder(), list[int]()

    def source(value: Any, at: int) -> int:
        if not _whole(value) or not 0 <= value < at:
            raise PolyboundError(f"node {at} refers to node {value!r}, which is none before it")
        return numbers[int(value)]

    for at, told in enumerate(nodes):
        if not isinstance(told, dict):
            raise PolyboundError(f"node {at} is no mapping")
        origin = told.get("origin", "")
        if not isinstance(origin, str) or len(origin) > 1000:
            raise PolyboundError(f"node {at} has an origin that is no short text")
        if "input" in told:
            shape = _sizes(told["input"], f"node {at}: input")
            if at > 0:
                raise PolyboundError(f"node {at} is an input; a network has one, as its first node")
            numbers.append(builder.input(shape))
        elif at == 0:
            raise PolyboundError("the first node must be the input")
        elif "map" in told:
            step = _map(told["map"], tensors, like, at)
            numbers.append(builder.affine(step, source(told.get("of"), at), origin))
        elif "sum" in told or "product" in told:
            kind = "sum" if "sum" in told else "product"
            given = [source(value, at) for value in _of(told, kind, list)]
            if len(given) != 2 and (kind == "product" or not given):
                raise PolyboundError(f"node {at} is a {kind} of {len(given)}")
            numbers.append(builder.sum(given, origin) if kind == "sum" else builder.product(given[0], given[1], origin))
        else:
            raise PolyboundError(f"node {at} is neither input, map, sum nor product")
    output = spec.get("output")
    if not _whole(output) or not 0 <= output < len(nodes):  # type: ignore[operator]
        raise PolyboundError(f"the output is node {output!r}, which is none of {len(nodes)}")
    return builder.finish(numbers[output], fused=False)  # type: ignore[index]


def _map(told: Any, tensors: Mapping[str, Tensor], like: Tensor, at: int, depth: int = 0) -> Affine:
    kind = told.get("kind") if isinstance(told, dict) else None
    where = f"node {at}: {kind}"
    if kind == "Chain" and depth < 4:
        maps = _of(told, "maps", list)
        shift = told.get("shift", 0.0)
        if not 1 <= len(maps) <= 100 or not isinstance(shift, int | float) or isinstance(shift, bool):
            raise PolyboundError(f"{where} needs from 1 to 100 maps, and a shift that is a number")
        steps = [_map(part, tensors, like, at, depth + 1) for part in maps]
        if any(one.outputs != other.inputs for one, other in pairwise(steps)):
            raise PolyboundError(f"{where}: its maps do not fit each other")
        return Chain(steps, float(shift))
    if kind == "Identity":
        return Identity(_sizes([told.get("size")], where)[0], (), like)
    if kind not in _SETTINGS:
        raise PolyboundError(f"node {at} has a map of kind {kind!r}; there are {', '.join(_SETTINGS)}, Chain, Identity")
    values: dict[str, Any] = {} if kind in _WEIGHTS else {"like": like}
    if kind == "Pool":
        values["lead"] = ()
    for name in _SETTINGS[kind]:
        value = told.get(name)
        if name in _FLAGS:
            if not isinstance(value, bool):
                raise PolyboundError(f"{where}: {name} must be true or false, got {value!r}")
            values[name] = value
        elif name in _COUNTS:
            values[name] = _sizes([value], f"{where}: {name}")[0]
        else:
            values[name] = _sizes(value, f"{where}: {name}", 0 if name in ("padding", "output_padding") else 1)
    for name in _TENSORS.get(kind, ()):
        given = told.get(name)
        if given is None and name == "bias":
            values[name] = None
        elif not isinstance(given, str) or given not in tensors:
            raise PolyboundError(f"{where}: its {name} is tensor {given!r}, which is not there")
        else:
            values[name] = tensors[given]
    _check_tensors(kind, values, where)
    try:
        step = _CLASSES[kind](**values)
    except (RuntimeError, IndexError, ZeroDivisionError, ValueError) as error:
        raise PolyboundError(f"{where}: its sizes do not fit each other") from error
    if not 0 < step.inputs <= _MOST_ENTRIES or not 0 < step.outputs <= _MOST_ENTRIES:
        raise PolyboundError(f"{where}: its sizes do not fit each other")
    return step


def _check_tensors(kind: str, values: Mapping[str, Any], where: str) -> None:
    """Refuse tensors of the wrong kind, number of dimensions or range."""
    weight, bias, index = (values.get(name) for name in ("weight", "bias", "index"))
    shape = values.get("shape", ())
    if index is not None:
        end = values["inputs"] if kind == "Select" else values["outputs"]
        inside = index.is_meta or (index.numel() > 0 and int(index.min()) >= -1 and int(index.max()) < end)
        if index.ndim != 1 or index.is_floating_point() or not inside:
            raise PolyboundError(f"{where}: its index must be whole numbers from -1 to {end - 1}")
    if weight is None:
        dims = len(shape) - 1
        if kind in ("Pool", "AveragePool") and not 1 <= dims <= 3:
            raise PolyboundError(f"{where}: its shape must be (channels, 1 to 3 sizes)")
        if kind == "AveragePool" and any(len(values[name]) != dims for name in ("size", "stride", "padding")):
            raise PolyboundError(f"{where}: its sizes do not fit each other")
        return
    dims = _DIMENSIONS.get(kind, len(shape) + 1)
    if weight.ndim != dims or not weight.is_floating_point() or not 1 <= dims <= 5:
        raise PolyboundError(f"{where}: its weight must have {dims} dimensions")
    outputs = weight.shape[0]
    if kind in ("Conv", "Convolution"):
        groups, transposed = values.get("groups", 1), values.get("transposed", False)
        channels = weight.shape[0] if transposed else weight.shape[1] * groups
        outputs = weight.shape[1] * groups if transposed else weight.shape[0]
        lists = [values[name] for name in ("stride", "padding", "dilation", "output_padding") if name in values]
        odd = kind == "Convolution" or all(n % 2 for n in weight.shape[2:])
        if channels != shape[0] or outputs % groups or not odd or any(len(one) != len(shape) - 1 for one in lists):
            raise PolyboundError(f"{where}: its sizes do not fit each other")
    if bias is not None and (bias.shape != (outputs,) or not bias.is_floating_point()):
        raise PolyboundError(f"{where}: its bias must have shape ({outputs},)")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _of(told: Mapping[str, Any], name: str, kind: type) -> Any:
    value = told.get(name)
    if not isinstance(value, kind):
        raise PolyboundError(f"{name} must be a {kind.__name__}")
    return value


def _sizes(value: Any, where: str, least: int = 1) -> tuple[int, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= 8 or not all(_whole(n) and n >= least for n in value):
        raise PolyboundError(f"{where} must be whole numbers from {least} on")
    if prod(max(n, 1) for n in value) > _MOST_ENTRIES:
        raise PolyboundError(f"{where} asks for more than {_MOST_ENTRIES:,} entries")
    return tuple(value)
