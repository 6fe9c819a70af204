"""Operator norms of affine maps and of the products of a network's factors.

Every norm here is exact or, where its docstring says so, an upper bound. No result is below the true norm: all are
computed in float64 and rounded outwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, inf, isinf, log2, prod, sqrt

import torch
from torch import Tensor

from polybound.errors import NonFiniteError, PolyboundError
from polybound.models import (
    Affine,
    Chain,
    Conv,
    Dense,
    Factors,
    Identity,
    PolynomialNetwork,
    Pool,
    Windowed,
    factors_of,
    lift,
)
from polybound.theory.rounding import (
    ULP,
    UNDERFLOW_UNDER_ROOT,
    balanced,
    outward,
    power,
    power_of_two,
    product,
    restored,
    times_power_of_two,
    without_scale,
)

# A certified upper bound of the l2 norm of a zero-padded convolution.


def torus_sizes(kernel: Tensor, space: Sequence[int]) -> list[int]:
    """The sides `n_i + k_i - 1` of the smallest torus on which the padded image does not meet itself."""
    return [n + k - 1 for n, k in zip(space, kernel.shape[-len(space) :], strict=True)]


def torus_norm(kernel: Tensor, space: Sequence[int]) -> Tensor:
    """The l2 norm of the circular convolution on the torus of sides `n_i + k_i - 1`, one value for each run.

    On that torus the image, padded by zeros, does not meet its own copies, so that the zero-padded convolution is a
    sub-matrix of the circular one and its norm is not larger. The circular one is block-diagonal in the Fourier basis:
    its norm is the largest singular value of the (out x in) transfer matrices over all frequencies.

    Args:
        kernel: (*lead, out_channels, channels, *k).
        space: sizes of the image, one for each dimension of the kernel.
    """
    dims = tuple(range(-len(space), 0))
    exponent = power_of_two(kernel.detach().double(), len(space) + 2)
    scaled = times_power_of_two(kernel.detach().double(), -exponent)
    transfer = torch.fft.rfftn(scaled, s=torus_sizes(kernel, space), dim=dims)
    transfer = transfer.flatten(-len(space)).movedim(-1, -3)  # (*lead, frequencies, out, in)
    largest = torch.linalg.matrix_norm(transfer, 2).amax(-1)
    # An entry is a fast Fourier transform of prod(k) numbers, some log2(prod(sides)) additions deep. Its error is
    # relative to the sum of their absolute values, which exceeds the largest singular value at most by the root of
    # prod(k) min(out, in). What else is in the stack does not count.
    out, channels, *k = kernel.shape[-len(space) - 2 :]
    depth = 8 * (1 + ceil(log2(prod(torus_sizes(kernel, space)))))
    terms = depth * ceil(sqrt(prod(k) * min(out, channels))) + out + channels
    return times_power_of_two(outward(largest, terms), exponent)


DENSE_LIMIT = 2**27
"""Maps of the input are written out for exact row norms up to this many entries (1 GiB in float64)."""

EXACT_LIMIT = 1024
"""The l2 norms of convolutions and chains are exact up to this many inputs or outputs."""

GRAM_LIMIT = 4096
"""Gram matrices of the units are formed up to this many units."""


def exponent(p: float | str) -> float:
    """The exponent of an l_p norm, from a number or from "inf", "2", "1"."""
    try:
        value = float(p)
    except (TypeError, ValueError):
        value = 0.0
    if not value >= 1.0:
        raise PolyboundError(f"p must be a number of at least 1, or 'inf', got {p!r}")
    return value


def can_write_out(factors: Factors) -> bool:
    """Whether the maps of the input may be written out, which makes their row norms exact."""
    return factors.entries() <= DENSE_LIMIT


def finite_factors(model: PolynomialNetwork | Factors) -> Factors:
    """The factors in float64.

    Raises:
        NonFiniteError: a weight is infinite or NaN. No bound holds then, and NaN would pass for one.
    """

    def finite(weights: Tensor) -> Tensor:
        if not torch.isfinite(weights).all():
            raise NonFiniteError("the weights are not all finite numbers: no bound holds for them")
        return weights

    factors = factors_of(model)
    return factors if factors.working else factors.double().transform(finite)


def working_factors(model: PolynomialNetwork | Factors) -> Factors:
    """The factors in float64; written out if that fits into `DENSE_LIMIT`."""
    factors = finite_factors(model)
    return factors.written_out if can_write_out(factors) else factors


def each_run(model: PolynomialNetwork | Factors, compute: Callable[[Factors], Tensor]) -> Tensor:
    """`compute` of the working factors: of a stack of dense models at once, of a stack of others run by run.

    Written-out convolutions are large, and a stack's values must not depend on how many runs fit into memory.
    """
    factors = finite_factors(model)
    if factors.lead and not all(isinstance(a, Dense) for a in factors.A):
        return torch.stack([compute(working_factors(factors.run(e))) for e in range(factors.lead[0])])
    return compute(working_factors(factors))


def _interpolate(p: float, norm_1: Tensor, norm_2: Tensor, norm_inf: Tensor) -> Tensor:
    """The Riesz-Thorin bound of an operator's l_p norm from its l_1, l_2 and l_inf norms."""
    if isinf(p):
        return norm_inf
    ends = power(norm_1, 1 / p) * power(norm_inf, 1 - 1 / p)
    if p >= 2:
        near = power(norm_2, 2 / p) * power(norm_inf, 1 - 2 / p)
    else:
        near = power(norm_1, 2 / p - 1) * power(norm_2, 2 - 2 / p)
    return outward(torch.minimum(ends, near), 2)


