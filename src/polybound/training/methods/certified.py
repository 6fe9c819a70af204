"""Training for certificates: the loss of proven lower bounds of the margins, to first order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from polybound.registry import check_number, check_start
from polybound.training.methods.base import Method, cross_entropies, drop_subnormal, register_method

if TYPE_CHECKING:
    from polybound.training.engine import RowsEngine
    from polybound.training.random import StepRandom

__all__ = ["Certified", "lower_margins"]


@register_method
@dataclass(frozen=True)
class Certified(Method):
    """The cross-entropy of the least margins in balls of radius eps, to first order (`lower_margins`).

    Attributes:
        eps: radius of the l_inf balls.
        start: first epoch with that loss, from 0, or a share of all epochs.
    """

    name: ClassVar[str] = "certified"
    takes_adversary: ClassVar[bool] = False  # the loss sees the whole ball
    uses_inputs: ClassVar[bool] = True

    eps: float = 0.1
    start: int | float = 0.5

    def __post_init__(self) -> None:
        check_number("eps", self.eps)
        check_start("start", self.start)
        super().__post_init__()

    @property
    def label(self) -> str:
        return f"certified training {self.eps:g}"

    def loss(self, logits: Tensor, inputs: Tensor, labels: Tensor, random: StepRandom) -> tuple[Tensor, Tensor]:
        del random
        losses = cross_entropies(lower_margins(logits, inputs, labels, self.eps).neg(), labels)
        return losses, losses

    def closed_loss(
        self, engine: RowsEngine, x: Tensor, y: Tensor, random: StepRandom
    ) -> tuple[Tensor, Tensor, Tensor]:
        del random
        logits = engine.logits(x)
        classes = logits.shape[1]
        one = torch.eye(classes).to(logits)
        # The margin over each class: e_y - e_j.
        v = one[engine.targets_of_runs(y)].mT.unsqueeze(1) - one.view(1, classes, classes, 1)
        rows = engine.rows(v)
        worst = self.eps * rows.abs().sum(-1) - (v * logits.unsqueeze(1)).sum(2)
        losses = torch.logsumexp(worst, 1).sum(-1)  # that of y itself is 0
        slopes = drop_subnormal(worst.softmax(1))
        return -(v * slopes.unsqueeze(2)).sum(1), rows.sign_().mul_(self.eps * slopes.unsqueeze(-1)), losses


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
