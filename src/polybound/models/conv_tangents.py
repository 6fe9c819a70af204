"""How the products of `conv_tape` change as the images move, and the way back through both.

With directions r of the images, the factors change by `g_n = W_n^T V(r)`, without their constants, and the products by

    t_1 = g_1,   t_n = t_(n-1) h_n + y_(n-1) g_n

pooled where y is. For a loss of y_k and t_k, whose gradients are b and a, the gradients by the factors and by their
changes, one factor after another from the last:

    dh_n = a_n t_(n-1) + b_n y_(n-1),   dg_n = a_n y_(n-1),   a_(n-1) = a_n h_n,   b_(n-1) = a_n g_n + b_n h_n
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from polybound.models.conv_tape import Block, Operation, Tape, spread

__all__ = ["Tangents"]


@dataclass
class _Pair:
    """The same rows of the factors and of their changes, and what is to be done with both."""

    still: Block
    moving: Block
    forward: list[Operation] = field(default_factory=list)
    backward: list[Operation] = field(default_factory=list)
    copies: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class Tangents:
    """Two tapes, of factors and products, and of their changes, with the operations that join them.

    Args:
        still: the tape of the images.
        moving: another one: its factors will be the g_n, its products the t_n, its slopes the a_n.
    """

    def __init__(self, still: Tape, moving: Tape) -> None:
        self.still, self.moving = still, moving
        self._pairs = [self._level(number) for number in range(len(still.blocks))]

    def forward(self, number: int, place: int) -> None:
        """All t_n of a block of a level, from its factors and their changes."""
        for operation, inputs, out in self._pairs[number][place].forward:
            operation(*inputs, out=out)

    def backward(self, number: int) -> Iterator[tuple[Block, Block]]:
        """The gradients by a level's factors and by their changes, each in the place of what it is of, by blocks."""
        for pair in self._pairs[number]:
            for operation, inputs, out in pair.backward:
                operation(*inputs, out=out)
            for into, source in pair.copies:
                into.copy_(source)
            pair.still.split()
            pair.moving.split()
            yield pair.still, pair.moving

    def _level(self, number: int) -> list[_Pair]:
        factors = [n + 1 for n in range(self.still.layout.degree)[self.still.layout.levels[number].factors]]
        rows, units, length = self.still.factors[factors[0]].shape
        half = self.still.like.new_empty(rows // 2, units, length)
        pairs = [_Pair(*blocks) for blocks in zip(self.still.blocks[number], self.moving.blocks[number], strict=True)]
        for pair in pairs:
            for n in factors:
                self._forward(pair, n, half)
            for n in reversed(factors):
                self._backward(pair, n)
        return pairs

    def _forward(self, pair: _Pair, n: int, half: Tensor) -> None:
        part, h, g = pair.still.part, self.still.factors[n], self.moving.factors[n]
        y, t, into = self.still.products.get(n - 1), self.moving.products.get(n - 1), self.moving.products[n]
        if n not in self.still.layout.pool:
            if y is not None and t is not None:
                pair.forward.append((torch.mul, (h[part], t[part]), into[part]))
                pair.forward.append((torch.addcmul, (into[part], g[part], y[part]), into[part]))
            return
        even, odd = slice(part.start, part.stop, 2), slice(part.start + 1, part.stop, 2)
        halved = half[part.start // 2 : part.stop // 2]
        if y is None or t is None:
            pair.forward.append((torch.add, (g[even], g[odd]), halved))
        else:
            pair.forward.append((torch.mul, (h[even], t[even]), halved))
            terms = [(h[odd], t[odd]), (g[even], y[even]), (g[odd], y[odd])]
            pair.forward += [(torch.addcmul, (halved, *term), halved) for term in terms]
        left, right = halved.view(*halved.shape[:2], 2, -1).unbind(2)
        pair.forward.append((torch.add, (left, right), into[part.start // 2 : part.stop // 2]))

    def _backward(self, pair: _Pair, n: int) -> None:
        part, pooled = pair.still.part, n in self.still.layout.pool
        a, b = (tape.slope_of(n, part) for tape in (self.moving, self.still))
        h, g = (spread(tape.factors[n][part], pooled) for tape in (self.still, self.moving))
        if n == 1:
            pair.copies += [(h, b), (g, a)]
            return
        y, t = (spread(tape.products[n - 1][part], pooled) for tape in (self.still, self.moving))
        into_b, into_a = (spread(tape.slopes[n - 1][part], pooled) for tape in (self.still, self.moving))
        pair.backward += [
            (torch.mul, (a, h), into_a),
            (torch.mul, (b, h), into_b),
            (torch.addcmul, (into_b, a, g), into_b),
            (torch.mul, (b, y), h),
            (torch.addcmul, (h, a, t), h),
            (torch.mul, (a, y), g),
        ]