def matrix_norm(matrix: Tensor, p: float) -> Tensor:
    """The operator norm `||W||_p` of matrices (..., m, d): exact for p = 1, 2, inf, else the Riesz-Thorin bound."""
    m, d = matrix.shape[-2:]
    if 0 in (m, d):
        return matrix.new_zeros(matrix.shape[:-2])
    if p == 1.0 or isinf(p):
        return outward(matrix.abs().sum(-2 if p == 1.0 else -1).amax(-1), m + d)
    # From the smaller Gram matrix: the largest singular value, unlike small ones, loses no accuracy by it.
    exponent = power_of_two(matrix, 2)
    scaled = times_power_of_two(matrix, -exponent)
    gram = scaled @ scaled.transpose(-1, -2) if m <= d else scaled.transpose(-1, -2) @ scaled
    norm_2 = times_power_of_two(outward(_root_of_largest(gram), m * d), exponent)
    return norm_2 if p == 2.0 else _interpolate(p, matrix_norm(matrix, 1.0), norm_2, matrix_norm(matrix, inf))


def _windowed_norm(step: Windowed, lifted: bool, unit: float) -> Tensor:
    """The l2 norm of a map that is written out window by window, or of `[[W, b], [0, unit]]`, from its Gram matrix."""
    constant = step.constant if lifted else torch.zeros_like(step.constant)
    exponent = power_of_two(torch.cat([step.weight.flatten(), constant, constant.new_tensor([unit])]), 1)
    scaled = Windowed(times_power_of_two(step.weight, -exponent), step.constant, step.windows)
    gram = scaled.gram()
    if lifted:
        b = times_power_of_two(step.constant, -exponent).unsqueeze(0)
        last = b @ b.T + float(times_power_of_two(constant.new_tensor(unit), -exponent)) ** 2
        side = scaled.adjoint(b)
        gram = torch.cat([torch.cat([gram, side.T], 1), torch.cat([side, last], 1)])
    return times_power_of_two(outward(_root_of_largest(gram), (step.inputs + 1) * (step.outputs + 1)), exponent)


