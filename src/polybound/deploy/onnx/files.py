"""ONNX files: read with care, written whole, run by onnxruntime; what polybound puts into their metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

import onnx
import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from polybound._version import __version__
from polybound.atomic import write_atomically
from polybound.errors import FileFormatError, PolyboundError, reason

LARGEST_FILE = 2**30
"""Bytes of the largest ONNX file that is read; protocol buffers end at 2 GB."""


@dataclass(frozen=True)
class OnnxMetadata:
    """The metadata of an ONNX file.

    Attributes:
        class_names: one name for each output; empty if unknown.
        domain: the smallest and largest value of an input's entries; None if unknown.
        scaling: factor and offset with `input = factor * raw value + offset`; None if unknown.
        bounds: the rows of `polybound.bounds`, each with its formula and assumptions, as plain types.
        kind: "CCP", "NCP" or "ConvCCP" if polybound wrote the file, else "".
        config: that model's config.

    Raises:
        PolyboundError: the domain or the scaling is not a pair of finite numbers.
    """

    class_names: tuple[str, ...] = ()
    domain: tuple[float, float] | None = None
    scaling: tuple[float, float] | None = None
    bounds: tuple[Mapping[str, Any], ...] = ()
    kind: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, pair in (("domain", self.domain), ("scaling", self.scaling)):
            if pair is not None and (len(pair) != 2 or not all(isfinite(number) for number in pair)):
                raise PolyboundError(f"{name} must be two finite numbers, got {pair!r}")
        if self.domain is not None and not self.domain[0] < self.domain[1]:
            raise PolyboundError(f"domain must be a smaller and a larger number, got {self.domain!r}")

    def entries(self) -> dict[str, str]:
        """The entries of an ONNX file's `metadata_props`, JSON each."""
        content: dict[str, Any] = {
            "polybound": {"version": __version__, "kind": self.kind, "config": dict(self.config)},
            "class_names": list(self.class_names),
            "domain": self.domain,
            "scaling": None if self.scaling is None else dict(zip(("factor", "offset"), self.scaling, strict=True)),
            "bounds": [dict(row) for row in self.bounds],
        }
        return {name: json.dumps(value) for name, value in content.items() if value}

    @classmethod
    def read(cls, proto: onnx.ModelProto) -> OnnxMetadata:
        """The metadata of a file that polybound wrote; empty of any other, whose entries may mean anything."""
        entries = {entry.key: entry.value for entry in proto.metadata_props}
        if "polybound" not in entries:
            return cls()

        try:
            keys = ("polybound", "class_names", "domain", "scaling", "bounds")
            content = {name: json.loads(entries[name]) for name in keys if name in entries}
            domain, scaling = content.get("domain"), content.get("scaling")
            low, high = (None, None) if domain is None else map(float, domain)
            return cls(
                class_names=tuple(str(name) for name in content.get("class_names", ())),
                domain=None if low is None or high is None else (low, high),
                scaling=None if scaling is None else (float(scaling["factor"]), float(scaling["offset"])),
                bounds=tuple(dict(row) for row in content.get("bounds", ())),
                kind=str(content["polybound"]["kind"]),
                config=dict(content["polybound"]["config"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FileFormatError(f"its metadata are damaged ({reason(error)})") from None


def write_proto(path: str | PathLike[str], proto: onnx.ModelProto, metadata: OnnxMetadata) -> None:
    """Write a graph with its metadata; the file appears whole or not at all."""
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, metadata.entries())
    onnx.checker.check_model(proto)
    write_atomically(path, proto.SerializeToString())


def read_proto(path: str | PathLike[str]) -> onnx.ModelProto:
    """The content of an ONNX file, checked by ONNX's own checker.

    Raises:
        FileFormatError: the file is damaged, not ONNX, too large, or keeps tensors in other files.
        OSError: the file cannot be opened.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if (size := path.stat().st_size) > LARGEST_FILE:
        raise FileFormatError(f"{path}: {size:,} bytes are more than the {LARGEST_FILE:,} that are read")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError:
        raise FileFormatError(f"{path}: not a whole ONNX file") from None
    for owner, tensor in _tensors(proto.graph):
        # Another file's name in this one could be any path of this machine.
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise FileFormatError(f"{path}: {owner} keeps a tensor in another file, which is not read: save it in one")
    if proto.graph.sparse_initializer:
        raise FileFormatError(f"{path}: it has sparse tensors, which are not read")
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
        raise FileFormatError(f"{path}: not a valid ONNX file ({first})") from None
    return proto


def type_name(code: int) -> str:
    """ONNX's name of a tensor type; an unknown number is returned as text."""
    known = dict(onnx.TensorProto.DataType.items())
    return next((name for name, number in known.items() if number == code), str(code))


def _tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """All tensors of a graph with their owners, including those in attributes of nodes and in inner graphs."""
    for tensor in graph.initializer:
        yield f"tensor {tensor.name!r}", tensor
    for node in graph.node:
        owner = f"node {node.name or next(iter(node.output), '')!r}"
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield owner, attribute.t
            yield from ((owner, tensor) for tensor in attribute.tensors)
            for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from _tensors(inner)


def run_onnx(path: str | PathLike[str], x: Tensor) -> Tensor | None:
    """The outputs of an ONNX file for a batch, float64; None where onnxruntime is missing or cannot run the file.

    The values are computed in the file's own precision.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # The graph as it stands: its optimiser has made models that it then refuses to run.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        [source] = session.get_inputs()
        array = x.double().numpy() if source.type == "tensor(double)" else x.float().numpy()
        [outputs] = session.run(None, {source.name: array})
    except Exception:  # its errors have no common base; the file is read in any case, only not run
        return None
    return torch.from_numpy(outputs).double().reshape(len(x), -1)
