"""The verifier: stages from cheap to tight, each for what the stages before it left open; here over boxes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor

from polybound.certificates.bounds.first_order import first_order
from polybound.certificates.bounds.second_order import by_second, fix_monotone, lower_first, monotone, shrink
from polybound.certificates.forms import Cells, ImageForms, chunks, join
from polybound.certificates.input_sets import centre
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.proofs import GRAM_UNITS
from polybound.certificates.search.proof_state import ProofState
from polybound.errors import ArgumentError, check_choice

Progress = Callable[[int, int, str], None]
"""Called with the number of images that are done, their number, and an empty text."""

STAGES = {"auto": "branch", "second": "second", "first": "first"}
"""The last stage of each method; other methods are baselines, which have no stages."""

IMAGES = 32
"""Images that the first stage takes at once."""

ROUNDS = 6
"""How often a cell is shrunk and bounded again before it is split."""

FIXINGS = 2
"""How often monotone coordinates are looked for to first order: fixing some makes the box smaller for the others."""

STARTS = 8
"""Random starts of the attack before branching."""


@dataclass(frozen=True)
class Search:
    """How to look for proofs.

    Attributes:
        method: as in `certify`.
        budget: seconds of branch and bound for each image.
        nodes: cells that branch and bound splits for each image at most.
        strict: whether the budget is for all that comes after first order, not for branch and bound only.
    """

    method: str = "auto"
    budget: float = 10.0
    nodes: float = inf
    strict: bool = False

    def check(self, allowed: Sequence[str], norm: str) -> None:
        """Refuse methods that do not exist, or not for the norm, and numbers out of range."""
        check_choice("method", self.method, allowed)
        if norm == "2" and self.method in ("crown", "interval"):
            raise ArgumentError(
                "method", f"{self.method!r} is about boxes; l_2 balls have auto, second, first, lipschitz"
            )
        if not self.budget >= 0:
            raise ArgumentError("budget", f"must be a number of seconds, got {self.budget!r}")


class Verifier:
    """Proves the claims of all images over their boxes, as far as it gets; the state holds what it finds.

    Over other sets than boxes, `bound_first`, `attack` and `second` differ.

    Args:
        state: the claims, and what is proven of them.
        search: how to look for proofs.
    """

    BRANCHED = inf
    """Boxes are split in up to this many features that move."""

    def __init__(self, state: ProofState, search: Search) -> None:
        self.state, self.search = state, search
        self.forms, self.net = state.forms, state.forms.net
        self.units = max(A.outputs for A in self.net.A)
        # Takes time that intervals do not have, and the check of proofs does not know it.
        self.tight = not search.strict and not state.keep
        # Whether a form that falls along a coordinate is least at its end; of several forms, another may rise.
        self.ends = self.forms.alone

    def run(self, on_progress: Progress | None = None) -> None:
        """Take all stages, block after block of images."""
        state, total = self.state, len(self.state.inputs)
        for start in range(0, total, IMAGES):
            end = min(start + IMAGES, total)
            cells, corners = self.first(torch.arange(start, end))
            begun = time.perf_counter()
            if len(cells):
                cells = state.aimed(cells, self.attack(cells, corners))
            state.charge("attack", cells.image, begun)
            cells = self.slopes(state.undecided(cells))
            last = STAGES[self.search.method]
            if last != "first" and len(cells):
                cells = self.second(cells)
                if last == "branch":
                    for image in sorted(set(cells.image.tolist())):
                        self.branch(cells[cells.image == image])
                    cells = cells[:0]
            state.finish(cells)
            if on_progress is not None:
                on_progress(end, total, "")

    def first(self, images: Tensor) -> tuple[Cells, Tensor]:
        """First order, and the inputs themselves; returns the open pairs, and for each a point to attack from."""
        begun = time.perf_counter()
        net, state, forms = self.net, self.state, self.forms
        x, (lower, upper) = state.inputs.x[images], (side[images] for side in state.inputs.outer)
        block = forms.of_images(images, net.slack(state.inputs.reach(images)))
        state.see_inputs(images, x, forms.by_claim(forms.values(images, net(x))), block.slack)
        first, where = self.bound_first(images, block)
        each = torch.where(block.asked, first, torch.inf)
        bound, rows = forms.by_claim(each), forms.first_rows(each)
        # Beyond the reach of float64 nothing can be shown, and an image stays undecided.
        chosen = state.first(images, bound) & torch.isfinite(block.slack.gather(1, rows))
        index, claim = torch.nonzero(chosen, as_tuple=True)
        row = rows[index, claim]
        w, constant, slack = (t[index, row] for t in (block.w, block.constant, block.slack))
        zero, level = torch.zeros_like(index), torch.zeros_like(constant)
        bound, image = bound[chosen], images[index]
        cells = Cells(
            lower[index], upper[index], w, constant, slack, image, claim, bound, level, slack, axis=zero, node=zero
        )
        cells = replace(cells, node=state.enter(cells))
        state.charge("first", images, begun)
        return cells, where[index, row]

    def bound_first(self, images: Tensor, block: ImageForms, slopes: bool = False) -> tuple[Tensor, Tensor]:
        """Bounds of first order, (images, rows), and points to attack from, (images, rows, features)."""
        lower, upper = (side[images] for side in self.state.inputs.outer)
        first = first_order(self.net, *centre(lower, upper), block.w, block.constant, slopes=slopes)
        where = torch.where(first.G > 0, lower.unsqueeze(1), upper.unsqueeze(1))
        return lower_first(self.net, first, block.slack), where

    def attack(self, cells: Cells, start: Tensor, *steps: tuple[float, ...]) -> Tensor:
        """Descend from a point in every cell, and enter what is seen; returns the least form seen in each."""
        value, where = descend(self.net, cells, start, self.forms.members(cells), *steps)
        self.state.see(cells, value, where)
        return value

    def slopes(self, cells: Cells) -> Cells:
        """First order once more, by the slopes themselves, where they cancel: in high degrees and nested networks."""
        net, state = self.net, self.state
        plain = net.degree <= 4 and net.factors.coupled
        if plain or net.degree < 3 or self.units > GRAM_UNITS:
            return cells
        left, limit = [cells[:0]], max(1, 2**20 // (net.features * self.units))
        # Images with the same number of cells together: what no form has a part in is computed once for an image.
        cells = cells[cells.image.argsort(stable=True)]
        count = torch.bincount(cells.image)[cells.image]
        for number in sorted(set(count.tolist())):
            for rows in torch.split(torch.nonzero(count == number).squeeze(1), number * limit):
                begun, pairs = time.perf_counter(), cells[rows]
                images = torch.unique(pairs.image)
                w, constant, slack = (
                    t.reshape(len(images), -1, *t.shape[1:]) for t in (pairs.w, pairs.constant, pairs.slack)
                )
                block = ImageForms(w, constant, slack, torch.ones_like(slack, dtype=torch.bool))
                bound = self.bound_first(images, block, slopes=True)[0].reshape(-1)
                still = state.close_proven(pairs, bound, "first", lambda _: {"by": state.inputs.rule("slopes")})
                left.append(replace(pairs, bound=torch.maximum(pairs.bound, bound))[still])
                state.charge("first", images, begun)
        return join(left)

    def second(self, cells: Cells) -> Cells:
        """Second order, the cells shrunk in between; returns those that stay open.

        If time is short, the most urgent cells come first, and the bound that takes long at the end.
        """
        if self.search.strict:
            cells = self._rounds(cells, ROUNDS, lambda cells: self._in_time(cells, spectral=False))
            return self._rounds(cells, 1, lambda cells: self._in_time(cells, spectral=True))
        left = []
        for chunk in chunks(cells, self.net.breadth):
            begun, images = time.perf_counter(), chunk.image
            left.append(self._rounds(chunk, ROUNDS, lambda cells: self._round(cells, "second")))
            self.state.charge("second", images, begun)
        return self.state.undecided(join(left))

    def _rounds(self, cells: Cells, rounds: int, once: Callable[[Cells], Cells]) -> Cells:
        """Some rounds, while they make the cells smaller."""
        for _ in range(rounds):
            width = float((cells.upper - cells.lower).sum())
            cells = self.state.undecided(once(cells))
            if float((cells.upper - cells.lower).sum()) > 0.9 * width or not len(cells):
                break
        return cells

    def _in_time(self, cells: Cells, spectral: bool) -> Cells:
        """One round for the cells of images that have time left; returns all that stay open."""
        state, left = self.state, [cells[:0]]
        cells = self._fixed(cells[state.urgency(cells).argsort()])
        for chunk in chunks(cells, self.net.breadth, limit=2**20):
            begun, late = time.perf_counter(), state.spent[chunk.image] >= self.search.budget
            if late.all():
                left.append(chunk)
                continue
            rest = self._round(chunk[~late], "second", spectral)
            state.charge("second", chunk.image[~late], begun)
            left.append(state.undecided(join([rest, chunk[late]])))
        return join(left)

    def _fixed(self, cells: Cells) -> Cells:
        """The cells with fewer coordinates, where that is cheap to see and no proof is kept."""
        for _ in range(FIXINGS if self.search.strict and self.ends and not self.state.keep else 0):
            cells = fix_monotone(self.net, cells)
        return cells

    def _round(self, cells: Cells, stage: str, spectral: bool = True) -> Cells:
        """One round: bound, close, try the corner, fix what is monotone and cut off what is excluded."""
        net, state = self.net, self.state
        moves = (cells.upper > cells.lower).any(1)
        for index in torch.nonzero(~moves).squeeze(1).tolist():
            state.close_point(cells, index)
        cells = self.forms.combined(cells if bool(moves.all()) else cells[moves])
        if not len(cells):
            return cells
        bounded, second = by_second(net, cells, spectral, self.tight)
        rows = state.close_proven(cells, bounded.lower, stage, bounded.step)
        if not len(rows):
            return cells[rows]
        sign = monotone(net, cells, second)[rows]
        if not self.ends:
            sign = torch.zeros_like(sign)
        cells, bounded = cells[rows], bounded.rows(rows)
        active = bounded.active
        low, high = cells.lower[:, active], cells.upper[:, active]
        corner = cells.lower.clone()
        corner[:, active] = torch.where(bounded.v > 0, high, low)
        self.attack(cells, corner, (2.0, 1.0, 0.5))
        narrow = shrink(cells, bounded, cells.target)
        # Along a monotone coordinate the least value is at the end where the form falls to.
        lower, upper = narrow.lower.clone(), narrow.upper.clone()
        lower[:, active] = torch.where(sign < 0, high, torch.where(sign > 0, low, lower[:, active]))
        upper[:, active] = torch.where(sign > 0, low, torch.where(sign < 0, high, upper[:, active]))
        axis = active[(bounded.loss() * (sign == 0)).argmax(1)]
        narrow = replace(cells, lower=lower, upper=upper, bound=torch.maximum(cells.bound, bounded.lower), axis=axis)
        return state.narrow(cells, bounded, sign, narrow)

    def branch(self, cells: Cells) -> None:
        """Branch and bound of one image, the least bounds first, until it is decided or its budget is used up."""
        state, budget, left = self.state, self.search.budget, self.search.nodes
        if int((cells.upper > cells.lower).any(0).sum()) > self.BRANCHED:
            state.finish(cells)
            return
        begun, image = time.perf_counter(), cells.image[:1]
        many = cells[torch.arange(len(cells)).repeat(STARTS)]
        share = torch.rand(many.lower.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.attack(many, many.lower + (many.upper - many.lower) * share)
        cells = state.undecided(cells)
        if self.search.strict:
            budget = budget - float(state.spent[image])
        while len(cells) and left > 0 and time.perf_counter() - begun < budget:
            cells = cells[state.urgency(cells).argsort(stable=True)]
            chunk = next(iter(chunks(cells, self.net.breadth, limit=2**20)))
            chunk = chunk[: int(min(left, len(chunk)))]
            left -= len(chunk)
            rest = cells[slice(len(chunk), None)]
            # Every cell is cut in two at the middle of its axis.
            rows, width = torch.arange(len(chunk)), chunk.upper - chunk.lower
            # An axis that was fixed since it was chosen has no middle: the widest has.
            axis = torch.where(width[rows, chunk.axis] > 0, chunk.axis, width.argmax(1))
            chunk = replace(chunk, axis=axis)
            low, high = chunk.lower[rows, axis], chunk.upper[rows, axis]
            at = low + (high - low) / 2
            nodes = state.split(chunk, at)
            lower, upper = chunk.lower.clone(), chunk.upper.clone()
            lower[rows, axis] = upper[rows, axis] = at
            halves = replace(join([replace(chunk, upper=upper), replace(chunk, lower=lower)]), node=nodes)
            outside = state.inputs.outside(halves.image, halves.lower, halves.upper)
            if bool(outside.any()):
                nothing = torch.where(outside, torch.inf, -torch.inf).to(torch.float64)
                halves = halves[state.close_proven(halves, nothing, "branch", lambda _: {"by": "outside"})]
            parts = [self._round(part, "branch") for part in chunks(self._fixed(halves), self.net.breadth)]
            cells = state.undecided(join([rest, *parts]))
        if len(cells):
            state.finish(cells)
        state.charge("branch", image, begun)


# The attack: projected steps to points with a small form.


Members = tuple[Tensor, Tensor]
"""Several forms for each cell, w (N, forms, units) and constant (N, forms)."""


def descend(
    net: PreparedNetwork,
    cells: Cells,
    start: Tensor,
    members: Members | None,
    steps: tuple[float, ...] = (2.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.12, 0.12, 0.06, 0.06, 0.03),
) -> tuple[Tensor, Tensor]:
    """Signed gradient steps within each cell from given points: the least form seen, (N,), and where.

    The first steps are as long as the box is wide: they go from corner to corner, where a nearly linear form has its
    least value. Of several members, the largest counts.
    """
    radius = (cells.upper - cells.lower) / 2
    x, best, where = start, torch.full((len(cells),), torch.inf, dtype=torch.float64), start
    for step in (*steps, 0.0):
        value, slope = value_and_gradient(net, x, cells, members, gradient=step > 0.0)
        better = value < best
        best = torch.where(better, value, best)
        where = torch.where(better.unsqueeze(-1), x, where)
        x = torch.minimum(torch.maximum(x - step * radius * slope.sign(), cells.lower), cells.upper)
    return best, where


def value_and_gradient(
    net: PreparedNetwork, x: Tensor, cells: Cells, members: Members | None, gradient: bool
) -> tuple[Tensor, Tensor]:
    """Each cell's form (the largest of its members, if there are any) at a point of its own, and its gradient."""
    h = [A(x) for A in net.A]
    q = [net.s1.expand(len(x), -1)]
    for n in range(1, net.degree):
        q.append(net.between(h[n - 1] * q[n - 1], n))
    last = h[-1] * q[-1]
    if members is None:
        w, value = cells.w, (cells.w * last).sum(-1) + cells.constant
    else:
        value, which = ((members[0] @ last.unsqueeze(-1)).squeeze(-1) + members[1]).max(-1)
        w = members[0][torch.arange(len(x)), which]
    slope = torch.zeros_like(x)
    if gradient:
        lam = w
        for n in reversed(range(net.degree)):
            slope = slope + net.A[n].adjoint(lam * q[n])
            if n > 0:
                lam = net.back(lam * h[n], n)
    return value, slope