def rounding_norm(rows: Tensor, p: float) -> Tensor:
    """An upper bound of `||E||_p` of a matrix E whose rows have at most these l_1 norms, (..., m)."""
    if isinf(p):
        return rows.amax(-1)
    total = rows.sum(-1) * (1 + rows.shape[-1] * ULP)
    return torch.minimum(total, rows.amax(-1) * sqrt(rows.shape[-1]) * (1 + 4 * ULP)) if p == 2.0 else total


def operator_norm(step: Affine | Tensor, p: float | str = inf) -> Tensor:
    """`||W||_p` of the linear part of an affine map (or of a matrix), one value for each run.

    Dense maps: exact for p = 1, 2, inf. Convolutions: exact for p = 1 and inf (by the paper's theorems 5, 10 and 11
    the latter is the largest row-l1 norm of the matricised kernel, if the kernel fits into the image). Chains: an upper
    bound for p = 1 and inf, by the chain of absolute values. For p = 2 both are exact up to `EXACT_LIMIT` inputs or
    outputs; above that, convolutions by the torus bound (see `torus_norm`) and chains by the product of norms, never
    below the norm of the operator. Other p: the Riesz-Thorin bound.

    >>> import torch
    >>> round(float(operator_norm(torch.tensor([[3., -4.], [1., 1.]]), "inf")), 9)
    7.0
    """
    return _norm((Dense(step) if isinstance(step, Tensor) else step).double(), exponent(p))


def lifted_norm(step: Affine, constant_unit: bool, p: float | str = inf) -> Tensor:
    """The l_p operator norm of an affine map on the lifted input: of `[[W, b], [0, 1]]`, or of `[W, b]`.

    Exact for dense maps (p = 1, 2, inf). For the others an upper bound: p = inf by the map of absolute values,
    p = 1 by its columns, p = 2 by the 2 x 2 matrix of the blocks' norms.
    """
    return _norm(step.double(), exponent(p), lifted=True, unit=float(constant_unit))


def _norm(step: Affine, p: float, lifted: bool = False, unit: float = 0.0) -> Tensor:
    """`||W||_p`, or that of `[[W, b], [0, unit]]`."""
    if isinstance(step, Identity):
        return step.constant.new_ones(step.lead)
    if isinstance(step, Dense):
        return matrix_norm(lift(step, bool(unit)) if lifted else step.weight, p) + _lost(step, p, lifted)
    if isinstance(step, Windowed) and step.off is not None:
        exact = Windowed(step.weight, step.constant, step.windows)
        return _norm(exact, p, lifted, unit) + _lost(step, p, lifted)
    if p not in (1.0, 2.0, inf):
        return _interpolate(p, *(_norm(step, q, lifted, unit) for q in (1.0, 2.0, inf)))
    if p == 2.0 and isinstance(step, Windowed):
        return _windowed_norm(step, lifted, unit)
    terms = (step.inputs if isinf(p) else step.outputs) + step.terms
    absolute, terms = step.absolute(), step.inputs + step.outputs + 2 if isinstance(step, Windowed) else terms
    if isinf(p):
        ones = step.constant.new_ones(1, step.inputs)
        rows = (absolute(ones) if lifted else absolute.linear(ones)).squeeze(-2).expand(*step.lead, -1)
        return outward(rows.amax(-1).clamp_min(unit), terms)
    if p == 1.0:
        columns = absolute.adjoint(step.constant.new_ones(1, step.outputs)).squeeze(-2).amax(-1).expand(step.lead)
        return outward(torch.maximum(columns, absolute.constant.sum(-1) + unit) if lifted else columns, terms)
    if not lifted:
        return _spectral(step)
    blocks = step.constant.new_zeros(*step.lead, 2, 2)
    blocks[..., 0, 0] = _spectral(step)
    blocks[..., 0, 1] = matrix_norm(absolute.constant.unsqueeze(-2), 2.0)
    blocks[..., 1, 1] = unit
    return matrix_norm(blocks, 2.0)


