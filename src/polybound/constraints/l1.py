"""Projection of rows onto l1 balls, and so of linear maps onto balls of the l_inf operator norm.

The projection of a row `x` from outside is `sign(x) * max(|x| - t, 0)`, where the threshold `t` is the root of a
convex, piecewise linear function, `f(t) = sum(max(|x| - t, 0)) - radius`. No sorting is needed to find it:

1. `_project_outside` takes two steps towards the root and accepts the outcome only if its norm, added up in float64, is
   in a window of some roundings just below the radius. That test is the whole proof: what two thresholds leave of a row
   is as far apart in l1 as the norms are, so what passes is the projection up to rounding, however it was found.
2. Rows that do not pass take steps of Newton's method (`_newton`) until they do.
3. `_project_carefully` does that in float64 for rows so close to the sphere, or so far, that the rest is too coarse.
   It starts left of the root, where a step never leads past it (`_rise`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from polybound.errors import NonFiniteError, PolyboundError

# Rows are projected in blocks, so that a block and one buffer of its size stay in the cache of a core.
_BLOCK_BYTES = 2**19

# Rows whose norm exceeds the radius by this factor need thresholds in float64.
_FAR = 8.0

# Newton's method takes four or five steps from anywhere; more do not help where rounding is in the way.
_ROUNDS = 6


def project_l1_rows(x: Tensor, radius: float | Tensor, *, out: Tensor | None = None) -> Tensor:
    """Project every row (last dimension) of `x` onto the l1 ball of its radius.

    A row becomes `argmin_w ||w - x||_2 subject to ||w||_1 <= radius`, up to rounding that never leads outside: the norm
    of the outcome, added up in float64, is at most the radius. Rows for which that is true already are returned bit for
    bit, so projecting twice is projecting once. No gradient flows through the projection.

    Args:
        x: rows of shape (..., d), float32 or float64.
        radius: one radius, or a tensor of them that broadcasts to `x.shape[:-1]`; 0 gives zero rows, `inf` is no bound.
        out: where to write, with the shape and type of `x`; `out=x` projects in place.

    Returns:
        `out`, or a new tensor.

    Raises:
        PolyboundError: for bad types, shapes or radii.
        NonFiniteError: if the norm of a row is not finite; with `out`, other rows may have been written by then.

    >>> project_l1_rows(torch.tensor([[3.0, 2.0, 0.5], [0.25, -0.5, 0.0]]), 2.0)
    tensor([[ 1.5000,  0.5000,  0.0000],
            [ 0.2500, -0.5000,  0.0000]])
    """
    if x.dtype not in (torch.float32, torch.float64):
        raise PolyboundError(f"the l1 projection takes float32 or float64 tensors, not {x.dtype}")
    if x.dim() == 0:
        raise PolyboundError("the l1 projection takes tensors with rows, not a single number")
    if out is not None and (out.shape != x.shape or out.dtype != x.dtype):
        raise PolyboundError(f"out must be {x.dtype} of shape {tuple(x.shape)}, not {out.dtype} of {tuple(out.shape)}")
    balls = _Balls.of(radius, x)
    if x.numel() == 0:
        return x.detach().clone() if out is None else out
    rows = x.detach().contiguous().view(-1, x.shape[-1])
    target = torch.empty_like(rows) if out is None else rows if out is x else out.detach().reshape(rows.shape)
    size = max(1, _BLOCK_BYTES // (x.shape[-1] * x.element_size()))
    if len(rows) <= size:
        _project_block(rows, balls, target)
    else:
        for start in range(0, len(rows), size):
            some = slice(start, start + size)
            block = rows[some]
            _project_block(block, balls.at(some), block if target is rows else target[some])
    if out is None:
        return target.view(x.shape)
    if target.data_ptr() != out.data_ptr():  # the rows were a copy: `out` has another layout
        out.detach().copy_(target.view(x.shape))
    return out


def project_linf_operator(weight: Tensor, radius: float | Tensor, *, kernel_dims: int = 0) -> Tensor:
    """Project a linear map onto the ball of its l_inf operator norm.

    The outcome is `argmin_A ||A - weight||_F subject to ||A||_inf <= radius`. The norm is the largest l1 norm of a row,
    so each row is projected on its own. The norm of a convolution is that of its kernel written as a matrix with a row
    for every output channel (Theorem 5 of the paper), whatever the size of the image. Project `[weight, bias]` to bound
    the affine map by the radius for all inputs of l_inf norm at most 1.

    Args:
        weight: a matrix (..., m, d), or a kernel (..., m, c, *k) with `kernel_dims` trailing spatial dimensions.
        radius: one radius, or a tensor of them that broadcasts to the rows, (..., m).
        kernel_dims: 0 for a matrix; 1, 2 or 3 for the kernel of a convolution.

    Raises:
        PolyboundError: as for `project_l1_rows`, and for a number of dimensions that does not fit.

    >>> project_linf_operator(torch.ones(1, 2, 2, 2), 4.0, kernel_dims=2).flatten()
    tensor([0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000])
    """
    if kernel_dims not in (0, 1, 2, 3):
        raise PolyboundError(f"kernel_dims must be 0 for a matrix, or 1, 2 or 3, not {kernel_dims}")
    if weight.dim() < kernel_dims + 2:
        raise PolyboundError(f"a weight with kernel_dims={kernel_dims} must have {kernel_dims + 2} dimensions or more")
    return project_l1_rows(weight.flatten(-1 - kernel_dims), radius).view(weight.shape)


class _Balls(NamedTuple):
    """The balls of some rows: floats if all have the same, else columns with a number for each."""

    radius: float | Tensor  # in float64; no bound is the largest float
    goal: float | Tensor  # the norm to aim at, a few roundings below the radius, in float64
    near: float | Tensor  # the goal in the precision of the rows, but 0 if below the normal range
    share: float | Tensor  # 0.998 of the goal divided by the length of a row, in the precision of the rows
    tolerance: float  # how far a norm may be from the goal, relative to it; a norm so far above it is still inside

    @classmethod
    def of(cls, radius: float | Tensor, x: Tensor) -> _Balls:
        info, dim = torch.finfo(x.dtype), x.shape[-1]
        # The slack less the tolerance covers the error of `_row_sums`: seven roundings, or 3.5 eps, for wide rows. Sums
        # of float64 in float64 depend on their order by up to d roundings; be inside for every order, within reason.
        if x.dtype == torch.float32:
            slack, tolerance = (6.0 * info.eps, 2.4 * info.eps) if _is_wide(x) else (4.0 * info.eps, 3.25 * info.eps)
        else:
            slack = (6.0 + min(0.84 * dim, 300.0)) * info.eps
            tolerance = 0.4 * slack
        fraction = 0.998 / max(1, dim)
        largest = torch.finfo(torch.float64).max
        if not isinstance(radius, Tensor) or radius.dim() == 0:
            limit = min(float(radius), largest)
            if not limit >= 0.0:
                raise PolyboundError(f"a radius must not be negative or NaN, but is {limit}")
            goal = limit * (1.0 - slack)
            return cls(limit, goal, goal if goal >= info.tiny else 0.0, goal * fraction, tolerance)
        try:
            limits = radius.detach().to(x.device, torch.float64).expand(x.shape[:-1])
        except RuntimeError:
            rows = tuple(x.shape[:-1])
            raise PolyboundError(f"radii of shape {tuple(radius.shape)} do not broadcast to rows {rows}") from None
        if not bool((limits >= 0.0).all()):
            raise PolyboundError("a radius must not be negative or NaN, but one of them is")
        limits = limits.clamp(max=largest).reshape(-1, 1)
        goals = limits * (1.0 - slack)
        near = goals.to(x.dtype).masked_fill_(goals < info.tiny, 0.0)
        return cls(limits, goals, near, (goals * fraction).to(x.dtype), tolerance)

    def at(self, rows: slice | Tensor) -> _Balls:
        """The balls of some of the rows."""
        if isinstance(self.radius, float):
            return self
        radius, goal, near, share = (c if isinstance(c, float) else c[rows] for c in self[:4])
        return _Balls(radius, goal, near, share, self.tolerance)


def _project_block(x: Tensor, balls: _Balls, out: Tensor) -> None:
    """Tell the rows to be kept from those outside, but not far, and from the doubtful ones; project each kind."""
    work = x.abs()
    ratio = work.sum(-1, keepdim=True).div_(balls.near)
    # A sum of d numbers that are not negative errs by less than d roundings, whatever the order.
    band = (x.shape[-1] + 64) * torch.finfo(x.dtype).eps
    low, high = (extreme.item() for extreme in ratio.aminmax())  # both NaN if a ratio is, which fails all comparisons
    if low > 1.0 + band and high < _FAR:
        _project_outside(x, ratio, balls, out, work)
        return
    if high < 1.0 - band:
        out.copy_(x)
        return
    finer = _row_sums(work).div_(balls.goal)
    keep = (finer > 1.0 + 4.0 * balls.tolerance).logical_and_(ratio < _FAR).logical_not_()
    doubtful = (finer <= 1.0 + balls.tolerance).logical_not_().logical_and_(keep).squeeze(-1).nonzero().squeeze(-1)
    if bool(keep.all()):
        out.copy_(x)
    else:
        _project_outside(x, ratio, balls, out, work, keep)
    if len(doubtful):
        rows = out.index_select(0, doubtful)
        out.index_copy_(0, doubtful, _project_carefully(rows, balls.at(doubtful)))


def _project_outside(
    x: Tensor, ratio: Tensor, balls: _Balls, out: Tensor, work: Tensor, keep: Tensor | None = None
) -> None:
    """Project rows of norm `ratio * goal`, 1 < ratio < _FAR, but copy those to keep; uses up `work`, which is |x|."""
    dim, near, goal = x.shape[-1], balls.near, balls.goal
    # Were no entry below t, t would be the root. It is a little less, so that the steps below go upwards; then
    # max(|x|, t) can be updated in place, and f(t) = sum(max(|x|, t)) - dim * t - goal costs two passes.
    t = ratio.sub_(1.0 + 4.0 * torch.finfo(x.dtype).eps).mul_(balls.share)
    first = torch.maximum(work, t, out=work).sum(-1, keepdim=True).sub_(t, alpha=dim).sub_(near)
    # If the entries near 0 are spread evenly, f is a parabola there. Its bend, b = f(t) / (dim * t), corrects the first
    # step by the factor 1 + 2b, and the second, that of the secant, by 1 + b^2. This saves steps; nothing relies on it.
    bend = first / t
    step = torch.addcmul(first, first, bend, value=2.0 / dim)
    t.add_(step, alpha=1.0 / dim)
    second = torch.maximum(work, t, out=work).sum(-1, keepdim=True).sub_(t, alpha=dim).sub_(near)
    step.mul_(second)
    t.addcdiv_(step.addcmul_(step, bend.mul_(bend), value=1.0 / dim**2), first.sub_(second), value=1.0 / dim)
    if keep is not None:
        t.masked_fill_(keep, 0.0)
    torch.abs(x, out=work).sub_(t).clamp_min_(0.0)
    miss = _row_sums(work).div_(goal).sub_(1.0)
    if keep is not None:
        miss.masked_fill_(keep, 0.0)
    if not torch.linalg.vector_norm(miss, math.inf).item() <= balls.tolerance:
        rows = (miss.abs() <= balls.tolerance).logical_not_().squeeze(-1).nonzero().squeeze(-1)
        if 2 * len(rows) > len(x):
            _newton(x.abs(), work, t, miss, balls)
        else:
            part = work.index_select(0, rows)
            _newton(x.index_select(0, rows).abs_(), part, t[rows], miss[rows], balls.at(rows))
            work.index_copy_(0, rows, part)
    torch.copysign(work, x, out=out)


def _newton(a: Tensor, work: Tensor, t: Tensor, miss: Tensor, balls: _Balls) -> None:
    """Correct rows `work = max(a - t, 0)`, in place, if their norms miss the goal by more than the tolerance.

    A row that does not is left alone, so that no row depends on the others.
    """
    positive = torch.empty_like(work)
    converged = miss.abs() <= balls.tolerance
    for _ in range(_ROUNDS):
        # A tangent lies below f, so a step leads to the left of the root from either side, and then rises to it.
        step = miss.mul_(balls.goal).div_(torch.sign(work, out=positive).sum(-1, keepdim=True))
        t.add_(step.masked_fill_(converged, 0.0))
        t.nan_to_num_(0.0, 0.0, 0.0).clamp_min_(0.0)  # where nothing is left, start from zero
        torch.sub(a, t, out=work).clamp_min_(0.0)
        miss = _row_sums(work).div_(balls.goal).sub_(1.0)
        converged.logical_or_(miss.abs() <= balls.tolerance)
        if bool(converged.all()):
            return
    # Rounding may keep a norm out of the window for good. Too small a norm is no harm, too large a one must go.
    part = work.index_select(0, rows := converged.logical_not().squeeze(-1).nonzero().squeeze(-1))
    _rise(part, balls.at(rows))
    work.index_copy_(0, rows, part)


def _rise(work: Tensor, balls: _Balls) -> None:
    """Raise the thresholds of rows max(|x| - t, 0), in place, by Newton's method until no norm is too large."""
    info = torch.finfo(work.dtype)
    most = balls.goal * (1.0 + balls.tolerance)
    positive = torch.empty_like(work)
    while True:
        norm = _row_sums(work)
        over = norm > most
        if not bool(over.any()):
            return
        # From the left a step never leads past the root, and a little less of it not even by rounding.
        step = norm.sub_(balls.goal).div_(torch.sign(work, out=positive).sum(-1, keepdim=True))
        step.mul_(1.0 - 4.0 * info.eps).clamp_min_(info.tiny * info.eps)
        work.sub_(torch.where(over, step, 0.0).to(work.dtype)).clamp_min_(0.0)


