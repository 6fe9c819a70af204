"""What has been decided, by what, and in how many seconds: the books that the rungs of the ladder write into."""

from __future__ import annotations

import time
from fractions import Fraction
from math import inf, nextafter
from typing import Any

import torch
from torch import Tensor

from polybound.certificates.attack import confirm
from polybound.certificates.bounds import Bounded
from polybound.certificates.cells import Cells
from polybound.certificates.network import Network

__all__ = ["Ledger", "Node"]

Node = dict[str, Any]
"""A step of a proof; `polybound.certificates.files` says what it holds."""


class Ledger:
    """The state of all images while they are being decided.

    Args:
        net: the network.
        y: labels, (images,).
        inner: sides of the boxes, rounded inwards, (images, features) each.
        keep: whether to keep the proofs.

    Attributes:
        bound: proven lower bounds of the margins, (images, classes); infinity for the label itself.
        rung: the name of what decided each image; empty while it is open.
        counterexample: of each falsified image, with the rival it falls to.
        spent: seconds of each image: its share of what was done in batches.
        cost: seconds of each rung.
        proofs: for each image and rival, the first step of its proof.
    """

    def __init__(self, net: Network, y: Tensor, inner: tuple[Tensor, Tensor], keep: bool) -> None:
        self.net, self.y, self.inner, self.keep = net, y, inner, keep
        self.bound = torch.full((len(y), net.classes), -inf, dtype=torch.float64)
        self.bound.scatter_(1, y.unsqueeze(1), inf)
        self.rung = [""] * len(y)
        self.counterexample: dict[int, tuple[Tensor, int]] = {}
        self.spent = torch.zeros(len(y), dtype=torch.float64)
        self.cost: dict[str, float] = {}
        self.proofs: dict[tuple[int, int], Node] = {}
        self._nodes: list[Node] = []
        self._open: dict[tuple[int, int], int] = {}  # cells of each pair that are still open
        self._floor: dict[tuple[int, int], float] = {}  # least bound of those that were closed or cut off

    def charge(self, rung: str, images: Tensor, begun: float) -> None:
        """Share the time since `begun`, spent on a rung, among images (each as often as it is named)."""
        taken = time.perf_counter() - begun
        self.cost[rung] = self.cost.get(rung, 0.0) + taken
        if len(images):
            share = taken / len(images)
            self.spent.index_add_(0, images, torch.full((len(images),), share, dtype=torch.float64))

    def falsify(self, image: int, x: Tensor, rival: int, rung: str) -> None:
        """Write down a counterexample, if the real polynomial confirms it at the nearest point of the true box."""
        x = torch.minimum(torch.maximum(x, self.inner[0][image]), self.inner[1][image])
        if image not in self.counterexample and confirm(self.net, x, int(self.y[image]), rival):
            self.counterexample[image] = (x.clone(), rival)
            self.rung[image] = rung

    def falsify_where(self, cells: Cells, value: Tensor, where: Tensor) -> None:
        """The same for every cell in which a margin of at most zero was seen."""
        for index in torch.nonzero(value <= 0).squeeze(1).tolist():
            self.falsify(int(cells.image[index]), where[index], int(cells.rival[index]), "attack")

    def first(self, images: Tensor, bound: Tensor) -> Tensor:
        """Enter the bounds of first order, (images, classes); returns which pairs stay open."""
        self.bound[images] = torch.maximum(self.bound[images], bound)
        for image in images[(bound > 0).all(1)].tolist():
            self.rung[image] = self.rung[image] or "first"
        if self.keep:
            for row, rival in torch.nonzero((bound > 0) & (bound < inf)).tolist():
                self.proofs[int(images[row]), rival] = {"by": "first"}
        falsified = torch.tensor([image in self.counterexample for image in images.tolist()], dtype=torch.bool)
        return (bound <= 0) & ~falsified.unsqueeze(1)

    def enter(self, cells: Cells) -> Tensor:
        """Open a proof for each cell, the only one of its pair so far; returns the nodes' indices."""
        pairs = list(zip(cells.image.tolist(), cells.rival.tolist(), strict=True))
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

    def undecided(self, cells: Cells) -> Cells:
        """The cells of images that are not falsified."""
        stay = [image not in self.counterexample for image in cells.image.tolist()]
        return cells if all(stay) else cells[torch.tensor(stay, dtype=torch.bool)]

    def close(self, cells: Cells, index: int, lower: float, rung: str) -> None:
        """A cell's margin is proven to be at least `lower` > 0."""
        pair = int(cells.image[index]), int(cells.rival[index])
        self._floor[pair] = min(self._floor[pair], lower)
        self._open[pair] -= 1
        if self._open[pair] == 0:
            image, rival = pair
            self.bound[image, rival] = max(float(self.bound[image, rival]), self._floor[pair])
            if bool((self.bound[image] > 0).all()):
                self.rung[image] = self.rung[image] or rung

    def close_point(self, cells: Cells, index: int, margin: Fraction) -> None:
        """A cell is one point, whose margin is known exactly."""
        if margin <= 0:
            self.falsify(int(cells.image[index]), cells.lower[index], int(cells.rival[index]), "attack")
        else:
            if self.keep:
                self._nodes[int(cells.node[index])]["by"] = "point"
            self.close(cells, index, max(nextafter(float(margin), -inf), 5e-324), "branch")

    def prove(self, cells: Cells, index: int, bounded: Bounded) -> None:
        """Write down what bounded a cell."""
        if self.keep:
            self._nodes[int(cells.node[index])].update(_step(bounded, index))

    def prove_first(self, cells: Cells, index: int) -> None:
        """Write down that first order, with slopes, bounds a cell."""
        if self.keep:
            self._nodes[int(cells.node[index])].update(by="slopes")

    def narrow(self, cells: Cells, bounded: Bounded, sign: Tensor, narrowed: Cells) -> Cells:
        """Write down what was cut off of cells, row by row, and for which reason."""
        cut = (narrowed.lower > cells.lower) | (narrowed.upper < cells.upper)
        fixed = torch.zeros_like(cut)
        fixed[:, bounded.active] = sign != 0
        lost = (cut & ~fixed).any(1)
        for index in range(len(cells)):
            if lost[index]:
                pair = int(cells.image[index]), int(cells.rival[index])
                self._floor[pair] = min(self._floor[pair], float(cells.target[index]))
        if not self.keep:
            return narrowed
        nodes = narrowed.node.clone()
        for index in torch.nonzero(cut.any(1)).squeeze(1).tolist():
            where = torch.nonzero(cut[index]).squeeze(1)
            sides = narrowed.lower[index, where], narrowed.upper[index, where]
            box = [list(side) for side in zip(where.tolist(), *(s.tolist() for s in sides), strict=True)]
            nodes[index] = self._new_node()
            step = _step(bounded, index) | {"box": box, "then": self._nodes[-1]}
            if fixed[index].any():
                step["monotone"] = torch.nonzero(fixed[index]).squeeze(1).tolist()
            self._nodes[int(cells.node[index])].update(step)
        return narrowed.at_nodes(nodes)

    def split(self, cells: Cells, at: Tensor) -> Tensor:
        """Each cell becomes two at `at` of its axis; returns the nodes of the lower and of the upper halves, (2N,)."""
        for pair in zip(cells.image.tolist(), cells.rival.tolist(), strict=True):
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
        for pair in set(zip(cells.image.tolist(), cells.rival.tolist(), strict=True)):
            rows = (cells.image == pair[0]) & (cells.rival == pair[1])
            least = min(float(cells.bound[rows].min()), self._floor[pair])
            self.bound[pair] = max(float(self.bound[pair]), least)


def _step(bounded: Bounded, index: int) -> Node:
    values = {"on": bounded.active, "v": bounded.v[index], "mu": bounded.mu[index]}
    return {"by": "absorbed" if bounded.absorbed[index] else "second"} | {k: t.tolist() for k, t in values.items()}
