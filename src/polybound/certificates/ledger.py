"""What has been proven, by what, and in how many seconds: the books that the rungs of the ladder write into."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor

from polybound.certificates.bounds import Bounded
from polybound.certificates.boxes import Sides
from polybound.certificates.cells import Cells
from polybound.certificates.forms import Forms

__all__ = ["Ledger", "Node"]

Node = dict[str, Any]
"""A step of a proof; `polybound.certificates.proofs` says what it holds."""


class Ledger(ABC):
    """The state of all images while their claims are being proven.

    What is asked differs: `Decisions` asks for signs, `Extremes` for bounds.

    Args:
        forms: what is claimed of each image.
        images: how many there are.
        inner: sides of the boxes, rounded inwards, (images, features) each.
        keep: whether to keep the proofs.

    Attributes:
        bound: proven lower bounds of what is claimed, (images, claims).
        spent: seconds of each image: its share of what was done in batches.
        cost: seconds of each rung.
        proofs: for each image and claim, the first step of its proof.
    """

    def __init__(self, forms: Forms, images: int, inner: Sides, keep: bool) -> None:
        self.forms, self.inner, self.keep = forms, inner, keep
        self.bound = torch.full((images, forms.claims), -inf, dtype=torch.float64)
        self.spent = torch.zeros(images, dtype=torch.float64)
        self.cost: dict[str, float] = {}
        self.proofs: dict[tuple[int, int], Node] = {}
        self._nodes: list[Node] = []
        self._open: dict[tuple[int, int], int] = {}  # cells of each pair that are still open
        self._floor: dict[tuple[int, int], float] = {}  # least bound of those that were closed or cut off

    @abstractmethod
    def see_inputs(self, images: Tensor, x: Tensor, value: Tensor, slack: Tensor, /) -> None:
        """Take note of what is claimed at the inputs themselves, (images, claims)."""

    @abstractmethod
    def see(self, cells: Cells, value: Tensor, where: Tensor) -> None:
        """Take note of each cell's form at a point of its box, (N,) and (N, features)."""

    @abstractmethod
    def first(self, images: Tensor, bound: Tensor) -> Tensor:
        """Enter the bounds of first order, (images, claims); returns which pairs stay open."""

    @abstractmethod
    def undecided(self, cells: Cells) -> Cells:
        """The cells that are still to be bounded, with the levels that they are now to exceed."""

    @abstractmethod
    def aimed(self, cells: Cells, value: Tensor, /) -> Cells:
        """The cells with targets that suit the least forms seen in them, (N,)."""

    @abstractmethod
    def urgency(self, cells: Cells) -> Tensor:
        """A number for each cell; those with the least are split first."""

    @abstractmethod
    def close_point(self, cells: Cells, index: int) -> None:
        """Settle a cell that is one point."""

    @abstractmethod
    def _proven(self, image: int, rung: str, /) -> None:
        """All cells of one of the image's claims are closed, the last one by that rung."""

    def falsified(self, images: Tensor) -> Tensor:
        """Which images are decided by a counterexample."""
        return torch.zeros_like(images, dtype=torch.bool)

    def charge(self, rung: str, images: Tensor, begun: float) -> None:
        """Share the time since `begun`, spent on a rung, among images (each as often as it is named)."""
        taken = time.perf_counter() - begun
        self.cost[rung] = self.cost.get(rung, 0.0) + taken
        if len(images):
            share = taken / len(images)
            self.spent.index_add_(0, images, torch.full((len(images),), share, dtype=torch.float64))

    def within(self, image: int, x: Tensor) -> Tensor:
        """The nearest point of the true box."""
        return torch.minimum(torch.maximum(x, self.inner[0][image]), self.inner[1][image])

    def enter(self, cells: Cells) -> Tensor:
        """Open a proof for each cell, the only one of its pair so far; returns the nodes' indices."""
        pairs = list(zip(cells.image.tolist(), cells.claim.tolist(), strict=True))
        for pair in pairs:
            self._open[pair] = 1
            self._floor[pair] = inf
        if not self.keep:
            return cells.node
        nodes = [self._new_node() for _ in pairs]
        self.proofs |= {pair: self._nodes[node] for pair, node in zip(pairs, nodes, strict=True)}
        return torch.tensor(nodes, dtype=torch.int64)

    def _new_node(self) -> int:
        self._nodes.append({})
        return len(self._nodes) - 1

    def lower_floor(self, cells: Cells, index: int, value: float) -> tuple[int, int]:
        """No more than `value` is proven of a part of a cell that is left; returns the cell's pair."""
        pair = int(cells.image[index]), int(cells.claim[index])
        self._floor[pair] = min(self._floor[pair], value)
        return pair

    def close(self, cells: Cells, index: int, lower: float, rung: str) -> None:
        """A cell's form is proven to be at least `lower`, which is above its level."""
        pair = self.lower_floor(cells, index, lower)
        self._open[pair] -= 1
        if self._open[pair] == 0:
            self.bound[pair] = max(float(self.bound[pair]), self._floor[pair])
            self._proven(pair[0], rung)

    def note(self, cells: Cells, bound: Tensor, step: Callable[[int], Node]) -> None:
        """Write down what proves each cell's bound, (N,), where that is above the cell's level.

        Args:
            cells: the cells.
            bound: proven lower bounds of their forms, (N,).
            step: gives the step that proves the bound of a cell, by its index.
        """
        if self.keep:
            for index in torch.nonzero(bound > cells.level).squeeze(1).tolist():
                self._nodes[int(cells.node[index])].update(step(index))

    def rule(self, name: str) -> str:
        """What proofs call a rule of first order, "first" or "slopes"."""
        return name

    def narrow(self, cells: Cells, bounded: Bounded, sign: Tensor, narrowed: Cells) -> Cells:
        """Write down what was cut off of cells, row by row, and for which reason."""
        cut = (narrowed.lower > cells.lower) | (narrowed.upper < cells.upper)
        fixed = torch.zeros_like(cut)
        fixed[:, bounded.active] = sign != 0
        lost = (cut & ~fixed).any(1)
        for index in torch.nonzero(lost).squeeze(1).tolist():
            self.lower_floor(cells, index, float(cells.target[index]))
        if not self.keep:
            return narrowed
        nodes = narrowed.node.clone()
        for index in torch.nonzero(cut.any(1)).squeeze(1).tolist():
            where = torch.nonzero(cut[index]).squeeze(1)
            sides = narrowed.lower[index, where], narrowed.upper[index, where]
            box = [list(side) for side in zip(where.tolist(), *(s.tolist() for s in sides), strict=True)]
            nodes[index] = self._new_node()
            step = bounded.step(index) | {"box": box, "then": self._nodes[-1]}
            if fixed[index].any():
                step["monotone"] = torch.nonzero(fixed[index]).squeeze(1).tolist()
            self._nodes[int(cells.node[index])].update(step)
        return narrowed.at_nodes(nodes)

    def cut(self, cells: Cells, index: int, step: Node) -> int:
        """A step proves that a cell's form exceeds its target but for a part that goes on; returns that part's node."""
        self.lower_floor(cells, index, float(cells.target[index]))
        node = int(cells.node[index])
        if not self.keep:
            return node
        new = self._new_node()
        self._nodes[node].update(step | {"then": self._nodes[new]})
        return new

    def split(self, cells: Cells, at: Tensor) -> Tensor:
        """Each cell becomes two at `at` of its axis; returns the nodes of the lower and of the upper halves, (2N,)."""
        for pair in zip(cells.image.tolist(), cells.claim.tolist(), strict=True):
            self._open[pair] += 1
        if not self.keep:
            return cells.node.repeat(2)
        nodes = []
        for side in ("low", "high"):
            for index in range(len(cells)):
                nodes.append(self._new_node())
                parent = self._nodes[int(cells.node[index])]
                parent["split"] = [int(cells.axis[index]), float(at[index])]
                parent[side] = self._nodes[-1]
        return torch.tensor(nodes, dtype=torch.int64)

    def settle(self, cells: Cells) -> None:
        """Enter what is proven of pairs that stay open."""
        for pair in set(zip(cells.image.tolist(), cells.claim.tolist(), strict=True)):
            rows = (cells.image == pair[0]) & (cells.claim == pair[1])
            least = min(float(cells.bound[rows].min()), self._floor[pair])
            self.bound[pair] = max(float(self.bound[pair]), least)
