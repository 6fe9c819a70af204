"""The ladder: every rung only for what the rungs before it left open, all images and claims together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

import torch
from torch import Tensor

from polybound.certificates.bounds.first_order import first_order
from polybound.certificates.bounds.second_order import (
    at_least_ends,
    by_second,
    lower_first,
    monotone,
    shrink,
)
from polybound.certificates.forms import Cells, Forms, chunks, join
from polybound.certificates.input_sets import Boxes, centre
from polybound.certificates.proofs import GRAM_UNITS
from polybound.certificates.search.attack import descend
from polybound.certificates.search.proof_state import Ledger

__all__ = ["TOPS", "Ladder"]


TOPS = {"auto": "branch", "second": "second", "first": "first"}
"""The last rung that each method takes."""

IMAGES = 32
"""Images that the first rung takes at once."""

ROUNDS = 6
"""How often a cell is shrunk and bounded again before it is split."""

FIXINGS = 2
"""How often monotone coordinates are looked for to first order: fixing some makes the box smaller for the others."""

STARTS = 8
"""Random starts of the attack before branching."""


class Ladder:
    """Proves the claims of all images over their boxes, as far as it gets; what it finds stands in its ledger.

    Args:
        forms: what is claimed of each image.
        boxes: the boxes.
        ledger: where decisions or bounds are entered.
        top: the last rung to take: "first", "second" or "branch".
        budget: seconds of branch and bound for each image.
        nodes: cells that branch and bound splits for each image at most; no limit by default.
        strict: whether the budget is for all that comes after first order, and not for branch and bound only.
        on_progress: called with the number of images that are through.
    """

    def __init__(
        self,
        forms: Forms,
        boxes: Boxes,
        ledger: Ledger,
        *,
        top: str = "branch",
        budget: float = 10.0,
        nodes: float = inf,
        strict: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self.net, self.forms, self.x, self.ledger = forms.net, forms, boxes.x, ledger
        self.lower, self.upper = boxes.outer
        self.top, self.budget, self.nodes, self.strict, self.on_progress = top, budget, nodes, strict, on_progress
        self.units = max(A.outputs for A in self.net.A)
        # Intervals are wanted tight, and the check of a proof has no single precision.
        self.quick = not strict and not ledger.keep
        # Whether a form that falls along a coordinate is least at its end; of several forms, another may rise.
        self.ends = forms.alone

    def climb(self) -> None:
        """Take all rungs, block after block of images."""
        for start in range(0, len(self.x), IMAGES):
            end = min(start + IMAGES, len(self.x))
            self._block(torch.arange(start, end))
            if self.on_progress is not None:
                self.on_progress(end)

    def _block(self, images: Tensor) -> None:
        cells, start = self._first(images)
        cells = self._slopes(self._attack(cells, start))
        if self.top == "first" or not len(cells):
            self.ledger.settle(cells)
            return
        if self.strict:
            cells = self._hurried(cells)
        else:
            cells = self.ledger.undecided(join([self._second(chunk) for chunk in chunks(cells, self.net.breadth)]))
        if self.top == "branch":
            for image in sorted(set(cells.image.tolist())):
                self._branch(cells[cells.image == image])
        else:
            self.ledger.settle(cells)

    def _first(self, images: Tensor) -> tuple[Cells, Tensor]:
        """The inputs themselves and first order; returns the open pairs, and for each a corner to attack from."""
        begun = time.perf_counter()
        net, ledger, forms = self.net, self.ledger, self.forms
        lower, upper = self.lower[images], self.upper[images]
        block = forms.block(images, net.slack(self._reach(images)))
        x = self.x[images]
        ledger.see_inputs(images, x, forms.by_claim(forms.values(images, net(x))), block.slack)
        first, start = self._first_order(images, block.w, block.constant, block.slack)
        each = torch.where(block.asked, first, torch.inf)
        bound, rows = forms.by_claim(each), forms.first_rows(each)
        # Beyond the reach of float64 nothing can be shown, and an image stays undecided.
        chosen = ledger.first(images, bound) & torch.isfinite(block.slack.gather(1, rows))
        cells = Cells.of_pairs(images, block, rows, (lower, upper), chosen, bound)
        cells = cells.at_nodes(ledger.enter(cells))
        ledger.charge("first", images, begun)
        index, claim = torch.nonzero(chosen, as_tuple=True)
        return cells, start(index, rows[index, claim])

    def _reach(self, images: Tensor) -> Tensor:
        """The largest absolute values of features, (images, features)."""
        return torch.maximum(self.lower[images].abs(), self.upper[images].abs())

    def _first_order(
        self, images: Tensor, w: Tensor, constant: Tensor, slack: Tensor, slopes: bool = False
    ) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
        """Bounds of first order, (images, rows), and a function that tells, for pairs of both, where to attack from."""
        lower, upper = self.lower[images], self.upper[images]
        first = first_order(self.net, *centre(lower, upper), w, constant, slopes=slopes)
        bound = lower_first(self.net, first, slack)
        return bound, lambda index, row: torch.where(first.G[index, row] > 0, lower[index], upper[index])

    def _descend(self, cells: Cells, start: Tensor, *steps: tuple[float, ...]) -> Tensor:
        """Descend from a point in every cell, and enter what is seen; returns the least form seen in each."""
        value, where = descend(self.net, cells, start, self.forms.members(cells), *steps)
        self.ledger.see(cells, value, where)
        return value

    def _attack(self, cells: Cells, start: Tensor) -> Cells:
        """Descend from a point in every cell; returns the cells that stay open."""
        begun = time.perf_counter()
        if len(cells):
            cells = self.ledger.aimed(cells, self._descend(cells, start))
        self.ledger.charge("attack", cells.image, begun)
        return self.ledger.undecided(cells)

    def _slopes(self, cells: Cells) -> Cells:
        """First order once more, by the slopes themselves, where they cancel: in high degrees and nested networks."""
        net = self.net
        plain = net.degree <= 4 and all(step is None for step in net.S)
        if plain or net.degree < 3 or self.units > GRAM_UNITS:
            return cells
        left = [cells[:0]]
        for pairs in _by_image(cells, 2**20 // (net.features * self.units)):
            begun = time.perf_counter()
            images = torch.unique(pairs.image)
            w, constant, slack = (
                t.reshape(len(images), -1, *t.shape[1:]) for t in (pairs.w, pairs.constant, pairs.slack)
            )
            bound = self._first_order(images, w, constant, slack, slopes=True)[0].reshape(-1)
            proven = bound > pairs.level
            self.ledger.note(pairs, bound, lambda _: {"by": self.ledger.rule("slopes")})
            for index in torch.nonzero(proven).squeeze(1).tolist():
                self.ledger.close(pairs, index, float(bound[index]), "first")
            left.append(replace(pairs, bound=torch.maximum(pairs.bound, bound))[~proven])
            self.ledger.charge("first", images, begun)
        return join(left)

    def _second(self, cells: Cells) -> Cells:
        """The rungs of second order, the cells shrunk in between; returns those that stay open."""
        begun, images = time.perf_counter(), cells.image
        for _ in range(ROUNDS):
            width = float((cells.upper - cells.lower).sum())
            cells = self.ledger.undecided(self._round(cells, "second"))
            if float((cells.upper - cells.lower).sum()) > 0.9 * width or not len(cells):
                break
        self.ledger.charge("second", images, begun)
        return cells

    def _hurried(self, cells: Cells) -> Cells:
        """The same, while the images' time lasts: the most urgent first, and what takes long at the end."""
        for rounds, spectral in ((ROUNDS, False), (1, True)):
            for _ in range(rounds):
                width = float((cells.upper - cells.lower).sum())
                cells = self._fixed(cells[self.ledger.urgency(cells).argsort()])
                parts = [self._in_time(chunk, spectral) for chunk in chunks(cells, self.net.breadth, limit=2**20)]
                cells = self.ledger.undecided(join([*parts, cells[:0]]))
                if float((cells.upper - cells.lower).sum()) > 0.9 * width or not len(cells):
                    break
        return cells

    def _fixed(self, cells: Cells) -> Cells:
        """The cells with fewer coordinates, where that is cheap to see and no proof is kept."""
        if not self.strict or not self.forms.alone or self.ledger.keep:
            return cells
        for _ in range(FIXINGS):
            cells = at_least_ends(self.net, cells)
        return cells

    def _met(self, cells: Cells) -> Cells:
        """The cells that have any point of what is asked about."""
        return cells

    def _in_time(self, cells: Cells, spectral: bool) -> Cells:
        """One round for the cells of images that have time left; returns all that stay open."""
        begun, late = time.perf_counter(), self.ledger.spent[cells.image] >= self.budget
        if late.all():
            return cells
        left = self._round(cells[~late], "second", spectral)
        self.ledger.charge("second", cells.image[~late], begun)
        return self.ledger.undecided(join([left, cells[late]]))

    def _round(self, cells: Cells, rung: str, spectral: bool = True) -> Cells:
        """One round: bound, close, try the corner, fix what is monotone and cut off what is excluded."""
        cells = self.forms.combined(self._points(cells))
        if not len(cells):
            return cells
        ledger = self.ledger
        bounded, second = by_second(self.net, cells, spectral, self.quick)
        proven = bounded.lower > cells.level
        ledger.note(cells, bounded.lower, bounded.step)
        for index in torch.nonzero(proven).squeeze(1).tolist():
            ledger.close(cells, index, float(bounded.lower[index]), rung)
        rows = torch.nonzero(~proven).squeeze(1)
        if not len(rows):
            return cells[rows]
        sign = monotone(self.net, cells, second)[rows]
        if not self.ends:
            sign = torch.zeros_like(sign)
        cells, bounded = cells[rows], bounded.rows(rows)
        active = bounded.active
        self._descend(cells, cells.corner(bounded.v, active), (2.0, 1.0, 0.5))
        narrow = shrink(cells, bounded, cells.target)
        # Along a monotone coordinate the least value is at the end where the form falls to.
        low, high = cells.lower[:, active], cells.upper[:, active]
        lower, upper = narrow.lower.clone(), narrow.upper.clone()
        lower[:, active] = torch.where(sign < 0, high, torch.where(sign > 0, low, lower[:, active]))
        upper[:, active] = torch.where(sign > 0, low, torch.where(sign < 0, high, upper[:, active]))
        axis = active[(bounded.loss() * (sign == 0)).argmax(1)]
        narrow = replace(cells, lower=lower, upper=upper, bound=torch.maximum(cells.bound, bounded.lower), axis=axis)
        return ledger.narrow(cells, bounded, sign, narrow)

    def _points(self, cells: Cells) -> Cells:
        """Settle the cells that are single points; returns the others."""
        moves = (cells.upper > cells.lower).any(1)
        for index in torch.nonzero(~moves).squeeze(1).tolist():
            self.ledger.close_point(cells, index)
        return cells if bool(moves.all()) else cells[moves]

    def _branch(self, cells: Cells) -> None:
        """Branch and bound of one image, the least bounds first, until it is decided or its budget is used up."""
        begun, image = time.perf_counter(), cells.image[:1]
        generator = torch.Generator().manual_seed(0)
        many = cells[torch.arange(len(cells)).repeat(STARTS)]
        part = torch.rand(many.lower.shape, generator=generator, dtype=torch.float64)
        self._descend(many, many.lower + (many.upper - many.lower) * part)
        cells = self.ledger.undecided(cells)
        budget = self.budget - float(self.ledger.spent[image]) if self.strict else self.budget
        left = self.nodes
        while len(cells) and left > 0 and time.perf_counter() - begun < budget:
            cells = cells[self.ledger.urgency(cells).argsort(stable=True)]
            chunk = next(iter(chunks(cells, self.net.breadth, limit=2**20)))
            chunk = chunk[: int(min(left, len(chunk)))]
            left -= len(chunk)
            rest = cells[slice(len(chunk), None)]
            halves = self._fixed(self._met(self._halves(chunk)))
            cells = self.ledger.undecided(
                join([rest, *(self._round(c, "branch") for c in chunks(halves, self.net.breadth))])
            )
        if len(cells):
            self.ledger.settle(cells)
        self.ledger.charge("branch", image, begun)

    def _halves(self, cells: Cells) -> Cells:
        """Every cell cut in two at the middle of its axis."""
        rows = torch.arange(len(cells))
        width = cells.upper - cells.lower
        # An axis that was fixed since it was chosen has no middle: the widest has.
        axis = torch.where(width[rows, cells.axis] > 0, cells.axis, width.argmax(1))
        cells = replace(cells, axis=axis)
        low, high = cells.lower[rows, axis], cells.upper[rows, axis]
        at = low + (high - low) / 2
        nodes = self.ledger.split(cells, at)
        lower, upper = cells.lower.clone(), cells.upper.clone()
        lower[rows, axis] = at
        upper[rows, axis] = at
        both = join([cells.narrowed(cells.lower, upper), cells.narrowed(lower, cells.upper)])
        return both.at_nodes(nodes)


def _by_image(cells: Cells, limit: int) -> Iterator[Cells]:
    """The cells image by image, those of some `limit` images together that have the same number of cells.

    Whatever no form has a part in is then computed once for an image.
    """
    cells = cells[cells.image.argsort(stable=True)]
    count = torch.bincount(cells.image)[cells.image]
    for number in sorted(set(count.tolist())):
        rows = torch.nonzero(count == number).squeeze(1)
        for start in range(0, len(rows), number * max(1, limit)):
            yield cells[rows[start : start + number * max(1, limit)]]
