"""A polynomial network as a graph has it: products of affine maps, each a chain of steps."""

from __future__ import annotations

from dataclasses import dataclass

from polybound.deploy.onnx_maps import Steps

__all__ = ["Multiplication", "Polynomial"]


@dataclass(frozen=True, eq=False)
class Multiplication:
    """`y_n = A(x) * S(y_(n-1))`, and the name of the node that multiplies."""

    A: Steps
    S: Steps
    node: str


@dataclass(frozen=True, eq=False)
class Polynomial:
    """`y_1 = first(x)`, a product for each of `steps`, and `f = last(y_k)`.

    Attributes:
        features: length of the input.
        first: the maps of the input that make `y_1`.
        steps: the products; the first of them has no maps in between, because they are part of `first`.
        last: the maps of the output; none without a product, because they are part of `first`.
        single: whether the graph computes in float32.
        roundings: those that a product of folded constants has met, see `onnx_rounding`; 0 if all are exact.
    """

    features: int
    first: Steps
    steps: tuple[Multiplication, ...]
    last: Steps
    single: bool
    roundings: float = 0.0
