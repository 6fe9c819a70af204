"""What is trained for besides the cross-entropy of the logits, by the derivatives of the logits.

The Jacobian penalty is that of Hoffman, Roberts and Yaida (Robust learning with Jacobian regularization, 2019).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["jacobian_penalty", "lower_margins", "unit_vectors"]


def unit_vectors(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Random unit vectors for a Jacobian penalty, shaped as the logits `like`, (*lead, batch, classes)."""
    v: Tensor = torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
    return F.normalize(v, dim=-1, eps=0.0)


def jacobian_penalty(logits: Tensor, inputs: Tensor, how: str, generator: torch.Generator | None = None) -> Tensor:
    """`sum over the batch of ||J(x)||_F^2 / 2`, differentiable: one value for each run.

    "random": `o ||v^T J||^2 / 2` for a random unit vector v, new for every sample, whose expectation is exact;
    "exact": one backward pass for each class.

    Args:
        logits: (*lead, batch, classes), computed from `inputs`.
        inputs: (*lead, batch, features), with `requires_grad`.
        how: "random" or "exact".
        generator: of the random vectors.
    """
    classes = logits.shape[-1]
    if how == "exact":
        directions = torch.eye(classes, dtype=logits.dtype, device=logits.device).unbind()
        scale = 1.0
    else:
        directions = (unit_vectors(logits, generator),)
        scale = float(classes)
    total = logits.new_zeros(logits.shape[:-2])
    for direction in directions:
        (rows,) = torch.autograd.grad((logits * direction).sum(), inputs, create_graph=True)
        total = total + rows.square().sum((-2, -1))
    return total * (scale / 2)


def lower_margins(logits: Tensor, inputs: Tensor, labels: Tensor, eps: float) -> Tensor:
    """`g_j(x) - eps ||dg_j/dx||_1` with `g_j = f_y - f_j`, differentiable: (*lead, batch, classes), 0 for y itself.

    To first order, that is the least margin in a ball of radius eps; its cross-entropy as logits `-g` trains networks
    whose certificates are large.

    Args:
        logits: (*lead, batch, classes), computed from `inputs`.
        inputs: (*lead, batch, features), with `requires_grad`.
        labels: (*lead, batch).
        eps: radius of the l_inf ball.
    """
    rows = [torch.autograd.grad(column.sum(), inputs, create_graph=True)[0] for column in logits.unbind(-1)]
    jacobian = torch.stack(rows, -2)  # (*lead, batch, classes, features)
    chosen = labels.unsqueeze(-1)
    own = jacobian.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, jacobian.shape[-1]))
    return logits.gather(-1, chosen) - logits - eps * (own - jacobian).abs().sum(-1)
