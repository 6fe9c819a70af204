"""Best bound, proof and time per claim: what the stages of the verifier write into."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from math import inf, nextafter
from typing import Any

import torch
from torch import Tensor

from polybound.certificates.bounds.second_order import Bounded
from polybound.certificates.forms import Cells, Combinations, Forms, confirm, enclosed
from polybound.certificates.input_sets import InputSet
from polybound.certificates.proofs.exact import exact_forms

Node = dict[str, Any]
"""A step of a proof; `polybound.certificates.proofs` says what it holds."""


class ProofState(ABC):
    """The best bound and proof of every claim about every image: of signs (`SignProofs`), or ranges (`RangeProofs`).

    Args:
        forms: what is claimed of each image.
        inputs: the sets of inputs that the claims are about.
        keep: whether to keep the proofs.

    Attributes:
        bound: proven lower bounds of what is claimed, (images, claims).
        spent: seconds of each image, its share of the batches that it was in.
        cost: seconds of each stage.
        proofs: for each image and claim, the first step of its proof.
    """

    def __init__(self, forms: Forms, inputs: InputSet, keep: bool = False) -> None:
        self.forms, self.inputs, self.keep = forms, inputs, keep
        self.bound = torch.full((len(inputs), forms.claims), -inf, dtype=torch.float64)
        self.spent = torch.zeros(len(inputs), dtype=torch.float64)
        self.cost: dict[str, float] = {}
        self.proofs: dict[tuple[int, int], Node] = {}
        self._nodes: list[Node] = []
        self._open: dict[tuple[int, int], int] = {}  # cells of each pair that are still open
        self._floor: dict[tuple[int, int], float] = {}  # least bound of those that were closed or cut off

    @abstractmethod
    def see_inputs(self, images: Tensor, x: Tensor, value: Tensor, slack: Tensor, /) -> None:
        """Enter the values of the claims at the inputs themselves, (images, claims)."""

    @abstractmethod
    def see(self, cells: Cells, value: Tensor, where: Tensor) -> None:
        """Enter each cell's form at a point of its box, (N,) and (N, features)."""

    @abstractmethod
    def first(self, images: Tensor, bound: Tensor) -> Tensor:
        """Enter the bounds of first order, (images, claims); returns which pairs stay open."""

    @abstractmethod
    def undecided(self, cells: Cells) -> Cells:
        """The cells that are still to be bounded, with the levels that they must exceed."""

    def aimed(self, cells: Cells, _value: Tensor, /) -> Cells:
        """The cells with targets that suit the least forms seen in them, (N,); as they are by default."""
        return cells

    @abstractmethod
    def urgency(self, cells: Cells) -> Tensor:
        """A number for each cell; those with the least are split first."""

    @abstractmethod
    def close_point(self, cells: Cells, index: int) -> None:
        """Decide a cell that is one point."""

    def falsified(self, images: Tensor) -> Tensor:
        """Which images are decided by a counterexample."""
        return torch.zeros_like(images, dtype=torch.bool)

    def charge(self, stage: str, images: Tensor, begun: float) -> None:
        """Share the time since `begun`, spent on a stage, among images (each as often as it is named)."""
        taken = time.perf_counter() - begun
        self.cost[stage] = self.cost.get(stage, 0.0) + taken
        if len(images):
            share = taken / len(images)
            self.spent.index_add_(0, images, torch.full((len(images),), share, dtype=torch.float64))

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
        """Enter that no more than `value` is proven of a part of a cell; returns the cell's image and claim."""
        pair = int(cells.image[index]), int(cells.claim[index])
        self._floor[pair] = min(self._floor[pair], value)
        return pair

    def close(self, cells: Cells, index: int, lower: float, _stage: str, /) -> bool:
        """Enter that a cell's form is at least `lower`, above its level; returns whether its claim is proven."""
        pair = self.lower_floor(cells, index, lower)
        self._open[pair] -= 1
        if self._open[pair]:
            return False
        self.bound[pair] = max(float(self.bound[pair]), self._floor[pair])
        return True

    def close_proven(self, cells: Cells, bound: Tensor, stage: str, step: Callable[[int], Node]) -> Tensor:
        """Note what proves the cells' bounds, (N,), and close those above their levels; returns the others' indices."""
        self.note(cells, bound, step)
        proven = bound > cells.level
        for index in torch.nonzero(proven).squeeze(1).tolist():
            self.close(cells, index, float(bound[index]), stage)
        return torch.nonzero(~proven).squeeze(1)

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
        return replace(narrowed, node=nodes)

    def cut(self, cells: Cells, index: int, step: Node) -> int:
        """Enter a step which proves that a form exceeds its target but in one part of the cell; returns its node."""
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

    def finish(self, cells: Cells) -> None:
        """Enter what is proven of pairs that stay open."""
        for pair in set(zip(cells.image.tolist(), cells.claim.tolist(), strict=True)):
            rows = (cells.image == pair[0]) & (cells.claim == pair[1])
            least = min(float(cells.bound[rows].min()), self._floor[pair])
            self.bound[pair] = max(float(self.bound[pair]), least)


