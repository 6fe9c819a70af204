"""`verify`: the answer to a VNN-LIB property of a polynomial network."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor

from polybound.certificates import Polytope, decide
from polybound.deploy.onnx.files import run_onnx
from polybound.deploy.onnx.read import OnnxNetwork, read_onnx
from polybound.deploy.vnnlib import Property, Region, read_vnnlib
from polybound.errors import ArgumentError, PolyboundError

__all__ = ["Verdict", "verify"]

_MOST_ROUNDINGS = 2**40
_HUGE = 1e300


@dataclass(frozen=True, eq=False)
class Verdict:
    """The answer to a property.

    Attributes:
        answer: "unsat": no input of the property has such outputs, proven for the polynomial in real arithmetic.
            "sat": `inputs` has, by rational arithmetic. "timeout": neither was shown in time. "unknown": neither can
            be shown, because the outputs are closer to the conditions than the roundings of folded constants.
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
    factors = net.network
    if (factors.features, factors.classes) != (asked.inputs, asked.outputs):
        sizes = f"{asked.inputs} inputs and {asked.outputs} outputs"
        raise PolyboundError(f"the property has {sizes}, the network {factors.features} and {factors.classes}")
    if not timeout >= 0:
        raise ArgumentError("timeout", f"must be a number of seconds, got {timeout!r}")
    if not net.polynomial.roundings <= _MOST_ROUNDINGS:
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
    exact = not net.polynomial.roundings and region.is_exact(net.network.classes)
    if (torch.equal(point, inside) and exact) or _holds(net, region, inside):
        return "sat", inside
    # It is true outside of the box only, by a rounding: the box rounded inwards may have another.
    left = max(0.0, seconds - (time.perf_counter() - begun))
    again = decide(net.network, inner, _unsafe(net, region, inner, outwards=False), timeout=left)
    return ("unknown", None) if again.point is None else ("sat", again.point.reshape(-1))


def _holds(net: OnnxNetwork, region: Region, point: Tensor) -> bool:
    """Whether the polynomial's outputs at a point meet the conditions, by rational arithmetic."""
    box = point, point
    return decide(net.network, box, _unsafe(net, region, box, outwards=False), timeout=0.0).answer == "sat"


def _unsafe(net: OnnxNetwork, region: Region, box: tuple[Tensor, Tensor], outwards: bool) -> list[Polytope]:
    """The polytopes of a region, none smaller, or none larger, than those of the true outputs of a box.

    The factors have folded constants. With K roundings in each product of them, the outputs of the true network are
    off by at most `K u / (1 - K u) P(X)` where `|x| <= X`, P the network with absolute values in the place of its
    weights. The slack of a network is more than that for its own number of roundings, and the conditions are moved by
    as much of it.
    """
    polytopes = region.unsafe(net.network.classes, outwards)
    if not net.polynomial.roundings:
        return polytopes
    slack = net.network.slack(torch.maximum(box[0].abs(), box[1].abs()).unsqueeze(0))[0]
    off = (slack * (net.polynomial.roundings / net.network.roundings)).clamp_max(_HUGE)
    moved = []
    for polytope in polytopes:
        reach = (polytope.weights.abs() @ off) * (1.01 if outwards else -1.01)
        constant = (polytope.constant - reach).clamp(-_HUGE, _HUGE)
        # Less is more: a smaller constant allows more outputs.
        away = torch.full_like(constant, -torch.inf if outwards else torch.inf)
        moved.append(Polytope(polytope.weights, torch.nextafter(constant, away)))
    return moved


def _replayed(net: OnnxNetwork, region: Region, point: Tensor) -> tuple[Tensor, Tensor, bool]:
    """A counterexample, its outputs, and whether onnxruntime, in the file's own precision, confirms it.

    Near the point that was found there may be another counterexample whose entries the file's precision holds.
    """
    candidates = [point]
    if net.polynomial.single:
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
    return candidates[0], net.network(candidates[0].unsqueeze(0))[0], False


def _float32(sides: tuple[Fraction, ...], up: bool) -> Tensor:
    """Numbers as float32, not below or not above what they are; beyond its range, its ends or infinity."""
    largest = Fraction(torch.finfo(torch.float32).max)
    cut = [min(max(side, -largest), largest) for side in sides]
    near = torch.tensor([float(side) for side in cut], dtype=torch.float64).float()
    other = torch.nextafter(near, torch.full_like(near, torch.inf if up else -torch.inf))
    pairs = zip(near.tolist(), sides, strict=True)
    wrong = [Fraction(value) < side if up else Fraction(value) > side for value, side in pairs]
    return torch.where(torch.tensor(wrong), other, near)
