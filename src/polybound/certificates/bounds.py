"""Lower bounds of linear forms of the logits over boxes, and what each bound excludes of its box."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from polybound.certificates.cells import Cells
from polybound.certificates.expansion import First, slopes_over
from polybound.certificates.network import Network
from polybound.certificates.quadratic import Separable, descend, diagonally_dominant, minorant, spectral_shift
from polybound.certificates.second import Second, second_order
from polybound.theory import ULP

__all__ = ["Bounded", "at_least_ends", "by_second", "lower_first", "monotone", "rounded_down", "shrink"]


@dataclass(frozen=True, eq=False)
class Bounded:
    """`g(u) >= constant + sum_d (p_d u_d - mu_d u_d^2 / 2)` over a cell, u in [-1, 1] in its active coordinates.

    Attributes:
        lower: the least value of the right side, proven and rounded down, (N,).
        p: (N, n).
        mu: (N, n).
        v: the point where it is (nearly) taken, (N, n).
        active: (n,).
        absorbed: whether the remainder was absorbed for this bound, (N,).
        bend: how much of the remainder each coordinate has a part in, (N, n); it proves nothing.
    """

    lower: Tensor
    p: Tensor
    mu: Tensor
    v: Tensor
    active: Tensor
    absorbed: Tensor
    bend: Tensor

    def rows(self, rows: Tensor) -> Bounded:
        """Some of the cells."""
        some = {name: getattr(self, name)[rows] for name in ("lower", "p", "mu", "v", "absorbed", "bend")}
        return replace(self, **some)

    def put(self, rows: Tensor, other: Bounded) -> Bounded:
        """The same with other bounds for some of the cells."""
        names = ("lower", "p", "mu", "v", "absorbed", "bend")
        return replace(self, **{name: getattr(self, name).index_copy(0, rows, getattr(other, name)) for name in names})

    def step(self, index: int) -> dict[str, Any]:
        """What bounds one of the cells, as a step of a proof."""
        values = {"on": self.active, "v": self.v[index], "mu": self.mu[index]}
        by = "absorbed" if self.absorbed[index] else "second"
        return {"by": by} | {name: tensor.tolist() for name, tensor in values.items()}

    def loss(self) -> Tensor:
        """What each coordinate costs the bound: the distance of its parabola from its chord, and the remainder."""
        return self.mu.clamp_min(0.0) * (1.0 - self.v.square()).clamp_min(0.0) / 2 + self.bend


def lower_first(net: Network, first: First, slack: Tensor) -> Tensor:
    """`g0 - sum_d |G_d| - R`, rounded down: (boxes, forms)."""
    total = first.G.abs().sum(-1) + first.R
    return rounded_down(first.g0, total, slack, net)


def rounded_down(g0: Tensor, total: Tensor, slack: Tensor, net: Network) -> Tensor:
    """`g0 - total`, less all that can have been rounded in it; never NaN."""
    off = slack + (g0.abs() + total) * (4 * net.roundings * ULP)
    return torch.nan_to_num((g0 - total) - off, nan=-torch.inf)


def by_second(net: Network, cells: Cells, spectral: bool = True, quick: bool = False) -> tuple[Bounded, Second]:
    """The bounds of second order, each only for the cells that the one before it left open.

    1. H made diagonally dominant, the remainder subtracted as a number.
    2. The remainder absorbed into H, which is then made diagonally dominant.
    3. The same with the least multiple of that shift that a Cholesky decomposition proves to be enough; with
       `spectral` only, since it takes several times as long as the others.

    With `quick`, H is computed in single precision where that pays, and the last bound has smaller weights of the
    remainder; the check of proofs knows neither.
    """
    c, r = cells.centre()
    active = cells.moving()
    second = second_order(net, c, r, cells.w, cells.constant, active, quick=quick)
    best = _dominant(net, cells, second, second.H, second.R, -second.G.sign(), active, absorbed=False)
    rows = torch.nonzero(best.lower <= cells.level).squeeze(1)
    if not len(rows):
        return best, second
    cells, some, last = cells[rows], second.rows(rows), best.rows(rows)
    H, R = some.absorbed()
    last = _better(last, _dominant(net, cells, some, H, R, last.v, active, absorbed=True))
    last = replace(last, bend=(some.H - H).abs().sum(-1) / 2)
    hard = torch.nonzero(last.lower <= cells.level).squeeze(1)
    if spectral and len(hard) and len(active) > 1:
        less, H, R = some.rows(hard), H[hard], R[hard]
        if quick:
            c, r = cells[hard].centre()
            less = second_order(net, c, r, cells.w[hard], cells.constant[hard], active, quick=True, tight=True)
            H, R = less.absorbed()
        found = _spectral(net, cells[hard], less, H, R, last.v[hard], active)
        last = last.put(hard, _better(last.rows(hard), found))
    return best.put(rows, last), second


def _dominant(
    net: Network, cells: Cells, second: Second, H: Tensor, R: Tensor, v: Tensor, active: Tensor, absorbed: bool
) -> Bounded:
    mu, rows = diagonally_dominant(H)
    v = descend(second.G, H, mu, rows, v, steps=2)
    return _bounded(net, cells, second, R, minorant(second.G, H, mu, torch.zeros_like(R), v), active, absorbed)


def _spectral(net: Network, cells: Cells, second: Second, H: Tensor, R: Tensor, v: Tensor, active: Tensor) -> Bounded:
    """The best of some diagonals: a semidefinite program's dual, a few steps towards its optimum.

    At the optimum the leading eigenvectors weigh each coordinate by what a unit of its shift costs, `(1 - v_d^2) / 2`;
    until then, the pattern moves from where it costs more to where it helps more.
    """
    mu, rows = diagonally_dominant(H)
    pattern = mu.clamp_min(0.0) + rows.mean(-1, keepdim=True) * 0.05 + 2.0**-900
    found: list[Bounded] = []
    for turn in range(PATTERNS):
        shift = spectral_shift(H, pattern)
        v = descend(second.G, H, shift.mu, rows, v, steps=12)
        last = _bounded(net, cells, second, R, minorant(second.G, H, shift.mu, shift.lack, v), active, absorbed=True)
        found.append(_better(found[-1], last) if found else last)
        if bool((found[-1].lower > cells.level).all()) or (
            turn > 0 and not _promising(found[-2], found[-1], cells.level)
        ):
            break
        cost = shift.mu.clamp_min(0.0) * (1.0 - v.square()).clamp_min(0.0)
        cost = cost / cost.sum(-1, keepdim=True).clamp_min(2.0**-900)
        step = 0.5 / (1 + turn / 15) * (shift.mass - cost) / (shift.mass + cost).clamp_min(1e-12)
        pattern = pattern * torch.exp(step)
    return found[-1]


PATTERNS = 8
"""Diagonals that the spectral bound tries."""


def _promising(before: Bounded, after: Bounded, level: Tensor) -> bool:
    """Whether at this pace any open cell could be closed in the turns that are left."""
    pace = after.lower - before.lower
    return bool(((after.lower <= level) & (after.lower + PATTERNS * pace > level)).any())


def _bounded(
    net: Network, cells: Cells, second: Second, R: Tensor, below: Separable, active: Tensor, absorbed: bool
) -> Bounded:
    least = below.lower()
    total = torch.nan_to_num(R - least, nan=torch.inf)
    off = (second.G.abs().sum(-1) + R) * (4 * net.roundings * ULP)
    lower = rounded_down(second.g0, total, cells.slack + off, net)
    flags = torch.full_like(lower, absorbed, dtype=torch.bool)
    return Bounded(lower, below.p, below.mu, below.v, active, flags, torch.zeros_like(below.p))


def _better(a: Bounded, b: Bounded) -> Bounded:
    """Row by row the better of two bounds."""
    wins = b.lower > a.lower
    rows = wins.unsqueeze(-1)
    p, mu, v = (torch.where(rows, y, x) for x, y in ((a.p, b.p), (a.mu, b.mu), (a.v, b.v)))
    absorbed = torch.where(wins, b.absorbed, a.absorbed)
    return Bounded(torch.maximum(a.lower, b.lower), p, mu, v, a.active, absorbed, a.bend)


def shrink(cells: Cells, bounded: Bounded, target: Tensor | float) -> Cells:
    r"""Cut off what cannot hold a point with `g <= target`.

    Let D = target - lower. With all other coordinates at their best, moving `u_d` by delta from the end where its
    parabola is least costs `(|p_d| + mu_d) delta - mu_d delta^2 / 2`; where that exceeds D, g exceeds the target. For
    mu_d >= 0 the cost is concave in delta, so what exceeds D at delta and at the far end, 2, does so in between.
    """
    lacking = (target - bounded.lower).unsqueeze(-1) * (1 + 2.0**-30) + 2.0**-900
    size, mu = bounded.p.abs(), bounded.mu.clamp_min(0.0)
    slope = size + mu
    root = (slope.square() - 2 * mu * lacking).clamp_min(0.0).sqrt()
    delta = (2 * lacking / (slope + root).clamp_min(2.0**-900)) * (1 + 2.0**-20)
    # Rounded down, also where the two terms nearly cancel.
    cost = (slope * delta - mu * delta.square() / 2) * (1 - 2.0**-30) - slope * delta * (8 * ULP)
    sound = (bounded.mu >= 0) & (delta < 2) & (cost > lacking) & (2 * size * (1 - 2.0**-30) > lacking) & (lacking > 0)
    lower, upper = cells.lower.clone(), cells.upper.clone()
    low, high = lower[:, bounded.active], upper[:, bounded.active]
    r = cells.centre()[1][:, bounded.active]
    width = r * delta * (1 + 2.0**-30) + (low.abs() + high.abs()) * (4 * ULP)
    lower[:, bounded.active] = torch.where(sound & (bounded.p < 0), torch.maximum(low, high - width), low)
    upper[:, bounded.active] = torch.where(sound & (bounded.p > 0), torch.minimum(high, low + width), high)
    return cells.narrowed(lower, upper)


def at_least_ends(net: Network, cells: Cells) -> Cells:
    """The cells without the coordinates along which their forms rise or fall everywhere, as first order shows it.

    Along those the least value is at an end, at which they are fixed. `monotone` sees more of them, and takes longer.
    """
    c, r = cells.centre()
    slope, away = slopes_over(net, c, r, cells.w)
    away = away * (1 + 4 * net.roundings * ULP) + (net.degree * cells.slack).unsqueeze(-1)
    lower = torch.where(slope < -away, cells.upper, cells.lower)
    return cells.narrowed(lower, torch.where(slope > away, cells.lower, cells.upper))


def monotone(net: Network, cells: Cells, second: Second) -> Tensor:
    """Where the form rises (1) or falls (-1) along a coordinate all over the cell; 0 elsewhere: (N, n).

    `dg/du_d` lies within `G_d +- (sum_e |H_de| + rest_d)`, and float64 is off by less than `degree * slack`: the
    derivative of P by `x_d`, times `x_d`, is at most k times P.
    """
    _, rows = diagonally_dominant(second.H)
    off = (net.degree * cells.slack).unsqueeze(-1)
    away = (rows + second.rest) * (1 + 4 * net.roundings * ULP) + off
    return torch.where(second.G.abs() > away, second.G.sign(), 0.0)
