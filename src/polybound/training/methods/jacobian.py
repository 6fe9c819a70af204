"""The Jacobian penalty of Hoffman, Roberts and Yaida (Robust learning with Jacobian regularization, 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from polybound.registry import check_choice, check_number
from polybound.training.methods.base import Method, cross_entropies, drop_subnormal, register_method

if TYPE_CHECKING:
    from polybound.training.engine import RowsEngine
    from polybound.training.random import StepRandom

__all__ = ["JacobianPenalty", "jacobian_penalty"]


@register_method
@dataclass(frozen=True)
class JacobianPenalty(Method):
    """Cross-entropy plus `weight ||J(x)||_F^2 / 2`, J being the Jacobian of the logits by the input.

    Attributes:
        weight: of the penalty. The paper does not say which it used.
        how: "random", one random projection a step, or "exact".
    """

    name: ClassVar[str] = "jacobian"
    uses_inputs: ClassVar[bool] = True

    weight: float = 0.01
    how: Literal["random", "exact"] = "random"

    def __post_init__(self) -> None:
        check_number("weight", self.weight)
        check_choice("how", self.how, ("random", "exact"))
        super().__post_init__()

    @property
    def label(self) -> str:
        return f"Jacobian {self.weight:g}{' exact' if self.how == 'exact' else ''}"

    def loss(self, logits: Tensor, inputs: Tensor, labels: Tensor, random: StepRandom) -> tuple[Tensor, Tensor]:
        losses = cross_entropies(logits, labels)
        directions = random.unit_vectors(logits).view_as(logits) if self.how == "random" else None
        return losses, losses + self.weight * jacobian_penalty(logits, inputs, directions)

    def closed_loss(
        self, engine: RowsEngine, x: Tensor, y: Tensor, random: StepRandom
    ) -> tuple[Tensor, Tensor, Tensor]:
        slopes, losses = engine.slopes(x, y)
        classes, batch = slopes.shape[1:]
        if self.how == "exact":
            one = torch.eye(classes).to(slopes).view(1, classes, -1, 1)
            v, scale = one.expand(engine.runs, -1, -1, batch), self.weight
        else:
            v, scale = random.unit_vectors(slopes.mT).mT.unsqueeze(1), self.weight * classes
        return drop_subnormal(slopes), engine.rows(v).mul_(scale), losses


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
