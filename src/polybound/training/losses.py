"""Losses by name: what is descended, in closed form and for autograd."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.errors import check_number
from polybound.registry import Component, Components


@dataclass(frozen=True)
class Loss(Component):
    """A loss of the outputs of a network, for each sample.

    A loss of your own is a frozen dataclass with a `name` and the two functions below, and one line that registers it
    (`register_loss`). Each gives its losses by sample, so that samples can have weights.
    """

    classifies: ClassVar[bool] = True
    """Whether targets are labels, (*lead, batch); else they are numbers, (*lead, batch, outputs)."""

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The losses (*lead, batch) of outputs (*lead, batch, classes), differentiable."""

    @abstractmethod
    def logit_grad(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients by outputs (E, classes, batch), which may be overwritten, and the losses (E, 1, batch)."""


LOSSES: Components[Loss] = Components("loss")
"""All losses by name."""

register_loss = LOSSES.register


@register_loss
@dataclass(frozen=True)
class CrossEntropy(Loss):
    """`-sum_j t_j log softmax(f)_j`, t being `1 - label_smoothing` for the label, and the rest shared by all classes.

    Attributes:
        label_smoothing: from 0 on and below 1.
    """

    name: ClassVar[str] = "cross-entropy"

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_number("label_smoothing", self.label_smoothing, below=1)
        super().__post_init__()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        flat = outputs.reshape(-1, outputs.shape[-1])
        found = F.cross_entropy(flat, targets.flatten(), reduction="none", label_smoothing=self.label_smoothing)
        return found.view(targets.shape)

    def logit_grad(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        labels, smoothing = targets.unsqueeze(1), self.label_smoothing
        normaliser = torch.logsumexp(outputs, 1, keepdim=True)
        losses = normaliser - outputs.gather(1, labels)
        if smoothing:
            losses.mul_(1 - smoothing).add_(normaliser - outputs.mean(1, keepdim=True), alpha=smoothing)
        logit_grad = outputs.sub_(normaliser).exp_()
        logit_grad.scatter_add_(1, labels, logit_grad.new_full((1, 1, 1), smoothing - 1.0).expand_as(labels))
        if smoothing:
            logit_grad.sub_(smoothing / logit_grad.shape[1])
        return logit_grad, losses


@register_loss
@dataclass(frozen=True)
class Squared(Loss):
    """The mean over the outputs of `(f - y)^2`: regression."""

    name: ClassVar[str] = "squared"
    classifies: ClassVar[bool] = False

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean(-1)

    def logit_grad(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logit_grad = outputs.sub_(targets.transpose(1, 2))
        losses = logit_grad.square().mean(1, keepdim=True)
        return logit_grad.mul_(2 / logit_grad.shape[1]), losses
