"""Properties of networks as VNN-LIB files: `verify` answers one, `export_benchmark` writes those of robustness."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from polybound.atomic import write_atomically
from polybound.certificates import Polytope, decide
from polybound.deploy.onnx.export import to_onnx
from polybound.deploy.onnx.files import run_onnx
from polybound.deploy.onnx.read import OnnxNetwork, read_onnx
from polybound.deploy.vnnlib import Property, Region, read_vnnlib, rounded
from polybound.errors import ArgumentError, PolyboundError
from polybound.models import Affine, PolynomialNetwork
from polybound.theory import ULP

_MOST_ROUNDINGS = 2**40
_HUGE, _TINY = 1e300, 1e-300


@dataclass(frozen=True, eq=False)
class Verdict:
    """The answer to a property.

    Attributes:
        answer: "unsat": no input of the property has such outputs, proven for the polynomial in real arithmetic.
            "sat": `inputs` has such outputs, by rational arithmetic. "timeout": neither was shown in time. "unknown":
            neither can be shown, because the outputs are closer to the conditions than roundings of folded constants.
        inputs: a counterexample in the property's box, (inputs,), float64; where one is found, of float32 numbers.
        outputs: the outputs there, (outputs,), float64: those of onnxruntime if `replayed`, else exact ones, rounded.
        replayed: whether onnxruntime, in the file's own precision, has outputs there that meet the property.
        seconds: how long it took.
    """

    answer: Literal["unsat", "sat", "timeout", "unknown"]
    seconds: float
    inputs: Tensor | None = None
    outputs: Tensor | None = None
    replayed: bool = False

    def text(self) -> str:
        """The answer as VNN-COMP has it: one word, and for "sat" a list of values after it."""
        if self.inputs is None or self.outputs is None:
            return self.answer
        named = [("X", self.inputs), ("Y", self.outputs)]
        lines = [f"({name}_{i} {value!r})" for name, values in named for i, value in enumerate(values.tolist())]
        return self.answer + "\n(" + "\n".join(lines) + ")"

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain types, for JSON."""
        values = {"inputs": self.inputs, "outputs": self.outputs}
        plain = {name: None if tensor is None else tensor.tolist() for name, tensor in values.items()}
        return {"answer": self.answer, "seconds": self.seconds, "replayed": self.replayed, **plain}


def verify(
    network: str | PathLike[str] | OnnxNetwork, question: str | PathLike[str] | Property, *, timeout: float = 60.0
) -> Verdict:
    """Decide whether an input of a property's boxes has outputs that meet its conditions.

    Args:
        network: an ONNX file, or what `read_onnx` made of it.
        question: a VNN-LIB file, or what `read_vnnlib` made of it.
        timeout: seconds, from the start of the search; reading the files and `OnnxNetwork.network` are not counted.

    Raises:
        PolyboundError: a file cannot be read, or the two do not fit each other.
    """
    net = network if isinstance(network, OnnxNetwork) else read_onnx(network)
    asked = question if isinstance(question, Property) else read_vnnlib(question)
    graph = net.graph
    if (graph.features, graph.classes) != (asked.inputs, asked.outputs):
        sizes = f"{asked.inputs} inputs and {asked.outputs} outputs"
        raise PolyboundError(f"the property has {sizes}, the network {graph.features} and {graph.classes}")
    _ = net.network
    if not timeout >= 0:
        raise ArgumentError("timeout", f"must be a number of seconds, got {timeout!r}")
    if not net.roundings <= _MOST_ROUNDINGS:
        raise PolyboundError(
            f"{net.path}: its constants are computed from others that cancel, so that float64 does not hold them;"
            " write them into the file as numbers"
        )
    begun = time.perf_counter()
    answers = []
    for region in asked.regions:
        answer, point = _decide(net, region, max(0.0, begun + timeout - time.perf_counter()))
        if point is not None:
            inputs, outputs, replayed = _replayed(net, region, point)
            return Verdict("sat", time.perf_counter() - begun, inputs, outputs, replayed)
        answers.append(answer)
    seconds = time.perf_counter() - begun
    if all(answer == "unsat" for answer in answers):
        return Verdict("unsat", seconds)
    return Verdict("timeout" if seconds >= timeout else "unknown", seconds)


