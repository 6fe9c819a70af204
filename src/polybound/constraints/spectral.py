"""Euclidean projections onto balls of the spectral norm, for matrices and for zero-padded convolutions.

A matrix is projected by clipping its singular values, and this needs only those above the radius: the part to take
away, ``U (S - radius)_+ V'``, comes from the eigenvectors of the smaller Gram matrix, far cheaper than a singular value
decomposition when one side is much shorter.

For a convolution the bound is on `torus_norm`, which is never below the norm of the zero-padded operator: every
transfer matrix ``K^(f) = sum_t K_t exp(-2 pi i f.t)`` of a torus without overlap must be in the spectral ball, while
the kernel keeps its few taps. These are two convex sets, and the nearest point of their intersection is found by
Dykstra's algorithm. Written in its correction ``P`` alone, it is proximal gradient ascent on the dual problem:

    maximise  <q, kernel> - ||q||^2 / 2 - radius sum_f ||P(f)||_nuclear,     q = the taps of the inverse transform of P

so Nesterov's momentum speeds it up, and the distance between primal and dual value proves how good the result is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polybound.errors import NonFiniteError, PolyboundError
from polybound.theory import torus_norm, torus_sizes

_EPS = torch.finfo(torch.float64).eps
_MARGIN = 16 * _EPS  # singular values computed twice, in another batch or layout, may differ by some roundings
_TOLERANCE, _ITERATIONS = 1e-5, 1000  # of the projection of kernels
_GRAM = 16.0  # a Gram matrix loses (sigma / radius)^2 roundings; above this ratio a singular value decomposition is due


@torch.no_grad()
def project_spectral(weight: Tensor, radius: float | Tensor) -> Tensor:
    """Project matrices onto the ball of the spectral norm.

    The outcome is ``argmin_W ||W - weight||_F subject to ||W||_2 <= radius``: singular values above the radius are set
    to it. It is inside when its norm is computed in float64, whatever its own precision; matrices that are inside
    already come back bit for bit, so that projecting twice is projecting once.

    Args:
        weight: Matrices of shape ``(..., m, d)``.
        radius: A number or a tensor that broadcasts to the leading shape ``(...)``; 0 gives zeros, infinity no bound.

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
    result = weight.detach().clone()
    # The Frobenius norm is an upper bound and spares most matrices inside the exact one, unless its squares vanish.
    frobenius = torch.linalg.vector_norm(weight.detach().double(), dim=(-2, -1))
    near = (frobenius * (1 + 1e-12) > radii) | (frobenius < 1e-140)
    if weight.numel() and bool(near.any()):
        norms = torch.zeros_like(frobenius)
        norms[near] = _norm(weight.detach()[near])
        outside = norms > radii
        if bool(outside.any()):
            chosen, r, far = weight.detach()[outside].double(), radii[outside], (norms > _GRAM * radii)[outside]
            clipped = chosen - _excess(chosen, r)[0]
            if bool(far.any()):  # the difference would cancel
                u, sigma, vh = torch.linalg.svd(chosen[far], full_matrices=False)
                clipped[far] = (u * torch.minimum(sigma, r[far][:, None])[:, None]) @ vh
            result[outside] = _inside(clipped, r * (1 - _MARGIN), weight.dtype, _norm)
    return result


