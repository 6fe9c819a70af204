"""Boxes with the form that is to be bounded over each: what the rungs of the ladder work on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from polybound.certificates.boxes import Sides, centre
from polybound.certificates.forms import Block

__all__ = ["Cells", "chunks", "join"]


@dataclass(frozen=True, eq=False)
class Cells:
    """N boxes, each with one linear form g of the logits, a margin for instance; a row each in every tensor.

    Attributes:
        lower: the boxes' lower corners, (N, features).
        upper: their upper corners.
        w: the form as weights of the last product (`C_y - C_rival` of a margin): (N, units).
        constant: its constant, (N,).
        slack: how far float64 can be off over the box, (N,).
        image: index of the image, (N,).
        claim: which of the image's claims the form is about (of margins, the rival class), (N,).
        bound: the best lower bound proven so far, (N,).
        level: what the form is to be proven to exceed; 0 where its sign is asked, (N,).
        target: what is cut off of the box has a form of at least this, which is not below the level, (N,).
        axis: the coordinate to split next, (N,).
        node: where the proof of this cell goes, an index into the ledger's nodes, (N,).
    """

    lower: Tensor
    upper: Tensor
    w: Tensor
    constant: Tensor
    slack: Tensor
    image: Tensor
    claim: Tensor
    bound: Tensor
    level: Tensor
    target: Tensor
    axis: Tensor
    node: Tensor

    def __len__(self) -> int:
        return len(self.lower)

    def __getitem__(self, index: Tensor | slice) -> Cells:
        return Cells(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def narrowed(self, lower: Tensor, upper: Tensor) -> Cells:
        """The same forms over smaller boxes."""
        return replace(self, lower=lower, upper=upper)

    def centre(self) -> tuple[Tensor, Tensor]:
        """Centres and radii."""
        return centre(self.lower, self.upper)

    def moving(self) -> Tensor:
        """Indices of the coordinates that move in any of the boxes."""
        return torch.nonzero((self.upper > self.lower).any(0)).squeeze(-1)

    def corner(self, signs: Tensor, active: Tensor) -> Tensor:
        """The corners with the given signs in the active coordinates, (N, features)."""
        x = self.lower.clone()
        x[:, active] = torch.where(signs > 0, self.upper[:, active], self.lower[:, active])
        return x

    def at_nodes(self, node: Tensor) -> Cells:
        """The same cells, their proofs to go on elsewhere."""
        return replace(self, node=node)

    @staticmethod
    def of_pairs(images: Tensor, block: Block, rows: Tensor, sides: Sides, chosen: Tensor, bound: Tensor) -> Cells:
        """The pairs (image, claim) where `chosen`, (images, claims), holds.

        Args:
            images: indices of the images.
            block: their forms.
            rows: which of the forms to begin with, (images, claims).
            sides: lower and upper corners of their boxes.
            chosen: (images, claims).
            bound: what is proven of each pair, (images, claims).
        """
        index, claim = torch.nonzero(chosen, as_tuple=True)
        row = rows[index, claim]
        w, constant, slack = (t[index, row] for t in (block.w, block.constant, block.slack))
        zero, level = torch.zeros_like(index), torch.zeros_like(constant)
        lower, upper = (side[index] for side in sides)
        return Cells(
            lower, upper, w, constant, slack, images[index], claim, bound[chosen], level, slack, axis=zero, node=zero
        )


def join(parts: list[Cells]) -> Cells:
    """All cells in one."""
    return Cells(**{field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Cells)})


def _whole_images(images: Tensor, size: int) -> int:
    """How many of the first `size` cells to take so that no image is cut, if that is possible."""
    if len(images) <= size or images[size - 1] != images[size]:
        return size
    cut = int((images[:size] != images[size]).sum())
    return cut or size


def chunks(cells: Cells, units: int, limit: int = 2**23) -> Iterator[Cells]:
    """The cells in groups whose Hessians and slopes stay below `limit` entries; one cell at least.

    A group's expansions are in all coordinates that move in any of its cells. Cells of one image come together: what
    their boxes have in common is computed once.
    """
    moves = cells.upper > cells.lower
    alone = moves.sum(1).tolist()
    start = 0
    while start < len(cells):
        size = max(1, limit // max(1, alone[start] * max(alone[start], units)))
        if size > 1:
            moving = moves[start : start + size].cummax(0).values.sum(1)
            entries = moving * moving.clamp_min(units) * torch.arange(1, len(moving) + 1)
            size = max(1, int((entries <= limit).sum()))
            size = _whole_images(cells.image[start : start + size + 1], size)
        yield cells[slice(start, start + size)]
        start += size