def _row_sums(a: Tensor) -> Tensor:
    """Sums of rows of numbers that are not negative, in float64; for wide rows after up to seven roundings."""
    if _is_wide(a):
        a = a.view(len(a), 8, -1).sum(1)
    return a.sum(-1, keepdim=True, dtype=torch.float64)


def _is_wide(a: Tensor) -> bool:
    """Whether sums in float64 would take so long that an eighth of the numbers must do."""
    return a.dtype == torch.float32 and a.shape[-1] >= 2048 and a.shape[-1] % 8 == 0


def _project_carefully(x: Tensor, balls: _Balls) -> Tensor:
    """Project any rows, by Newton's method in float64."""
    work = x.abs().double()
    norm = work.sum(-1, keepdim=True)
    if not bool(norm.isfinite().all()):
        raise NonFiniteError("cannot project a row whose l1 norm is not finite: it overflows, or holds NaN or inf")
    # No threshold is below the largest entry less the radius. Subtracting the one, then adding the other is exact where
    # it matters, so rows whose norms exceed the radius by many orders of magnitude lose no accuracy.
    peak = work.amax(-1, keepdim=True)
    large = (peak > balls.goal).to(work.dtype)
    work.sub_(peak.mul_(large)).add_(large.mul_(balls.goal)).clamp_min_(0.0)
    _rise(work, balls)
    y = work.to(x.dtype)
    over = y.sum(-1, keepdim=True, dtype=torch.float64) > balls.radius
    if bool(over.any()):  # subnormal numbers were rounded up
        y = torch.where(over.logical_and(y > work), y.nextafter(torch.zeros_like(y)), y)
    return torch.where(norm <= balls.radius, x, y.copysign_(x))
