"""Affine maps one after another, as an ONNX graph has them: `Steps`, told apart, written out, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polybound.deploy.onnx_rounding import quantum
from polybound.errors import PolyboundError
from polybound.models import Affine, Chain, Conv, Dense, Identity, Pool
from polybound.theory import DENSE_LIMIT

__all__ = ["Diagonal", "Steps", "as_affine", "divisor", "folded", "is_linear", "same_steps", "written_out"]

Steps = tuple[Affine, ...]
"""Maps in the order in which they are applied; none for the identity."""


class Diagonal(Affine):
    """`x -> d * x + b`, entry by entry: weight (outputs,), bias (outputs,) or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.inputs = self.outputs = weight.shape[-1]
        self.lead = tuple(weight.shape[:-1])
        self.constant = torch.zeros_like(weight) if bias is None else bias

    def linear(self, x: Tensor) -> Tensor:
        return x * self.weight

    def adjoint(self, y: Tensor) -> Tensor:
        return y * self.weight

    def transform(self, change: Callable[[Tensor], Tensor]) -> Diagonal:
        return Diagonal(change(self.weight), change(self.constant))


def same_steps(one: Sequence[Affine], other: Sequence[Affine]) -> bool:
    """Whether two chains are the same maps with the same numbers."""
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _same(one: Affine, other: Affine) -> bool:
    if one is other:
        return True
    if type(one) is not type(other) or (one.inputs, one.outputs) != (other.inputs, other.outputs):
        return False
    if isinstance(one, Conv | Pool) and isinstance(other, Conv | Pool) and one.shape != other.shape:
        return False
    weights = [getattr(step, "weight", step.constant) for step in (one, other)]
    return torch.equal(*weights) and torch.equal(one.constant, other.constant)


def is_linear(steps: Sequence[Affine]) -> bool:
    """Whether every map of the chain is without a constant."""
    return not any(bool(step.constant.any()) for step in steps)


def written_out(linear: Callable[[Tensor], Tensor], inputs: int) -> Dense:
    """The matrix of a linear function of (batch, inputs), found by applying it to the unit vectors.

    Raises:
        PolyboundError: the matrix has too many entries to be written out.
    """
    outputs = linear(torch.zeros(1, inputs, dtype=torch.float64)).shape[1]
    if inputs * max(inputs, outputs) > DENSE_LIMIT:
        raise PolyboundError(f"a map from {inputs:,} to {outputs:,} numbers is too large to be written out")
    return Dense(linear(torch.eye(inputs, dtype=torch.float64)).T.contiguous())


def folded(steps: Sequence[Affine], inputs: int) -> tuple[Tensor, Tensor]:
    """One matrix and one constant for the whole chain, in float64."""
    if not steps:
        return torch.eye(inputs, dtype=torch.float64), torch.zeros(inputs, dtype=torch.float64)
    if isinstance(steps[0], Dense) and all(isinstance(step, Diagonal) for step in steps[1:]):
        weight, constant = steps[0].weight, steps[0].constant
        for step in steps[1:]:
            scale = step.linear(torch.ones(step.inputs, dtype=torch.float64))
            weight, constant = weight * scale.unsqueeze(1), constant * scale + step.constant
        return weight, constant
    chain = as_affine(steps, inputs)
    if chain.outputs <= inputs and inputs * chain.outputs <= DENSE_LIMIT:
        return chain.adjoint(torch.eye(chain.outputs, dtype=torch.float64)), chain.constant
    return written_out(chain.linear, inputs).weight, chain.constant


def divisor(steps: Sequence[Affine]) -> float:
    """A power of two that divides all entries of the matrix and the constant of a chain, and all terms of them."""
    found = 1.0
    for step in steps:
        if isinstance(step, Pool):
            found /= 2**step.dims
        elif isinstance(step, Dense | Diagonal | Conv):
            found *= min(1.0, float(quantum(step.weight).amin()), float(quantum(step.constant).amin()))
        elif not isinstance(step, Identity):
            return 0.0
    return found


def as_affine(steps: Sequence[Affine], inputs: int) -> Affine:
    """The chain as one affine map, nothing of it computed yet."""
    if not steps:
        return Identity(inputs, (), torch.zeros(1, dtype=torch.float64))
    return steps[0] if len(steps) == 1 else Chain(steps)
