"""Boxes with the margin that is to be bounded over each: what the rungs of the ladder work on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from polybound.certificates.boxes import centre
from polybound.certificates.network import Network

__all__ = ["Cells", "chunks", "join"]


@dataclass(frozen=True, eq=False)
class Cells:
    """N boxes, each with one margin `f_y - f_rival`; a row each in every tensor.

    Attributes:
        lower: the boxes' lower corners, (N, features).
        upper: their upper corners.
        w: the margin as weights of the last product, `C_y - C_rival`: (N, units).
        constant: `beta_y - beta_rival`, (N,).
        slack: how far float64 can be off over the box, (N,).
        image: index of the image, (N,).
        rival: index of the rival class, (N,).
        bound: the best lower bound proven so far, (N,).
        target: what is cut off of the box has a margin of at least this, which is positive, (N,).
        axis: the coordinate to split next, (N,).
        node: where the proof of this cell goes, an index into the ledger's nodes, (N,).
    """

    lower: Tensor
    upper: Tensor
    w: Tensor
    constant: Tensor
    slack: Tensor
    image: Tensor
    rival: Tensor
    bound: Tensor
    target: Tensor
    axis: Tensor
    node: Tensor

    def __len__(self) -> int:
        return len(self.lower)

    def __getitem__(self, index: Tensor | slice) -> Cells:
        return Cells(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def narrowed(self, lower: Tensor, upper: Tensor) -> Cells:
        """The same margins over smaller boxes."""
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
    def of_pairs(
        net: Network,
        images: Tensor,
        y: Tensor,
        lower: Tensor,
        upper: Tensor,
        slack: Tensor,
        chosen: Tensor,
        bound: Tensor,
    ) -> Cells:
        """The pairs (image, rival) where `chosen`, (images, classes), holds; slack and bound are of that shape, too."""
        row, rival = torch.nonzero(chosen, as_tuple=True)
        label = y[row]
        w, constant = net.C[label] - net.C[rival], net.beta[label] - net.beta[rival]
        off, zero = slack[chosen], torch.zeros_like(row)
        return Cells(lower[row], upper[row], w, constant, off, images[row], rival, bound[chosen], off, zero, zero)


def join(parts: list[Cells]) -> Cells:
    """All cells in one."""
    return Cells(**{field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Cells)})


def chunks(cells: Cells, units: int, limit: int = 2**22) -> Iterator[Cells]:
    """The cells in groups whose Hessians and slopes stay below `limit` entries; one cell at least."""
    moving = int((cells.upper > cells.lower).sum(1).max()) if len(cells) else 0
    size = max(1, limit // max(1, moving * max(moving, units)))
    for start in range(0, len(cells), size):
        yield cells[slice(start, start + size)]