@torch.no_grad()
def project_spectral_conv(kernel: Tensor, radius: float | Tensor, shape: Sequence[int]) -> Tensor:
    """Project convolution kernels onto the ball of the norm on the torus, `torus_norm`.

    The outcome is ``argmin_K ||K - kernel||_F subject to torus_norm(K, shape) <= radius``; the norm of the zero-padded
    convolution, with whatever padding and stride, is then at most the radius. Its squared distance exceeds the least
    one by no more than a share of 1e-5, as the dual value proves, unless a thousand steps were too few for that.
    It is inside in float64 always, and kernels that are inside already come back bit for bit.

    Args:
        kernel: Kernels of shape ``(..., out, in, *k)`` with as many sizes ``k`` as ``shape`` has entries: 1, 2 or 3.
        radius: A number or a tensor that broadcasts to the leading shape ``(...)``; 0 gives zeros, infinity no bound.
        shape: The sizes of the image.

    Returns:
        The projection, in the shape and precision of ``kernel``. No gradient flows through it.

    Raises:
        PolyboundError: If a shape or a radius is bad or the weights are not finite.

    Example:
        >>> kernel = torch.full((1, 1, 3), 1.0, dtype=torch.float64)  # the norm on the torus is 3
        >>> project_spectral_conv(kernel, 1.5, (8,))
        tensor([[[0.5000, 0.5000, 0.5000]]], dtype=torch.float64)
    """
    dims = len(shape)
    if dims not in (1, 2, 3) or any(n < 1 for n in shape):
        raise PolyboundError(f"a convolution runs over 1, 2 or 3 dimensions of positive sizes, not {tuple(shape)}")
    radii = _checked(kernel, radius, dims + 2)
    result = kernel.detach().clone()
    if kernel.numel():
        outside = torus_norm(kernel, shape) > radii
        if bool(outside.any()):
            chosen, r = result[outside].double(), radii[outside]
            pairs = zip(chosen, r.tolist(), strict=True)
            nearest = torch.stack([_dykstra(one, ball, shape) for one, ball in pairs])
            result[outside] = _inside(nearest, r * (1 - _MARGIN), kernel.dtype, lambda k: torus_norm(k, shape))
    return result


def _checked(weight: Tensor, radius: float | Tensor, dims: int) -> Tensor:
    """The radii in float64, of the leading shape."""
    if weight.ndim < dims or not weight.is_floating_point():
        found = f"{weight.dtype} {tuple(weight.shape)}"
        raise PolyboundError(f"need a floating point tensor of {dims} dimensions or more, got {found}")
    if not bool(weight.isfinite().all()):
        raise NonFiniteError("the weights to project hold NaN or infinity")
    radii = torch.as_tensor(radius, dtype=torch.float64, device=weight.device).detach()
    if not bool((radii >= 0).all()):  # false for NaN as well
        raise PolyboundError("a radius must be zero or more, and not NaN")
    try:
        return radii.expand(weight.shape[:-dims])
    except RuntimeError:
        shapes = f"{tuple(radii.shape)} do not fit weights of shape {tuple(weight.shape)}"
        raise PolyboundError(f"radii of shape {shapes}") from None


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
    """``U (S - radius)_+ V'`` of matrices (..., m, d), real or complex, and the sums of ``(S - radius)_+``."""
    if z.shape[-2] > z.shape[-1]:
        excess, nuclear = _excess(z.mH, radius)
        return excess.mH, nuclear
    excess, nuclear = torch.zeros_like(z), torch.zeros_like(radius)
    scale = z.abs().amax((-2, -1)).clamp(min=1e-300)  # squares must neither overflow nor vanish
    unit, r = z / scale[..., None, None], (radius / scale)[..., None]
    gram = unit @ unit.mH
    # r^2 I - Z Z' has a Cholesky decomposition if, up to rounding, all singular values are below r.
    eye = torch.eye(z.shape[-2], dtype=z.dtype, device=z.device)
    beyond = torch.linalg.cholesky_ex((r * (1 - 1e-14)).square()[..., None] * eye - gram).info > 0
    if bool(beyond.any()):
        unit, r = unit[beyond], r[beyond]
        square, left = torch.linalg.eigh(gram[beyond])
        sigma = square.clamp(min=0).sqrt()
        part = (left * (1 - r / sigma).clamp(min=0)[:, None]) @ (left.mH @ unit)
        coarse = sigma[:, -1] > _GRAM * r[:, 0]
        if bool(coarse.any()):
            u, sigma[coarse], vh = torch.linalg.svd(unit[coarse], full_matrices=False)
            part[coarse] = (u * (sigma[coarse] - r[coarse]).clamp(min=0)[:, None]) @ vh
        excess[beyond] = part * scale[beyond][:, None, None]
        nuclear[beyond] = (sigma - r).clamp(min=0).sum(-1) * scale[beyond]
    return excess, nuclear


