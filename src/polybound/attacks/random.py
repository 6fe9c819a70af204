"""What is random in an attack: numbers that belong to the image, or to a batch of training, not to the attack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polybound.errors import PolyboundError
from polybound.seeds import drawn, seeded

GROUP = 64
"""Images that share a generator. Batches start at multiples of it, so that their size changes no random number."""


class RandomNumbers(ABC):
    """Random numbers for the images of a ball, a new draw at each call; they broadcast with its points."""

    def uniform(self, numbers: int | None = None) -> Tensor:
        """Uniform on [0, 1), (1 or G, n, numbers): by default one for each feature of an image."""
        return self._draw(torch.rand, numbers)

    def normal(self) -> Tensor:
        """Standard normal, (1 or G, n, d)."""
        return self._draw(torch.randn, None)

    @abstractmethod
    def _draw(self, sample: Callable[..., Tensor], numbers: int | None) -> Tensor:
        """Numbers by `torch.rand` or `torch.randn`, as many for each image as asked, or one for each feature."""

    @abstractmethod
    def seeds(self) -> list[int]:
        """A whole number below 2**31 for each `GROUP` images, for a library that draws its random numbers itself."""


class ImageRandom(RandomNumbers):
    """Random numbers for the images `start` to `start + count` of a data set, (1, count, d).

    They depend on the seed and on the images' numbers alone: neither the size of a batch nor the number of runs that
    are attacked together changes an adversarial example.
    """

    def __init__(self, seed: int, start: int, count: int, features: int, like: Tensor) -> None:
        if start % GROUP:
            raise AssertionError(f"a batch starts at image {start}, which is no multiple of {GROUP}")
        first = start // GROUP
        groups = range(first, first + -(-count // GROUP))
        self.generators = [seeded(seed, group + 1) for group in groups]
        self.count, self.features, self.like = count, features, like

    def _draw(self, sample: Callable[..., Tensor], numbers: int | None) -> Tensor:
        width = self.features if numbers is None else numbers
        parts = [sample(GROUP, width, generator=generator) for generator in self.generators]
        # Whole groups, cut afterwards: the last image's numbers must not depend on how many there are. And float32
        # whatever the images' type, so that a float64 model starts where its float32 twin does.
        return torch.cat(parts)[: self.count].to(self.like).unsqueeze(0)

    def seeds(self) -> list[int]:
        return [generator.initial_seed() % 2**31 for generator in self.generators]


class BatchRandom(RandomNumbers):
    """Random numbers for batches `like`, (groups, n, d), from one generator for each group."""

    def __init__(self, generators: Sequence[torch.Generator], like: Tensor) -> None:
        self.generators, self.like = generators, like

    def _draw(self, sample: Callable[..., Tensor], numbers: int | None) -> Tensor:
        self._check()
        groups, count, features = self.like.shape
        return drawn(sample, self.generators, groups, (count, features if numbers is None else numbers), self.like)

    def seeds(self) -> list[int]:
        self._check()
        groups = -(-self.like.shape[1] // GROUP)
        return torch.randint(2**31, (groups,), generator=self.generators[0]).tolist()

    def _check(self) -> None:
        if len(self.generators) != len(self.like):
            given, groups = len(self.generators), len(self.like)
            raise PolyboundError(f"random numbers for {groups} batches need a generator for each, got {given}")
