"""Euclidean projection onto the level sets of theta, the norm of the face-splitting product.

A layer that multiplies ``k`` linear maps entry by entry has the bound
``theta = max_j prod_i (||row j of W_i||_1 + beta_i)`` on its l_inf-operator norm. The set ``theta <= lambda`` is not
convex, but it splits into units: row ``j`` of all ``k`` factors is one problem in ``k * d`` numbers, and once the
radii are known every factor is an ordinary projection onto an l1 ball. Only ``k`` radii per unit are really unknown.

With ``R_i = ||w_i||_1 + beta_i``, ``N_i = ||v_i||_1 + beta_i`` and the log-shrinkage ``u_i = log(N_i / R_i)`` the
product becomes a sum, and the radii solve a resource allocation problem:

    minimise  sum_i g_i(u_i)   subject to   sum_i u_i = L = log(prod_i N_i / lambda),   0 <= u_i <= log(N_i / beta_i)

where ``g_i(u)`` is the squared distance of ``v_i`` to the l1 ball of radius ``N_i e^-u - beta_i``. With ``tau_i`` the
soft threshold of that ball and ``p_i`` the number of entries that survive it,

    g_i' = 2 R_i tau_i,        g_i'' = 2 R_i (R_i / p_i - tau_i).

``g_i`` rises from ``g_i'(0) = 0``; it is convex where ``2 R_i >= N_i``, and may bend down and up again many times
further on. Hence three steps: a Newton descent; a test that the result is globally best; a global search if it is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from polybound.errors import NonFiniteError, PolyboundError
from polybound.theory import mantissa_product

# The allocation problem behind `project_product`: how much each factor of a unit has to shrink.


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
        free, inverse, mu, slope_range = _multipliers(u < cap, slope, bend, lack)
        converged = (slope_range <= 1e-10 * mu.abs()) & (length < 0.1)  # only rounding is left
        done = converged | ~(slope_range > 16 * _EPS * mu.abs()) | (length < 1e-12) | (free.sum(1) <= 1)
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
        flat = (value <= total * (1 + 4 * _EPS)) & (_slope_range(new[1], free) < slope_range)
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
    slope_range = _slope_range(slope, free)
    if bool(free.all()):
        return free, inverse, mu, slope_range
    # A factor at its cap comes back if it would gain, but not before the others have nearly converged.
    gain = torch.where(free, -_INF, slope - mu[:, None])
    release = (gain == gain.amax(1, keepdim=True)) & (gain > 10 * slope_range.clamp(min=0)[:, None])
    free = free | release
    inverse = torch.where(release.any(1, keepdim=True), torch.where(free, safe, 0.0), inverse)
    mu = ((inverse * slope).sum(1) + lack) / inverse.sum(1)
    return free, inverse, mu, _slope_range(slope, free)


def _slope_range(slope: Tensor, free: Tensor) -> Tensor:
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
    left = (torch.arange(n, device=cost.device)[:, None] - right).clamp(min=0)  # any shares serve an infinite cost
    shares = [table.gather(1, index.expand_as(table)) for table, index in ((a[1], left), (b[1], right))]
    return cost, torch.cat(shares, -1)


@torch.no_grad()
def project_product(weights: Tensor, bound: float | Tensor, *, offset: float | Tensor = 0.0) -> Tensor:
    r"""Project ``k`` factor matrices onto a level set of theta, unit by unit.

    For each unit ``j`` the rows ``v_i = weights[i, j]`` become:

        argmin_w  sum_i ||w_i - v_i||_2^2   subject to   prod_i (||w_i||_1 + beta_i) <= lambda

    The set is not convex and the problem has many local minima. A Newton descent on the log-radii finds one of them;
    it is kept if ``L <= log 2`` (the problem is convex there) or if its Lagrangian dual bound is tight. Otherwise
    min-plus dynamic programming on a grid of log-radii, exact up to the square of its cells, proposes the best
    allocations and their runners-up; these are refined on finer cells and finished by Newton's method. Of more than 64
    factors, what the descent finds is kept: it is inside of the set, and may be farther off than the nearest point.

    Units inside already, counted in float64, come back bit for bit, and only the others cost time. The result is
    inside in float64 whatever its own precision, hence the projection is idempotent bit for bit. In exact arithmetic
    a product of norms may then be above the bound by some roundings, a few times 1e-16 of it; `polybound.theta`, which
    is rounded outwards, has that.

    Args:
        weights: The factors, shape ``(..., k, m, d)``: ``k`` matrices of ``m`` rows each.
        bound: ``lambda``, a number or a tensor that broadcasts to the leading shape ``(...)``; infinity is no bound.
        offset: ``beta``, the l1 mass of each row that may not move (a constant column): a number, a tensor that
            broadcasts to ``(..., k)``, or one of ``weights.ndim - 1`` dimensions that broadcasts to ``(..., k, m)``.

    Returns:
        The projection, in the shape and precision of ``weights``.

    Raises:
        PolyboundError: If a shape, a bound or an offset is bad, the weights are not finite, or the set is empty because
            the offsets alone multiply to more than the bound.

    Example:
        >>> v = torch.tensor([[[3.0, 1.0]], [[2.0, 2.0]]], dtype=torch.float64)  # k = 2 factors, one unit
        >>> w = project_product(v, 8.0)
        >>> [round(r, 4) for r in w.abs().sum(-1).flatten().tolist()]
        [2.8284, 2.8284]
        >>> w[0, 0]
        tensor([2.4142, 0.4142], dtype=torch.float64)
    """
    shape = tuple(weights.shape)
    if len(shape) < 3 or not weights.is_floating_point() or shape[-3] == 0:
        raise PolyboundError(f"weights must be floating point, (..., k, m, d) with k >= 1, got {weights.dtype} {shape}")
    limit, beta = (torch.as_tensor(t, dtype=torch.float64, device=weights.device).detach() for t in (bound, offset))
    try:
        limit = limit[..., None].expand(*shape[:-3], shape[-2])
        beta = (beta if beta.ndim == len(shape) - 1 else beta[..., None]).expand(shape[:-1])
    except RuntimeError:
        given = f"a bound of shape {tuple(limit.shape)} or an offset of shape {tuple(beta.shape)}"
        raise PolyboundError(f"{given} does not fit weights of shape {shape}") from None
    if not bool((limit >= 0).all()):  # false for NaN as well
        raise PolyboundError("the bound must be zero or more, and not NaN")
    if not bool(((beta >= 0) & beta.isfinite()).all()):
        raise PolyboundError("the offsets must be finite and zero or more")
    if bool(_exceeds(beta.transpose(-2, -1), limit).any()):
        raise PolyboundError("no weights satisfy the bound, the offsets alone multiply to more; raise the bound")
    result = weights.detach().clone()
    norms = weights.detach().double().abs().sum(-1)
    if not bool(norms.isfinite().all()):
        raise NonFiniteError("the weights hold NaN or infinity, or overflow when summed")
    units = result.transpose(-3, -2)  # (..., m, k, d), a view
    beta, norms = beta.transpose(-2, -1), norms.transpose(-2, -1)
    outside = _exceeds(norms + beta, limit)
    if bool(outside.any()):
        chosen, room, fixed = units[outside], limit[outside], beta[outside]
        size = max(1, CHUNK // (chosen.shape[-2] * chosen.shape[-1]))
        parts = [slice(first, first + size) for first in range(0, len(chosen), size)]
        units[outside] = torch.cat([_project_units(chosen[part], room[part], fixed[part]) for part in parts])
    return result


def _product(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The product over the last dimension, always in the same order so that it rounds the same way for any layout."""
    return mantissa_product(sizes.movedim(-1, 0))