def _lost(step: Dense | Windowed, p: float, lifted: bool) -> Tensor:
    """What writing a map out may have taken from its norm."""
    rows, shifts = step.rounding()
    return rounding_norm(rows + shifts if lifted else rows, p)


def _spectral(step: Affine) -> Tensor:
    """The l2 norm of a convolution, a pooling or a chain: exact if small, else an upper bound."""
    if isinstance(step, Pool):
        return step.constant.new_full(step.lead, sqrt(0.5**step.dims))
    if min(step.inputs, step.outputs) > EXACT_LIMIT:
        if isinstance(step, Conv):
            return torus_norm(step.weight, step.shape[1:])
        if isinstance(step, Chain):
            return product(torch.stack([_norm(part, 2.0) for part in step.maps]))
    # sqrt(lambda_max(W^T W)), or of W W^T if that is smaller, without writing W out. Rounding takes no more from it
    # than gamma_terms of the chain of absolute values B, of which ||B||_2^2 <= ||B||_1 ||B||_inf.
    step, exponent = without_scale(step)
    small = min(step.inputs, step.outputs)
    eye = torch.eye(small, dtype=step.constant.dtype, device=step.constant.device).expand(*step.lead, -1, -1)
    gram = step.adjoint(step.linear(eye)) if small == step.inputs else step.linear(step.adjoint(eye))
    lost = _norm(step, 1.0) * _norm(step, inf) * (2 * (step.terms + small + 8) * ULP)
    gram = gram + lost[..., None, None] * eye
    return times_power_of_two(outward(_root_of_largest(gram), step.inputs * step.outputs), exponent)


