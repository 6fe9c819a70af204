"""The verifier over l_2 balls: first order, attacks, the trust-region problem, branching where features are few.

Let q be a lower bound of a form over `||u||_2 <= 1`. For every d and every kappa >= 0, `q(u) + kappa (d.u - s)` is at
most q(u) where `d.u <= s`. So if it is above a level everywhere, what is not above the level lies in the cap `d.u > s`.
For `||u|| <= 1` and s >= 0, `||u - s d||^2 <= 1 - s^2 (2 - ||d||^2)` there: the cap lies in a ball that is smaller, in
which remainders are far smaller. The smaller ball sticks out of the old one, `||a + b u'|| <= 1` in its own u'. So the
old one stays as a second constraint, with a multiplier nu >= 0: `nu (||a + b u'||^2 - 1) / 2` may be added to the form.
That bends it upwards, by nu b^2, and takes away the slope with which it falls out of the old ball.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from polybound.certificates.bounds.balls import Quadratic, least_linear, lower_in_ball, nearest, trust_region
from polybound.certificates.bounds.first_order import first_order
from polybound.certificates.bounds.second_order import second_order
from polybound.certificates.bounds.slopes import BALL, length
from polybound.certificates.forms import Cells, ImageForms, chunks, join
from polybound.certificates.input_sets import Balls, Limits, Sides
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.search.boxes import Members, Search, Verifier, value_and_gradient
from polybound.certificates.search.proof_state import Node, ProofState
from polybound.theory import ULP


def verifier(state: ProofState, search: Search) -> Verifier:
    """The verifier over boxes, or over l_2 balls if the state's input sets are balls."""
    if isinstance(state.inputs, Balls):
        return BallVerifier(state, state.inputs, search)
    return Verifier(state, search)


CAPS = 4
"""How often the rest of a ball is bounded again."""


