"""A graph as one chain of products, if it is one: an algebra whose values are maps of the input or of a product.

    y_1 = A_1(x),    y_n = A_n(x) * S_n(y_(n-1)),    f = C(y_k)

Every value of a chain is an affine map of x or of some y_n. Products of the form `(A x) * (S y)` make a new y; products
of products without maps in between are put in one line, `(a b)(c d) = a (b (c d))`; a step `A(x) y + d y` is a product
with `A(x) + d`; scales move from a product to its map of the input. Nothing is computed but what floats hold exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor

from polybound.models.affine import Affine, Chain, Dense, Identity
from polybound.models.factors import Factors
from polybound.models.graphs.maps import Scale, Select, key

_HIGHEST = 1000
"""The highest degree of a chain: a few squares in a row reach any."""

Maps = tuple[Affine, ...]


class NoChainError(Exception):
    """The graph is no chain of products."""


@dataclass(frozen=True, eq=False)
class _Product:
    """`A(x) * before`."""

    A: Maps
    before: Link


@dataclass(frozen=True, eq=False)
class Link:
    """Maps of the input, where `base` is None, or of a product.

    Attributes:
        base: the product.
        maps: one after another.
        degree: as a polynomial of the input.
        place: the place in the order in which values were made.
    """

    base: _Product | None
    maps: Maps
    degree: int
    place: int


class Chains:
    """What affine maps, sums and products do to links; `NoChainError` where no link has the value.

    Args:
        zero: a vector of zeros like the input's.
    """

    def __init__(self, zero: Tensor) -> None:
        self.zero, self.places = zero, count(1)

    def affine(self, step: Affine, value: Link) -> Link:
        """One more map; two scales become one where floats hold it."""
        maps = value.maps
        for part in _opened(step):
            last = maps[-1] if maps else part
            if isinstance(last, Scale) and last is not part and isinstance(part, Scale) and _is_scale(last):
                product = _exact_product(last.weight, part.weight)
                if product is not None:
                    maps, part = maps[:-1], Scale(product, part.bias)
            maps = (*maps, part)
        return self._made(value.base, maps, value.degree)

    def product(self, left: Link, right: Link) -> Link:
        """`A(x) * before`: one factor must be a map of the input, or a plain product of such maps."""
        if left.degree + right.degree > _HIGHEST:
            raise NoChainError
        if left.base is None and right.base is None:
            # y_1 = V x, y_2 = (A x) * (S y_1 + b): the longer chain of maps is of y_1; of equal ones the earlier.
            left, right = sorted((left, right), key=lambda value: (len(value.maps), -value.place))
        elif right.base is None:
            left, right = right, left
        if left.base is None:
            return self._times(left.maps, right)
        left, right = _absorbed(left), _absorbed(right)
        for plain, rest in ((left, right), (right, left)):
            factors: list[Maps] = []
            inner = plain
            while inner.base is not None and not inner.maps:
                factors.append(inner.base.A)
                inner = inner.base.before
            if inner.base is None:
                for maps in (*factors, inner.maps):
                    rest = self._times(maps, rest)
                return rest
        raise NoChainError

    def sum(self, values: Sequence[Link]) -> Link:
        """Sums of maps of one product, and residual steps."""
        total = values[0]
        for value in values[1:]:
            total = self._plus(total, value)
        return total

    def _made(self, base: _Product | None, maps: Maps, degree: int) -> Link:
        return Link(base, maps, degree, next(self.places))

    def _times(self, A: Maps, before: Link) -> Link:
        while before.base is not None and before.maps and _is_scale(before.maps[-1]):  # A (d B) = (d A) B
            A, before = (*A, before.maps[-1]), replace(before, maps=before.maps[:-1])
        return self._made(_Product(A, before), (), before.degree + 1)

    def _plus(self, one: Link, other: Link) -> Link:
        if one.base is other.base:
            return self._made(one.base, _added(one.maps, other.maps), max(one.degree, other.degree))
        high, low = (one, other) if one.degree > other.degree else (other, one)
        high = _absorbed(high)
        if high.base is None or not all(_is_linear(step) for step in high.maps):
            raise NoChainError
        before = high.base.before
        ways = [high.base]
        if before.base is None:  # both factors are maps of the input
            ways.append(_Product(before.maps, replace(before, maps=high.base.A)))
        for A, before in ((way.A, way.before) for way in ways):
            if low.base is not before.base:
                continue
            # `A before + d before = (A + d) before`, where `low` is `d before` through the maps after the product.
            rest = low.maps[len(before.maps) :]
            for scale in ((), rest[:1]):
                if _same(low.maps, (*before.maps, *scale, *high.maps)) and all(map(_is_scale, scale)):
                    like = A[-1].constant if A else self.zero
                    shift = scale[0].weight if scale else torch.ones_like(like)  # type: ignore[attr-defined]
                    step = Scale(torch.ones_like(shift), shift)
                    return self._made(_Product((*A, step), before), high.maps, high.degree)
        raise NoChainError


def chain_of(value: Link, zero: Tensor) -> Factors:
    """The factors of the output's link.

    Args:
        value: the output.
        zero: a vector of zeros like the input's.
    """
    C, base, features = value.maps, value.base, len(zero)
    A: list[Affine] = []
    S: list[Affine] = []
    if base is None:  # of degree one
        A.append(_whole(C, features, zero))
        C = ()
    while base is not None:
        A.append(_whole(base.A, features, zero))
        before = _absorbed(base.before)
        if before.base is None:
            A.append(_whole(before.maps, features, zero))
            S.append(Identity(A[-1].outputs, (), A[-1].constant))
        else:
            S.append(_whole(before.maps, A[-1].outputs, A[-1].constant))
        base = before.base
    kind: Literal["CCP", "NCP"] = "CCP" if all(isinstance(step, Identity) for step in S) else "NCP"
    ones = torch.ones_like(A[-1].constant)
    last = _whole(C, A[0].outputs, A[0].constant)
    return Factors(kind, tuple(reversed(A)), tuple(reversed(S)), ones, last, constant=True)


def _opened(step: Affine) -> Maps:
    if isinstance(step, Identity):
        return ()
    if isinstance(step, Chain) and step.shift == 0.0:
        return tuple(part for inner in step.maps for part in _opened(inner))
    return (step,)


def _whole(maps: Maps, size: int, like: Tensor) -> Affine:
    """Maps one after another as one; a shift by one number is that of a chain, as convolutional factors have it."""
    if not maps:
        return Identity(size, (), like)
    *others, last = maps
    if isinstance(last, Scale) and not bool((last.weight != 1).any()) and others:
        first = float(last.bias[0])
        if isinstance(others[0], Dense) and len(others) == 1 and not bool(others[0].constant.any()):
            return Dense(others[0].weight, last.bias, others[0].off)
        if bool((last.bias == first).all()) and not last.bias.requires_grad:
            return Chain(others, first)
    return maps[0] if len(maps) == 1 else Chain(maps)


def _is_linear(step: Affine) -> bool:
    return not step.constant.requires_grad and not bool(step.constant.any())


def _is_scale(step: Affine) -> bool:
    return isinstance(step, Scale) and _is_linear(step)


def _absorbed(value: Link) -> Link:
    """The same value, scales right after its product moved to that product's map of the input: d (A B) = (d A) B."""
    while value.base is not None and value.maps and _is_scale(value.maps[0]):
        base = _Product((*value.base.A, value.maps[0]), value.base.before)
        value = replace(value, base=base, maps=value.maps[1:])
    return value


