"""Attacks that see no gradient. Where they are the stronger ones, gradients mislead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polybound.attacks.ball import Ball, InfBall, repeat_for_runs
from polybound.attacks.base import Attack, RandomNumbers, first_success
from polybound.attacks.classifier import Classifier, is_correct
from polybound.attacks.losses import CrossEntropy
from polybound.errors import PolyboundError, check_int


@dataclass(frozen=True)
class RandomSearch(Attack):
    """Random points on the surface of the ball, until one is misclassified.

    Attributes:
        tries: how many.
    """

    kind: ClassVar[str] = "random"
    numbers: ClassVar[tuple[str, ...]] = ("eps", "tries")
    uses_gradients: ClassVar[bool] = False

    tries: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("tries", self.tries)

    def perturb(self, model: Classifier, ball: Ball, labels: Tensor, random: RandomNumbers) -> Tensor:
        # There are no gradients in which the protocols could differ.
        def attempt(keep: Tensor) -> Tensor:
            if self.norm == "inf":  # the corners of a box are its farthest points
                points = ball.project_(ball.x + ball.eps * random.normal().sign())
            else:
                points = ball.far(random.normal(), ball.x)
            return points[:, keep].repeat_interleave(model.runs // len(points), 0)

        return first_success(model, labels, ball.x, (attempt for _ in range(self.tries)))


@dataclass(frozen=True)
class Square(Attack):
    """The square attack (Andriushchenko et al., 2020), l_inf: squares of an image are moved to a corner of the box.

    A proposal is kept if it raises the loss, and for good if it is misclassified. The squares become smaller as the
    search goes on. Inputs that are not images are taken as images of one row.

    Attributes:
        queries: how many proposals.
    """

    kind: ClassVar[str] = "square"
    numbers: ClassVar[tuple[str, ...]] = ("eps", "queries")
    uses_gradients: ClassVar[bool] = False

    queries: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("queries", self.queries)
        if self.norm != "inf":
            raise PolyboundError("the square attack knows the norm inf only; random-EPS-TRIES:norm=2 knows both")

    def perturb(self, model: Classifier, ball: Ball, labels: Tensor, random: RandomNumbers) -> Tensor:
        if not isinstance(ball, InfBall):
            raise AssertionError("the square attack needs a box")
        shape, loss = model.shape, CrossEntropy(labels)
        height, width = shape[-2:] if len(shape) in (2, 3) else (1, ball.x.shape[-1])
        channels = shape[0] if len(shape) == 3 else 1
        image = channels, height, width
        lower, upper = repeat_for_runs(ball.lower, model.runs), repeat_for_runs(ball.upper, model.runs)
        columns = repeat_for_runs(random.uniform(channels * width), model.runs)
        columns = columns.reshape(*columns.shape[:2], channels, 1, width) < 0.5
        z = torch.where(_flat(columns, image), lower, upper)
        z = z.repeat_interleave(model.runs // len(z), 0)
        logits = model.logits(z)
        value, found = loss.values(logits), ~is_correct(logits, labels)
        for query in range(self.queries):
            square, up = self._proposal(query, image, repeat_for_runs(random.uniform(2 + channels), model.runs))
            proposal = torch.where(square, torch.where(up, upper, lower), z)
            logits = model.logits(proposal)
            raised, fallen = loss.values(logits), ~is_correct(logits, labels)
            # What is misclassified stays: of several classes, the label's probability can fall and become the largest.
            better = ~found & (fallen | (raised > value))
            z = torch.where(better.unsqueeze(-1), proposal, z)
            value, found = torch.where(better, raised, value), found | fallen
        return z

    def _proposal(self, query: int, image: tuple[int, int, int], draw: Tensor) -> tuple[Tensor, Tensor]:
        """Which pixels to move, and which of them up, (1 or E, n, d), by uniform numbers (1 or E, n, 2 + channels)."""
        _, height, width = image
        # The share of changed pixels shrinks: the published schedule for 10,000 queries, scaled.
        at = query * 10000 / self.queries
        share = 0.8 * 0.5 ** sum(at > limit for limit in (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000))
        tall = min(height, max(1, round((share * height * width) ** 0.5)))
        wide = min(width, max(1, round(share * width))) if height == 1 else min(width, tall)
        first = draw.unsqueeze(-1).unsqueeze(-1)
        top, left = (first[:, :, 0:1] * (height - tall + 1)).long(), (first[:, :, 1:2] * (width - wide + 1)).long()
        rows = torch.arange(height, device=draw.device).view(height, 1)
        cols = torch.arange(width, device=draw.device)
        square = (rows >= top) & (rows < top + tall) & (cols >= left) & (cols < left + wide)
        return _flat(square, image), _flat(first[:, :, 2:] < 0.5, image)


def _flat(mask: Tensor, image: tuple[int, int, int]) -> Tensor:
    """A mask (E, n, ...) that broadcasts with images, as one of flat inputs, (E, n, d)."""
    return mask.expand(*mask.shape[:2], *image).flatten(2)
