"""What the tensors of a graph are: constants, or affine maps of the input or of one product. How they add and multiply.

The input is x, or `y_1` through its maps. Each product makes a new `y_n = A_n(x) * S_n(y_(n-1))`. Every other tensor
that depends on the input is an affine map of one of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from polybound.deploy.onnx.affine import Diagonal, Steps, divisor, folded, is_linear, same_steps
from polybound.deploy.onnx.rounding import met, product
from polybound.errors import PolyboundError
from polybound.models import Affine, Dense

__all__ = [
    "Constant",
    "Multiplication",
    "Polynomial",
    "Product",
    "Value",
    "absorbed",
    "add",
    "multiply",
    "scale",
    "shift",
]


_HIGHEST = 1000
"""A few nodes that square each other would make any degree."""


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that does not depend on the input.

    Attributes:
        tensor: its entries; floats in float64.
        sizes: whether they are sizes of a tensor that depends on the input: 0 then stands for the size of the batch.
        roundings: those that the entries have met, see `onnx_rounding`.
    """

    tensor: Tensor
    sizes: bool = False
    roundings: float = 0.0


@dataclass(frozen=True, eq=False)
class Product:
    """`A(x) * before`: one product of the chain.

    Attributes:
        A: the maps of the input.
        before: the other factor.
        node: the name of the node that it was found at.
        degree: its degree as a polynomial of the input.
    """

    A: Steps
    before: Value
    node: str
    degree: int


@dataclass(frozen=True, eq=False)
class Value:
    """An affine map of a product, or of the input.

    Attributes:
        base: the product; None for the input.
        steps: the maps, one after another, between flat vectors.
        shape: the tensor's shape without the batch, which is its first dimension.
        features: length of the input.
        roundings: those that a product of constants in it has met, at most; see `onnx_rounding`.
    """

    base: Product | None
    steps: Steps
    shape: tuple[int, ...]
    features: int
    roundings: float = 0.0

    @property
    def degree(self) -> int:
        """The degree as a polynomial of the input."""
        return 1 if self.base is None else self.base.degree

    @property
    def size(self) -> int:
        """How many numbers there are for one input."""
        return prod(self.shape)

    def then(self, step: Affine, shape: tuple[int, ...], roundings: float = 0.0) -> Value:
        """This value with one more map, whose numbers have met some roundings."""
        return replace(self, steps=(*self.steps, step), shape=shape, roundings=self.roundings + roundings)


def scale(value: Value, by: Tensor, roundings: float = 0.0) -> Value:
    """`by * value`, entry by entry; `by` is flat."""
    if bool((by == 1).all()) and not roundings:
        return value
    if value.steps and isinstance(last := value.steps[-1], Diagonal) and _is_scale(last):
        weight, more = product(last.weight, by)
        value = replace(value, steps=value.steps[:-1])
        return value.then(Diagonal(weight), value.shape, roundings + more)
    return value.then(Diagonal(by), value.shape, roundings)


def shift(value: Value, by: Tensor, roundings: float = 0.0) -> Value:
    """`value + by`; `by` is flat."""
    if not by.any() and not roundings:
        return value
    return value.then(Diagonal(torch.ones_like(by), by), value.shape, roundings)


def _is_scale(step: Affine) -> bool:
    return isinstance(step, Diagonal) and is_linear((step,))


def absorbed(value: Value) -> Value:
    """The same value, a scale right after its product taken into that product's map of the input: d (A B) = (d A) B."""
    while value.base is not None and value.steps and _is_scale(value.steps[0]):
        base = replace(value.base, A=(*value.base.A, value.steps[0]))
        value = replace(value, base=base, steps=value.steps[1:])
    return value


def multiply(one: Value, other: Value, node: str) -> Value:
    """The product of two values, entry by entry.

    Raises:
        PolyboundError: both are of degree two or more, and neither is a plain product of maps of the input.
    """
    if one.base is None and other.base is None and len(one.steps) > len(other.steps):
        one, other = other, one  # y_1 = V x, y_2 = (A x) * (S y_1 + b): the longer chain is of y_1
    if one.base is not None and other.base is None:
        one, other = other, one
    roundings = one.roundings + other.roundings
    if one.base is None:
        return Value(_product(one.steps, other, node), (), one.shape, one.features, roundings)
    if one.degree + other.degree > _HIGHEST:
        raise PolyboundError(f"it makes a polynomial of a degree above {_HIGHEST}")
    one, other = absorbed(one), absorbed(other)
    for value, rest in ((one, other), (other, one)):
        if (factors := _plain_factors(value)) is not None:
            for factor in factors:
                rest = Value(_product(factor, rest, node), (), value.shape, value.features, roundings)
            return rest
    raise PolyboundError(
        f"it multiplies polynomials of degree {one.degree} and {other.degree} with maps in between; in a CCP, NCP or"
        " ConvCCP one of two factors is an affine map of the input"
    )