def _same(one: Maps, other: Maps) -> bool:
    return len(one) == len(other) and all(a is b or key(a) == key(b) for a, b in zip(one, other, strict=True))


def _added(one: Maps, other: Maps) -> Maps:
    """The sum of two chains of maps of one vector: their common maps, and then two matrices or two scales."""
    shared = 0
    while shared < min(len(one), len(other)) and _same(one[shared : shared + 1], other[shared : shared + 1]):
        shared += 1
    common, rests = one[:shared], [_simple(maps) for maps in (one[shared:], other[shared:])]
    sizes = {maps[-1].outputs for maps in (one, other) if maps}
    if all(weight.ndim <= 1 for weight, _ in rests) and sizes:
        like = next(maps for maps in (one, other) if maps)[-1].constant  # the 1 of no map is in float64
        (v, b), (w, c) = ((part.to(like).expand(max(sizes)) for part in rest) for rest in rests)
        if (weight := _exact_sum(v, w)) is not None and (bias := _exact_sum(b, c)) is not None:
            return (*common, Scale(weight, bias))
    if all(weight.ndim == 2 for weight, _ in rests):
        (V, b), (W, c) = rests
        if (weight := _exact_sum(V, W)) is not None and (bias := _exact_sum(b, c)) is not None:
            return (*common, Dense(weight, bias))
        # [V W] of the vector and a copy of itself.
        twice = Select(torch.arange(V.shape[1]).repeat(2), V.shape[1], b.new_zeros(()))
        return (*common, twice, Dense(torch.cat([V, W], 1), b), Scale(torch.ones_like(c), c))
    raise NoChainError


def _simple(maps: Maps) -> tuple[Tensor, Tensor]:
    """A matrix, or the entries of a scale, and a constant; of at most one matrix and scales by powers of two."""
    weight, bias = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for step in maps:
        if isinstance(step, Dense) and step is maps[0] and step.off is None:
            weight, bias = step.weight, step.constant
        elif isinstance(step, Scale) and (step is maps[0] or _is_linear(step)):
            scaled = _exact_product(weight, step.weight.unsqueeze(1) if weight.ndim == 2 else step.weight)
            constant = _exact_product(bias, step.weight)
            if scaled is None or constant is None:
                raise NoChainError
            weight, bias = scaled, constant + step.constant  # one of the two is zero
        else:
            raise NoChainError
    if weight.requires_grad or bias.requires_grad:
        raise NoChainError
    return weight, bias


def _exact_product(one: Tensor, other: Tensor) -> Tensor | None:
    """The product if one of the two are powers of two, or zero, and nothing under- or overflows."""
    if one.requires_grad or other.requires_grad:
        return None
    product = one * other
    for powers, values in ((one, other), (other, one)):
        mantissa, _ = torch.frexp(powers)
        back = torch.where(powers == 0, values, product / powers)
        if bool(((mantissa.abs() == 0.5) | (powers == 0)).all()) and bool((back == values).all()):
            return product
    return None


def _exact_sum(one: Tensor, other: Tensor) -> Tensor | None:
    """The sum if floats hold it: the error of a sum of two floats is a float, and is computed without error."""
    total = one + other
    part = total - one
    error: Any = (one - (total - part)) + (other - part)
    return None if bool((error != 0).any()) else total
