"""Denoisers that need no training: filters."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.defences.base import Defence
from polybound.errors import PolyboundError
from polybound.registry import check_number, check_whole

__all__ = ["GaussianDenoiser", "MedianDenoiser"]


class GaussianDenoiser(Defence):
    """A Gaussian filter: every pixel becomes a weighted mean of its neighbours, `w ~ exp(-|offset|^2 / (2 sigma^2))`.

    Borders are reflected.

    Args:
        size: of the window, an odd number.
        sigma: width of the filter.

    >>> GaussianDenoiser()(torch.ones(1, 1, 5, 5)).mean().item()
    1.0
    """

    kind: ClassVar[str] = "gaussian"

    def __init__(self, size: int = 3, sigma: float = 1.0) -> None:
        super().__init__()
        check_number("sigma", sigma)
        self.size, self.sigma = _odd(size), sigma
        offsets = torch.arange(size, dtype=torch.float64) - size // 2
        weights = torch.exp(-(offsets**2) / (2 * max(sigma, 1e-6) ** 2))
        weights /= weights.sum()
        self.kernel: Tensor
        self.register_buffer("kernel", torch.outer(weights, weights))

    def forward(self, images: Tensor) -> Tensor:
        channels = images.shape[1]
        kernel = self.kernel.to(images).expand(channels, 1, -1, -1)
        return F.conv2d(_reflected(images, self.size), kernel, groups=channels)


class MedianDenoiser(Defence):
    """A median filter: every pixel becomes the median of its window. Borders are reflected.

    Args:
        size: of the window, an odd number.
    """

    kind: ClassVar[str] = "median"

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.size = _odd(size)

    def forward(self, images: Tensor) -> Tensor:
        windows = _reflected(images, self.size).unfold(2, self.size, 1).unfold(3, self.size, 1)
        return windows.flatten(4).median(-1).values


def _odd(size: int) -> int:
    check_whole("size", size)
    if size % 2 == 0:
        raise PolyboundError(f"a window must have an odd size, got {size}")
    return size


def _reflected(images: Tensor, size: int) -> Tensor:
    pad = size // 2
    if min(images.shape[-2:]) <= pad:
        raise PolyboundError(f"a window of size {size} is too large for images of {tuple(images.shape[-2:])}")
    return F.pad(images, (pad, pad, pad, pad), mode="reflect") if pad else images
