"""Attacks that see no gradient. Where they are the stronger ones, gradients mislead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polybound.attacks.ball import Ball, InfBall
from polybound.attacks.base import Attack, first_success
from polybound.attacks.checks import check_whole
from polybound.attacks.classifier import Classifier
from polybound.attacks.losses import CrossEntropy
from polybound.attacks.protocol import Protocol
from polybound.attacks.random_numbers import Noise
from polybound.errors import PolyboundError

__all__ = ["RandomSearch", "Square"]


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
        check_whole("tries", self.tries)

    def _run(self, victim: Classifier, ball: Ball, y: Tensor, noise: Noise, protocol: Protocol) -> Tensor:
        del protocol  # there are no gradients to differ

        def attempt(keep: Tensor) -> Tensor:
            if self.norm == "inf":  # the corners of a box are its farthest points
                points = ball.project_(ball.x + ball.eps * noise.normal().sign())
            else:
                points = ball.far(noise.normal(), ball.x)
            return points[:, keep].repeat(victim.runs // len(points), 1, 1)

        return first_success(victim, y, ball.x, (attempt for _ in range(self.tries)))


@dataclass(frozen=True)
class Square(Attack):
    """The square attack (Andriushchenko et al., 2020), l_inf: squares of an image are moved to a corner of the box.

    A proposal is kept if it raises the loss. The squares become smaller as the search goes on. Inputs that are not
    images are taken as images of one row.

    Attributes:
        queries: how many proposals.
        share: of the pixels in the first squares.
    """

    kind: ClassVar[str] = "square"
    numbers: ClassVar[tuple[str, ...]] = ("eps", "queries")
    uses_gradients: ClassVar[bool] = False

    queries: int = 500
    share: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("queries", self.queries)
        if self.norm != "inf":
            raise PolyboundError("the square attack knows the norm inf only; random-EPS-TRIES:norm=2 knows both")

    def _run(self, victim: Classifier, ball: Ball, y: Tensor, noise: Noise, protocol: Protocol) -> Tensor:
        del protocol
        if not isinstance(ball, InfBall):
            raise AssertionError("the square attack needs a box")
        n = ball.x.shape[1]
        channels, height, width = _image(victim.shape)
        loss = CrossEntropy(y)
        columns = torch.where(noise.uniform(channels * width).view(1, n, channels, 1, width) < 0.5, -1.0, 1.0)
        stripes = columns.expand(1, n, channels, height, width).reshape(1, n, -1)
        z = torch.where(stripes < 0, ball.lower, ball.upper).repeat(victim.runs // len(ball.x), 1, 1)
        value = loss.values(victim.logits(z))
        rows = torch.arange(height, device=z.device).view(1, 1, 1, height, 1)
        cols = torch.arange(width, device=z.device).view(1, 1, 1, 1, width)
        for query in range(self.queries):
            share = self.share * _schedule(query, self.queries)
            tall = min(height, max(1, round((share * height * width) ** 0.5)))
            wide = min(width, max(1, round(share * width))) if height == 1 else min(width, tall)
            draw = noise.uniform(2 + channels)
            top = (draw[..., 0] * (height - tall + 1)).long().view(1, n, 1, 1, 1)
            left = (draw[..., 1] * (width - wide + 1)).long().view(1, n, 1, 1, 1)
            square = (rows >= top) & (rows < top + tall) & (cols >= left) & (cols < left + wide)
            up = (draw[..., 2:] < 0.5).view(1, n, channels, 1, 1)
            mask = square.expand(1, n, channels, height, width).reshape(1, n, -1)
            corner = torch.where(up.expand(1, n, channels, height, width).reshape(1, n, -1), ball.upper, ball.lower)
            proposal = torch.where(mask, corner, z)
            raised = loss.values(victim.logits(proposal))
            better = ~(raised <= value)  # an output that is not a number is a success
            z = torch.where(better.unsqueeze(-1), proposal, z)
            value = torch.where(better, raised, value)
        return z


def _schedule(query: int, queries: int) -> float:
    """How the share of changed pixels shrinks: the published schedule for 10,000 queries, scaled."""
    at = query * 10000 / queries
    return 0.5 ** sum(at > limit for limit in (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000))


def _image(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of an input of any shape."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    return 1, 1, torch.Size(shape).numel()
