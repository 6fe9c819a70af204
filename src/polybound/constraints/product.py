r"""Euclidean projection onto the level sets of theta, the norm of the face-splitting product.

A layer that multiplies ``k`` linear maps entry by entry has the bound
``theta = max_j prod_i (||row j of W_i||_1 + beta_i)`` on its l_inf-operator norm. The set ``theta <= lambda`` is not
convex, but it splits into units: row ``j`` of all ``k`` factors is one problem in ``k * d`` numbers, and once the
radii are known every factor is an ordinary projection onto an l1 ball. Only ``k`` radii per unit are really unknown.

With ``R_i = ||w_i||_1 + beta_i``, ``N_i = ||v_i||_1 + beta_i`` and the log-shrinkage ``u_i = log(N_i / R_i)`` the
product becomes a sum, and the radii solve a resource allocation problem::

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

import torch
from torch import Tensor

from polybound.errors import NonFiniteError, PolyboundError

__all__ = ["project_product"]

_EPS = torch.finfo(torch.float64).eps
_INF = math.inf
_CELLS = 192  # cells of the coarse grid over [0, L]
_ZOOMS = 3  # rounds of refinement, each on cells four times as fine
_REACH = 8  # a refinement moves each factor by at most this many fine cells
_CHUNK = 1 << 21  # numbers in one temporary: 16 MiB


@torch.no_grad()
def project_product(
    weights: Tensor, bound: float | Tensor, *, offset: float | Tensor = 0.0, inplace: bool = False
) -> Tensor:
    r"""Project ``k`` factor matrices onto a level set of theta, unit by unit.

    For each unit ``j`` the rows ``v_i = weights[i, j]`` become::

        argmin_w  sum_i ||w_i - v_i||_2^2   subject to   prod_i (||w_i||_1 + beta_i) <= lambda

    The set is not convex and the problem has many local minima. A Newton descent on the log-radii finds one of them;
    it is kept if ``L <= log 2`` (the problem is convex there) or if its Lagrangian dual bound is tight. Otherwise
    min-plus dynamic programming on a grid of log-radii, exact up to the square of the cell, proposes the best
    allocations and their runners-up, which are refined on ever finer cells and finished by Newton's method.

    Units inside already, counted in float64, come back bit for bit, and only the others cost time. The result is
    inside in float64 whatever its own precision, hence the projection is idempotent bit for bit.

    Args:
        weights: The factors, shape ``(..., k, m, d)``: ``k`` matrices of ``m`` rows each.
        bound: ``lambda``, a number or a tensor that broadcasts to the leading shape ``(...)``; infinity is no bound.
        offset: ``beta``, the l1 mass of each row that may not move (a constant column): a number, a tensor that
            broadcasts to ``(..., k)``, or one of ``weights.ndim - 1`` dimensions that broadcasts to ``(..., k, m)``.
        inplace: Write into ``weights`` and return it.

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
    limit, beta = _checked(weights, bound, offset)
    result = weights.detach() if inplace else weights.detach().clone()
    norms = weights.detach().double().abs().sum(-1)
    if not bool(norms.isfinite().all()):
        raise NonFiniteError("project_product: the weights hold NaN or infinity, or overflow when summed")
    units = result.transpose(-3, -2)  # (..., m, k, d), a view
    beta, norms = beta.transpose(-2, -1), norms.transpose(-2, -1)
    outside = _product(norms + beta) > limit
    if bool(outside.any()):
        chosen, room, fixed = units[outside], limit[outside], beta[outside]
        size = max(1, _CHUNK // (chosen.shape[-2] * chosen.shape[-1]))
        parts = zip(chosen.split(size), room.split(size), fixed.split(size), strict=True)
        units[outside] = torch.cat([_project_units(*part) for part in parts])
    return weights if inplace else result


def _checked(weights: Tensor, bound: float | Tensor, offset: float | Tensor) -> tuple[Tensor, Tensor]:
    """The bounds as ``(..., m)`` and the offsets as ``(..., k, m)``, both in float64."""
    if weights.ndim < 3 or not weights.is_floating_point() or weights.shape[-3] == 0:
        raise PolyboundError(
            f"project_product: weights must be floating point of shape (..., k, m, d) with k >= 1, "
            f"got {weights.dtype} {tuple(weights.shape)}"
        )
    shape = weights.shape[:-1]
    limit = torch.as_tensor(bound, dtype=torch.float64, device=weights.device).detach()
    beta = torch.as_tensor(offset, dtype=torch.float64, device=weights.device).detach()
    try:
        limit = limit[..., None].expand(*shape[:-2], shape[-1])
        beta = (beta if beta.ndim == len(shape) else beta[..., None]).expand(shape)
    except RuntimeError:
        raise PolyboundError(
            f"project_product: a bound of shape {tuple(torch.as_tensor(bound).shape)} or an offset of shape "
            f"{tuple(torch.as_tensor(offset).shape)} does not fit weights of shape {tuple(weights.shape)}"
        ) from None
    if not bool((limit >= 0).all()):  # false for NaN as well
        raise PolyboundError("project_product: the bound must be zero or more, and not NaN")
    if not bool(((beta >= 0) & beta.isfinite()).all()):
        raise PolyboundError("project_product: the offsets must be finite and zero or more")
    if bool((_product(beta.transpose(-2, -1)) > limit).any()):
        raise PolyboundError(
            "project_product: no weights satisfy the bound, the offsets alone multiply to more; raise the bound"
        )
    return limit, beta


def _product(sizes: Tensor) -> Tensor:
    """The product over the last dimension, always in the same order so that it rounds the same way for any layout."""
    result = sizes[..., 0].clone()
    for i in range(1, sizes.shape[-1]):
        result *= sizes[..., i]
    return result


def _project_units(rows: Tensor, limit: Tensor, beta: Tensor) -> Tensor:
    """Project units that are outside: ``rows`` is (U, k, d), ``limit`` (U,), ``beta`` (U, k)."""
    v = rows.double()
    _, exponent = torch.frexp(v.abs().amax((-2, -1)))
    exponent = exponent.clamp(min=-900, max=1000)[:, None]
    unit = torch.ldexp(torch.ones_like(beta[:, :1]), exponent)  # a power of two scales without rounding
    size, b = v.abs() / unit[..., None], beta / unit
    # Ascending order: the sums of the small entries, which vanish first, come out with full relative accuracy.
    ascending = size.sort(-1).values
    d = ascending.shape[-1]
    tail = torch.nn.functional.pad(ascending.cumsum(-1), (1, 0))
    squares = torch.nn.functional.pad(ascending.square().cumsum(-1), (1, 0))
    mass = tail[..., -1]
    log_limit = limit.log() - b.shape[1] * math.log(2) * exponent[:, 0].double()
    cap = (mass / b).log1p()  # infinite where the offset is zero
    budget = torch.minimum((mass + b).log().sum(-1) - log_limit, cap.sum(-1)).clamp(min=0)
    left = torch.arange(d, 0, -1, dtype=torch.float64, device=v.device)
    problem = _Units(
        mass + b, budget, cap, tail[..., :-1] + left * ascending, tail[..., :-1].contiguous(), squares[..., :-1]
    )
    u = _solve(problem) if bool((limit > 0).all()) else _vanish(problem, limit, squares[..., -1])

    # |w| = (|v| - base) + rest with base the least surviving entry: accurate even if the radius is 1e-80.
    excess, zeroed = problem.cut(u[..., None])
    base = ascending.gather(-1, zeroed)
    radius = torch.where(b > 0, mass - excess[..., 0], problem.total * (-u).exp())
    radius = torch.where(u >= cap, torch.zeros_like(u), radius).clamp(min=0)[..., None]
    over, survives = (size - base).clamp_(min=0), size >= base
    rest = (radius - over.sum(-1, keepdim=True)) / survives.sum(-1, keepdim=True)
    shrunk = (over + rest).clamp_(min=0) * survives
    w = torch.minimum(shrunk, size) * unit[..., None] * v.sign()
    return _inside(w, limit, beta, rows.dtype)


def _inside(w: Tensor, limit: Tensor, beta: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to ``dtype`` and shrink, by rounding errors only, until the product of float64 norms is inside.

    The margin makes the result inside in any order of summation, which differs between layouts and libraries.
    """
    margin = 4 * _EPS * (w.shape[-2] + math.log2(w.shape[-1] + 1))
    target = torch.maximum(limit * (1 - margin), _product(beta))
    shrink = torch.zeros_like(limit)
    result = w.to(dtype)
    for _ in range(64):
        product = _product(result.double().abs().sum(-1) + beta)
        if not bool((product > target).any()):
            break
        more = torch.maximum(2 * shrink, 1 - (target / product) ** (1 / w.shape[-2])).clamp(min=_EPS, max=1)
        shrink = torch.where(product > target, more, shrink)
        result = (w * (1 - shrink)[:, None, None]).to(dtype)
    return result


@dataclass
class _Units:
    """U allocation problems of k factors: everything needed to evaluate ``g_i`` and its derivatives exactly."""

    total: Tensor  # N_i, (U, k)
    budget: Tensor  # L, (U,)
    cap: Tensor  # the u_i at which the radius is zero, (U, k)
    knots: Tensor  # ||v_i||_1 - radius at which the threshold reaches the q-th smallest entry, (U, k, d)
    tail: Tensor  # the sum of the entries below the q-th smallest, (U, k, d)
    squares: Tensor  # the sum of their squares, (U, k, d)

    def __getitem__(self, index: Tensor | slice) -> _Units:
        return _Units(*(getattr(self, field.name)[index] for field in fields(self)))

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
        return torch.minimum(u + room * (lack / room.sum(1, keepdim=True)).nan_to_num(0.0, 0.0, 0.0), cap)

    def dual(self, mu: Tensor) -> Tensor:
        """A lower bound of the optimal cost: ``mu L + sum_i min_u (g_i(u) - mu u)``, exact minima over all pieces.

        Between two knots ``g_i'`` is the parabola ``2 R (A - R) / p``; only its larger root can be a minimum.
        """
        end = torch.minimum(self.cap, self.budget[:, None])[..., None]
        total, mu = self.total[..., None], mu[:, None, None]
        left = torch.arange(self.knots.shape[-1], 0, -1, dtype=torch.float64, device=mu.device)
        peak = total - self.tail
        high = total - torch.nn.functional.pad(self.knots[..., :-1], (1, 0))
        low = torch.maximum(total - self.knots, total * (-end).exp())
        root = (peak + (peak.square() - 2 * left * mu).clamp(min=0).sqrt()) / 2
        size = torch.minimum(torch.maximum(root, low), high)
        value = (peak - size).square() / left + self.squares - mu * (total / size).log()
        least = value.masked_fill(~(high >= low), _INF).amin(-1).clamp(max=0)
        least = torch.minimum(least, (self.at(end)[0] - mu * end)[..., 0])
        return mu[:, 0, 0] * self.budget + least.sum(-1)


def _vanish(problem: _Units, limit: Tensor, square: Tensor) -> Tensor:
    """The shrinkages where some bounds are zero: there the cheapest factor without an offset vanishes altogether."""
    u = torch.zeros_like(problem.total)
    zero = limit == 0
    if not bool(zero.all()):
        u[~zero] = _solve(problem[~zero])
    cheapest = square[..., :].masked_fill(problem.cap < _INF, _INF).argmin(-1, keepdim=True)
    return torch.where(zero[:, None], torch.zeros_like(u).scatter(-1, cheapest, _INF), u)


def _solve(problem: _Units) -> Tensor:
    """The optimal log-shrinkages, (U, k)."""
    # Start where the budget is shared in inverse proportion to the curvatures at zero.
    stiffness = problem.at(torch.zeros_like(problem.total)[..., None])[2]
    start = (1 / stiffness).nan_to_num(0.0, 0.0, 0.0)
    start = problem.budget[:, None, None] * start / start.sum(1, keepdim=True)
    u, cost, mu = _descend(problem, start)
    best = u[..., 0].clone()
    if best.shape[-1] == 1:
        return best
    # While L <= log 2 no R_i can fall below N_i / 2: all g_i are convex and the descent has found the minimum.
    doubtful = (problem.budget > math.log(2)).nonzero()[:, 0]
    if len(doubtful):
        gap = cost[doubtful, 0] - problem[doubtful].dual(mu[doubtful, 0])
        doubtful = doubtful[~(gap <= 1e-12 * cost[doubtful, 0])]
    size = max(1, 2 * _CHUNK // (_CELLS + 1) ** 2)
    for part in doubtful.split(size):
        if len(part):
            best[part] = _search(problem[part], u[part])
    return best


def _descend(problem: _Units, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Newton descent from every column of ``u`` (U, k, C); returns the points, their costs and multipliers (U, C).

    The diagonal Hessian is used as it is where it is positive on the plane ``sum du = 0``, that is if no curvature is
    negative, or one is and the inverses sum to less than zero; else in absolute value, which still descends. A step
    that raises the cost is taken back and tried again at a quarter of its length.
    """
    u = problem.feasible(u)
    cap, budget = problem.cap[..., None], problem.budget[:, None]
    cost, slope, bend = problem.at(u)
    total = cost.sum(1)
    spread = torch.full_like(total, _INF)
    length = torch.ones_like(total)
    mu = torch.zeros_like(total)
    for _ in range(80):
        free = u < cap
        negative = ((bend < 1e-290) & free).sum(1)
        inverse = torch.where(free, 1 / bend, 0.0)
        newton = (negative == 0) | ((negative == 1) & (inverse.sum(1) < 0))
        safe = torch.where(free, 1 / bend.abs().clamp(min=1e-290), 0.0)
        inverse = torch.where(newton[:, None], inverse, safe)
        lack = budget - u.sum(1)
        mu = ((inverse * slope).sum(1) + lack) / inverse.sum(1)
        blocked = ~free & (slope > mu[:, None])
        if bool(blocked.any()):  # let the factor at its cap that gains most come back
            gain = torch.where(blocked, slope, -_INF)
            release = blocked & (gain == gain.amax(1, keepdim=True))
            again = torch.where(release, 1 / bend.abs().clamp(min=1e-290), safe)
            some = release.any(1)
            inverse, free = torch.where(some[:, None], again, inverse), free | release
            mu = torch.where(some, ((inverse * slope).sum(1) + lack) / inverse.sum(1), mu)
        now = torch.where(free, slope, -_INF).amax(1) - torch.where(free, slope, _INF).amin(1)
        spread = torch.minimum(spread, now)
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
        width = torch.where(free, new[1], -_INF).amax(1) - torch.where(free, new[1], _INF).amin(1)
        # Near the end the cost is flat up to rounding and the slopes say more.
        better = ~done & ((value < total * (1 - 4 * _EPS)) | ((value <= total * (1 + 4 * _EPS)) & (width < spread)))
        total = torch.where(better, value, total)
        spread = torch.where(better, width, spread)
        length = torch.where(better, (4 * length).clamp(max=1), torch.where(done, length, length / 4))
        keep = better[:, None]
        u, slope, bend = (torch.where(keep, a, b) for a, b in zip((trial, *new[1:]), (u, slope, bend), strict=True))
    return u, total, mu


def _search(problem: _Units, local: Tensor) -> Tensor:
    """The best of: the local minimum, one factor shrunk alone, and all that the grid proposes."""
    k = local.shape[1]
    budget, cap = problem.budget[:, None, None], problem.cap[..., None]
    alone = budget * torch.eye(k, dtype=local.dtype, device=local.device)
    step = budget / _CELLS
    grid = step * torch.arange(_CELLS + 1, device=local.device)
    u, cost, _ = _descend(problem, torch.cat([local, alone.expand(len(local), k, k), _propose(problem, grid, step, _CELLS)], -1))
    for _ in range(_ZOOMS):
        u, cost = _distinct(u, cost, 3)
        step = step / 4
        columns = [u]
        for column in u.unbind(-1):
            fine = column[..., None] + step * torch.arange(-_REACH, _REACH + 1, device=local.device)
            columns.append(_propose(problem, fine, step, k * _REACH))
        u, cost, _ = _descend(problem, torch.cat(columns, -1))
    return _distinct(u, cost, 1)[0][..., 0]


def _distinct(u: Tensor, cost: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` best columns whose costs differ."""
    left, picks = cost, []
    for _ in range(count):
        picks.append(left.argmin(1, keepdim=True))
        value = cost.gather(1, picks[-1])
        left = left.masked_fill((cost - value).abs() <= 1e-9 * value, _INF)
    index = torch.cat(picks, 1)
    return u.gather(-1, index[:, None].expand(-1, u.shape[1], -1)), cost.gather(1, index)


def _propose(problem: _Units, nodes: Tensor, step: Tensor, cells: int) -> Tensor:
    """Good allocations on a grid, (U, k, C): for each factor the local minima of the best cost given its own share.

    ``nodes`` is (U, 1 or k, n), each row evenly spaced by ``step``; the budget is the sum of the first nodes and
    ``cells`` steps. Linear interpolation between nodes errs by ``g'' step^2 / 8`` at most and
    attains its least sum at nodes, therefore the grid minimum exceeds the true one by no more than the sum of these.
    """
    k, cap = problem.total.shape[1], problem.cap[..., None]
    nodes = nodes.expand(-1, k, -1)
    cost = problem.at(torch.minimum(nodes.clamp(min=0), cap))[0]
    # The first node past the cap stands for the cap itself; the descent makes the sum right again.
    cost = cost.masked_fill((nodes <= -step) | (nodes >= cap + step), _INF)
    costs = torch.nn.functional.pad(cost, (0, cells + 1 - nodes.shape[-1]), value=_INF).unbind(1)
    before, after = [costs[0]], [costs[-1]]  # the best costs of the factors up to i, and from the last down to i
    for i in range(1, k - 1):
        before.append(_min_plus(before[-1], costs[i]))
        after.append(_min_plus(after[-1], costs[-1 - i]))
    found = []
    for i in range(k):
        share = torch.zeros(len(cost), k, 3, dtype=torch.int64, device=cost.device)
        others = [t for t in (before[i - 1] if i > 0 else None, after[k - 2 - i] if i < k - 1 else None) if t is not None]
        rest = others[0] if len(others) == 1 else _min_plus(*others)
        through = costs[i] + rest.flip(-1)
        edge = torch.nn.functional.pad(through, (1, 1), value=_INF)
        valley = (through < edge[:, :-2]) & (through <= edge[:, 2:])
        share[:, i] = through.masked_fill(~valley, _INF).topk(3, largest=False).indices
        spare = cells - share[:, i]
        low = _pick(before[i - 1], after[k - 2 - i], spare) if 0 < i < k - 1 else (spare if i else spare * 0)
        high = spare - low
        for t in range(i - 1, 0, -1):
            share[:, t] = low - (low := _pick(before[t - 1], costs[t], low))
        for t in range(i + 1, k - 1):
            share[:, t] = high - (high := _pick(after[k - 2 - t], costs[t], high))
        if i > 0:
            share[:, 0] = low
        if i < k - 1:
            share[:, -1] = high
        found.append(share)
    return nodes[..., :1] + step * torch.cat(found, -1)


def _min_plus(a: Tensor, b: Tensor) -> Tensor:
    """``min_j a[n - j] + b[j]`` for each n; both (U, n)."""
    windows = torch.nn.functional.pad(a, (a.shape[-1] - 1, 0), value=_INF).unfold(-1, a.shape[-1], 1)
    return (windows + b.flip(-1)[:, None]).amin(-1)


def _pick(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """The part of ``total`` (U, C) that goes to ``a`` where ``a[j] + b[total - j]`` is least."""
    index = total[..., None] - torch.arange(a.shape[-1], device=a.device)
    options = a[:, None] + b.gather(1, index.clamp(min=0).flatten(1)).view_as(index)
    return options.masked_fill(index < 0, _INF).argmin(-1)
