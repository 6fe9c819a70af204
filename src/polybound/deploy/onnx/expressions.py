"""Tensors that depend on the input: affine maps of the input or of one product. How they add and multiply.

The input is x, or `y_1` through its maps. Each product makes a new `y_n = A_n(x) * S_n(y_(n-1))`. Every other tensor
that depends on the input is an affine map of one of these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from polybound.deploy.onnx.affine import Diagonal, Steps, divisor, folded, is_linear, same_steps
from polybound.deploy.onnx.constants import met, product
from polybound.errors import PolyboundError
from polybound.models import Affine, Dense

_HIGHEST = 1000
"""The highest degree that is read: a few nodes in a row, each squaring, reach any degree."""


@dataclass(frozen=True, eq=False)
class Product:
    """`A(x) * before`: one product of the chain.

    Attributes:
        A: the maps of the input.
        before: the other factor.
        node: the name of the node that multiplies.
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
        roundings: the number that a product of constants in it has met, at most; see `constants`.
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
        # The maps of the input that the value is the plain product of, if it is.
        factors: list[Steps] = []
        inner = value
        while inner.base is not None and not inner.steps:
            factors.append(inner.base.A)
            inner = inner.base.before
        if inner.base is None:
            for factor in (*factors, inner.steps):
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


def add(one: Value, other: Value) -> Value:
    """The sum of two values.

    Raises:
        PolyboundError: the sum is not an affine map of one product.
    """
    if one.base is other.base:
        return _same_base(one, other)
    high, low = (one, other) if one.degree > other.degree else (other, one)
    high = absorbed(high)
    # The last product, and the same with its factors exchanged where both are maps of the input.
    ways = [] if high.base is None else [high.base]
    if high.base is not None and high.base.before.base is None:
        before = high.base.before
        ways.append(_product(before.steps, replace(before, steps=high.base.A), high.base.node))
    for base in ways if is_linear(high.steps) else ():
        before = base.before
        if low.base is not before.base:
            continue
        # `A before + d before = (A + d) before`, where `low` is `d before` taken through the maps after the product.
        weight, rest = None, low.steps[len(before.steps) :]
        if same_steps(low.steps, (*before.steps, *high.steps)):
            weight = torch.ones(before.size, dtype=torch.float64)
        elif rest and isinstance(step := rest[0], Diagonal) and is_linear((step,)):
            weight = step.weight if same_steps(low.steps, (*before.steps, step, *high.steps)) else None
        if weight is not None:
            grown = (*base.A, Diagonal(torch.ones_like(weight), weight))
            return replace(high, base=replace(base, A=grown), roundings=max(one.roundings, other.roundings))
    raise PolyboundError(
        f"it adds polynomials of degree {high.degree} and {low.degree}, and the sum is not a product; only a step"
        " h * y + y, or with a multiple of y, is"
    )


def _same_base(one: Value, other: Value) -> Value:
    """The sum of two values that are maps of the same product, or of the input."""
    chains = one.steps, other.steps
    common: Steps = ()
    if all(chain and isinstance(chain[-1], Dense) for chain in chains) and same_steps(chains[0][:-1], chains[1][:-1]):
        common, chains = chains[0][:-1], (chains[0][-1:], chains[1][-1:])
    inputs = next((chain[0].inputs for chain in chains if chain), one.size)
    diagonal = all(isinstance(step, Diagonal) for step in (*chains[0], *chains[1]))

    def write(steps: Steps) -> tuple[Tensor, Tensor]:
        if not diagonal:
            return folded(steps, inputs)
        scale, constant = torch.ones(inputs, dtype=torch.float64), torch.zeros(inputs, dtype=torch.float64)
        for step in steps:
            scale, constant = step.linear(scale), step.linear(constant) + step.constant
        return scale, constant

    (W, b), (V, c) = (write(chain) for chain in chains)
    # The sums of the absolute values of all terms say what is lost where they cancel.
    (X, d), (Y, e) = (write(tuple(step.absolute() for step in chain)) for chain in chains)
    before = max(one.roundings, other.roundings)
    own = sum(step.inputs + 2 for chain in chains for step in chain) + 1
    quantum = torch.tensor(min(divisor(chain) for chain in chains), dtype=torch.float64)
    lost = max(met(W + V, X + Y, quantum, before, own), met(b + c, d + e, quantum, before, own))
    total = Diagonal(W + V, b + c) if diagonal else Dense(W + V, b + c)
    return replace(one, steps=(*common, total), roundings=before + lost)


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
        roundings: the number that a product of folded constants has met, see `constants`; 0 if all are exact.
    """

    features: int
    first: Steps
    steps: tuple[Multiplication, ...]
    last: Steps
    single: bool
    roundings: float = 0.0

    @staticmethod
    def of(value: Value, single: bool) -> Polynomial:
        """The chain of products that a value is."""
        steps: list[Multiplication] = []
        last, base = value.steps, value.base
        while base is not None:
            before = absorbed(base.before)
            steps.append(Multiplication(base.A, before.steps if before.base is not None else (), base.node))
            if before.base is None:
                return Polynomial(value.features, before.steps, tuple(reversed(steps)), last, single, value.roundings)
            base = before.base
        return Polynomial(value.features, last, (), (), single, value.roundings)