class BallVerifier(Verifier):
    """Proves the claims of all images over their balls.

    A cell is the part of a ball within a box. Bounds hold over the whole ball until it is split, and from then on over
    boxes; those that do not meet the ball are dropped.

    Args:
        state: the claims, and what is proven of them.
        balls: the sets of inputs that they are about.
        search: how to look for proofs.
    """

    BRANCHED = 12  # of more features, boxes as small as a ball's parts need are too many

    def __init__(self, state: ProofState, balls: Balls, search: Search) -> None:
        super().__init__(state, search)
        self.balls = balls
        self.ends = False  # the end of a coordinate may lie outside of the ball

    def bound_first(self, images: Tensor, block: ImageForms, slopes: bool = False) -> tuple[Tensor, Tensor]:
        """Bounds of first order over the whole balls, and where they are taken."""
        x, r = self.balls.x[images], self.balls.r[images]
        first = first_order(self.net, x, r, block.w, block.constant, slopes=slopes, region=BALL)
        bound, u = lower_in_ball(self.net, first, block.slack, self.balls.limits(images))
        return bound, x.unsqueeze(1) + r.unsqueeze(1) * u

    def attack(self, cells: Cells, start: Tensor, *steps: tuple[float, ...]) -> Tensor:
        """Descend within the balls."""
        value, where = descend_in_balls(self.net, self.balls, cells, start, self.forms.members(cells), *steps)
        self.state.see(cells, value, where)
        return value

    def second(self, cells: Cells) -> Cells:
        """The trust-region problems of all cells; if time is short, those of the most urgent first."""
        if not self.search.strict:
            return self.state.undecided(join([self._trust(chunk) for chunk in chunks(cells, self.net.breadth)]))
        cells = cells[self.state.urgency(cells).argsort()]
        left = [cells[:0]]
        for chunk in chunks(cells, self.units, limit=2**20):
            late = self.state.spent[chunk.image] >= self.search.budget
            left += [self._trust(chunk[~late]), chunk[late]]
        return self.state.undecided(join(left))

    def _trust(self, cells: Cells) -> Cells:
        """The trust-region problem of each cell, the remainder as a number and then absorbed; then its caps."""
        begun, images, net, balls = time.perf_counter(), cells.image, self.net, self.balls
        r = balls.r[images]
        active = torch.nonzero((r > 0).any(0)).squeeze(-1)
        if len(cells) and len(active):
            second = second_order(net, balls.x[images], r, cells.w, cells.constant, active, region=BALL)
            for by in ("trust", "trust absorbed"):
                low, high = (side[:, active] for side in balls.limits(cells.image))
                H, R = (second.H, second.R) if by == "trust" else second.absorbed()
                bound, v, problem = trust_region(net, second, H, R, cells.slack, (low, high))
                rows = self._closed(cells, bound, v, problem, {"by": by, "on": active.tolist()})
                cells = replace(cells, bound=torch.maximum(cells.bound, bound))[rows]
                if not len(cells):
                    break
                v, problem, second = v[rows], problem.rows(rows), second.rows(rows)
                u = torch.zeros_like(cells.lower)
                u[:, active] = v
                self.attack(cells, balls.point(cells.image, u), (0.5, 0.25, 0.1, 0.05))
            else:
                cells = self._caps(cells, problem, v, active, begun)
        self.state.charge("second", images, begun)
        return self.state.undecided(cells)

    def _closed(
        self, cells: Cells, bound: Tensor, v: Tensor, problem: Quadratic, about: Node, nu: Tensor | None = None
    ) -> Tensor:
        """Note what proves the bounds, and close the cells that they are enough for; returns the others."""
        return self.state.close_proven(
            cells, bound, "second", lambda row: about | {"v": v[row].tolist()} | _multipliers(problem, nu, row)
        )

    def _caps(self, cells: Cells, problem: Quadratic, v: Tensor, active: Tensor, begun: float) -> Cells:
        """Cut balls to the caps that bounds leave of them, and bound the smaller balls that hold those, some times."""
        net, state, on = self.net, self.state, active.tolist()
        parts = Parts.whole(self.balls.x[cells.image][:, active], self.balls.r[cells.image][:, active])
        nu, left = torch.zeros_like(cells.bound), [cells[:0]]
        for _ in range(CAPS):
            limits = parts.limits((cells.lower[:, active], cells.upper[:, active]))
            cap = best_cap(net, problem, v, cells.target, limits)
            smaller = parts.capped(cap["d"], cap["s"].clamp_min(0.0))
            better = (cap["s"] > 0) & (smaller.rho < 0.97 * parts.rho) & ~state.falsified(cells.image)
            left.append(cells[~better])
            rows = torch.nonzero(better).squeeze(1)
            if not len(rows):
                return join(left)
            nodes = []
            for row in rows.tolist():
                about = cap | {"centre": smaller.c, "radii": smaller.r}
                step = {"by": "cap", "on": on} | {name: values[row].tolist() for name, values in about.items()}
                nodes.append(state.cut(cells, row, step | _multipliers(problem, nu, row)))
            cells, parts = replace(cells[rows], node=torch.tensor(nodes, dtype=torch.int64)), smaller.rows(rows)

            # The bounds over the smaller balls, within the whole ones.
            c, r = self.balls.x[cells.image].clone(), torch.zeros_like(cells.lower)
            c[:, active], r[:, active] = parts.c, parts.r
            # A part may stick out of the whole ball.
            slack = self.forms.of_images(cells.image, net.slack(c.abs() + r)).slack
            slack = slack.gather(1, cells.claim.unsqueeze(1)).squeeze(1)
            second = second_order(net, c, r, cells.w, cells.constant, active, region=BALL)
            limits = parts.limits((cells.lower[:, active], cells.upper[:, active]))
            plain = Quadratic.of(second, *second.absorbed(), slack)
            bound, v, nu = best_in_both(net, plain, parts, limits)
            problem = parts.in_both(plain, nu)
            rows = self._closed(cells, bound, v, problem, {"by": "trust absorbed", "on": on}, nu)
            if len(rows):
                start = c[rows]
                start[:, active] += (parts.r * v)[rows]
                self.attack(cells[rows], start, (0.5, 0.25, 0.1, 0.05))
            cells, parts, problem, v, nu = cells[rows], parts.rows(rows), problem.rows(rows), v[rows], nu[rows]
            late = self.search.strict and time.perf_counter() - begun > self.search.budget
            if not len(cells) or late:
                break
        return join([*left, cells])


def _multipliers(problem: Quadratic, nu: Tensor | None, row: int) -> Node:
    """The multipliers of the ball and, in a part of it, of the whole one."""
    return {"lam": float(problem.lam[row])} | ({} if nu is None else {"nu": float(nu[row])})


def descend_in_balls(
    net: PreparedNetwork,
    balls: Balls,
    cells: Cells,
    start: Tensor,
    members: Members | None,
    steps: tuple[float, ...] = (1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.12, 0.12, 0.06, 0.06, 0.03, 0.03),
) -> tuple[Tensor, Tensor]:
    """Projected gradient steps within each cell's ball from given points: the least form seen, (N,), and where.

    The first go to where the form would be least if its gradient were the same everywhere.
    """
    images = cells.image
    r, limits = balls.r[images], balls.limits(images)
    u = nearest(balls.unit(images, start), limits)
    best, where = torch.full((len(cells),), torch.inf, dtype=torch.float64), u
    for step in (*[torch.inf] * 4, *steps, 0.0):
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


# The rest of an l_2 ball when a bound excludes all but a cap: a smaller ball, within the old one.