class SignProofs(ProofState):
    """A claim says that its form, or the largest of its forms, is positive; one that fails decides its image.

    Attributes:
        stage: the name of what decided each image; empty while it is open.
        counterexample: of each falsified image, with the claim that fails there.
    """

    def __init__(self, forms: Forms, inputs: InputSet, keep: bool = False) -> None:
        super().__init__(forms, inputs, keep)
        self.stage = [""] * len(inputs)
        self.counterexample: dict[int, tuple[Tensor, int]] = {}

    def falsify(self, image: int, x: Tensor, claim: int, stage: str) -> None:
        """Enter a counterexample, if the real polynomial confirms it at the nearest point of the true set."""
        if image in self.counterexample:
            return
        x = self.inputs.inside(torch.tensor([image]), x.unsqueeze(0))[0]
        if confirm(self.forms, image, claim, x):
            self.counterexample[image] = (x.clone(), claim)
            self.stage[image] = stage

    def see_inputs(self, images: Tensor, x: Tensor, value: Tensor, slack: Tensor, /) -> None:
        """Falsify the images that are counterexamples themselves."""
        if not value.shape[1]:
            return
        worst, claim = value.min(1)
        # Infinity stands for forms that are not asked.
        for row in torch.nonzero((worst <= slack.amax(1)) & (worst < inf)).squeeze(1).tolist():
            self.falsify(int(images[row]), x[row], int(claim[row]), "clean")

    def see(self, cells: Cells, value: Tensor, where: Tensor) -> None:
        """Falsify the images of cells in which a form of at most zero was seen."""
        for index in torch.nonzero(value <= 0).squeeze(1).tolist():
            self.falsify(int(cells.image[index]), where[index], int(cells.claim[index]), "attack")

    def first(self, images: Tensor, bound: Tensor) -> Tensor:
        """Enter the bounds of first order, (images, claims), infinity where nothing is asked."""
        self.bound[images] = torch.maximum(self.bound[images], bound)
        for image in images[(bound > 0).all(1)].tolist():
            self.stage[image] = self.stage[image] or "first"
        if self.keep:
            for row, claim in torch.nonzero((bound > 0) & (bound < inf)).tolist():
                self.proofs[int(images[row]), claim] = {"by": self.inputs.rule("first")}
        return (bound <= 0) & ~self.falsified(images).unsqueeze(1)

    def falsified(self, images: Tensor) -> Tensor:
        """Which images have a counterexample."""
        return torch.tensor([image in self.counterexample for image in images.tolist()], dtype=torch.bool)

    def undecided(self, cells: Cells) -> Cells:
        """The cells of images that are not falsified."""
        if not self.counterexample:
            return cells
        gone = self.falsified(cells.image)
        return cells[~gone] if bool(gone.any()) else cells

    def aimed(self, cells: Cells, value: Tensor, /) -> Cells:
        """Cutting off only what is above a part of the least form seen leaves a margin worth telling."""
        return replace(cells, target=torch.maximum(cells.slack, 0.1 * value))

    def urgency(self, cells: Cells) -> Tensor:
        """The least bounds first."""
        return cells.bound

    def close(self, cells: Cells, index: int, lower: float, stage: str, /) -> bool:
        """The stage that proves the last claim about an image decides it."""
        proven, image = super().close(cells, index, lower, stage), int(cells.image[index])
        if proven and bool((self.bound[image] > 0).all()):
            self.stage[image] = self.stage[image] or stage
        return proven

    def close_point(self, cells: Cells, index: int) -> None:
        """Decide the cell by the sign of its largest form, in rational arithmetic if float64 does not show it."""
        image, claim, x = int(cells.image[index]), int(cells.claim[index]), cells.lower[index]
        a, b = self.forms.coefficients(image, claim)
        value, off = enclosed(self.forms.net, a, b, x.unsqueeze(0))
        lower = float((value - off).max())
        if not lower > 0:
            exact = max(exact_forms(self.forms.net.factors, x, a, b))
            if exact <= 0:
                # Outside of the true box, by a rounding, it is no counterexample; no margin above it is proven.
                self.lower_floor(cells, index, nextafter(float(exact), -inf))
                self.falsify(image, x, claim, "attack")
                return
            lower = float(exact)
        # A positive value below the least number leaves a margin of 0: it decides nothing, and is not above the truth.
        lower = max(nextafter(lower, -inf), 0.0)
        self.note(cells[index : index + 1], torch.tensor([lower], dtype=torch.float64), lambda _: {"by": "point"})
        self.close(cells, index, lower, "branch")


