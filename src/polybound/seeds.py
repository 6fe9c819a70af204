"""Generators for one part of some random work, from a seed and the part's number alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from polybound.errors import check_int

# Large odd numbers; torch's Mersenne twister spreads nearby seeds well enough.
_FACTORS = (0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


def check_seed(seed: object) -> None:
    """Refuse anything but a whole number that random numbers can begin with.

    They are the same for seeds 2**63 apart: further apart than that, one network would count as two.
    """
    check_int("seed", seed, 1 - 2**62, 2**62 - 1)


def seeded(seed: int, *part: int) -> torch.Generator:
    """The generator of a part, which up to two numbers name; parts do not depend on each other, or on their order.

    >>> seeded(0, 3).initial_seed() == seeded(0, 3, 0).initial_seed() != seeded(0, 3, 1).initial_seed()
    True
    """
    mixed = seed * 0x9E3779B97F4A7C15 + sum(n * factor for n, factor in zip(part, _FACTORS, strict=False))
    return torch.Generator().manual_seed(mixed % 2**63)


def drawn(
    sample: Callable[..., Tensor], generators: Sequence[torch.Generator], runs: int, shape: Sequence[int], like: Tensor
) -> Tensor:
    """Random numbers (runs, *shape) by `torch.rand` or `torch.randn`, a draw for each generator.

    The runs that share a generator share its draw, so that what a run gets does not depend on the others.
    """
    numbers = torch.stack([sample(*shape, generator=generator, dtype=like.dtype) for generator in generators])
    return numbers.to(like.device).repeat_interleave(runs // len(generators), 0)