def _exceeds(sizes: Tensor, limit: Tensor) -> Tensor:
    """Whether the product over the last dimension is above the limit, also where it is no float64 number."""
    product, power = _product(sizes)
    mantissa, most = torch.frexp(limit)
    above = (power > most) | ((power == most) & (product > mantissa))
    # Zero and infinity have no exponent to compare.
    return (product > 0) & ~limit.isinf() & (above | (limit == 0))


def _margin(rows: Tensor) -> float:
    """A relative margin for the order of summation, which differs between layouts and libraries."""
    return 4 * _EPS * (rows.shape[-2] + math.log2(rows.shape[-1] + 1))


def _project_units(rows: Tensor, limit: Tensor, beta: Tensor) -> Tensor:
    """Project units that are outside: ``rows`` is (U, k, d), ``limit`` (U,), ``beta`` (U, k)."""
    v = rows.double().contiguous()
    magnitude = v.abs()
    _, exponent = torch.frexp(magnitude.amax((-2, -1)))
    exponent = exponent.clamp(min=-900, max=1000)[:, None]
    # A power of two scales without rounding. (torch.ldexp would do, but older ones take 2^e in single precision.)
    unit = torch.exp2(exponent.to(beta.dtype))
    size, b = magnitude / unit[..., None], beta / unit
    # Ascending order: the sums of the small entries, which vanish first, come out with full relative accuracy.
    ascending = torch.from_numpy(np.sort(size.numpy())) if size.device.type == "cpu" else size.sort().values  # faster
    tail, squares = torch.zeros_like(ascending), torch.zeros_like(ascending)
    torch.cumsum(ascending[..., :-1], -1, out=tail[..., 1:])
    torch.cumsum(ascending[..., :-1].square(), -1, out=squares[..., 1:])
    mass = tail[..., -1] + ascending[..., -1]
    left = torch.arange(size.shape[-1], 0, -1, dtype=torch.float64, device=v.device)
    knots = torch.addcmul(tail, left, ascending)
    cap = torch.where(b > 0, mass / b, _INF).log1p()
    # L from mantissas and exponents, lest large logarithms cancel; e^-2000 is zero, and serves a bound of zero.
    mantissa, power = torch.frexp(torch.cat([magnitude.sum(-1) + beta, limit[:, None]], 1))
    share, moved = torch.ones_like(limit), power[:, :-1].sum(-1) - power[:, -1]
    for factor in mantissa[:, :-1].unbind(1):
        share = share * factor
        small = share < 2.0**-500  # of more than 500 factors
        share, moved = torch.where(small, share * 2.0**500, share), moved - 500 * small
    budget = (share / mantissa[:, -1]).log().nan_to_num(posinf=2000.0)
    budget += math.log(2) * moved.double()  # of integers it would be float32
    # Aim below the bound by twice the margin that the result must keep: then it seldom has to be shrunk.
    budget = torch.minimum(budget + 2 * _margin(rows), cap.sum(-1)).clamp(min=0)
    problem = Units(mass + b, budget, cap, knots, tail, squares)
    u = solve(problem)

    # |w| = (|v| - base) + rest with base the least surviving entry: accurate even if the radius is 1e-80.
    excess, zeroed = problem.cut(u[..., None])
    base = ascending.gather(-1, zeroed)
    whole = problem.total * (-u).exp()
    radius = torch.where(whole < mass, whole - b, mass - excess[..., 0])  # the difference of the smaller numbers
    radius = torch.where(u >= cap, torch.zeros_like(u), radius).clamp(min=0)[..., None]
    w, survives = (size - base).clamp_(min=0), size >= base
    rest = (radius - w.sum(-1, keepdim=True)) / survives.sum(-1, keepdim=True)
    w.add_(rest).clamp_(min=0).mul_(survives)
    torch.minimum(w.mul_(unit[..., None]), magnitude, out=w).copysign_(v)

    # Round to the precision of the rows and shrink, by rounding errors only, until the product is inside.
    # The offsets alone may take up all of the bound.
    mantissa, power = _product(beta)
    target = torch.maximum(limit * (1 - _margin(w)), mantissa * torch.exp2(power.to(mantissa.dtype)))
    result = w.to(rows.dtype)
    over = torch.arange(len(w), device=w.device)
    shrink = torch.zeros_like(target)
    for _ in range(64):
        sizes = result[over].double().abs().sum(-1) + beta[over]
        still = _exceeds(sizes, target[over])
        if not bool(still.any()):
            break
        over = over[still]
        mantissa, power = _product(sizes[still])
        of_target, most = torch.frexp(target[over])
        ratio = torch.exp2(((of_target / mantissa).log2() + (most - power)) / w.shape[-2])
        # Three times what is needed, as rounding may take a part of it back.
        needed = 3 * (1 - ratio)
        shrink[over] = torch.maximum(2 * shrink[over], needed).clamp(min=_EPS, max=1)
        result[over] = (w[over] * (1 - shrink[over])[:, None, None]).to(rows.dtype)
    return result
