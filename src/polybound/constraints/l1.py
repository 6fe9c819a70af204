"""Projection of rows onto l1 balls, and so of linear maps onto balls of the l_inf operator norm.

The projection of a row `x` from outside is `sign(x) * max(|x| - t, 0)`, where the threshold `t` is the root of the convex
and piecewise linear function `f(t) = sum(max(|x| - t, 0)) - radius`. No sorting is needed to find it:

1. `_project_outside` guesses `t` from the norm of the row, improves it by secant steps, and accepts the outcome only if
   its norm, added up in float64, lies in a window of some roundings just below the radius. That test is the whole proof:
   the outcomes of two thresholds are as far apart in l1 as their norms, so what passes is the projection up to rounding,
   however its threshold was found.
2. `_project_carefully` takes the rows that do not pass, or that lie so close to the sphere or so far from it that sums in
   float32 cannot tell, and runs Newton's method in float64. For such a function it ends after finitely many steps.
"""

from __future__ import annotations

import math
from typing import NamedTuple, overload

import torch
from torch import Tensor

from polybound.errors import NonFiniteError, PolyboundError

__all__ = ["project_l1_rows", "project_linf_operator"]

# Rows are treated in blocks: a block of them and one buffer of its size should stay in the cache of a core.
_BLOCK_BYTES = 2**19

# Beyond this multiple of the radius a threshold in the precision of the row is too coarse to pass the test.
_FAR = 8.0

# How often rows that are not far are tried before they are left to float64.
_TRIALS = 4


def project_l1_rows(x: Tensor, radius: float | Tensor, *, out: Tensor | None = None) -> Tensor:
    """Project every row (last dimension) of `x` onto the l1 ball of its radius.

    A row becomes `argmin_w ||w - x||_2 subject to ||w||_1 <= radius` up to rounding, which never leads outside: the norm
    of the outcome, added up in float64, is at most the radius. Rows for which that is true already are returned bit for
    bit, so that projecting twice is projecting once.

    Args:
        x: rows of shape (..., d), float32 or float64.
        radius: one radius, or a tensor of them that broadcasts to `x.shape[:-1]`; 0 gives zero rows, `inf` no bound.
        out: where to write, of the shape and type of `x`; `out=x` projects in place.

    Returns:
        `out`, or a new tensor. No gradient flows through it.

    Raises:
        PolyboundError: bad types, shapes or radii; NonFiniteError if a row has no finite norm (other rows of `out` may
            have been written by then).

    >>> project_l1_rows(torch.tensor([[3.0, -1.0], [0.25, 0.5]]), 2.0)
    tensor([[2.0000, -0.0000],
            [0.2500, 0.5000]])
    """
    if x.dtype not in (torch.float32, torch.float64):
        raise PolyboundError(f"the l1 projection needs a float32 or float64 tensor, not {x.dtype}")
    if x.dim() == 0:
        raise PolyboundError("the l1 projection needs rows, but the tensor has no dimension")
    if out is not None and (out.shape != x.shape or out.dtype != x.dtype):
        raise PolyboundError(f"out must be {x.dtype} of shape {tuple(x.shape)}, not {out.dtype} of {tuple(out.shape)}")
    balls = _Balls.of(radius, x)
    if x.numel() == 0:
        return x.detach().clone() if out is None else out
    with torch.no_grad():
        rows = x.detach().reshape(-1, x.shape[-1])
        if out is None:
            target = torch.empty_like(rows, memory_format=torch.contiguous_format)
        else:
            target = rows if out is x else out.detach().reshape(rows.shape)
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
        if target.data_ptr() != out.data_ptr():  # a layout that reshape could only copy
            out.copy_(target.view(x.shape))
        return out


