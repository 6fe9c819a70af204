"""First-order bounds that autograd differentiates by the weights: the loss of training for certificates.

The identity is that of `first_order`: over a box `x = c + r * u`, u in [-1, 1]^d, a margin is

    g(u) = g0 + G.u + sum_n sum_m lambda_nm(u) t_nm(u) (B_n r u)_m,

and so `g >= g0 - ||G||_1 - R`, where R bounds the sum by entries: `|t_n| <= rho_n = |A_n| r`, `|B_n r u| <= beta_n`
with `beta_1 = 0` and `beta_n = |S_n| (|h_(n-1)| beta_(n-1) + |q_(n-1)| rho_(n-1))`, and `|lambda_n(u)| <= |lambda_n| +
ell_n`. `certify` takes the best of that and of a bound by norms. On networks that were trained with this loss both
are the same to a percent, and only the norms ask for a search. Maps are applied, never written out, and stacks have
their leading dimension. Nothing is rounded outwards: this is for training, and `certify` for proofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polybound.models import Affine, Dense, Factors


@dataclass(frozen=True, eq=False)
class MarginBounds:
    """`g >= centre - slope - remainder` over boxes, for each rival: (*lead, batch, rivals) all.

    Attributes:
        centre: the margins at the centres of the boxes, g0.
        slope: how far the linear part moves over the box, `||G||_1`.
        remainder: R, all of second order and above.
        rivals: the classes these are about, (*lead, batch, rivals).
        logits: at the centres, less those of the labels: (*lead, batch, classes).
    """

    centre: Tensor
    slope: Tensor
    remainder: Tensor
    rivals: Tensor
    logits: Tensor

    @property
    def lower(self) -> Tensor:
        """The bounds themselves."""
        return self.centre - self.slope - self.remainder


def box_of(x: Tensor, eps: float, domain: tuple[float, float] | None) -> tuple[Tensor, Tensor]:
    """The centres and radii of the balls `|x' - x|_inf <= eps`, moved into the domain: no radius is negative.

    >>> import torch
    >>> box_of(torch.tensor([0.0, 0.5]), 0.25, (0.0, 1.0))
    (tensor([0.1250, 0.5000]), tensor([0.1250, 0.2500]))
    """
    lower, upper = x - eps, x + eps
    if domain is not None:
        lower, upper = lower.clamp(*domain), upper.clamp(*domain)
    return (lower + upper) / 2, (upper - lower) / 2


def margin_bounds(factors: Factors, c: Tensor, r: Tensor, labels: Tensor, rivals: int | None = None) -> MarginBounds:
    """Bounds of the margins `f_label - f_rival` over boxes `x = c + r * u`, differentiable by all weights.

    >>> import torch, polybound as pb
    >>> model = pb.CCP(2, rank=3, classes=3, degree=2, seed=0)
    >>> x, y = torch.zeros(5, 2), torch.zeros(5, dtype=torch.long)
    >>> bounds = margin_bounds(model.factors(), *box_of(x, 0.1, None), y)
    >>> bounds.lower.shape, bool((bounds.lower <= bounds.centre).all())
    (torch.Size([5, 2]), True)

    Args:
        factors: of a model or of a stack.
        c: centres, (*lead, batch, features).
        r: radii, likewise.
        labels: (*lead, batch).
        rivals: how many rivals to bound for each box, those with the least margins at its centre; all by default.
    """
    dense = all(isinstance(a, Dense) for a in factors.A)
    h: Sequence[Tensor]
    rho: Sequence[Tensor]
    if dense:  # all in one product
        weight = torch.cat([a.matrix() for a in factors.A], -2)  # (*lead, all units, features)
        constant = torch.cat([a.constant for a in factors.A], -1)
        sizes = [a.outputs for a in factors.A]
        h = torch.split(c @ weight.mT + constant.unsqueeze(-2), sizes, -1)
        rho = torch.split(r @ weight.abs().mT, sizes, -1)
    else:
        h, rho = [a(c) for a in factors.A], [a.absolute().linear(r) for a in factors.A]
    q, beta = [factors.s1.unsqueeze(-2).expand_as(h[0])], [torch.zeros_like(h[0])]
    for n, step in enumerate(factors.S):
        q.append(step(h[n] * q[n]))
        beta.append(step.absolute().linear(h[n].abs() * beta[n] + q[n].abs() * rho[n]))

    logits = factors.C(h[-1] * q[-1])
    margins = logits.gather(-1, labels.unsqueeze(-1)) - logits
    others = margins.detach().scatter(-1, labels.unsqueeze(-1), torch.inf)
    count = margins.shape[-1] - 1
    chosen = others.topk(count if rivals is None else min(rivals, count), -1, largest=False).indices
    # The margins as weights of the last product, `C_label - C_rival`: (*lead, batch, rivals, units).
    rows = factors.C.matrix()
    lam = _rows(rows, labels.unsqueeze(-1)) - _rows(rows, chosen)

    remainder, ell = lam.new_zeros(lam.shape[:-1]), torch.zeros_like(lam)
    slopes = []
    for n in reversed(range(factors.degree)):
        slopes.append(lam * q[n].unsqueeze(-2))
        remainder = remainder + ((lam.abs() + ell) * (rho[n] * beta[n]).unsqueeze(-2)).sum(-1)
        if n > 0:
            step, at, radius = factors.S[n - 1], h[n].unsqueeze(-2), rho[n].unsqueeze(-2)
            ell = _adjoint(step.absolute(), ell * (at.abs() + radius) + lam.abs() * radius)
            lam = _adjoint(step, lam * at)
    # `sum_d r_d |sum_n A_n^T y_n|_d`.
    if dense:
        slope: Tensor = _WeightedL1.apply(torch.cat(slopes[::-1], -1), weight, r)  # type: ignore[no-untyped-call]
    else:
        G = sum((_adjoint(a, y) for a, y in zip(factors.A, slopes[::-1], strict=True)), r.new_zeros(1))
        slope = (G.abs() * r.unsqueeze(-2)).sum(-1)
    return MarginBounds(margins.gather(-1, chosen), slope, remainder, chosen, margins.neg())


def _rows(rows: Tensor, index: Tensor) -> Tensor:
    """Rows (*lead, classes, units) by index (*lead, batch, count): (*lead, batch, count, units)."""
    flat = index.flatten(-2).unsqueeze(-1).expand(*index.shape[:-2], -1, rows.shape[-1])
    return rows.gather(-2, flat).view(*index.shape, rows.shape[-1])


class _WeightedL1(torch.autograd.Function):
    """`sum_d r_d |y W|_d` in closed form, for y (*lead, batch, rivals, units): its slope by `y W` is `sign(y W) r`.

    Autograd goes through memory several times more, which for small ranks takes longer than the matrix products.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, r: Tensor) -> Tensor:
        flat = y.flatten(-3, -2)
        G = (flat @ weight).view(*y.shape[:-1], -1)
        signed = torch.copysign(r.unsqueeze(-2), G)
        ctx.save_for_backward(flat, weight, signed)
        total: Tensor = G.mul_(signed).sum(-1)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        flat, weight, signed = ctx.saved_tensors
        slope = (signed * grads[0].unsqueeze(-1)).flatten(-3, -2)
        of_y = (slope @ weight.mT).view(*signed.shape[:-1], -1)
        return of_y, flat.mT @ slope, None


def _adjoint(step: Affine, y: Tensor) -> Tensor:
    """`W^T y` for y of shape (*lead, batch, rivals, outputs)."""
    return step.adjoint(y.flatten(-3, -2)).reshape(*y.shape[:-1], -1)
