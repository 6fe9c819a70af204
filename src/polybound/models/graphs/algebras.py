"""The algebras that need nothing but the graph: numbers, intervals, fractions.

Each says what an affine map, a sum and a product do to its values; `Graph.evaluate` walks. Values are batches of flat
vectors unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import prod

import torch
from torch import Tensor

from polybound.models.affine import Affine
from polybound.models.graphs.maps import AveragePool


class Numbers:
    """f(x): values are tensors (batch, size)."""

    def affine(self, step: Affine, value: Tensor) -> Tensor:
        """`W x + b`."""
        return step(value)

    def sum(self, values: Sequence[Tensor]) -> Tensor:
        """The sum."""
        return reduce(torch.add, values)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """The product, entry by entry."""
        return left * right


@dataclass(frozen=True, eq=False)
class Bounded:
    """Vectors between a lower and an upper end, (batch, size) each."""

    lower: Tensor
    upper: Tensor

    @property
    def middle(self) -> Tensor:
        """Halfway between the ends."""
        return (self.lower + self.upper) / 2

    @property
    def radius(self) -> Tensor:
        """Half of the width."""
        return (self.upper - self.lower) / 2

    @property
    def size(self) -> Tensor:
        """The largest absolute values."""
        return torch.maximum(self.lower.abs(), self.upper.abs())


@dataclass(frozen=True)
class Intervals:
    """Where values lie when the inputs lie in boxes, unit by unit.

    An affine map takes the middle c and the radius r to `W c + b` and `|W| r`; a product lies between the least and
    the largest product of ends, a square above zero.

    Attributes:
        outward: whether every step is rounded outwards, so that the real numbers are inside whatever the rounding.
            What trains a network by its intervals has no need of it, and differentiates.
    """

    outward: bool = True

    def affine(self, step: Affine, value: Bounded) -> Bounded:
        r"""`W c + b -+ |W| r`.

        Rounded outwards: `W c + b` is a sum of products with up to `terms` roundings each, so it is off by at most
        `gamma_terms (|W| |c| + |b|)`, and so is `|W| r`; what underflows is less than the least normal number times
        what multiplies it afterwards. c itself is rounded, which r covers. A map that was written out adds its `off`.
        """
        absolute = step.absolute()
        if not self.outward:
            middle, radius = step(value.middle), absolute.linear(value.radius)
            return Bounded(middle - radius, middle + radius)
        off: Tensor | float = 0.0
        if step.off is not None:
            off = value.size.amax(-1, keepdim=True) * step.off[0] + step.off[1]
        return _image(step, value, step, absolute.linear, absolute.constant, off)

    def back(self, step: Affine, value: Bounded) -> Bounded:
        """`y W` for rows y between the ends, (..., outputs), rounded outwards."""
        rows = Bounded(value.lower.flatten(0, -2), value.upper.flatten(0, -2))
        off = 0.0 if step.off is None else rows.size @ step.off[0].unsqueeze(-1)
        found = _image(step, rows, step.adjoint, step.absolute().adjoint, 0.0, off)
        shape = *value.lower.shape[:-1], step.inputs
        return Bounded(found.lower.reshape(shape), found.upper.reshape(shape))

    def sum(self, values: Sequence[Bounded]) -> Bounded:
        """Sums of the ends."""
        if not self.outward:
            return Bounded(reduce(torch.add, [v.lower for v in values]), reduce(torch.add, [v.upper for v in values]))
        lower = reduce(lambda a, b: _down(a + b), [v.lower for v in values])
        return _safe(lower, reduce(lambda a, b: _up(a + b), [v.upper for v in values]))

    def product(self, left: Bounded, right: Bounded) -> Bounded:
        """The least and the largest product of two ends; of a square from 0 on where the ends differ in sign."""
        if left is right:
            one, other = left.lower.square(), left.upper.square()
            lower, upper = torch.minimum(one, other), torch.maximum(one, other)
            lower = torch.where((left.lower < 0) & (left.upper > 0), torch.zeros_like(lower), lower)
            lower = _down(lower).clamp_min(0.0) if self.outward else lower
        else:
            ends = [a * b for a in (left.lower, left.upper) for b in (right.lower, right.upper)]
            lower, upper = reduce(torch.minimum, ends), reduce(torch.maximum, ends)
            lower = _down(lower) if self.outward else lower
        return _safe(lower, _up(upper)) if self.outward else Bounded(lower, upper)


def _image(
    step: Affine,
    value: Bounded,
    linear: Callable[[Tensor], Tensor],
    absolute: Callable[[Tensor], Tensor],
    constant: Tensor | float,
    off: Tensor | float,
) -> Bounded:
    """Where a map takes an interval, given by what it does to points and to absolute values, rounded outwards."""
    info = torch.finfo(value.lower.dtype)
    middle = torch.nan_to_num(value.middle, nan=0.0, posinf=info.max, neginf=info.min)
    # Upwards, from the rounded middle to both ends; differences of floats are rounded to the nearest.
    radius = _up(torch.maximum(value.upper - middle, middle - value.lower))
    moved, size = torch.split(absolute(torch.cat([radius, middle.abs()], -2)), radius.shape[-2], -2)
    centre = linear(middle)
    share = 2 * (step.terms + 8) * info.eps
    tiny = (max(step.inputs, step.outputs) + 1) * (step.terms + 8) * info.smallest_normal
    grown = absolute(torch.full_like(middle[..., :1, :], 1.0)) + 1.0
    lost = share * (size + moved + constant) + off + tiny * grown
    reach = _up(_up(moved) + _up(lost))
    return _safe(_down(centre - reach), _up(centre + reach))


def _up(values: Tensor) -> Tensor:
    return torch.nextafter(values, torch.full_like(values, torch.inf))


def _down(values: Tensor) -> Tensor:
    return torch.nextafter(values, torch.full_like(values, -torch.inf))


def _safe(lower: Tensor, upper: Tensor) -> Bounded:
    """Ends in which nothing is known where something overflowed: -inf and inf in the place of NaN."""
    return Bounded(
        lower.nan_to_num(-torch.inf, torch.inf, -torch.inf), upper.nan_to_num(torch.inf, torch.inf, -torch.inf)
    )


class Fractions:
    """f(x) exactly: values are lists of fractions, for networks whose maps are small enough to be written out."""

    def affine(self, step: Affine, value: list[Fraction]) -> list[Fraction]:
        """`W x + b`, for the real numbers that the maps' weights are; a chain step by step."""
        for part in getattr(step, "maps", (step,)):
            # The matrix of a single map holds its weights as they are, but for poolings, whose shares are 1 / size.
            size = prod(part.size) if isinstance(part, AveragePool) else 1
            rows = (part.matrix().double() * size).tolist()
            constants = part.constant.double().tolist()
            if size > 1:
                rows = [[round(w) for w in row] for row in rows]
            value = [
                sum((Fraction(w) * v for w, v in zip(row, value, strict=True) if w), Fraction(b)) / size
                for row, b in zip(rows, constants, strict=True)
            ]
        return [v + Fraction(getattr(step, "shift", 0.0)) for v in value]

    def sum(self, values: Sequence[list[Fraction]]) -> list[Fraction]:
        """The sum."""
        return [sum(parts, Fraction(0)) for parts in zip(*values, strict=True)]

    def product(self, left: list[Fraction], right: list[Fraction]) -> list[Fraction]:
        """The product."""
        return [a * b for a, b in zip(left, right, strict=True)]