def _root_of_largest(gram: Tensor) -> Tensor:
    """The root of the largest eigenvalue of positive semi-definite matrices; infinite where an entry is not finite."""
    exponent = power_of_two(gram, 2) // 2 * 2
    finite = torch.isfinite(gram).all(-1).all(-1)
    scaled = torch.where(finite[..., None, None], times_power_of_two(gram, -exponent), 0.0)
    eigenvalues: Tensor = torch.linalg.eigvalsh(scaled)
    root = times_power_of_two(eigenvalues.amax(-1).clamp_min(0.0).sqrt(), exponent // 2)
    return torch.where(finite, root, torch.inf)


def factor_norms(model: PolynomialNetwork | Factors, p: float | str = inf) -> dict[str, Tensor]:
    """The lifted l_p norms by the paper's names: `U1..Uk, C` (CCP), `A1, S1, A2, S2, ..., C` (NCP).

    Where a CCP pools between its products, the norm of the pooling stands as S_n.
    """
    p, named = exponent(p), dict[str, Tensor]()

    def compute(factors: Factors) -> Tensor:
        for n, a in enumerate(factors.A, 1):
            named[f"{'U' if factors.kind == 'CCP' else 'A'}{n}"] = lifted_norm(a, factors.constant, p)
            if n == 1 and factors.kind == "NCP":
                # The norm of diag(s_1), which is what the proofs need; it is never above the vector norm of s_1.
                named["S1"] = factors.s1.abs().amax(-1).clamp_min(float(factors.constant))
            elif n > 1 and not isinstance(factors.S[n - 2], Identity):
                named[f"S{n}"] = lifted_norm(factors.S[n - 2], factors.constant, p)
        named["C"] = lifted_norm(factors.C, False, p)
        return torch.stack(list(named.values()), dim=-1)

    values = each_run(model, compute)
    return dict(zip(named, values.unbind(-1), strict=True))


def theta(model: PolynomialNetwork | Factors) -> Tensor:
    """`theta = ||U_1 . U_2 ... . U_k||_inf` of the face-splitting product, `max_j prod_i ||row j of U_i||_1`.

    Exact for CCP in O(k m d), with nothing of size d^k. For NCP (and between poolings) the analogous recursion
    `t_1 = rowl1(A_1) |s_1|, t_n = rowl1(A_n) (|S_n| t_(n-1))` bounds `||Phi||_inf` of Theorem 3 by `max(t_k)`, which
    is never above the product of norms.
    """
    # The product of the norms is never smaller, and says when the network is zero.
    return torch.minimum(each_run(model, _theta), gamma(model))


def _theta(factors: Factors) -> Tensor:
    scaled = balanced(factors)
    sizes, weights = scaled.sizes(1.0)
    terms = sum(step.terms + 2 for step in (*factors.A, *factors.S))
    return restored((sizes[-1] * weights[-1]).amax(-1), scaled.product, terms).clamp_min(float(factors.constant))


def gamma(model: PolynomialNetwork | Factors, p: float | str = inf) -> Tensor:
    """The relaxation `gamma = prod_i ||U_i||_p` (CCP) or `prod_i ||A_i||_p ||S_i||_p` (NCP), lemmas 1 and 2."""
    norms = factor_norms(model, p)
    del norms["C"]
    return product(torch.stack(list(norms.values())))


def gram_norm(model: PolynomialNetwork | Factors) -> Tensor | None:
    """The exact l2 norm of the lifted product, from an m x m matrix; None above `GRAM_LIMIT` units.

    CCP: `||U_1 . ... . U_k||_2^2 = lambda_max(hadamard_i U_i U_i^T)`. NCP: `G_1 = (A_1 A_1^T) o (s_1 s_1^T)`,
    `G_n = (A_n A_n^T) o (S_n G_(n-1) S_n^T)`, `||Phi||_2^2 = lambda_max(G_k)`.
    """
    factors = finite_factors(model)
    if max(a.outputs for a in factors.A) > GRAM_LIMIT or not can_write_out(factors):
        return None
    return each_run(factors, _gram_norm)


def _gram_norm(factors: Factors) -> Tensor:
    r"""The root of the largest eigenvalue of the computed G, and of all that rounding may have taken from it.

    With `t_1 = ||A_1||_2 |s_1|` and `t_n = ||A_n||_2 (|S_n| t_(n-1))` row by row, `t_i t_j` is at least the sum of the
    absolute values of the products that entry (i, j) of G is a sum of. So rounding moves G by at most `gamma_D` of it,
    in norm by `gamma_D ||t||_2^2`. What writing the A_n out had rounded moves the rows of Phi itself, by the terms of
    first and higher order in it, e: `e_n = a_n (|S_n| e_(n-1)) + off_n (|S_n| (t_(n-1) + e_(n-1)))`.
    """
    scaled = balanced(factors.lifted())
    lifted = scaled.factors
    G = lifted.s1.unsqueeze(-1) * lifted.s1.unsqueeze(-2)
    t, e = lifted.s1.abs(), torch.zeros_like(lifted.s1)
    for n, a in enumerate(lifted.A):
        if n > 0 and not isinstance(lifted.S[n - 1], Identity):
            step = lifted.S[n - 1]
            S = step.matrix()
            G = S @ G @ S.transpose(-1, -2)
            t, e = (step.absolute().linear(v.unsqueeze(-2)).squeeze(-2) for v in (t, e))
        A, off = a.matrix(), a.rounding()[0]
        G = G * (A @ A.transpose(-1, -2))
        rows = torch.linalg.vector_norm(A, 2, dim=-1)
        t, e = rows * t, rows * e + off * (t + e)
    terms = sum(2 * (step.terms + 4) for step in (*lifted.A, *lifted.S))
    lost = t.square().sum(-1) * ((terms + 16) * ULP)
    G = G + lost[..., None, None] * torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
    units = G.shape[-1]
    found = _root_of_largest(G) + torch.linalg.vector_norm(e, 2, dim=-1)
    value = restored(found, scaled.product, units * (units + 16) + terms, UNDERFLOW_UNDER_ROOT)
    return torch.minimum(value, gamma(factors, 2.0))
