"""Euclidean projections onto balls of the spectral norm, for matrices and for zero-padded convolutions.

A matrix is projected by clipping its singular values, and this needs only those above the radius: the part to take
away, ``U (S - radius)_+ V'``, comes from the eigenvectors of the smaller Gram matrix, far cheaper than a singular value
decomposition when one side is much shorter.

For a convolution the bound is on `torus_norm`, which is never below the norm of the zero-padded operator: every transfer
matrix ``K^(f) = sum_t K_t exp(-2 pi i f.t)`` of a torus without overlap must be in the spectral ball, while the kernel
keeps its few taps. These are two convex sets, and the nearest point of their intersection is found by Dykstra's
algorithm. Written in its correction ``P`` alone, Dykstra's algorithm is proximal gradient ascent on the dual problem::

    maximise  <q, kernel> - ||q||^2 / 2 - radius sum_f ||P(f)||_nuclear,     q = the taps of the inverse transform of P

so Nesterov's momentum speeds it up, and the distance between primal and dual value proves how good the result is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polybound.errors import NonFiniteError, PolyboundError
from polybound.theory.torus import torus_norm, torus_sizes

__all__ = ["project_spectral", "project_spectral_conv", "torus_norm"]

_EPS = torch.finfo(torch.float64).eps
_MARGIN = 16 * _EPS  # singular values computed twice, in another batch or layout, may differ by some roundings
_GRAM = 16.0  # a Gram matrix loses (sigma / radius)^2 roundings; above this ratio a singular value decomposition is due


@torch.no_grad()
def project_spectral(weight: Tensor, radius: float | Tensor, *, inplace: bool = False) -> Tensor:
    """Project matrices onto the ball of the spectral norm.

    The outcome is ``argmin_W ||W - weight||_F subject to ||W||_2 <= radius``: singular values above the radius are set
    to it. It is inside when its norm is computed in float64, whatever its own precision; matrices that are inside
    already come back bit for bit, so that projecting twice is projecting once.

    Args:
        weight: Matrices of shape ``(..., m, d)``.
        radius: A number or a tensor that broadcasts to the leading shape ``(...)``; 0 gives zeros, infinity no bound.
        inplace: Write into ``weight`` and return it.

    Returns:
        The projection, in the shape and precision of ``weight``. No gradient flows through it.

    Raises:
        PolyboundError: If a shape or a radius is bad or the weights are not finite.

    Example:
        >>> project_spectral(torch.tensor([[3.0, 0.0], [0.0, 0.5]]), 1.0)
        tensor([[1.0000, 0.0000],
                [0.0000, 0.5000]])
    """
    radii = _checked(weight, radius, 2)
    result = weight.detach() if inplace else weight.detach().clone()
    # The Frobenius norm is an upper bound and spares most matrices in a small ball the exact one.
    near = torch.linalg.vector_norm(weight.detach().double(), dim=(-2, -1)) * (1 + 1e-12) > radii
    if weight.numel() and bool(near.any()):
        outside = near.clone()
        outside[near] = _norm(weight.detach()[near]) > radii[near]
        if bool(outside.any()):
            chosen, r = weight.detach()[outside].double(), radii[outside]
            result[outside] = _inside(chosen - _excess(chosen, r)[0], r * (1 - _MARGIN), weight.dtype, _norm)
    return weight if inplace else result


@torch.no_grad()
def project_spectral_conv(
    kernel: Tensor,
    radius: float | Tensor,
    shape: Sequence[int],
    *,
    tolerance: float = 1e-6,
    iterations: int = 2000,
) -> Tensor:
    """Project convolution kernels onto the ball of the norm on the torus, `torus_norm`.

    The outcome is ``argmin_K ||K - kernel||_F subject to torus_norm(K, shape) <= radius``, up to the tolerance; the
    norm of the zero-padded convolution (stride 1, odd size, as many outputs as inputs) is then at most the radius.
    It is inside in float64 always, and kernels that are inside already come back bit for bit.

    Args:
        kernel: Kernels of shape ``(..., out, in, *k)`` with as many sizes ``k`` as ``shape`` has entries: 1, 2 or 3.
        radius: A number or a tensor that broadcasts to the leading shape ``(...)``; 0 gives zeros, infinity no bound.
        shape: The sizes of the image.
        tolerance: Stop when the squared distance exceeds the least one by no more than this fraction, as the dual
            value proves.
        iterations: Stop after so many steps at the latest.

    Returns:
        The projection, in the shape and precision of ``kernel``. No gradient flows through it.

    Raises:
        PolyboundError: If a shape, a radius or an option is bad or the weights are not finite.

    Example:
        >>> kernel = torch.full((1, 1, 3), 1.0, dtype=torch.float64)  # the norm on the torus is 3
        >>> project_spectral_conv(kernel, 1.5, (8,))
        tensor([[[0.5000, 0.5000, 0.5000]]], dtype=torch.float64)
    """
    dims = len(shape)
    if dims not in (1, 2, 3) or any(n < 1 for n in shape):
        raise PolyboundError(f"a convolution runs over 1, 2 or 3 dimensions of positive sizes, not {tuple(shape)}")
    radii = _checked(kernel, radius, dims + 2)
    if any(k % 2 == 0 for k in kernel.shape[-dims:]):
        raise PolyboundError(f"the sizes of a kernel must be odd, got {tuple(kernel.shape[-dims:])}")
    if not tolerance > 0 or iterations < 1:
        raise PolyboundError(f"tolerance and iterations must be positive, got {tolerance} and {iterations}")
    result = kernel.detach().clone()
    if kernel.numel():
        outside = torus_norm(kernel, shape) > radii
        if bool(outside.any()):
            chosen, r = result[outside].double(), radii[outside]
            nearest = _dykstra(chosen, r, shape, tolerance, iterations)
            result[outside] = _inside(nearest, r * (1 - _MARGIN), kernel.dtype, lambda k: torus_norm(k, shape))
    return result


def _checked(weight: Tensor, radius: float | Tensor, dims: int) -> Tensor:
    """The radii in float64, of the leading shape."""
    if weight.ndim < dims or not weight.is_floating_point():
        raise PolyboundError(f"need a floating point tensor of {dims} dimensions or more, got {weight.dtype} {tuple(weight.shape)}")
    if not bool(weight.isfinite().all()):
        raise NonFiniteError("the weights to project hold NaN or infinity")
    radii = torch.as_tensor(radius, dtype=torch.float64, device=weight.device).detach()
    if not bool((radii >= 0).all()):  # false for NaN as well
        raise PolyboundError("a radius must be zero or more, and not NaN")
    try:
        return radii.expand(weight.shape[:-dims])
    except RuntimeError:
        raise PolyboundError(
            f"radii of shape {tuple(radii.shape)} do not fit weights of shape {tuple(weight.shape)}"
        ) from None


def _norm(weight: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.matrix_norm(weight.double(), 2)
    return norm


def _inside(w: Tensor, target: Tensor, dtype: torch.dtype, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """Round to ``dtype`` and scale down until the norm, measured in float64, is at most the target; (B, ...)."""
    shrink = torch.zeros_like(target)
    result = w.to(dtype)
    for _ in range(64):
        norm = measure(result)
        if not bool((norm > target).any()):
            break
        more = torch.maximum(2 * shrink, 1 - target / norm).clamp(min=_EPS, max=1)
        shrink = torch.where(norm > target, more, shrink)
        result = (w * (1 - shrink).view(-1, *[1] * (w.ndim - 1))).to(dtype)
    return result


def _excess(z: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """``U (S - radius)_+ V'`` of matrices (B, m, d), real or complex, and the sums of ``(S - radius)_+``."""
    if z.shape[-2] > z.shape[-1]:
        excess, nuclear = _excess(z.mH, radius)
        return excess.mH, nuclear
    scale = z.abs().amax((-2, -1)).clamp(min=1e-300)  # squares must neither overflow nor vanish
    unit, r = z / scale[:, None, None], (radius / scale)[:, None]
    square, left = torch.linalg.eigh(unit @ unit.mH)
    sigma = square.clamp(min=0).sqrt()
    part = (1 - r / sigma).clamp(min=0)
    excess = (left * part[:, None]) @ (left.mH @ unit)
    coarse = sigma[:, -1] > _GRAM * r[:, 0]
    if bool(coarse.any()):
        u, sigma[coarse], vh = torch.linalg.svd(unit[coarse], full_matrices=False)
        excess[coarse] = (u * (sigma[coarse] - r[coarse]).clamp(min=0)[:, None]) @ vh
    return excess * scale[:, None, None], (sigma - r).clamp(min=0).sum(-1) * scale


