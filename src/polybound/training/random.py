"""Random numbers of a training step: from the seed, the epoch and the step alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.seeds import drawn, seeded

__all__ = ["StepRandom"]


class StepRandom(Sequence[torch.Generator]):
    """A generator for each group of runs that share their batches, made when it is first needed.

    Args:
        runs: how many runs there are, a multiple of the number of seeds.
        seeds: one for each group.
        epoch: from 0.
        step: from 0.
    """

    def __init__(self, runs: int, seeds: Sequence[int], epoch: int, step: int) -> None:
        self.runs = runs
        self._parts = [(seed, epoch, step + 1) for seed in seeds]
        self._made: dict[int, torch.Generator] = {}

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> list[torch.Generator]: ...
    def __getitem__(self, index: int | slice) -> torch.Generator | list[torch.Generator]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        if place not in self._made:
            self._made[place] = seeded(*self._parts[place])
        return self._made[place]

    def draw(self, sample: Callable[..., Tensor], shape: Sequence[int], like: Tensor) -> Tensor:
        """Random numbers (E, *shape) by `torch.rand` or `torch.randn`; runs of a group share theirs."""
        return drawn(sample, self, self.runs, shape, like)

    def unit_vectors(self, like: Tensor) -> Tensor:
        """Random directions of the last dimension: (E, *like.shape[-2:])."""
        return F.normalize(self.draw(torch.randn, like.shape[-2:], like), dim=-1, eps=0.0)
