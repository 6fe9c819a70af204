"""Random numbers that belong to the image, not to the batch it is in."""

from __future__ import annotations

import torch
from torch import Tensor

from polybound.seeds import seeded

__all__ = ["GROUP", "Noise"]

GROUP = 64
"""Images that share a generator. Batches start at multiples of it, so that their size changes no random number."""


class Noise:
    """Noise for the images `start` to `start + count` of a data set, of shape (1, count, d).

    It depends on the seed and on the images' numbers alone: neither the size of a batch nor the number of runs that are
    attacked together changes an adversarial example.
    """

    def __init__(self, seed: int, start: int, count: int, features: int, like: Tensor) -> None:
        if start % GROUP:
            raise AssertionError(f"a batch starts at image {start}, which is no multiple of {GROUP}")
        first = start // GROUP
        groups = range(first, first + -(-count // GROUP))
        self.generators = [seeded(seed, group + 1) for group in groups]
        self.count, self.features, self.like = count, features, like

    def uniform(self, numbers: int | None = None) -> Tensor:
        """Uniform on [0, 1); so many numbers for each image, by default one for each feature."""
        width = self.features if numbers is None else numbers
        return self._join([torch.rand(GROUP, width, generator=generator) for generator in self.generators])

    def normal(self) -> Tensor:
        """Standard normal."""
        return self._join([torch.randn(GROUP, self.features, generator=generator) for generator in self.generators])

    def _join(self, parts: list[Tensor]) -> Tensor:
        # Whole groups, cut afterwards: the last image's noise must not depend on how many there are. And float32
        # whatever the images' type, so that a float64 model starts where its float32 twin does.
        return torch.cat(parts)[: self.count].to(self.like).unsqueeze(0)