_BEST = "best"
"""Where a node keeps its best bound and the step that proves it, until the proof is pruned."""


class RangeProofs(ProofState):
    """How small each form gets, from below (proven) and from above (a point).

    Claims come in two halves: claim j asks for the least value of a form, claim `j + rows` of its negative.

    A cell is closed when its bound comes within the tolerance of the least value seen anywhere.

    Args:
        forms: the forms, followed by their negatives.
        inputs: the sets of inputs that the claims are about.
        tolerance: the gap that is good enough, as a share of the distance from the least to the largest value seen.
        keep: whether to keep the proofs.

    Attributes:
        lowest: the least values seen, (images, claims), as float64 computed them.
        where: the points where they were seen, (images, claims, features).
    """

    def __init__(self, forms: Combinations, inputs: InputSet, tolerance: float, keep: bool = False) -> None:
        super().__init__(forms, inputs, keep)
        self.tolerance = tolerance
        self.lowest = torch.full_like(self.bound, inf)
        self.where = torch.zeros(len(inputs), forms.claims, forms.net.features, dtype=torch.float64)

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
        self.note(replace(cells, node=nodes), cells.bound, lambda _: {"by": self.inputs.rule("first")})
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

    def urgency(self, cells: Cells) -> Tensor:
        """The largest gaps first, each as a share of its form's width."""
        return (cells.bound - cells.level) / self._width(cells).clamp_min(2.0**-900)

    def close_point(self, cells: Cells, index: int) -> None:
        """Bound the cell by its value in float64, less the possible error."""
        x = cells.lower[index]
        form = self.forms.coefficients(int(cells.image[index]), int(cells.claim[index]))
        value, off = (t.squeeze(0) for t in enclosed(self.forms.net, *form, x.unsqueeze(0)))
        cell, lower = cells[index : index + 1], nextafter(float(value - off), -inf)
        self.see(cell, value, x.unsqueeze(0))
        self.note(cell, torch.tensor([lower], dtype=torch.float64), lambda _: {"by": "point"})
        self.close(cells, index, lower, "")

    def attained(self) -> tuple[Tensor, Tensor]:
        """For each claim a number that its form is proven not to exceed at a point of the true set, and that point."""
        images = torch.arange(len(self.inputs)).repeat_interleave(self.forms.claims)
        where = self.inputs.inside(images, self.where.flatten(0, 1)).reshape(self.where.shape)
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
