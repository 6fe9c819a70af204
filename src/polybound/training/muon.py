"""Muon: descent along orthogonalised gradients, which trains products in a fraction of AdamW's epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polybound.errors import check_number
from polybound.training.optim import AdamW, Tensors, register_optimiser


@register_optimiser
@dataclass(frozen=True)
class Muon(AdamW):
    """Momentum whose matrices are made orthogonal (Jordan et al., 2024); vectors go by AdamW.

    With the decaying sum `m <- beta m + gradient` of a matrix, or of a kernel as the matrix (filters, the rest):
    `w <- (1 - rate weight_decay) w - 0.2 rate sqrt(max(rows, columns)) orthogonal(gradient + beta m)`. The factor
    gives each entry the size of a step of AdamW, so that one learning rate suits both. All directions of a matrix learn
    at the same speed; a product's two factors, whose gradients differ by orders of magnitude, need it most.

    Attributes:
        beta: of the sum of gradients, from 0 on and below 1.
    """

    name: ClassVar[str] = "muon"

    learning_rate: float = 0.02
    beta2: float = 0.95
    weight_decay: float = 0.02
    beta: float = 0.9

    def __post_init__(self) -> None:
        check_number("beta", self.beta, below=1)
        super().__post_init__()

    def update_(self, weights: Tensors, gradients: Tensors, memory: list[Tensors], rate: float, step: int) -> None:
        vectors = [i for i, weight in enumerate(weights) if weight.ndim < 2]
        if vectors:
            parts = [[of[i] for i in vectors] for of in (weights, gradients, *memory)]
            super().update_(parts[0], parts[1], list(parts[2:]), rate, step)
        for weight, gradient, total in zip(weights, gradients, memory[0], strict=True):
            if weight.ndim >= 2:
                total.mul_(self.beta).add_(gradient)
                direction = orthogonal(gradient.add(total, alpha=self.beta).flatten(1)).view_as(weight)
                size = 0.2 * max(weight.shape[0], weight[0].numel()) ** 0.5
                weight.mul_(1 - rate * self.weight_decay).sub_(direction, alpha=rate * size)


def orthogonal(matrix: Tensor, steps: int = 4) -> Tensor:
    """Roughly `U V^T` of a matrix `U S V^T`: its directions, with singular values from about 0.7 to 1.2 each.

    Each step is the polynomial `s -> 3.4445 s - 4.7750 s^3 + 2.0315 s^5` of the singular values, which takes all but
    the smallest near 1; it needs products of matrices alone. A matrix of zeros stays one.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / (torch.linalg.matrix_norm(wide) + 1e-30)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x if wide is matrix else x.T  # type: ignore[no-any-return]
