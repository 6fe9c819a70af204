"""How far each output can move with each feature, over the whole domain."""

from __future__ import annotations

import torch
from torch import Tensor

from polybound.errors import PolyboundError
from polybound.models import Factors, PolynomialNetwork
from polybound.theory.rounding import outward

__all__ = ["sensitivity"]


def sensitivity(model: PolynomialNetwork | Factors) -> Tensor:
    """Upper bounds of `|d f_o / d x_j|` over all x in `[-1, 1]^d`: (classes, features), float64.

    It is the matrix whose norm is the row-wise Lipschitz bound. For any norm's unit in which feature j counts as
    `s_j`, the constant is the norm of the matrix with column j divided by s_j:

        |f_o(x) - f_o(x')| <= sum_j sensitivity[o, j] |x_j - x'_j|

    Args:
        model: a single model, or its factors.

    >>> import torch, polybound as pb
    >>> model = pb.CCP(3, 2, 2, degree=2, seed=0, dtype=torch.float64)
    >>> rows = pb.theory.sensitivity(model).sum(1)
    >>> bool(abs(rows.max() / float(pb.lipschitz(model)) - 1) < 1e-9)
    True
    """
    factors = (model if isinstance(model, Factors) else model.factors()).double().dense
    if factors.lead:
        raise PolyboundError("sensitivities are about one model; take model.run(e) of a stack")
    # Over the domain: a_n bounds |A_n(x)|, w_n bounds |S_n(y_(n-1))| (w_1 = |s_1|), so a_n w_n bounds |y_n|.
    sizes = [a.row_l1() + a.constant.abs() for a in factors.A]
    weights = [factors.s1.abs()]
    for n, s in enumerate(factors.S):
        weights.append(s.absolute()((sizes[n] * weights[n]).unsqueeze(-2)).squeeze(-2))
    G = factors.C.matrix().abs()
    total = G.new_zeros(len(G), factors.features)
    for n in reversed(range(factors.degree)):
        total = total + factors.A[n].absolute().adjoint(G * weights[n].unsqueeze(-2))
        if n > 0:
            G = factors.S[n - 1].absolute().adjoint(G * sizes[n].unsqueeze(-2))
    if not torch.isfinite(total).all():
        raise PolyboundError("the model's weights are not all finite")
    return outward(total, factors.degree * (factors.features + 2 * factors.A[0].outputs))
