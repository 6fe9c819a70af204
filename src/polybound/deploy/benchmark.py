"""Robustness as VNN-LIB files, and benchmarks in VNN-COMP's layout."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polybound.atomic import write_atomically
from polybound.deploy.onnx.export import to_onnx
from polybound.deploy.vnnlib import rounded
from polybound.errors import ArgumentError, PolyboundError
from polybound.models import PolynomialNetwork

__all__ = ["export_benchmark", "robustness_vnnlib"]


def robustness_vnnlib(
    x: Tensor,
    label: int,
    eps: float,
    classes: int,
    *,
    domain: tuple[float, float] | None = (-1.0, 1.0),
    about: str = "",
) -> str:
    """The VNN-LIB 1.0 text that asks for an input near x that is not classified as its label.

    The answer is "unsat" exactly where `polybound.certify` says "verified". An output that is as large as that of the
    label is a counterexample for both.

    Args:
        x: one input, of any shape.
        label: its class.
        eps: radius of the l_inf ball.
        classes: number of classes.
        domain: the ball is intersected with this box; None for no box.
        about: a comment.

    >>> import torch
    >>> print(robustness_vnnlib(torch.tensor([0.5]), 0, 0.25, classes=2))
    (declare-const X_0 Real)
    (declare-const Y_0 Real)
    (declare-const Y_1 Real)
    <BLANKLINE>
    (assert (>= X_0 0.25))
    (assert (<= X_0 0.75))
    <BLANKLINE>
    (assert (or
        (and (>= Y_1 Y_0))
    ))
    <BLANKLINE>
    """
    if not (isfinite(eps) and eps >= 0):
        raise ArgumentError("eps", f"must be finite and not negative, got {eps!r}")
    [label] = _labels([label])
    if not 0 <= label < classes:
        raise PolyboundError(f"the label must be from 0 to {classes - 1}, got {label}")
    # Numbers of numpy are written in another way than those of Python.
    eps, domain = float(eps), domain and (float(domain[0]), float(domain[1]))
    lines = [f"; {line}" for line in about.splitlines()]
    values = x.detach().double().reshape(-1).tolist()
    lines += [f"(declare-const X_{i} Real)" for i in range(len(values))]
    lines += [f"(declare-const Y_{j} Real)" for j in range(classes)]
    lines.append("")
    for i, value in enumerate(values):
        if not isfinite(value):
            raise PolyboundError("the inputs are not all finite")
        if domain is not None and not domain[0] <= value <= domain[1]:
            raise PolyboundError(
                f"the inputs leave the domain [{domain[0]:g}, {domain[1]:g}]; pass the domain of your data"
            )
        for relation, reach in ((">=", -eps), ("<=", eps)):
            side = rounded(Fraction(value) + Fraction(reach), up=reach > 0)
            if domain is not None:
                side = min(max(side, domain[0]), domain[1])
            # All digits and no exponent, which not every reader knows.
            lines.append(f"(assert ({relation} X_{i} {Decimal(repr(side)):f}))")
    rivals = [f"    (and (>= Y_{j} Y_{label}))" for j in range(classes) if j != label]
    return "\n".join([*lines, "", "(assert (or", *rivals, "))", ""])


def _labels(y: Tensor | Sequence[int]) -> list[int]:
    """The labels as Python integers."""
    values = torch.as_tensor(y).reshape(-1).tolist()
    if not all(isfinite(value) and value == int(value) for value in values):
        raise PolyboundError("labels must be whole numbers")
    return [int(value) for value in values]


def export_benchmark(
    model: PolynomialNetwork,
    folder: str | PathLike[str],
    x: Tensor,
    y: Tensor | Sequence[int],
    *,
    eps: float | Sequence[float],
    name: str = "network",
    timeout: float = 60.0,
    domain: tuple[float, float] | None = (-1.0, 1.0),
    **options: Any,
) -> list[Path]:
    """Write a benchmark in VNN-COMP's layout: `onnx/NAME.onnx`, a file in `vnnlib/` for each input, `instances.csv`.

    Args:
        model: one model.
        folder: the benchmark's folder; it is made if it does not exist.
        x: inputs, (images, *shape).
        y: their labels.
        eps: radius of the l_inf balls; with several radii, each input has a property for each.
        name: the first part of the files' names.
        timeout: seconds that `instances.csv` allows a verifier.
        domain: the smallest and largest value of an entry of an input.
        options: further options of `to_onnx`.

    Returns:
        The files that were written, `instances.csv` last.
    """
    if model.runs is not None:
        raise PolyboundError("a benchmark is about one model; take model.run(e) of a stack")
    labels = _labels(y)
    if len(labels) != len(x) or x[:1].numel() != len(x[:1]) * model.features:
        raise PolyboundError(f"one label for each of {len(x)} inputs of shape {model.shape} is needed")
    radii = torch.as_tensor(eps, dtype=torch.float64).reshape(-1).tolist()
    folder = Path(folder)
    for part in ("onnx", "vnnlib"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    network = f"onnx/{name}.onnx"
    written = to_onnx(model, folder / network, domain=domain, **options)
    rows = []
    for radius in radii:
        for index, (image, label) in enumerate(zip(x, labels, strict=True)):
            about = f"{name}, input {index} of class {label}, all within {radius!r} of it in the l_inf norm"
            text = robustness_vnnlib(image, label, radius, model.classes, domain=domain, about=about)
            file = f"vnnlib/{name}_{index}_eps_{radius!r}.vnnlib"
            write_atomically(folder / file, text.encode())
            written.append(folder / file)
            rows.append(f"{network},{file},{timeout:g}")
    write_atomically(folder / "instances.csv", ("\n".join(rows) + "\n").encode())
    return [*written, folder / "instances.csv"]
