"""Schedules by name: how many epochs, and by how much the learning rate shrinks in each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from polybound.errors import PolyboundError
from polybound.registry import Part, Registry, check_epoch, check_number, check_whole

__all__ = ["SCHEDULES", "Schedule", "Steps"]


@dataclass(frozen=True)
class Schedule(Part):
    """Passes over the data.

    Attributes:
        epochs: how many.
        batch_size: samples in a step.
    """

    epochs: int = 100
    batch_size: int = 64

    def __post_init__(self) -> None:
        check_whole("epochs", self.epochs)
        check_whole("batch_size", self.batch_size)
        super().__post_init__()

    def factor_at(self, epoch: int) -> float:
        """What the learning rate is multiplied by in an epoch, counted from 0."""
        del epoch
        return 1.0

    def scaled(self, share: float) -> Self:
        """The same with a share of the epochs, at least two."""
        return replace(self, epochs=max(2, round(self.epochs * share)))

    def place(self, epoch: int, shorter: Schedule) -> int:
        """Where an epoch of this schedule is in a shorter one; never after its last, and only the first stays first."""
        if not epoch:
            return 0
        return min(max(1, round(epoch * shorter.epochs / self.epochs)), shorter.epochs - 1)


SCHEDULES: Registry[Schedule] = Registry("schedule")
"""All schedules by name."""


@SCHEDULES.register
@dataclass(frozen=True)
class Steps(Schedule):
    """The learning rate is multiplied by `factor` at each milestone, an epoch counted from 0; the paper's schedule."""

    name: ClassVar[str] = "steps"

    milestones: tuple[int, ...] = (25, 75)
    factor: float = 0.2

    def __post_init__(self) -> None:
        check_number("factor", self.factor)
        if not isinstance(self.milestones, tuple | list):
            raise PolyboundError(f"milestones must be a list of epochs, got {self.milestones!r}")
        object.__setattr__(self, "milestones", tuple(self.milestones))
        for milestone in self.milestones:
            check_epoch("a milestone", milestone)
        super().__post_init__()

    def factor_at(self, epoch: int) -> float:
        return float(self.factor ** sum(epoch >= milestone for milestone in self.milestones))

    def scaled(self, share: float) -> Self:
        shorter = super().scaled(share)
        return replace(shorter, milestones=tuple(self.place(milestone, shorter) for milestone in self.milestones))
