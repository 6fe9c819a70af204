"""What attacks ascend: losses of the logits, given by their values and their gradients by the logits.

Attacks step along the sign or the direction of a gradient, so a positive factor for each image changes nothing. The
losses below use that freedom to stay away from rounding: a classifier that is very sure of itself has a cross-entropy
whose gradient is zero in floating point, and would look robust. The rounded ones do not, and are for comparison with
what was published: the library that those attacks are from differentiates the losses as they stand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from polybound.attacks.ball import Protocol

_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Loss(ABC):
    """A loss of logits (E, classes, n) for labels y, (n,), or (E, n) with a row for each run."""

    y: Tensor

    @abstractmethod
    def values(self, logits: Tensor) -> Tensor:
        """The loss of each image, (E, n), up to a monotone function."""

    @abstractmethod
    def logit_grad(self, logits: Tensor) -> Tensor:
        """Its derivative by the logits, (E, classes, n), up to a positive factor for each image."""

    def pick(self, keep: Tensor) -> Self:
        """The loss of some of the images."""
        return replace(self, **{field.name: getattr(self, field.name)[..., keep] for field in fields(self)})

    def _at(self, logits: Tensor, index: Tensor) -> Tensor:
        """The logits of one class for each image, (E, n)."""
        return logits.gather(1, _wide(index, logits)).squeeze(1)


def _wide(index: Tensor, logits: Tensor) -> Tensor:
    """Class numbers (n,) or (E, n) as (E, 1, n), to gather with."""
    lead = index if index.ndim == 2 else index.unsqueeze(0)
    return lead.unsqueeze(1).expand(len(logits), 1, -1)


def _rivals(logits: Tensor, y: Tensor) -> Tensor:
    """The logits with that of the label at minus infinity."""
    return logits.scatter(1, _wide(y, logits), -torch.inf)


class CrossEntropy(Loss):
    """`-log p_y`, by its odds: `log((1 - p_y) / p_y) = logsumexp_(j != y) z_j - z_y`, a monotone function of it.

    The gradient of the cross-entropy is `(1 - p_y)` times that of the odds; the factor, which underflows once the
    classifier is sure, is left out.

    >>> loss = CrossEntropy(torch.tensor([0]))
    >>> loss.logit_grad(torch.tensor([[[500.0], [0.0], [0.0]]])).flatten().tolist()
    [-1.0, 0.5, 0.5]
    """

    def values(self, logits: Tensor) -> Tensor:
        return _rivals(logits, self.y).logsumexp(1) - self._at(logits, self.y)

    def logit_grad(self, logits: Tensor) -> Tensor:
        logit_grad = _rivals(logits, self.y)
        if logit_grad.shape[1] > 1:  # with a single class there is no rival
            logit_grad = logit_grad.softmax(1)
        return logit_grad.scatter_(1, _wide(self.y, logits), -1.0)


class RoundedCrossEntropy(CrossEntropy):
    """The same with the gradient that floating point has, `p - e_y`.

    Once `1 - p_y` is lost in the rounding of 1, nothing draws the label's own logit down any more.

    >>> loss = RoundedCrossEntropy(torch.tensor([0]))
    >>> loss.logit_grad(torch.tensor([[[500.0], [0.0], [0.0]]])).flatten().tolist()
    [0.0, 0.0, 0.0]
    """

    def logit_grad(self, logits: Tensor) -> Tensor:
        # By way of the logarithm, as autograd has it: softmax rounds otherwise near 1.
        logit_grad = logits.log_softmax(1).exp_()
        return logit_grad.scatter_add_(1, _wide(self.y, logits), -torch.ones_like(logits[:, :1]))


@dataclass(frozen=True, eq=False)
class KL(Loss):
    """`KL(p(clean) || p)`, the divergence of the prediction from the clean one, which TPGD ascends: no labels in it."""

    clean: Tensor

    def values(self, logits: Tensor) -> Tensor:
        before, now = self.clean.double().log_softmax(1), logits.double().log_softmax(1)
        return (before.exp() * (before - now)).sum(1)

    def logit_grad(self, logits: Tensor) -> Tensor:
        # In float64, and scaled up: near its start the two predictions differ by less than float32 can tell.
        difference = logits.double().softmax(1) - self.clean.double().softmax(1)
        scale = difference.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        return (difference / scale).to(logits.dtype)


class RoundedKL(KL):
    """The same with the gradient that floating point has."""

    def logit_grad(self, logits: Tensor) -> Tensor:
        return logits.softmax(1) - self.clean.softmax(1)


def cross_entropy(y: Tensor, protocol: Protocol) -> CrossEntropy:
    """The cross-entropy as a protocol differentiates it."""
    return (RoundedCrossEntropy if protocol == "published" else CrossEntropy)(y)


def divergence(y: Tensor, clean: Tensor, protocol: Protocol) -> KL:
    """The divergence from the prediction `clean`, given by its logits, as a protocol differentiates it."""
    return (RoundedKL if protocol == "published" else KL)(y, clean)


class DLR(Loss):
    """The difference of logits ratio, `-(z_y - max_(j != y) z_j) / (z_(1) - z_(3))`, with z sorted downwards.

    It does not change when the logits are scaled or shifted. With fewer than three classes there is no `z_(3)`, and the
    plain margin stands in.
    """

    def values(self, logits: Tensor) -> Tensor:
        gap = self._gap(logits)
        margin = self._at(logits, self._rival(logits)) - self._at(logits, self.y)
        return margin / (1.0 if gap is None else gap[0])

    def logit_grad(self, logits: Tensor) -> Tensor:
        """The derivative of `a / b` times b, `a = z_rival - z_y`: `a' - (a / b) b'`."""
        rival, gap = self._rival(logits), self._gap(logits)
        logit_grad = torch.zeros_like(logits)
        one = torch.ones_like(logits[:, :1])
        logit_grad.scatter_add_(1, _wide(rival, logits), one)
        logit_grad.scatter_add_(1, _wide(self.y, logits), -one)
        if gap is not None:
            b, parts = gap
            ratio = ((self._at(logits, rival) - self._at(logits, self.y)) / b).unsqueeze(1)
            for index, weight in parts:
                logit_grad.scatter_add_(1, _wide(index, logits), -weight * ratio)
        return logit_grad

    def _rival(self, logits: Tensor) -> Tensor:
        """The class that is to overtake the label."""
        return _rivals(logits, self.y).argmax(1)

    def _gap(self, logits: Tensor) -> tuple[Tensor, list[tuple[Tensor, float]]] | None:
        """The denominator, and the classes and weights that it is made of."""
        if logits.shape[1] < 3:
            return None
        values, classes = logits.topk(3, 1)
        return values[:, 0] - values[:, 2] + _TINY, [(classes[:, 0], 1.0), (classes[:, 2], -1.0)]


@dataclass(frozen=True, eq=False)
class TargetedDLR(DLR):
    """`-(z_y - z_t) / (z_(1) - (z_(3) + z_(4)) / 2)` for a target class t of each image, (n,) or (E, n).

    With fewer than four classes there is no `z_(4)`, and the plain margin stands in.
    """

    target: Tensor

    def _rival(self, logits: Tensor) -> Tensor:
        del logits
        return self.target

    def _gap(self, logits: Tensor) -> tuple[Tensor, list[tuple[Tensor, float]]] | None:
        if logits.shape[1] < 4:
            return None
        values, classes = logits.topk(4, 1)
        parts = [(classes[:, 0], 1.0), (classes[:, 2], -0.5), (classes[:, 3], -0.5)]
        return values[:, 0] - 0.5 * (values[:, 2] + values[:, 3]) + _TINY, parts
