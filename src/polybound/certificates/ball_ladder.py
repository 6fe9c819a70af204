"""The ladder over l_2 balls: first order, attacks, the trust-region problem, and branching where features are few."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from polybound.certificates.attack import Members, value_and_gradient
from polybound.certificates.ball_ledgers import InBalls
from polybound.certificates.balls import Balls, least_linear, nearest
from polybound.certificates.cells import Cells, chunks, join
from polybound.certificates.expansion import first_order
from polybound.certificates.forms import Forms
from polybound.certificates.inputs import Boxes
from polybound.certificates.ladder import Ladder
from polybound.certificates.ledger import Ledger
from polybound.certificates.network import Network
from polybound.certificates.regions import BALL
from polybound.certificates.second import Second, second_order
from polybound.certificates.trust import lower_in_ball, trust_region

__all__ = ["BallLadder", "ladder_over"]

BRANCHED = 12
"""Up to this many features that move, balls are split; of more, boxes as small as a ball's parts need are too many."""

_LEAPS = 4
_STEPS = (1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.12, 0.12, 0.06, 0.06, 0.03, 0.03)


class BallLadder(Ladder):
    """Proves the claims of all images over their balls.

    A cell is the part of a ball within a box. Bounds hold over the whole ball until it is split, and from then on over
    boxes; those that do not meet the ball are dropped.

    Args:
        forms: what is claimed of each image.
        boxes: the boxes around the balls.
        balls: the balls.
        ledger: where decisions are entered.
        options: as for `Ladder`.
    """

    def __init__(self, forms: Forms, boxes: Boxes, balls: Balls, ledger: InBalls, **options: Any) -> None:
        super().__init__(forms, boxes, ledger, **options)
        self.ledger: InBalls = ledger
        self.balls = balls
        self.ends = False  # the end of a coordinate may lie outside of the ball

    def _reach(self, images: Tensor) -> Tensor:
        """Of the whole ball: the expansion is about its centre."""
        return self.balls.x[images].abs() + self.balls.r[images]

    def _first_order(
        self, images: Tensor, w: Tensor, constant: Tensor, slack: Tensor, slopes: bool = False
    ) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
        balls = self.balls
        first = first_order(self.net, balls.x[images], balls.r[images], w, constant, slopes=slopes, region=BALL)
        bound, u = lower_in_ball(self.net, first, slack, balls.limits(images))
        return bound, lambda index, row: balls.point(images[index], u[index, row])

    def _descend(self, cells: Cells, start: Tensor, *steps: tuple[float, ...]) -> Tensor:
        members = self.forms.members(cells)
        value, where = descend_in_balls(self.net, self.balls, cells, start, members, *steps)
        self.ledger.see(cells, value, where)
        return value

    def _second(self, cells: Cells) -> Cells:
        """The trust-region problem of each cell, the remainder as a number and then absorbed."""
        begun, images = time.perf_counter(), cells.image
        r = self.balls.r[images]
        active = torch.nonzero((r > 0).any(0)).squeeze(-1)
        if len(cells) and len(active):
            second = second_order(self.net, self.balls.x[images], r, cells.w, cells.constant, active, region=BALL)
            for absorb in (False, True):
                cells, rows = self._trust(cells, second, active, absorb)
                if not len(cells):
                    break
                second = second.rows(rows)
        self.ledger.charge("second", images, begun)
        return self.ledger.undecided(cells)

    def _hurried(self, cells: Cells) -> Cells:
        """The same, while the images' time lasts, the most urgent first."""
        cells = cells[self.ledger.urgency(cells).argsort()]
        parts = [cells[:0]]
        for chunk in chunks(cells, self.units, limit=2**20):
            late = self.ledger.spent[chunk.image] >= self.budget
            parts += [self._second(chunk[~late]), chunk[late]]
        return self.ledger.undecided(join(parts))

    def _fixed(self, cells: Cells) -> Cells:
        """As they are: the end of a coordinate may lie outside of the ball, and would be dropped with all the rest."""
        return cells

    def _trust(self, cells: Cells, second: Second, active: Tensor, absorb: bool) -> tuple[Cells, Tensor]:
        """Bound cells by their trust-region problems, attack from there; returns those that stay open, and which."""
        low, high = (side[:, active] for side in self.balls.limits(cells.image))
        H, R = second.absorbed() if absorb else (second.H, second.R)
        bound, v, lam = trust_region(self.net, second, H, R, cells.slack, (low, high))
        cells = replace(cells, bound=torch.maximum(cells.bound, bound))
        proven = bound > cells.level
        kind = {"by": "trust absorbed" if absorb else "trust", "on": active.tolist()}
        self.ledger.note(cells, bound, lambda index: kind | {"v": v[index].tolist(), "lam": float(lam[index])})
        for index in torch.nonzero(proven).squeeze(1).tolist():
            self.ledger.close(cells, index, float(cells.bound[index]), "second")
        rows = torch.nonzero(~proven).squeeze(1)
        cells = cells[rows]
        if len(cells):
            u = torch.zeros_like(cells.lower)
            u[:, active] = v[rows]
            self._descend(cells, self.balls.point(cells.image, u), (0.5, 0.25, 0.1, 0.05))
        return cells, rows

    def _met(self, cells: Cells) -> Cells:
        """The cells whose boxes meet their balls."""
        outside = self.balls.outside(cells.image, cells.lower, cells.upper)
        nothing = torch.where(outside, torch.inf, -torch.inf).to(torch.float64)
        self.ledger.note(cells, nothing, lambda _: {"by": "outside"})
        for index in torch.nonzero(outside).squeeze(1).tolist():
            self.ledger.close(cells, index, torch.inf, "branch")
        return cells[~outside]

    def _branch(self, cells: Cells) -> None:
        """As over boxes, where few features move."""
        if int((cells.upper > cells.lower).any(0).sum()) > BRANCHED:
            self.ledger.settle(cells)
        else:
            super()._branch(cells)


def ladder_over(forms: Forms, boxes: Boxes, balls: Balls | None, ledger: Ledger, **options: Any) -> Ladder:
    """The ladder over boxes, or over the balls in them if there are any."""
    if balls is None or not isinstance(ledger, InBalls):
        return Ladder(forms, boxes, ledger, **options)
    _ = forms.net.norms_A  # once for a model, before the clock of the first images starts
    return BallLadder(forms, boxes, balls, ledger, **options)


def descend_in_balls(
    net: Network,
    balls: Balls,
    cells: Cells,
    start: Tensor,
    members: Members | None,
    steps: tuple[float, ...] = _STEPS,
) -> tuple[Tensor, Tensor]:
    """Projected gradient steps within each cell's ball from given points: the least form seen, (N,), and where.

    The first go to where the form would be least if its gradient were the same everywhere.
    """
    images = cells.image
    r, limits = balls.r[images], balls.limits(images)
    u = nearest(balls.unit(images, start), limits)
    best, where = torch.full((len(cells),), torch.inf, dtype=torch.float64), u
    for step in (*[torch.inf] * _LEAPS, *steps, 0.0):
        if step == steps[0]:
            u = where  # after the leaps, or a step as long as the first, from the best point on
        value, slope = value_and_gradient(net, balls.point(images, u), cells, members, gradient=step > 0.0)
        better = value < best
        best = torch.where(better, value, best)
        where = torch.where(better.unsqueeze(-1), u, where)
        slope = slope * r
        if step == torch.inf:
            u = least_linear(slope, limits)[1]
        else:
            u = nearest(u - step * slope / slope.norm(dim=-1, keepdim=True).clamp_min(2.0**-500), limits)
    return best, balls.point(images, where)