def _dykstra(kernel: Tensor, radius: Tensor, shape: Sequence[int], tolerance: float, iterations: int) -> Tensor:
    """The nearest kernels (B, out, in, *k) with transfer matrices in the ball, scaled inside up to rounding."""
    dims = tuple(range(-len(shape), 0))
    sizes = torus_sizes(kernel, shape)
    taps = (..., *(slice(k) for k in kernel.shape[3:]))
    b, rows, columns = kernel.shape[:3]
    # With the orthonormal transform both sets live in one Euclidean space; the radius takes the factor instead.
    ball = (radius / math.sqrt(math.prod(sizes)))[:, None]
    half = sizes[-1] // 2 + 1
    twice = torch.full((half,), 2.0, dtype=torch.float64, device=kernel.device)  # rfftn leaves out conjugates
    twice[0] = 1
    if sizes[-1] % 2 == 0:
        twice[-1] = 1
    weights = twice.expand(*sizes[:-1], half).flatten()

    def forward(x: Tensor) -> Tensor:  # to transfer matrices (B, frequencies, out, in)
        return torch.fft.rfftn(x, s=sizes, dim=dims, norm="ortho").flatten(3).movedim(-1, 1)

    def backward(p: Tensor) -> Tensor:
        spectrum = p.movedim(1, -1).unflatten(-1, (*sizes[:-1], half))
        return torch.fft.irfftn(spectrum, s=sizes, dim=dims, norm="ortho")[taps]

    def inner(a: Tensor, c: Tensor) -> Tensor:
        return (a.flatten(1) * c.flatten(1)).sum(-1)

    def spread(factor: Tensor, like: Tensor) -> Tensor:
        return factor.view(-1, *[1] * (like.ndim - 1))

    correction = lead = forward(torch.zeros_like(kernel))
    taken = ahead = torch.zeros_like(kernel)  # the taps of correction and lead
    pace = torch.ones_like(radius)
    best, least = torch.zeros_like(kernel), inner(kernel, kernel)
    for step in range(iterations):
        target = forward(kernel - ahead) + lead
        new = torch.zeros_like(target)
        nuclear = torch.zeros(target.shape[:2], dtype=torch.float64, device=kernel.device)
        beyond = torch.linalg.vector_norm(target, dim=(-2, -1)) > ball
        new[beyond], nuclear[beyond] = _excess(target[beyond], ball.expand(-1, len(weights))[beyond])
        new_taken = backward(new)
        if step % 8 == 0 or step == iterations - 1:
            primal = kernel - new_taken
            norm = torus_norm(primal, shape)
            primal = primal * spread((radius / norm).clamp(max=1).nan_to_num(1.0), primal)
            value = inner(primal - kernel, primal - kernel)
            best = torch.where(spread(value < least, best), primal, best)
            least = torch.minimum(value, least)
            dual = 2 * (inner(new_taken, kernel) - ball[:, 0] * (nuclear * weights).sum(-1)) - inner(new_taken, new_taken)
            if not bool((least - dual > tolerance * least).any()):
                break
        # Momentum, dropped where it points away from where the ascent goes.
        turn = (((lead - new).conj() * (new - correction)).real.sum((-2, -1)) * weights).sum(-1) > 0
        faster = (1 + (1 + 4 * pace.square()).sqrt()) / 2
        weight = torch.where(turn, 0.0, (pace - 1) / faster)
        pace = torch.where(turn, 1.0, faster)
        lead = new + spread(weight, new) * (new - correction)
        ahead = new_taken + spread(weight, taken) * (new_taken - taken)
        correction, taken = new, new_taken
    return best
