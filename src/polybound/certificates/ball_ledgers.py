"""The ledgers of decisions and of bounds where they are about l_2 balls: points that are shown lie in the balls."""

from __future__ import annotations

from torch import Tensor

from polybound.certificates.balls import Balls
from polybound.certificates.boxes import Sides
from polybound.certificates.decisions import Decisions
from polybound.certificates.extremes import Extremes
from polybound.certificates.forms import Combinations, Forms
from polybound.certificates.ledger import Ledger

__all__ = ["BallDecisions", "BallExtremes", "InBalls"]


class InBalls(Ledger):
    """What both have in common.

    Attributes:
        balls: the balls.
    """

    balls: Balls

    def within(self, image: int, x: Tensor) -> Tensor:
        """A point of the true ball within the domain, a rounding from x if that is one nearly; else the input."""
        centre = self.balls.x[image]
        inside = super().within(image, x)
        for shrink in (0.0, 2.0**-50, 2.0**-46, 2.0**-40, 2.0**-30, 2.0**-20, 2.0**-10):
            point = super().within(image, centre + (inside - centre) * (1.0 - shrink))
            if self.balls.holds(image, point):
                return point
        return centre

    def rule(self, name: str) -> str:
        """Bounds of first order are about the whole ball."""
        return {"first": "ball", "slopes": "ball slopes"}[name]


class BallDecisions(InBalls, Decisions):
    """Decisions about balls: counterexamples lie in them.

    Args:
        forms: what is claimed of each image.
        balls: the balls.
        inner: sides of the boxes around them, within the domain, rounded inwards.
        keep: whether to keep the proofs.
    """

    def __init__(self, forms: Forms, balls: Balls, inner: Sides, keep: bool = False) -> None:
        super().__init__(forms, len(balls.x), inner, keep)
        self.balls = balls


class BallExtremes(InBalls, Extremes):
    """Bounds over balls: the points where values are attained lie in them.

    Args:
        forms: the forms, followed by their negatives.
        balls: the balls.
        inner: as for `BallDecisions`.
        tolerance: as for `Extremes`.
        keep: whether to keep the proofs.
    """

    def __init__(self, forms: Combinations, balls: Balls, inner: Sides, tolerance: float, keep: bool = False) -> None:
        super().__init__(forms, len(balls.x), inner, tolerance, keep)
        self.balls = balls

    def points(self) -> Tensor:
        """The points where the least values were seen, moved into the true balls."""
        where = self.where.clone()
        for image, points in enumerate(self.where):
            for claim, point in enumerate(points):
                where[image, claim] = self.within(image, point)
        return where
