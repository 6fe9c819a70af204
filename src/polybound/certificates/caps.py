"""What is left of an l_2 ball when a bound excludes all but a cap of it: a smaller ball, and the old one as well.

Let q be a lower bound of a form over `||u||_2 <= 1`. For every d and every kappa >= 0, `q(u) + kappa (d.u - s)` is at
most q(u) where `d.u <= s`. So if it is above a level everywhere, what is not above the level lies in the cap `d.u > s`.
For `||u|| <= 1` and s >= 0, `||u - s d||^2 <= 1 - s^2 (2 - ||d||^2)` there: the cap lies in a ball that is smaller, in
which remainders are far smaller. The smaller ball sticks out of the old one, `||a + b u'|| <= 1` in its own u'. So the
old one stays as a second constraint, with a multiplier nu >= 0: `nu (||a + b u'||^2 - 1) / 2` may be added to the form.
That bends it upwards, by nu b^2, and takes away the slope with which it falls out of the old ball.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from polybound.certificates.balls import Limits
from polybound.certificates.boxes import Sides
from polybound.certificates.network import Network
from polybound.certificates.regions import length
from polybound.certificates.trust import Quadratic
from polybound.theory import ULP

__all__ = ["Cap", "Parts", "best_cap", "best_in_both"]

_KAPPAS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
_NUS = (0.0, 0.3, 0.6, 0.8, 0.9, 1.0, 1.1, 1.3)


@dataclass(frozen=True, eq=False)
class Parts:
    """For each cell a ball `c + r u` that holds what is left of a whole ball `x + R u`, in the coordinates that move.

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
        return Parts(self.x[rows], self.R[rows], self.c[rows], self.r[rows], self.rho[rows])

    def step(self, row: int) -> dict[str, Any]:
        """One of them, for a proof."""
        return {"centre": self.c[row].tolist(), "radii": self.r[row].tolist()}

    def limits(self, sides: Sides) -> Limits:
        """What boxes, (N, n) each, leave of each u_d, rounded outwards, within [-1, 1]."""
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


@dataclass(frozen=True, eq=False)
class Cap:
    """What proves that only the caps `d.u > s` are left, one row a ball.

    Attributes:
        d: (N, n).
        s: (N,); negative where nothing was excluded.
        kappa: (N,).
        v: the point that proves it, (N, n).
    """

    d: Tensor
    s: Tensor
    kappa: Tensor
    v: Tensor

    def step(self, row: int) -> dict[str, Any]:
        """One of them, for a proof."""
        numbers = {"s": float(self.s[row]), "kappa": float(self.kappa[row])}
        return numbers | {"d": self.d[row].tolist(), "v": self.v[row].tolist()}


def best_cap(net: Network, problem: Quadratic, v: Tensor, target: Tensor, limits: Limits) -> Cap:
    """The smallest caps, of some kappa, in the directions of v, outside of which forms exceed the target, (N,)."""
    d = v / v.norm(dim=-1, keepdim=True).clamp_min(2.0**-500)
    size = problem.G.norm(dim=-1).clamp_min(2.0**-500)
    best = Cap(d, torch.full_like(size, -1.0), torch.zeros_like(size), v)
    for share in _KAPPAS:
        kappa = share * size
        bound, at = problem.tilted(kappa.unsqueeze(-1) * d).lower(net, limits)
        # A billionth less, which is more than these operations round.
        s = ((bound - target) / kappa - 2.0**-30).clamp_max(0.9999)
        sound = 2.0**-30 * kappa > (bound.abs() + target.abs() + kappa) * (16 * ULP)
        better = (s > best.s) & sound & torch.isfinite(bound)
        rows = better.unsqueeze(-1)
        best = Cap(
            d,
            torch.where(better, s, best.s),
            torch.where(better, kappa, best.kappa),
            torch.where(rows, at, best.v),
        )
    return best


def best_in_both(net: Network, problem: Quadratic, parts: Parts, limits: Limits) -> tuple[Tensor, Tensor, Tensor]:
    """The best bounds over the parts within their whole balls, (N,), of some nu, with v and nu."""
    a = _ratio(parts.c - parts.x, parts.R).norm(dim=-1).clamp_min(2.0**-500)
    # With the first of these the slope along a would be gone, if the form fell along a alone.
    unit = problem.G.norm(dim=-1) / (parts.rho * a)
    best, v, nu = torch.full_like(a, -torch.inf), torch.zeros_like(problem.G), torch.zeros_like(a)
    for share in _NUS:
        bound, at = parts.in_both(problem, share * unit).lower(net, limits)
        better = bound > best
        best = torch.where(better, bound, best)
        v = torch.where(better.unsqueeze(-1), at, v)
        nu = torch.where(better, share * unit, nu)
    return best, v, nu
