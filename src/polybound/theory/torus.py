"""A certified upper bound of the l2 norm of a zero-padded convolution."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2, prod, sqrt

import torch
from torch import Tensor

from polybound.theory.rounding import outward, power_of_two, times_power_of_two

__all__ = ["torus_norm", "torus_sizes"]


def torus_sizes(kernel: Tensor, space: Sequence[int]) -> list[int]:
    """The sides `n_i + k_i - 1` of the smallest torus on which the padded image does not meet itself."""
    return [n + k - 1 for n, k in zip(space, kernel.shape[-len(space) :], strict=True)]


def torus_norm(kernel: Tensor, space: Sequence[int]) -> Tensor:
    """The l2 norm of the circular convolution on the torus of sides `n_i + k_i - 1`, one value for each run.

    On that torus the image, padded by zeros, does not meet its own copies, so that the zero-padded convolution is a
    sub-matrix of the circular one and its norm is not larger. The circular one is block-diagonal in the Fourier basis:
    its norm is the largest singular value of the (out x in) transfer matrices over all frequencies.

    Args:
        kernel: (*lead, out_channels, channels, *k).
        space: sizes of the image, one for each dimension of the kernel.
    """
    dims = tuple(range(-len(space), 0))
    exponent = power_of_two(kernel.detach().double(), len(space) + 2)
    scaled = times_power_of_two(kernel.detach().double(), -exponent)
    transfer = torch.fft.rfftn(scaled, s=torus_sizes(kernel, space), dim=dims)
    transfer = transfer.flatten(-len(space)).movedim(-1, -3)  # (*lead, frequencies, out, in)
    largest = torch.linalg.matrix_norm(transfer, 2).amax(-1)
    terms = _terms(kernel.shape[-len(space) - 2 :], torus_sizes(kernel, space))
    return times_power_of_two(outward(largest, terms), exponent)


def _terms(kernel: Sequence[int], sides: Sequence[int]) -> int:
    """How many roundings a transfer matrix and its singular values carry, whatever else is in the stack.

    An entry is a fast Fourier transform of prod(k) numbers, some log2(prod(sides)) additions deep. Its error is
    relative to the sum of their absolute values, which exceeds the largest singular value at most by the root of
    prod(k) min(out, in).
    """
    out, channels, *k = kernel
    depth = 8 * (1 + ceil(log2(prod(sides))))
    return depth * ceil(sqrt(prod(k) * min(out, channels))) + out + channels
