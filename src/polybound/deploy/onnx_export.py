"""`to_onnx`: models as ONNX files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any

from polybound.deploy.onnx_files import OnnxMetadata, write_proto
from polybound.deploy.onnx_graph import plain_graph
from polybound.errors import PolyboundError
from polybound.models import PolynomialNetwork, polynomial
from polybound.theory import lipschitz

__all__ = ["to_onnx"]


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
    if not path.parent.is_dir():
        raise PolyboundError(f"{path.parent}: no such folder")
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