@overload
def project_linf_operator(
    weight: Tensor, radius: float | Tensor, *, bias: None = None, kernel_dims: int = 0, inplace: bool = False
) -> Tensor: ...
@overload
def project_linf_operator(
    weight: Tensor, radius: float | Tensor, *, bias: Tensor, kernel_dims: int = 0, inplace: bool = False
) -> tuple[Tensor, Tensor]: ...
def project_linf_operator(
    weight: Tensor,
    radius: float | Tensor,
    *,
    bias: Tensor | None = None,
    kernel_dims: int = 0,
    inplace: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Project a linear map onto the ball of its l_inf operator norm.

    The outcome is `argmin_A ||A - weight||_F subject to ||A||_inf <= radius`. The norm is the largest l1 norm of a row,
    so each row is projected on its own. The norm of a convolution is that of its kernel written as a matrix with a row
    for every output channel (Theorem 5 of the paper), whatever the size of the image.

    Args:
        weight: a matrix (..., m, d), or a kernel (..., m, c, *k) with `kernel_dims` trailing spatial dimensions.
        radius: one radius, or a tensor of them that broadcasts to the rows, (..., m).
        bias: of shape (..., m); with it the rows of `[weight, bias]` are projected, which bounds the affine map by the
            radius for all inputs of l_inf norm at most 1.
        kernel_dims: 0 for a matrix; 1, 2 or 3 for the kernel of a convolution.
        inplace: write to `weight` (and `bias`) and return them.

    Returns:
        The projected weight, or the pair of weight and bias if there is a bias.

    Raises:
        PolyboundError: as for `project_l1_rows`.

    >>> project_linf_operator(torch.ones(1, 2, 2, 2), 4.0, kernel_dims=2).flatten()
    tensor([0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000])
    """
    if kernel_dims not in (0, 1, 2, 3):
        raise PolyboundError(f"kernel_dims must be 0 (a matrix), 1, 2 or 3, not {kernel_dims}")
    if weight.dim() < kernel_dims + 2:
        raise PolyboundError(f"a weight with kernel_dims={kernel_dims} needs {kernel_dims + 2} dimensions or more")
    with torch.no_grad():
        matrix = weight.detach().flatten(-1 - kernel_dims)
        if bias is None:
            matrix = project_l1_rows(matrix, radius, out=matrix if inplace else None)
        elif bias.shape != matrix.shape[:-1] or bias.dtype != weight.dtype:
            raise PolyboundError(
                f"bias must be {weight.dtype} of shape {tuple(matrix.shape[:-1])}, a number for each row"
            )
        else:
            matrix = torch.cat([matrix, bias.detach().unsqueeze(-1)], -1)
            project_l1_rows(matrix, radius, out=matrix)
            matrix, shift = matrix[..., :-1], matrix[..., -1]
        if inplace:
            if matrix.data_ptr() != weight.data_ptr():
                weight.copy_(matrix.reshape(weight.shape))
            return weight if bias is None else (weight, bias.copy_(shift))
        matrix = matrix.reshape(weight.shape)
        return matrix if bias is None else (matrix, shift.contiguous())


class _Balls(NamedTuple):
    """The balls of some rows: floats if there is one for all of them, else columns with a number for each."""

    radius: float | Tensor  # in float64; no bound is the largest float
    goal: float | Tensor  # the norm to aim at: the radius less the slack, in float64
    near: float | Tensor  # the goal in the precision of the rows, but 0 below its normal range
    slack: float  # what rounding may cost, relative to the radius

    @classmethod
    def of(cls, radius: float | Tensor, x: Tensor) -> _Balls:
        precision = torch.finfo(x.dtype)
        # float64 cannot be checked by sums in something finer: leave room for the rounding of sums in other orders.
        slack = (4.0 + (math.sqrt(x.shape[-1]) if x.dtype == torch.float64 else 0.0)) * precision.eps
        largest = torch.finfo(torch.float64).max
        if not isinstance(radius, Tensor) or radius.dim() == 0:
            limit = min(float(radius), largest)
            if not limit >= 0.0:
                raise PolyboundError(f"a radius must not be negative or NaN, but is {limit}")
            goal = limit * (1.0 - slack)
            return cls(limit, goal, goal if goal >= precision.tiny else 0.0, slack)
        try:
            limits = radius.detach().to(x.device, torch.float64).expand(x.shape[:-1])
        except RuntimeError:
            rows = tuple(x.shape[:-1])
            raise PolyboundError(f"radii of shape {tuple(radius.shape)} do not broadcast to rows {rows}") from None
        if not bool((limits >= 0.0).all()):
            raise PolyboundError("a radius must not be negative or NaN, but one of them is")
        limits = limits.clamp(max=largest).reshape(-1, 1)
        goals = limits * (1.0 - slack)
        return cls(limits, goals, goals.to(x.dtype).masked_fill_(goals < precision.tiny, 0.0), slack)

    def at(self, rows: slice | Tensor) -> _Balls:
        """The balls of some of the rows."""
        radius, goal, near = (c if isinstance(c, float) else c[rows] for c in (self.radius, self.goal, self.near))
        return _Balls(radius, goal, near, self.slack)


def _project_block(x: Tensor, balls: _Balls, out: Tensor) -> None:
    """Tell rows that are surely inside from those surely, but not far, outside and from the rest; project each kind."""
    work = x.abs()
    ratio = work.sum(-1, keepdim=True).div_(balls.near)
    # A sum of d numbers that are not negative errs by less than d roundings, whatever the order.
    band = (x.shape[-1] + 64) * torch.finfo(x.dtype).eps
    low, high = (extreme.item() for extreme in ratio.aminmax())  # both NaN if a ratio is, which fails all comparisons
    if low > 1.0 + band and high < _FAR:
        _project_outside(x, ratio, balls, out, work)
        return
    if out is not x:
        out.copy_(x)
    if high < 1.0 - band:
        return
    ratio = ratio.squeeze(-1)
    outside = (ratio > 1.0 + band).logical_and_(ratio < _FAR)
    rest = (outside | (ratio < 1.0 - band)).logical_not_().nonzero().squeeze(-1)
    rows = outside.nonzero().squeeze(-1)
    if len(rows):
        part = x[rows]
        _project_outside(part, ratio[rows].unsqueeze(-1), balls.at(rows), part, part.abs())
        out[rows] = part
    if len(rest):
        out[rest] = _project_carefully(x[rest], balls.at(rest))


def _project_outside(x: Tensor, ratio: Tensor, balls: _Balls, out: Tensor, work: Tensor) -> None:
    """Project rows of norm `ratio * goal`, 1 < ratio < _FAR; `work` is |x|, both it and `ratio` are used up."""
    dim = x.shape[-1]
    near, tolerance = balls.near, 0.6 * balls.slack
    # Were |x| spread evenly between 0 and its maximum, this t would be the root and -dim/root the slope of f there.
    root = ratio.sqrt()
    t = ratio.sub_(root).mul_(near * (2.0 / dim))
    # f(t) is taken as sum(max(|x|, t)) - dim * t - goal, which costs one pass less than its definition.
    first = torch.maximum(work, t, out=work).sum(-1, keepdim=True).sub_(t, alpha=dim).sub_(near)
    t.addcmul_(root, first, value=1.0 / dim)
    torch.maximum(torch.abs(x, out=work), t, out=work)
    second = work.sum(-1, keepdim=True).sub_(t, alpha=dim).sub_(near)
    t.addcdiv_(root.mul_(first).mul_(second), first.sub_(second), value=1.0 / dim)  # the secant through both
    for trial in range(_TRIALS):
        torch.abs(x, out=work).sub_(t).clamp_min_(0.0)
        miss = _row_sums(work).div_(balls.goal).sub_(1.0)
        passed = torch.linalg.vector_norm(miss, math.inf).item() <= tolerance
        if passed or trial == _TRIALS - 1:
            break
        t.add_(miss.mul_(balls.goal).div_(torch.gt(work, 0.0, out=work).sum(-1, keepdim=True)))
    if passed:
        torch.copysign(work, x, out=out)
        return
    rows = (miss.abs_() <= tolerance).logical_not_().squeeze(-1).nonzero().squeeze(-1)
    failed = x[rows]  # before `out`, which may be x, is written
    torch.copysign(work, x, out=out)
    out[rows] = _project_carefully(failed, balls.at(rows))


def _row_sums(work: Tensor) -> Tensor:
    """Sums of rows that are not negative, in float64 up to two roundings in the precision of the row."""
    for _ in range(2):  # sums in mixed precision are slow: let long rows shrink first
        half, odd = divmod(work.shape[-1], 2)
        if odd or half < 512:
            break
        work = work[:, :half] + work[:, half:]
    return work.sum(-1, keepdim=True, dtype=torch.float64)


def _project_carefully(x: Tensor, balls: _Balls) -> Tensor:
    """Project any rows: Newton's method in float64 from the left of the root, whence it rises to it and stops.

    The largest entry is subtracted from rows far outside, and with it from their thresholds. That is exact for entries
    near it, the only ones to survive, and keeps thresholds accurate that differ little from it.
    """
    goal = torch.as_tensor(balls.goal, dtype=torch.float64, device=x.device)
    most = balls.radius * (1.0 - 0.4 * balls.slack)
    a = x.double().abs_()
    norm = a.sum(-1, keepdim=True)
    if not bool(norm.isfinite().all()):
        raise NonFiniteError("cannot project a row whose l1 norm is not finite; look for NaN, inf or overflow in it")
    inside = norm <= balls.radius
    far = norm > _FAR * balls.radius
    a.sub_(a.amax(-1, keepdim=True).mul_(far))
    t = -goal * far
    while True:
        y = (a - t).clamp_min_(0.0).to(x.dtype)
        norm = y.sum(-1, keepdim=True, dtype=torch.float64)
        over = (norm > most).logical_and_(~inside)
        if not bool(over.any()):
            return torch.where(inside, x, y.copysign_(x))
        # A little less than the full step, so that its rounding cannot lead past the root; a little more than none.
        step = (norm - goal) / (y > 0.0).sum(-1, keepdim=True) * (1.0 - 2.0**-50)
        t = torch.where(over, torch.maximum(t + step, t.nextafter(torch.full_like(t, math.inf))), t)