@dataclass(frozen=True, eq=False)
class Parts:
    """For each cell a ball `c + r u` with the rest of a whole ball `x + R u`, in the coordinates that move.

    Attributes:
        x: centres of the whole balls, (N, n).
        R: their radii.
        c: centres of the parts.
        r: their radii.
        rho: r is rho R, or more by a few roundings, (N,).
    """

    x: Tensor
    R: Tensor
    c: Tensor
    r: Tensor
    rho: Tensor

    @staticmethod
    def whole(x: Tensor, R: Tensor) -> Parts:
        """The whole balls."""
        return Parts(x, R, x, R, torch.ones_like(x[:, 0]))

    def rows(self, rows: Tensor) -> Parts:
        """Some of them."""
        return Parts(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def limits(self, sides: Sides) -> Limits:
        """The range that boxes, (N, n) each, leave to each u_d, rounded outwards, within [-1, 1]."""
        low, high = (_ratio(side - self.c, self.r) for side in sides)
        low, high = low - low.abs() * (8 * ULP) - 2.0**-1000, high + high.abs() * (8 * ULP) + 2.0**-1000
        moves = self.r > 0
        return torch.where(moves, low.clamp(-1.0, 1.0), 0.0), torch.where(moves, high.clamp(-1.0, 1.0), 0.0)

    def in_both(self, problem: Quadratic, nu: Tensor) -> Quadratic:
        """The problem plus `nu (||a + b u||^2 - 1) / 2`, which is not positive in the whole ball; nu (N,)."""
        a, n = _ratio(self.c - self.x, self.R), self.c.shape[-1]
        square, bend = a.square().sum(-1), nu * self.rho.square()
        # Of all these terms, each rounded less than n + 16 times.
        off = nu * (1 + square + self.rho * a.abs().sum(-1) + self.rho.square()) * ((n + 32) * ULP)
        tilted = problem.tilted((nu * self.rho).unsqueeze(-1) * a)
        g0, lam = problem.g0 + nu * (square - 1) / 2, (problem.lam - bend).clamp_min(0.0)
        off = off + problem.g0.abs() * (4 * ULP)
        return replace(tilted, g0=g0, bend=bend, lam=lam, off=tilted.off + off)

    def capped(self, d: Tensor, s: Tensor) -> Parts:
        """Balls that hold the caps `d.u >= s`, 0 <= s, of these; rho is not below 1 where none could be found."""
        n = self.c.shape[-1]
        step = self.r * (s.unsqueeze(-1) * d)
        c = self.c + step
        # How far the rounded centre is from the true one, in radii of the whole ball.
        sizes = (self.c.abs() + c.abs() + step.abs()) * (8 * ULP)
        away = length(_ratio(((self.c - c) + step).abs() + sizes, self.R))
        left = (1 - s.square() * (2 - d.square().sum(-1))).clamp_min(0.0) + (n + 32) * ULP
        rho = (self.rho * left.sqrt() + away) * (1 + 64 * ULP)
        return Parts(self.x, self.R, c, self.R * rho.unsqueeze(-1) * (1 + 4 * ULP), rho)


def _ratio(away: Tensor, r: Tensor) -> Tensor:
    """`away / r`; 0 where nothing moves."""
    return torch.where(r > 0, away / r.clamp_min(5e-324), 0.0)


def best_cap(net: PreparedNetwork, problem: Quadratic, v: Tensor, target: Tensor, limits: Limits) -> dict[str, Tensor]:
    """The smallest caps `d.u > s`, of some kappa, in the directions of v, outside of which forms exceed the target.

    Returns what proves it, as steps of a proof have it: d and v, (N, n); s, (N,), negative where nothing was excluded;
    kappa, (N,).
    """
    d = v / v.norm(dim=-1, keepdim=True).clamp_min(2.0**-500)
    size = problem.G.norm(dim=-1).clamp_min(2.0**-500)
    best_s, best_kappa, best_v = torch.full_like(size, -1.0), torch.zeros_like(size), v
    for share in (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8):
        kappa = share * size
        bound, at = problem.tilted(kappa.unsqueeze(-1) * d).lower(net, limits)
        # A billionth less, which is more than these operations round.
        s = ((bound - target) / kappa - 2.0**-30).clamp_max(0.9999)
        sound = 2.0**-30 * kappa > (bound.abs() + target.abs() + kappa) * (16 * ULP)
        better = (s > best_s) & sound & torch.isfinite(bound)
        best_s, best_kappa = torch.where(better, s, best_s), torch.where(better, kappa, best_kappa)
        best_v = torch.where(better.unsqueeze(-1), at, best_v)
    return {"s": best_s, "kappa": best_kappa, "d": d, "v": best_v}


def best_in_both(
    net: PreparedNetwork, problem: Quadratic, parts: Parts, limits: Limits
) -> tuple[Tensor, Tensor, Tensor]:
    """The best bounds over the parts within their whole balls, (N,), of some nu, with v and nu."""
    a = _ratio(parts.c - parts.x, parts.R).norm(dim=-1).clamp_min(2.0**-500)
    # With the first of these the slope along a would be gone, if the form fell along a alone.
    unit = problem.G.norm(dim=-1) / (parts.rho * a)
    best, v, nu = torch.full_like(a, -torch.inf), torch.zeros_like(problem.G), torch.zeros_like(a)
    for share in (0.0, 0.3, 0.6, 0.8, 0.9, 1.0, 1.1, 1.3):
        bound, at = parts.in_both(problem, share * unit).lower(net, limits)
        better = bound > best
        best = torch.where(better, bound, best)
        v = torch.where(better.unsqueeze(-1), at, v)
        nu = torch.where(better, share * unit, nu)
    return best, v, nu
