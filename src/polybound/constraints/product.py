r"""Euclidean projection onto the level sets of theta, the norm of the face-splitting product.

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

import numpy as np
import torch
from torch import Tensor

from polybound.constraints.allocation import CHUNK, Units, solve
from polybound.errors import NonFiniteError, PolyboundError
from polybound.theory import mantissa_product

__all__ = ["project_product"]

_EPS = torch.finfo(torch.float64).eps
_INF = math.inf


@torch.no_grad()
def project_product(
    weights: Tensor, bound: float | Tensor, *, offset: float | Tensor = 0.0, inplace: bool = False
) -> Tensor:
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
    outside = _exceeds(norms + beta, limit)
    if bool(outside.any()):
        chosen, room, fixed = units[outside], limit[outside], beta[outside]
        size = max(1, CHUNK // (chosen.shape[-2] * chosen.shape[-1]))
        parts = [slice(first, first + size) for first in range(0, len(chosen), size)]
        units[outside] = torch.cat([_project_units(chosen[part], room[part], fixed[part]) for part in parts])
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
    if bool(_exceeds(beta.transpose(-2, -1), limit).any()):
        raise PolyboundError(
            "project_product: no weights satisfy the bound, the offsets alone multiply to more; raise the bound"
        )
    return limit, beta


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
    """What makes a product of norms inside in any order of summation, which differs between layouts and libraries."""
    return 4 * _EPS * (rows.shape[-2] + math.log2(rows.shape[-1] + 1))


def _project_units(rows: Tensor, limit: Tensor, beta: Tensor) -> Tensor:
    """Project units that are outside: ``rows`` is (U, k, d), ``limit`` (U,), ``beta`` (U, k)."""
    v = rows.double().contiguous()
    magnitude = v.abs()
    _, exponent = torch.frexp(magnitude.amax((-2, -1)))
    exponent = exponent.clamp(min=-900, max=1000)[:, None]
    unit = torch.ldexp(torch.ones_like(beta[:, :1]), exponent)  # a power of two scales without rounding
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
    # L from mantissas and exponents, lest large logarithms cancel; e^-2000 is zero, and will do for a bound of zero.
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
    return _inside(w, limit, beta, rows.dtype)


def _inside(w: Tensor, limit: Tensor, beta: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to ``dtype`` and shrink, by rounding errors only, until the product of float64 norms is inside."""
    k = w.shape[-2]
    # The offsets alone may take up all of the bound.
    target = torch.maximum(limit * (1 - _margin(w)), torch.ldexp(*_product(beta)))
    result = w.to(dtype)
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
        ratio = torch.exp2(((of_target / mantissa).log2() + (most - power)) / k)
        # Three times what is needed, as rounding anew may cost a part of it.
        needed = 3 * (1 - ratio)
        shrink[over] = torch.maximum(2 * shrink[over], needed).clamp(min=_EPS, max=1)
        result[over] = (w[over] * (1 - shrink[over])[:, None, None]).to(dtype)
    return result
