"""Affine arithmetic of the check: where the values of a graph lie, as linear functions of what they depend on.

A value is `c + G u + e`, `|u_j| <= 1`, `|e| <= slack`, with c and G the float64 numbers that were computed: whatever
rounding did to them is in the slack. The generators u are those of the input, of l_2 norm 1 together for a ball, and
one for each entry of each product's remainder. Names of generators are 0, the input, and the products' numbers from 1.
`bounds.zonotopes` does the same for the search, with maps that are kept for later; nothing of it is used here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from polybound.certificates.proofs.midrad import LEAST, MORE, MidRad, U, length, linear, off, parts_of, up_sum
from polybound.models import Affine, Scale

_ROWS = 512
"""Generators of one entry each that are written out at a time."""


@dataclass(frozen=True, eq=False)
class Diagonal:
    """Generators of one entry each: generator k moves entry `index[k]` by `values[k]`."""

    index: Tensor
    values: Tensor

    def written(self, size: int, some: slice = slice(None)) -> Tensor:
        """Some of them as vectors, (generators, size)."""
        index = self.index[some]
        whole = self.values.new_zeros(len(index), size)
        whole[torch.arange(len(index)), index] = self.values[some]
        return whole


Block = Tensor | Diagonal


@dataclass(frozen=True, eq=False)
class Zonotope:
    """Values `centre + sum of generators + e`, one input's, (1, size) each.

    Attributes:
        centre: c.
        blocks: generators by name, (generators, size) each.
        slack: of e.
        reach: how far the generators together move each entry at most.
        total: the sum of their absolute values.
    """

    centre: Tensor
    blocks: dict[int, Block]
    slack: Tensor
    reach: Tensor
    total: Tensor

    @property
    def largest(self) -> Tensor:
        """At least the absolute values."""
        return (self.centre.abs() + self.reach + self.slack) * MORE

    def written(self, name: int, count: int) -> Tensor:
        """The generators of a name, (count, size); zeros where it is not used."""
        block, size = self.blocks.get(name), self.centre.shape[1]
        if block is None:
            return torch.zeros(count, size, dtype=torch.float64)
        return block.written(size) if isinstance(block, Diagonal) else block


@dataclass(frozen=True, eq=False)
class Factors:
    """A product `a b`, with `(A u)(B u)` within `radius` of `middle`; entries of `index` have a generator for that."""

    left: Zonotope
    right: Zonotope
    middle: Tensor
    radius: Tensor
    index: Tensor

    @property
    def loose(self) -> Tensor:
        """How far the slacks move `(a - c_a)(b - c_b)` at most."""
        s, t = self.left.slack, self.right.slack
        return (s * (self.right.reach + t) + t * self.left.reach) * MORE + LEAST

    @property
    def weights(self) -> Tensor:
        """The w of each entry that polarises the product: any positive number is sound."""
        return _weights(self.left, self.right)


@dataclass(eq=False)
class Zonotopes:
    """The algebra.

    Attributes:
        ball: whether the input's generators have l_2 norm 1 together.
        most: how many generators there may be; of a product's remainders, the smallest become slack.
        index: of each name, the entries that have a generator.
        factors: of each product that was walked over.
    """

    ball: bool
    most: int
    index: list[Tensor]
    factors: list[Factors]

    def input(self, centre: Tensor, radius: Tensor) -> Zonotope:
        """`centre + radius * u`."""
        index = _some((radius[0] > 0).nonzero().squeeze(1))
        self.index.append(index)
        return self._made(MidRad.exact(centre), {0: Diagonal(index, radius[0, index])})

    def affine(self, step: Affine, value: Zonotope) -> Zonotope:
        """`W c + b`, `W G`, `|W| slack`, one map after another."""
        maps, shift = parts_of(step)
        for part in maps:
            # All generators together are rounded by at most `gamma |W| total`.
            centre = MidRad(value.centre, (value.slack + off(part.terms) * value.total) * MORE + LEAST)
            blocks = {name: _moved(part, block) for name, block in value.blocks.items()}
            value = self._made(linear(part, centre) + part.constant, blocks)
        return self._made(MidRad(value.centre, value.slack) + shift, value.blocks) if shift else value

    def sum(self, values: Sequence[Zonotope]) -> Zonotope:
        """Centres, slacks and generators of one name are added."""
        share = len(values) * U
        centre = reduce(MidRad.__add__, [MidRad(v.centre, v.slack).looser(share * v.total) for v in values])
        names = sorted({name for value in values for name in value.blocks})
        return self._made(centre, {name: reduce(_plus, _alike(values, name)) for name in names})

    def product(self, left: Zonotope, right: Zonotope) -> Zonotope:
        """`c_a c_b + middle`, `c_a B + c_b A`, and a new generator for each remainder `(A u)(B u) - middle`."""
        a, b = left.centre, right.centre
        whole = (left.reach * right.reach) * MORE + LEAST
        high, low = whole, torch.zeros_like(whole)
        if left is right:
            blocks = {name: _scaled(block, 2 * a) for name, block in left.blocks.items()}
        else:
            blocks = {}
            # With p, q = w A +- B it lies between -|q|^2 / 4w and |p|^2 / 4w, for any positive w.
            w = _weights(left, right)
            plus = minus = torch.zeros_like(w)
            for name in sorted({*left.blocks, *right.blocks}):
                A, B = _alike([left, right], name, missing=True)
                plus = plus + self._norm(name, _plus(_scaled(A, w), B), w)
                minus = minus + self._norm(name, _plus(_scaled(A, w), _scaled(B, -torch.ones_like(w))), w)
                blocks[name] = _plus(_scaled(A, b), _scaled(B, a))
            rounded = 4 * U * (w * left.total + right.total) + LEAST
            high, low = (
                torch.minimum(((norm * MORE + rounded).square() / (4 * w)) * MORE + LEAST, whole)
                for norm in (plus, minus)
            )
        middle, radius = (high - low) / 2, (high + low) / 2 * MORE + LEAST
        slack = left.slack * (b.abs() + right.reach + right.slack) + right.slack * (a.abs() + left.reach)
        # The new centre and generators are rounded.
        slack = slack + 4 * U * (a.abs() * right.total + b.abs() * left.total)
        centre = (MidRad.exact(a) * b + middle).looser(slack * MORE + LEAST)
        index = _some((radius[0] > 4 * LEAST).nonzero().squeeze(1))
        room = max(1, self.most - sum(map(len, self.index)))
        if len(index) > room:
            index = radius[0].topk(room).indices.sort().values
        centre = centre.looser(radius.index_fill(1, index, 0.0))
        self.index.append(index)
        self.factors.append(Factors(left, right, middle, radius, index))
        blocks[len(self.factors)] = Diagonal(index, radius[0, index])
        return self._made(centre, blocks)

    def _norm(self, name: int, block: Block, like: Tensor) -> Tensor:
        """How far some generators move each entry at most, (1, size)."""
        if isinstance(block, Diagonal):
            return torch.zeros_like(like).index_copy_(1, block.index, block.values.abs().unsqueeze(0))
        return (length(block, 0) if self.ball and name == 0 else up_sum(block.abs(), 0)).unsqueeze(0)

    def _made(self, centre: MidRad, blocks: dict[int, Block]) -> Zonotope:
        reach = torch.zeros_like(centre.mid)
        total = torch.zeros_like(reach)
        for name, block in blocks.items():
            norm = self._norm(name, block, reach)
            reach = reach + norm
            dense = self.ball and name == 0 and isinstance(block, Tensor)
            total = total + (up_sum(block.abs(), 0).unsqueeze(0) if dense else norm)  # type: ignore[union-attr]
        found = Zonotope(centre.mid, blocks, centre.rad, reach * MORE + LEAST, total * MORE + LEAST)
        MidRad(found.centre, found.total)  # refused where something is not finite
        return found


def _some(index: Tensor) -> Tensor:
    """One entry where there is none, so that nothing is empty."""
    return index if len(index) else torch.zeros(1, dtype=torch.long)


def _weights(left: Zonotope, right: Zonotope) -> Tensor:
    return ((right.reach + LEAST) / (left.reach + LEAST)).sqrt().clamp(2.0**-300, 2.0**300)


def _moved(part: Affine, block: Block) -> Block:
    if isinstance(block, Tensor):
        return part.linear(block)
    if isinstance(part, Scale):
        return Diagonal(block.index, block.values * part.weight[block.index])
    count = len(block.index)
    slices = (slice(start, start + _ROWS) for start in range(0, max(1, count), _ROWS))
    return torch.cat([part.linear(block.written(part.inputs, some)) for some in slices])


def _scaled(block: Block, factor: Tensor) -> Block:
    """Each entry times a factor, (1, size)."""
    if isinstance(block, Diagonal):
        return Diagonal(block.index, block.values * factor[0, block.index])
    return block * factor


def _plus(one: Block, other: Block) -> Block:
    if isinstance(one, Diagonal) and isinstance(other, Diagonal):
        return Diagonal(one.index, one.values + other.values)
    return one + other  # type: ignore[operator]  # both are written out


def _alike(values: Sequence[Zonotope], name: int, missing: bool = False) -> list[Block]:
    """The blocks of a name, all diagonal or all written out; with `missing`, zeros where there is none."""
    given = [value.blocks.get(name) for value in values]
    found = [block for block in given if block is not None]
    diagonal = [block for block in found if isinstance(block, Diagonal)]
    if len(diagonal) == len(found):
        zeros = Diagonal(diagonal[0].index, torch.zeros_like(diagonal[0].values))
        return [zeros if block is None else block for block in given] if missing else found
    count = next(len(block) for block in found if isinstance(block, Tensor))
    return [value.written(name, count) for value in (values if missing else [v for v in values if name in v.blocks])]
