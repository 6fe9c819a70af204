"""The models of the paper's experiments, by name."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from polybound.errors import PolyboundError
from polybound.models.base import PolynomialNetwork
from polybound.models.ccp import CCP
from polybound.models.conv import ConvCCP
from polybound.models.ncp import NCP

__all__ = ["PAPER_MODELS", "paper_model", "paper_rank"]

PAPER_MODELS = {
    "pn-4": "CCP of degree 4, residual form, rank 16",
    "pn-10": "CCP of degree 10, residual form, rank 64",
    "pn-conv": "ConvCCP of degree 4: 3x3 pre-convolution, 16 channels, 7x7 kernels, pooling after degrees 2 and 3",
    "ncp-4": "NCP of degree 4, rank 16",
}
"""The names that `paper_model` knows, with what each is."""


def paper_rank(name: str) -> int:
    """Hidden rank of a model of the paper (channels of pn-conv).

    16 as published, but for pn-10, whose rank is not: 64 is the least that comes within three points on K-MNIST.
    """
    return 64 if name == "pn-10" else 16


def paper_model(
    name: str,
    shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    *,
    rank: int | None = None,
    runs: int | None = None,
    seed: int | Sequence[int] | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> PolynomialNetwork:
    """A model of the paper: "pn-4", "pn-10", "pn-conv" or "ncp-4".

    Args:
        name: one of `PAPER_MODELS`.
        shape: shape of one input.
        classes: number of classes.
        rank: hidden rank; `paper_rank` by default.
        runs: None, or the number of models in the stack.
        seed: see `PolynomialNetwork`.
        device: where the parameters live.
        dtype: their type.

    >>> import polybound as pb
    >>> sum(p.numel() for p in pb.paper_model("pn-4").parameters())
    50346
    """
    rank = paper_rank(name) if rank is None else rank
    if name in ("pn-4", "pn-10"):
        degree = int(name.removeprefix("pn-"))
        return CCP(prod(shape), rank, classes, degree, runs=runs, shape=shape, seed=seed, device=device, dtype=dtype)
    if name == "ncp-4":
        return NCP(prod(shape), rank, classes, 4, runs=runs, shape=shape, seed=seed, device=device, dtype=dtype)
    if name == "pn-conv":
        return ConvCCP(shape, rank, classes, 4, 7, pre=3, pool=(2, 3), runs=runs, seed=seed, device=device, dtype=dtype)
    raise PolyboundError(f"no model called {name!r}; there are {', '.join(PAPER_MODELS)}")
