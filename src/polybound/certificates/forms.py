"""Linear forms of the logits, `a.f(x) + b`, which the search bounds from below; and cells, parts of their boxes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from polybound.certificates.input_sets import Sides, centre
from polybound.certificates.network import PreparedNetwork
from polybound.theory import ULP

__all__ = ["Block", "Cells", "Combinations", "Forms", "Margins", "chunks", "join"]


@dataclass(frozen=True, eq=False)
class Block:
    """The forms of some images over their boxes.

    Attributes:
        w: each form as weights of the last product, `a C`: (images, rows, units).
        constant: `a.beta + b`, (images, rows).
        slack: how far float64 can be off over the box, (images, rows); see `PreparedNetwork`.
        asked: which of them are to be bounded, (images, rows).
    """

    w: Tensor
    constant: Tensor
    slack: Tensor
    asked: Tensor


class Forms(ABC):
    """The forms that are asked of each image.

    Attributes:
        net: the network.
        claims: how many statements there are about each image; each is about one form, or about several.
        alone: whether every claim is about one form.
    """

    net: PreparedNetwork
    claims: int
    alone = True

    @abstractmethod
    def block(self, images: Tensor, slack: Tensor) -> Block:
        """The forms of some images, whose logits are off by at most `slack`, (images, classes)."""

    @abstractmethod
    def values(self, images: Tensor, logits: Tensor, /) -> Tensor:
        """The forms of some images where their logits are given, (images, rows)."""

    @abstractmethod
    def coefficients(self, image: int, claim: int, /) -> tuple[Tensor, Tensor]:
        """The forms of a claim as they stand, a (forms, classes) and b (forms,)."""

    def by_claim(self, values: Tensor) -> Tensor:
        """From values of forms, (images, rows), the largest of each claim, (images, claims)."""
        return values

    def first_rows(self, values: Tensor) -> Tensor:
        """The row of the form that is largest in each claim, (images, claims)."""
        return torch.arange(self.claims).expand(len(values), -1)

    def members(self, _cells: Cells, /) -> tuple[Tensor, Tensor] | None:
        """The forms of each cell's claim, w (N, forms, units) and constant (N, forms); None if it is one."""
        return None

    def combined(self, cells: Cells) -> Cells:
        """The cells, each with the form that serves its claim best."""
        return cells


class Margins(Forms):
    """The margins `f_label - f_rival`, a row for each class; the label's own is not asked."""

    def __init__(self, net: PreparedNetwork, y: Tensor) -> None:
        self.net, self.y, self.claims = net, y, net.classes

    def block(self, images: Tensor, slack: Tensor) -> Block:
        """The margins of some images."""
        net, y = self.net, self.y[images]
        label = y.unsqueeze(1)
        w, constant = net.C[y].unsqueeze(1) - net.C, net.beta[y].unsqueeze(1) - net.beta
        asked = torch.ones_like(slack, dtype=torch.bool).scatter(1, label, False)
        return Block(w, constant, slack + slack.gather(1, label), asked)

    def values(self, images: Tensor, logits: Tensor, /) -> Tensor:
        """Margins from logits; infinity for the label."""
        label = self.y[images].unsqueeze(1)
        return (logits.gather(1, label) - logits).scatter(1, label, torch.inf)

    def coefficients(self, image: int, claim: int, /) -> tuple[Tensor, Tensor]:
        """`e_label - e_rival`."""
        a = torch.zeros(1, self.net.classes, dtype=torch.float64)
        a[0, self.y[image]] += 1.0
        a[0, claim] -= 1.0
        return a, a.new_zeros(1)


class Combinations(Forms):
    r"""The same forms of every image, `weights f + constant`.

    Rounding. A form's terms are those of the logits times a; its sum has `classes + 1` more summands. So it is off by
    at most `gamma_(D + classes + 2)` times `sum_c |a_c| P_c + |b|`, where D and P are those of `PreparedNetwork`. What
    underflows in `a C`, where a is small, is multiplied by no more than Z, which the logits' slack has 2^-480 of.

    Args:
        net: the network.
        weights: (rows, classes), float64.
        constant: (rows,), float64.
    """

    def __init__(self, net: PreparedNetwork, weights: Tensor, constant: Tensor) -> None:
        self.net, self.weights, self.constant = net, weights, constant
        self.claims = len(weights)
        self.w, self.offset = weights @ net.C, weights @ net.beta + constant

    def block(self, images: Tensor, slack: Tensor) -> Block:
        """The forms of some images."""
        rows = len(self.weights)
        w, constant = self.w.expand(len(images), -1, -1), self.offset.expand(len(images), -1)
        return Block(w, constant, self.slack(slack), torch.ones(len(images), rows, dtype=torch.bool))

    def slack(self, slack: Tensor) -> Tensor:
        """How far the forms are off where the logits are off by `slack`, (images, classes): (images, rows)."""
        D = self.net.roundings
        total = slack @ self.weights.abs().T + self.constant.abs() * (4 * D * ULP)
        total = total * ((1 + (self.net.classes + 2) / D) * (1 + 2.0**-20)) + 2.0**-900
        total = total + slack.amax(-1, keepdim=True) * 2.0**-500
        # Beyond the size that `PreparedNetwork.slack` allows, underflow could have mattered; 0 times infinity is NaN.
        return torch.where(total < 2.0**100 * (4 * D * ULP), total, torch.inf)

    def values(self, _images: Tensor, logits: Tensor, /) -> Tensor:
        """The forms from logits."""
        return logits @ self.weights.T + self.constant

    def coefficients(self, _image: int, claim: int, /) -> tuple[Tensor, Tensor]:
        """A row."""
        return self.weights[claim : claim + 1], self.constant[claim : claim + 1]


# Boxes with the form that is to be bounded over each: what the rungs of the ladder work on.


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
