"""The ledger of bounds: how small each form gets over its box, from below (proven) and from above (a point)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, nextafter

import torch
from torch import Tensor

from polybound.certificates.attack import enclosed
from polybound.certificates.boxes import Sides
from polybound.certificates.cells import Cells
from polybound.certificates.forms import Combinations
from polybound.certificates.ledger import Ledger, Node

__all__ = ["Extremes"]

_BEST = "best"
"""Where a node keeps its best bound and the step that proves it, until the proof is pruned."""


class Extremes(Ledger):
    """Claims come in two halves: claim j asks for the least value of a form, claim `j + rows` of its negative.

    A cell is closed when its bound comes within the tolerance of the least value seen anywhere.

    Args:
        forms: the forms, followed by their negatives.
        images: how many images there are.
        inner: sides of the boxes, rounded inwards.
        tolerance: the gap that is good enough, as a share of the distance from the least to the largest value seen.
        keep: whether to keep the proofs.

    Attributes:
        lowest: the least values seen, (images, claims), as float64 computed them.
        where: the points where they were seen, (images, claims, features).
    """

    def __init__(self, forms: Combinations, images: int, inner: Sides, tolerance: float, keep: bool = False) -> None:
        super().__init__(forms, images, inner, keep)
        self.tolerance = tolerance
        self.lowest = torch.full_like(self.bound, inf)
        self.where = torch.zeros(images, forms.claims, forms.net.features, dtype=torch.float64)

    def see_inputs(self, images: Tensor, x: Tensor, value: Tensor, _slack: Tensor, /) -> None:
        """Begin with the inputs."""
        self.lowest[images] = value
        self.where[images] = x.unsqueeze(1).expand(-1, value.shape[1], -1)

    def see(self, cells: Cells, value: Tensor, where: Tensor) -> None:
        """Keep what is less than all that was seen before."""
        for index in torch.nonzero(value < self.lowest[cells.image, cells.claim]).squeeze(1).tolist():
            pair = int(cells.image[index]), int(cells.claim[index])
            if float(value[index]) < float(self.lowest[pair]):
                self.lowest[pair], self.where[pair] = value[index], where[index]

    def first(self, images: Tensor, bound: Tensor) -> Tensor:
        """Enter the bounds of first order; all pairs stay open until something was seen of them."""
        self.bound[images] = torch.maximum(self.bound[images], bound)
        return torch.ones_like(bound, dtype=torch.bool)

    def enter(self, cells: Cells) -> Tensor:
        """Open a proof for each cell, with its bound of first order."""
        nodes = super().enter(cells)
        self.note(cells.at_nodes(nodes), cells.bound, lambda _: {"by": self.rule("first")})
        return nodes

    def note(self, cells: Cells, bound: Tensor, step: Callable[[int], Node]) -> None:
        """Write down the best bound of each cell: which of them the proofs need is known in the end."""
        if not self.keep:
            return
        for index, value in enumerate(bound.tolist()):
            node = self._nodes[int(cells.node[index])]
            if value > node.get(_BEST, (-inf,))[0]:
                node[_BEST] = value, step(index)

    def proven(self) -> dict[tuple[int, int], Node]:
        """The proof of each claim that has a finite bound: of every branch as much as that bound needs."""
        return {pair: _pruned(node, float(self.bound[pair])) for pair, node in self.proofs.items()}

    def _width(self, cells: Cells) -> Tensor:
        """From the least to the largest value seen of each cell's form."""
        rows = self.forms.claims // 2
        negative = (cells.claim + rows) % self.forms.claims
        return -self.lowest[cells.image, cells.claim] - self.lowest[cells.image, negative]

    def undecided(self, cells: Cells) -> Cells:
        """Close the cells that are bounded well enough; the others go on with the level of what is now the least."""
        # What rounding takes of every bound cannot be won back by splitting.
        allowed = torch.maximum(self.tolerance * self._width(cells), 16 * cells.slack)
        level = self.lowest[cells.image, cells.claim] - allowed
        enough = cells.bound >= level
        for index in torch.nonzero(enough).squeeze(1).tolist():
            self.close(cells, index, float(cells.bound[index]), "")
        return replace(cells, level=level, target=level)[~enough]

    def aimed(self, cells: Cells, _value: Tensor, /) -> Cells:
        """As they are: `undecided` sets levels and targets."""
        return cells

    def urgency(self, cells: Cells) -> Tensor:
        """The largest gaps first, each as a share of its form's width."""
        return (cells.bound - cells.level) / self._width(cells).clamp_min(2.0**-900)

    def close_point(self, cells: Cells, index: int) -> None:
        """By its value in float64, less what that can be off."""
        x = cells.lower[index]
        form = self.forms.coefficients(int(cells.image[index]), int(cells.claim[index]))
        value, off = (t.squeeze(0) for t in enclosed(self.forms.net, *form, x.unsqueeze(0)))
        cell, lower = cells[index : index + 1], nextafter(float(value - off), -inf)
        self.see(cell, value, x.unsqueeze(0))
        self.note(cell, torch.tensor([lower], dtype=torch.float64), lambda _: {"by": "point"})
        self.close(cells, index, lower, "")

    def _proven(self, _image: int, _rung: str, /) -> None:
        """Nothing: the bound itself says it."""

    def points(self) -> Tensor:
        """The points where the least values were seen, moved into the true boxes, (images, claims, features)."""
        lower, upper = (side.unsqueeze(1) for side in self.inner)
        return torch.minimum(torch.maximum(self.where, lower), upper)

    def attained(self) -> tuple[Tensor, Tensor]:
        """For each claim a number that its form is proven not to exceed at a point of the true box, and that point."""
        where = self.points()
        values = torch.full_like(self.lowest, inf)
        for claim in range(self.forms.claims):
            value, off = enclosed(self.forms.net, *self.forms.coefficients(0, claim), where[:, claim])
            values[:, claim] = torch.nextafter((value + off).squeeze(1), values[:, claim])
        return values, where


def _pruned(node: Node, level: float) -> Node:
    """The least part of a proof that bounds a form by `level`.

    A cell's bound is the best of its own and of the cells' that it is a part of, so that on the way to every leaf there
    is a step that proves the level.
    """
    root: Node = {}
    stack = [(node, root)]
    while stack:
        node, pruned = stack.pop()
        bound, step = node.get(_BEST, (-inf, {}))
        if bound >= level:
            pruned.update(step)
            continue
        for key, value in node.items():
            if key in ("then", "low", "high"):
                pruned[key] = {}
                stack.append((value, pruned[key]))
            elif key != _BEST:
                pruned[key] = value
    return root