def _dykstra(kernel: Tensor, radius: float, shape: Sequence[int]) -> Tensor:
    """The nearest kernel (out, in, *k) with all transfer matrices in the ball, scaled inside up to rounding.

    Most frequencies never touch the ball: only those outside, now or before, take part. The step length adapts, for
    with a few frequencies it may be far longer than the 1 / (size of the torus) that is safe with all of them.
    """
    # `exp(-2 pi i f.t)` for taps and frequencies up to conjugation, (taps, F), and how many each stands for.
    phases = torch.ones(1, 1, dtype=torch.complex128, device=kernel.device)
    counts = torch.ones(1, dtype=torch.float64, device=kernel.device)
    sizes = torus_sizes(kernel, shape)
    for i, (k, n) in enumerate(zip(kernel.shape[2:], sizes, strict=True)):
        last = i == len(sizes) - 1
        f = torch.arange(n // 2 + 1 if last else n, dtype=torch.float64, device=kernel.device)
        angles = torch.arange(k, dtype=torch.float64, device=kernel.device)[:, None] * f / n
        phases = torch.kron(phases, torch.exp(-2j * math.pi * angles))
        counts = torch.kron(counts, 2.0 - (2 * f % n == 0).double() if last else torch.ones_like(f))
    scale = float(kernel.abs().max())
    start, radius = kernel.flatten(2) / scale, radius / scale
    best, least, dual = torch.zeros_like(start), _inner(start, start), 0.0
    active = torch.zeros(0, dtype=torch.int64, device=kernel.device)
    correction = lead = torch.zeros(0, *kernel.shape[:2], dtype=phases.dtype, device=kernel.device)
    taken = ahead = torch.zeros_like(start)  # the taps of the correction and of its extrapolation
    pace, length = 1.0, 1 / phases.numel()
    for step in range(_ITERATIONS):
        if step % 8 == 0:
            primal = start - taken
            norms = torch.linalg.matrix_norm(_transfer(primal, phases), 2)
            primal = primal * min(1.0, radius / max(float(norms.max()), 1e-300))
            value = _inner(primal - start, primal - start)
            if value < least:
                best, least = primal, value
            if least - dual <= _TOLERANCE * least:
                break
            # The frequencies that have a correction; others rest until they are outside of the ball again.
            used = (correction.abs() + lead.abs()).amax((-2, -1)) > 0
            correction, lead, active = correction[used], lead[used], active[used]
            outside = norms > radius
            outside[active] = False
            active = torch.cat([active, outside.nonzero()[:, 0]])
            room = correction.new_zeros(len(active) - len(correction), *correction.shape[1:])
            correction, lead = torch.cat([correction, room]), torch.cat([lead, room])
            waves, weights = phases[:, active], counts[active]
        gradient = _transfer(start - ahead, waves)
        for _ in range(100):
            new, nuclear = _excess(lead + length * gradient, torch.full_like(weights, length * radius))
            new_taken = ((new.movedim(0, -1) * weights) @ waves.mH).real
            rise, move = _inner(new_taken - ahead, new_taken - ahead), _inner(new - lead, new - lead, weights)
            if length * rise <= move * (1 + 1e-9):
                break
            length /= 2
        dual = 2 * (_inner(new_taken, start) - radius * float(nuclear @ weights)) - _inner(new_taken, new_taken)
        # Momentum, dropped where it leads back.
        faster = (1 + math.sqrt(1 + 4 * pace**2)) / 2
        back = _inner(lead - new, new - correction, weights) > 0
        momentum, pace = (0.0, 1.0) if back else ((pace - 1) / faster, faster)
        lead = new + momentum * (new - correction)
        ahead = new_taken + momentum * (new_taken - taken)
        correction, taken = new, new_taken
        length *= 1.2
    return best.view_as(kernel) * scale


def _transfer(kernel: Tensor, phases: Tensor) -> Tensor:
    """The transfer matrices (F, out, in) of a kernel (out, in, taps)."""
    return (kernel.to(phases.dtype) @ phases).movedim(-1, 0)


def _inner(a: Tensor, b: Tensor, weights: Tensor | None = None) -> float:
    """The real inner product; of transfer matrices, with a weight for each frequency."""
    products = (a.conj() * b).real.flatten(1).sum(-1)
    return float(products.sum() if weights is None else products @ weights)