def _decide(net: OnnxNetwork, region: Region, seconds: float) -> tuple[str, Tensor | None]:
    """The answer for one region, proven for the box rounded outwards, or with a point of the box rounded inwards."""
    begun = time.perf_counter()
    sides = region.sides(outwards=True)
    found = decide(net.network, sides, _unsafe(net, region, sides, outwards=True), timeout=seconds)
    if found.point is None:
        return found.answer, None
    inner = region.sides(outwards=False)
    point = found.point.reshape(-1)
    inside = torch.minimum(torch.maximum(point, inner[0]), inner[1])
    exact = not net.roundings and region.is_exact(net.graph.classes)
    if (torch.equal(point, inside) and exact) or _holds(net, region, inside):
        return "sat", inside
    # The point is outside of the box by a rounding; the box rounded inwards may have another.
    left = max(0.0, seconds - (time.perf_counter() - begun))
    again = decide(net.network, inner, _unsafe(net, region, inner, outwards=False), timeout=left)
    return ("unknown", None) if again.point is None else ("sat", again.point.reshape(-1))


def _holds(net: OnnxNetwork, region: Region, point: Tensor) -> bool:
    """Whether the polynomial's outputs at a point meet the conditions, by rational arithmetic."""
    box = point, point
    return decide(net.network, box, _unsafe(net, region, box, outwards=False), timeout=0.0).answer == "sat"


def _unsafe(net: OnnxNetwork, region: Region, box: tuple[Tensor, Tensor], outwards: bool) -> list[Polytope]:
    """The polytopes of a region for the true outputs of a box: none becomes smaller (outwards), or none larger.

    The graph has computed constants. With K roundings in each product of them, the outputs of the true network are off
    by at most `K u / (1 - K u) P(X)` where `|x| <= X`, P the network with absolute values in the place of its weights.
    The conditions are moved by more than that.
    """
    polytopes = region.unsafe(net.graph.classes, outwards)
    if not net.roundings:
        return polytopes
    reached = torch.maximum(box[0].abs(), box[1].abs()).reshape(1, -1)
    size = net.graph.evaluate(_Absolute(), reached * 1.01 + _TINY)[0] * 1.01
    off = (size * (2.0 * net.roundings * ULP)).nan_to_num(_HUGE, _HUGE).clamp_max(_HUGE)
    moved = []
    for polytope in polytopes:
        reach = (polytope.weights.abs() @ off) * (1.01 if outwards else -1.01)
        constant = (polytope.constant - reach).clamp(-_HUGE, _HUGE)
        # A smaller constant allows more outputs.
        away = torch.full_like(constant, -torch.inf if outwards else torch.inf)
        moved.append(Polytope(polytope.weights, torch.nextafter(constant, away)))
    return moved


class _Absolute:
    """P, the network of absolute values: upper bounds of the sums of the absolute values of all products.

    No value is below the least that is added, so that nothing is lost by underflow.
    """

    def affine(self, step: Affine, value: Tensor) -> Tensor:
        """`|W| x + |b|`."""
        return step.absolute()(value) + _TINY

    def sum(self, values: Sequence[Tensor]) -> Tensor:
        """The sum."""
        return torch.stack(list(values)).sum(0)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """The product."""
        return left * right + _TINY


def _replayed(net: OnnxNetwork, region: Region, point: Tensor) -> tuple[Tensor, Tensor, bool]:
    """A counterexample, its outputs, and whether onnxruntime, in the file's own precision, confirms it.

    Near the point that was found there may be another counterexample whose entries the file's precision holds.
    """
    candidates = [point]
    if net.single:
        lower, upper = (_float32(sides, up) for sides, up in ((region.lower, True), (region.upper, False)))
        near = torch.minimum(torch.maximum(point.float(), lower), upper).double()
        near = torch.where(lower <= upper, near, point)
        if not torch.equal(near, point) and _holds(net, region, near):
            candidates.insert(0, near)
    for candidate in candidates:
        outputs = run_onnx(net.path, candidate.reshape(1, *net.shape))
        if outputs is None or not torch.isfinite(outputs[0]).all():
            continue
        values = [Fraction(value) for value in outputs[0].tolist()]
        for rows in region.polytopes:
            if all(sum((weight * values[j] for j, weight in row.Y.items()), row.constant) <= 0 for row in rows):
                return candidate, outputs[0], True
    return candidates[0], net.graph(candidates[0].unsqueeze(0))[0], False


def _float32(sides: tuple[Fraction, ...], up: bool) -> Tensor:
    """Numbers as float32, not below or not above what they are; beyond its range, its ends or infinity."""
    largest = Fraction(torch.finfo(torch.float32).max)
    cut = [min(max(side, -largest), largest) for side in sides]
    near = torch.tensor([float(side) for side in cut], dtype=torch.float64).float()
    other = torch.nextafter(near, torch.full_like(near, torch.inf if up else -torch.inf))
    pairs = zip(near.tolist(), sides, strict=True)
    wrong = [Fraction(value) < side if up else Fraction(value) > side for value, side in pairs]
    return torch.where(torch.tensor(wrong), other, near)


# Robustness as VNN-LIB files, and benchmarks in VNN-COMP's layout.


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
            raise PolyboundError(f"the inputs leave the domain {list(domain)}; pass the domain of your data")
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
