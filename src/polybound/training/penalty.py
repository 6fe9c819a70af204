"""What is trained for besides the cross-entropy of the logits, by the derivatives of the logits.

The Jacobian penalty is that of Hoffman, Roberts and Yaida (Robust learning with Jacobian regularization, 2019).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["jacobian_penalty", "lower_margins"]


def jacobian_penalty(logits: Tensor, inputs: Tensor, directions: Tensor | None = None) -> Tensor:
    """`sum over the batch of ||J(x)||_F^2 / 2`, differentiable: one value for each run.

    With random unit vectors v, one for each sample, it is `o ||v^T J||^2 / 2`, whose expectation is exact; without,
    there is a backward pass for each of the o classes.

    Args:
        logits: (*lead, batch, classes), computed from `inputs`.
        inputs: (*lead, batch, features), with `requires_grad`.
        directions: the unit vectors, shaped as the logits.
    """
    classes = logits.shape[-1]
    every = torch.eye(classes, dtype=logits.dtype, device=logits.device).unbind()
    scale = 1.0 if directions is None else float(classes)
    total = logits.new_zeros(logits.shape[:-2])
    for direction in every if directions is None else (directions,):
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
