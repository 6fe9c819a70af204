"""The allocation problem behind `project_product`: how much each factor of a unit has to shrink.

    minimise  sum_i g_i(u_i)   subject to   sum_i u_i = L,   0 <= u_i <= cap_i

with the costs `g_i` that `product.py` explains; they are smooth, rise from zero, and need not be convex.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["CHUNK", "Units", "solve"]

_EPS = torch.finfo(torch.float64).eps
_INF = math.inf
_CELLS = 128  # cells of the coarse grid over [0, L]
_REACH = 8  # the fine grid moves each factor by at most this many of its cells
_FACTORS = 64  # of more than these, the search over pairs of factors takes too long; what the descent finds is kept
_KEEP = 3  # how many minima of different cost are followed further
CHUNK = 1 << 21
"""Numbers in one temporary: 16 MiB."""


@dataclass
class Units:
    """U allocation problems of k factors: everything needed to evaluate ``g_i`` and its derivatives exactly."""

    total: Tensor  # N_i, (U, k)
    budget: Tensor  # L, (U,)
    cap: Tensor  # the u_i at which the radius is zero, (U, k)
    knots: Tensor  # ||v_i||_1 - radius at which the threshold reaches the q-th smallest entry, (U, k, d)
    tail: Tensor  # the sum of the entries below the q-th smallest, (U, k, d)
    squares: Tensor  # the sum of their squares, (U, k, d)

    def __getitem__(self, index: Tensor | slice) -> Units:
        return Units(*(getattr(self, field.name)[index] for field in fields(self)))

    def cut(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The l1 mass to remove and the number of entries that vanish with it; ``u`` is (U, k, C) here and below."""
        excess = -self.total[..., None] * torch.expm1(-u)
        zeroed = torch.searchsorted(self.knots, excess.contiguous(), right=True)
        return excess, zeroed.clamp_(max=self.knots.shape[-1] - 1)

    def at(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The costs ``g_i(u_i)`` and their first and second derivatives."""
        excess, zeroed = self.cut(u)
        left = self.knots.shape[-1] - zeroed
        tau = (excess - self.tail.gather(-1, zeroed)) / left
        size = self.total[..., None] * (-u).exp()
        return left * tau.square() + self.squares.gather(-1, zeroed), 2 * size * tau, 2 * size * (size / left - tau)

    def feasible(self, u: Tensor) -> Tensor:
        """Clamp to the box, then scale down or fill up until the sum is the budget."""
        cap = torch.minimum(self.cap, self.budget[:, None])[..., None]
        budget = self.budget[:, None, None]
        u = torch.minimum(u.clamp(min=0), cap)
        u = u * (budget / u.sum(1, keepdim=True)).clamp(max=1).nan_to_num(1.0)
        lack, room = (budget - u.sum(1, keepdim=True)).clamp(min=0), cap - u
        u = u + room * (lack / room.sum(1, keepdim=True)).nan_to_num(0.0, 0.0, 0.0)
        return torch.where(u >= self.cap[..., None] * (1 - 2 * _EPS), self.cap[..., None], u)

    def dual(self, mu: Tensor) -> Tensor:
        """A lower bound of the optimal cost: ``mu L + sum_i min_u (g_i(u) - mu u)``, exact minima over all pieces.

        Between two knots ``g_i'`` is the parabola ``2 R (A - R) / p``; only its larger root can be a minimum.
        """
        end = torch.minimum(self.cap, self.budget[:, None])[..., None]
        total, mu = self.total[..., None], mu[:, None, None]
        left = torch.arange(self.knots.shape[-1], 0, -1, dtype=torch.float64, device=mu.device)
        peak = total - self.tail
        high = total - functional.pad(self.knots[..., :-1], (1, 0))
        low = torch.maximum(total - self.knots, total * (-end).exp())
        root = (peak + (peak.square() - 2 * left * mu).clamp(min=0).sqrt()) / 2
        size = torch.minimum(torch.maximum(root, low), high)
        value = (peak - size).square() / left + self.squares - mu * (total / size).log()
        least = value.masked_fill(~(high >= low), _INF).amin(-1).clamp(max=0)
        least = torch.minimum(least, (self.at(end)[0] - mu * end)[..., 0])
        return mu[:, 0, 0] * self.budget + least.sum(-1)


def solve(problem: Units) -> Tensor:
    """The optimal log-shrinkages, (U, k)."""
    # Start where the budget is shared in inverse proportion to the curvatures at zero.
    stiffness = problem.at(torch.zeros_like(problem.total)[..., None])[2]
    share = (stiffness.amin(1, keepdim=True) / stiffness).nan_to_num(1.0)
    u, cost, mu = _descend(problem, problem.budget[:, None, None] * share / share.sum(1, keepdim=True))
    best = u[..., 0].clone()
    if best.shape[-1] == 1:
        return best
    # While L <= log 2 no R_i can fall below N_i / 2: all g_i are convex and the descent has found the minimum. Else
    # the dual value at its multiplier may prove the same.
    doubtful = (problem.budget > math.log(2)).nonzero()[:, 0]
    if best.shape[-1] > _FACTORS:
        return best
    if len(doubtful):
        gap = cost[doubtful, 0] - problem[doubtful].dual(mu[doubtful, 0])
        doubtful = doubtful[~(gap <= 1e-12 * cost[doubtful, 0])]
    size = max(1, CHUNK // (_CELLS + 1) ** 2)
    for first in range(0, len(doubtful), size):
        part = doubtful[first : first + size]
        best[part] = _search(problem[part], u[part])
    return best


def _descend(problem: Units, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Newton descent from every column of ``u`` (U, k, C); returns the points, their costs and multipliers (U, C).

    The diagonal Hessian is used as it is where it is positive on the plane ``sum du = 0``, that is if no curvature is
    negative, or one is and the inverses sum to less than zero; else in absolute value, which still descends. A step
    that raises the cost is taken back and tried again at a quarter of its length.
    """
    u = problem.feasible(u)
    cap, budget = problem.cap[..., None], problem.budget[:, None]
    cost, slope, bend = problem.at(u)
    total = cost.sum(1)
    length = torch.ones_like(total)
    mu = torch.zeros_like(total)
    for _ in range(80):
        lack = budget - u.sum(1)
        free, inverse, mu, spread = _multipliers(u < cap, slope, bend, lack)
        settled = (spread <= 1e-10 * mu.abs()) & (length < 0.1)  # only rounding is left
        done = settled | ~(spread > 16 * _EPS * mu.abs()) | (length < 1e-12) | (free.sum(1) <= 1)
        if bool(done.all()):
            break
        move = inverse * (mu[:, None] - slope)
        softest = inverse.abs().argmax(1, keepdim=True)  # its move would amplify the rounding error of mu
        move.scatter_(1, softest, 0.0).scatter_(1, softest, (lack - move.sum(1))[:, None])
        room = torch.where(move > 0, cap - u, -0.9 * u) / move
        reach = torch.where(free & (move != 0), room, _INF).amin(1).clamp(max=1) * length
        trial = torch.where(free, u + reach[:, None] * move, u)
        trial = torch.where(trial >= cap * (1 - 2 * _EPS), cap, trial).clamp(min=0)
        new = problem.at(trial)
        value = new[0].sum(1)
        # Near the end the cost is flat up to rounding and the slopes say more.
        flat = (value <= total * (1 + 4 * _EPS)) & (_spread(new[1], free) < spread)
        better = ~done & ((value < total * (1 - 4 * _EPS)) | flat)
        total = torch.where(better, value, total)
        length = torch.where(better, (4 * length).clamp(max=1), torch.where(done, length, length / 4))
        keep = better[:, None]
        u, slope, bend = (torch.where(keep, a, b) for a, b in zip((trial, *new[1:]), (u, slope, bend), strict=True))
    return u, total, mu.nan_to_num(0.0, 0.0, 0.0)


def _multipliers(free: Tensor, slope: Tensor, bend: Tensor, lack: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Which factors move, their inverse curvatures (U, k, C), the multipliers, and how much slopes differ (U, C)."""
    safe = 1 / bend.abs().clamp(min=1e-290)
    negative = ((bend < 1e-290) & free).sum(1)
    inverse = torch.where(free, 1 / bend, 0.0)
    newton = (negative == 0) | ((negative == 1) & (inverse.sum(1) < 0))
    inverse = torch.where(newton[:, None], inverse, torch.where(free, safe, 0.0))
    mu = ((inverse * slope).sum(1) + lack) / inverse.sum(1)
    spread = _spread(slope, free)
    if bool(free.all()):
        return free, inverse, mu, spread
    # A factor at its cap comes back if it would gain, but not before the others have nearly settled.
    gain = torch.where(free, -_INF, slope - mu[:, None])
    release = (gain == gain.amax(1, keepdim=True)) & (gain > 10 * spread.clamp(min=0)[:, None])
    free = free | release
    inverse = torch.where(release.any(1, keepdim=True), torch.where(free, safe, 0.0), inverse)
    mu = ((inverse * slope).sum(1) + lack) / inverse.sum(1)
    return free, inverse, mu, _spread(slope, free)


def _spread(slope: Tensor, free: Tensor) -> Tensor:
    """How much the slopes of the free factors differ: nothing at a stationary point."""
    return torch.where(free, slope, -_INF).amax(1) - torch.where(free, slope, _INF).amin(1)


def _search(problem: Units, local: Tensor) -> Tensor:
    """The best of what the descent finds from the grid, from one factor alone, and from neighbours of the best."""
    k = local.shape[1]
    budget = problem.budget[:, None, None]
    alone = budget * torch.eye(k, dtype=local.dtype, device=local.device)
    u, cost, mu = _descend(problem, torch.cat([local, alone.expand(len(local), k, k)], -1))
    u, cost, mu = _best(u, cost, mu, _KEEP)
    step = budget / _CELLS
    grid = step * torch.arange(_CELLS + 1, device=local.device)
    u, cost, mu = _descend(problem, torch.cat([u, _propose(problem, grid, step, _CELLS, mu[:, 0])], -1))

    # The same on cells four times as fine around the best ones: tells apart what the coarse grid blurs.
    u, cost, mu = _best(u, cost, mu, _KEEP)
    step = step / 4
    fine = u[..., None] + step[..., None] * torch.arange(-_REACH, _REACH + 1, device=local.device)
    columns = [_propose(problem, fine[:, :, c], step, k * _REACH, mu[:, c]) for c in range(_KEEP)]
    u, cost, mu = _descend(problem, torch.cat([u, *columns], -1))

    # Pass all that factor i sheds on to factor j, for each pair: with caps the choice of factors is a knapsack problem.
    u, cost, mu = _best(u, cost, mu, 1)
    i, j = (1 - torch.eye(k, device=local.device)).nonzero().unbind(1)
    column = torch.arange(len(i), device=local.device)
    both = u[:, i, 0] + u[:, j, 0]
    swapped = u.repeat(1, 1, len(i))
    swapped[:, j, column] = torch.minimum(both, problem.cap[:, j])
    swapped[:, i, column] = both - swapped[:, j, column]
    return _best(*_descend(problem, torch.cat([u, swapped], -1)), 1)[0][..., 0]


def _best(u: Tensor, cost: Tensor, mu: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ``count`` best columns whose costs differ."""
    left, picks = cost, []
    for _ in range(count):
        picks.append(left.argmin(1, keepdim=True))
        value = cost.gather(1, picks[-1])
        left = left.masked_fill((cost - value).abs() <= 1e-9 * value, _INF)
    index = torch.cat(picks, 1)
    return u.gather(-1, index[:, None].expand(-1, u.shape[1], -1)), cost.gather(1, index), mu.gather(1, index)


def _propose(problem: Units, nodes: Tensor, step: Tensor, cells: int, mu: Tensor) -> Tensor:
    """Good allocations on a grid, (U, k, C): for each factor the local minima of the best cost given its own share.

    ``nodes`` is (U, 1 or k, n), each row evenly spaced by ``step``; the budget is the sum of the first nodes and
    ``cells`` steps. Linear interpolation between nodes errs by ``g'' step^2 / 8`` at most and attains its least sum at
    nodes, therefore the grid minimum exceeds the true one by no more than the sum of these.
    """
    k, cap = problem.total.shape[1], problem.cap[..., None]
    nodes = nodes.expand(-1, k, -1)
    cost = problem.at(torch.minimum(nodes.clamp(min=0), cap))[0]
    # The two nodes next to the cap may stand for the cap itself: the others pay the difference at the price mu.
    end = problem.at(torch.minimum(cap, problem.budget[:, None, None]))[0] + mu[:, None, None] * (nodes - cap)
    cost = torch.where(nodes > cap, end, torch.where(nodes > cap - step, torch.minimum(cost, end), cost))
    cost = cost.masked_fill((nodes <= -step) | (nodes >= cap + step), _INF)
    cost = functional.pad(cost, (0, cells + 1 - nodes.shape[-1]), value=_INF)
    own = torch.arange(cells + 1, device=cost.device).expand(len(cost), -1)[..., None]
    tables = [(column, own) for column in cost.unbind(1)]
    before = list(accumulate(tables[:-1], _combine))  # the best cost of factors 0..i for each number of steps
    after = list(accumulate(tables[:0:-1], lambda a, b: _combine(b, a)))[::-1]  # and of factors i+1..k-1
    found = []
    for i in range(k):
        others = [*before[max(i - 1, 0) : i], *after[i : i + 1]]
        rest, shares = others[0] if len(others) == 1 else _combine(*others)
        through = cost[:, i] + rest.flip(-1)
        edge = functional.pad(through, (1, 1), value=_INF)
        valley = (through < edge[:, :-2]) & (through <= edge[:, 2:])
        steps = through.masked_fill(~valley, _INF).topk(_KEEP, largest=False).indices[..., None]
        shares = shares.gather(1, (cells - steps).expand(-1, -1, k - 1))
        found.append(torch.cat([shares[..., :i], steps, shares[..., i:]], -1))
    return nodes[..., :1] + step * torch.cat(found, 1).mT


def _combine(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The min-plus convolution of two tables: for each number of steps the least cost, (U, n), and its shares."""
    n = a[0].shape[-1]
    windows = functional.pad(a[0], (n - 1, 0), value=_INF).unfold(-1, n, 1)
    cost, place = (windows + b[0].flip(-1)[:, None]).min(-1)
    right = n - 1 - place[..., None]
    left = (torch.arange(n, device=cost.device)[:, None] - right).clamp(min=0)  # of an infinite cost any shares will do
    shares = [table.gather(1, index.expand_as(table)) for table, index in ((a[1], left), (b[1], right))]
    return cost, torch.cat(shares, -1)
