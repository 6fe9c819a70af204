"""Adversarial examples for one step of training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polybound.attacks.base import Attack
from polybound.attacks.classifier import Classifier
from polybound.attacks.random_numbers import BatchRandom

__all__ = ["adversarial_batch"]


def adversarial_batch(
    attack: Attack,
    classifier: Classifier,
    x: Tensor,
    y: Tensor,
    *,
    domain: Sequence[float],
    protocol: str = "sound",
    generators: Sequence[torch.Generator] = (),
) -> Tensor:
    """Adversarial examples (E, batch, d) of each run's own, from batches that groups of runs share.

    It is made for the inside of a training loop: images and labels are not checked, and the points are as
    `attack.perturb` left them. What random numbers an image gets depends on its place in the batch.

    Args:
        attack: any attack.
        classifier: of E runs; one for the whole training, as it always sees the model's present weights.
        x: images of the domain, (groups, batch, d); run e belongs to group `e // (E // groups)`.
        y: their labels, (groups, batch).
        domain: smallest and largest value that a pixel can have.
        protocol: "sound" or "published".
        generators: one for each group, whose runs share its numbers; none if the attack draws none.

    >>> import polybound as pb
    >>> from polybound.attacks import Classifier
    >>> data = pb.data.load_digits("train")
    >>> model = pb.paper_model("pn-4", shape=data.shape, runs=4, seed=0)
    >>> x, y = data.x[:64].reshape(2, 32, -1), data.y[:64].reshape(2, 32)
    >>> adversarial_batch(pb.FGSM(0.1), Classifier(model, data.shape), x, y, domain=data.domain).shape
    torch.Size([4, 32, 64])
    """
    ball = attack.ball(x, domain=domain, protocol=protocol)
    labels = y[0] if len(y) == 1 else y.repeat_interleave(classifier.runs // len(y), 0)
    found = attack.perturb(classifier, ball, labels, BatchRandom(generators, x))
    return found if len(found) == classifier.runs else found.repeat_interleave(classifier.runs // len(found), 0)