def _product(A: Steps, before: Value, node: str) -> Product:
    """The product; a scale of the second factor is one of the first: A (d B) = (d A) B."""
    while before.steps and _is_scale(before.steps[-1]):
        A, before = (*A, before.steps[-1]), replace(before, steps=before.steps[:-1])
    return Product(A, before, node, before.degree + 1)


def _plain_factors(value: Value) -> list[Steps] | None:
    """The maps of the input that a value is the plain product of, entry by entry; None if it is none."""
    factors = []
    while value.base is not None:
        if value.steps:
            return None
        factors.append(value.base.A)
        value = value.base.before
    return [*factors, value.steps]


def add(one: Value, other: Value) -> Value:
    """The sum of two values.

    Raises:
        PolyboundError: it is no affine map of one product.
    """
    if one.base is other.base:
        return _same_base(one, other)
    high, low = (one, other) if one.degree > other.degree else (other, one)
    high = absorbed(high)
    for base in _ways(high):
        weight = _multiple(high, base, low)
        if weight is not None:
            grown = (*base.A, Diagonal(torch.ones_like(weight), weight))
            return replace(high, base=replace(base, A=grown), roundings=max(one.roundings, other.roundings))
    raise PolyboundError(
        f"it adds polynomials of degree {high.degree} and {low.degree}, and the sum is no product; only a step"
        " h * y + y, or with a multiple of y, is"
    )


def _same_base(one: Value, other: Value) -> Value:
    chains = one.steps, other.steps
    common: Steps = ()
    if all(chain and isinstance(chain[-1], Dense) for chain in chains) and same_steps(chains[0][:-1], chains[1][:-1]):
        common, chains = chains[0][:-1], (chains[0][-1:], chains[1][-1:])
    inputs = next((chain[0].inputs for chain in chains if chain), one.size)
    diagonal = all(isinstance(step, Diagonal) for step in (*chains[0], *chains[1]))
    write = _diagonal if diagonal else folded
    (W, b), (V, c) = (write(chain, inputs) for chain in chains)
    # The sums of the absolute values of all terms say what is lost where they cancel.
    (X, d), (Y, e) = (write(tuple(step.absolute() for step in chain), inputs) for chain in chains)
    before = max(one.roundings, other.roundings)
    own = sum(step.inputs + 2 for chain in chains for step in chain) + 1
    quantum = torch.tensor(min(divisor(chain) for chain in chains), dtype=torch.float64)
    lost = max(met(W + V, X + Y, quantum, before, own), met(b + c, d + e, quantum, before, own))
    total = Diagonal(W + V, b + c) if diagonal else Dense(W + V, b + c)
    return replace(one, steps=(*common, total), roundings=before + lost)


def _diagonal(steps: Steps, inputs: int) -> tuple[Tensor, Tensor]:
    """Scale and constant of a chain of scales and constants."""
    scale, constant = torch.ones(inputs, dtype=torch.float64), torch.zeros(inputs, dtype=torch.float64)
    for step in steps:
        scale, constant = step.linear(scale), step.linear(constant) + step.constant
    return scale, constant


def _ways(value: Value) -> Iterator[Product]:
    """The last product of a value, and the same with its factors changed about where both are maps of the input."""
    if value.base is None:
        return
    yield value.base
    before = value.base.before
    if before.base is None:
        yield _product(before.steps, replace(before, steps=value.base.A), value.base.node)


def _multiple(high: Value, base: Product, low: Value) -> Tensor | None:
    """d, if `low` is `d * before` taken through the maps after the product: `A before + d before = (A + d) before`."""
    before = base.before
    if low.base is not before.base or not is_linear(high.steps):
        return None
    if same_steps(low.steps, (*before.steps, *high.steps)):
        return torch.ones(before.size, dtype=torch.float64)
    rest = low.steps[len(before.steps) :]
    if not rest or not isinstance(rest[0], Diagonal) or not _is_scale(rest[0]):
        return None
    return rest[0].weight if same_steps(low.steps, (*before.steps, rest[0], *high.steps)) else None


# A polynomial network as a graph has it: products of affine maps, each a chain of steps.


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
