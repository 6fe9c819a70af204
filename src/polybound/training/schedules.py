"""Schedules by name: how many epochs, and by how much the learning rate shrinks in each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, cos, pi
from typing import ClassVar, Self

from polybound.errors import PolyboundError
from polybound.registry import Part, Registry, check_number, check_start, check_whole

__all__ = ["SCHEDULES", "Constant", "Cosine", "Schedule", "Steps", "register_schedule"]


@dataclass(frozen=True)
class Schedule(Part):
    """Passes over the data.

    A schedule of one's own is a frozen dataclass with a `name` and `factor_at`, and one line that registers it
    (`register_schedule`). If its options are epochs, `scaled` says where they are in a shorter training.

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

register_schedule = SCHEDULES.register


@register_schedule
@dataclass(frozen=True)
class Steps(Schedule):
    """The learning rate is multiplied by `factor` at each milestone; the paper's schedule.

    A milestone is an epoch counted from 0, or a share of all epochs, which becomes the first epoch after it.

    >>> Steps().milestones, Steps(epochs=10).milestones, Steps(epochs=10, milestones=(4,)).milestones
    ((25, 75), (3, 8), (4,))
    """

    name: ClassVar[str] = "steps"

    milestones: tuple[int | float, ...] = (0.25, 0.75)
    factor: float = 0.2

    def __post_init__(self) -> None:
        check_number("factor", self.factor)
        if not isinstance(self.milestones, tuple | list):
            raise PolyboundError(f"milestones must be a list of epochs, got {self.milestones!r}")
        for milestone in self.milestones:
            check_start("a milestone", milestone)
        super().__post_init__()
        epochs = (ceil(one * self.epochs - 1e-9) if isinstance(one, float) else one for one in self.milestones)
        object.__setattr__(self, "milestones", tuple(epochs))

    def factor_at(self, epoch: int) -> float:
        return float(self.factor ** sum(epoch >= milestone for milestone in self.milestones))

    def scaled(self, share: float) -> Self:
        shorter = super().scaled(share)
        return replace(shorter, milestones=tuple(self.place(int(milestone), shorter) for milestone in self.milestones))


@register_schedule
@dataclass(frozen=True)
class Cosine(Schedule):
    """The learning rate falls along half a cosine: `(1 + cos(pi epoch / epochs)) / 2`."""

    name: ClassVar[str] = "cosine"

    def factor_at(self, epoch: int) -> float:
        return (1 + cos(pi * epoch / self.epochs)) / 2


@register_schedule
@dataclass(frozen=True)
class Constant(Schedule):
    """The same learning rate in all epochs."""

    name: ClassVar[str] = "constant"
