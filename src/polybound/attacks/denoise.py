"""Denoising defences: a filter in front of any classifier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polybound.attacks.checks import check_positive, check_whole
from polybound.errors import PolyboundError

__all__ = ["DEFENCES", "Defence", "Defended", "GaussianDenoiser", "MedianDenoiser", "find_defence"]


class Defence(nn.Module, ABC):
    """A map from images to cleaner images, (n, channels, height, width) to the same."""

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """The denoised images."""


class GaussianDenoiser(Defence):
    """A Gaussian filter: every pixel becomes a weighted mean of its neighbours, `w ~ exp(-|offset|^2 / (2 sigma^2))`.

    Borders are reflected.

    Args:
        size: of the window, an odd number.
        sigma: width of the filter.

    >>> GaussianDenoiser()(torch.ones(1, 1, 5, 5)).mean().item()
    1.0
    """

    def __init__(self, size: int = 3, sigma: float = 1.0) -> None:
        super().__init__()
        self.size = _odd(size)
        check_positive("sigma", sigma)
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

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.size = _odd(size)

    def forward(self, images: Tensor) -> Tensor:
        windows = _reflected(images, self.size).unfold(2, self.size, 1).unfold(3, self.size, 1)
        return windows.flatten(4).median(-1).values


class Defended(nn.Module):
    """A classifier with a defence in front of it. Attacks on it see both, and go through both.

    >>> import polybound as pb
    >>> model = Defended(pb.paper_model("pn-4", seed=0), MedianDenoiser())
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(self, model: nn.Module, defence: Defence) -> None:
        super().__init__()
        self.model, self.defence = model, defence
        runs = getattr(model, "runs", None)
        self.runs = runs if isinstance(runs, int) else None

    def forward(self, x: Tensor) -> Tensor:
        own = x.ndim == 5  # images for each run of a stack
        clean = self.defence(x.flatten(0, 1)).view_as(x) if own else self.defence(x)
        logits: Tensor = self.model(clean)
        return logits


DEFENCES: dict[str, Callable[[], Defence]] = {"gaussian": GaussianDenoiser, "median": MedianDenoiser}
"""The defences that need no training."""


def find_defence(defence: str | Defence, shape: tuple[int, ...]) -> Defence:
    """The defence of a name, for images of a shape."""
    if len(shape) != 3:
        raise PolyboundError(f"denoising needs images of shape (channels, height, width), not {shape}")
    if isinstance(defence, Defence):
        return defence
    if defence == "guided":
        raise PolyboundError(
            "guided denoising is trained for a model: GuidedDenoiser(shape).fit(model, x, y, domain=...)"
        )
    if defence not in DEFENCES:
        raise PolyboundError(f"unknown defence {defence!r}; there are {', '.join(DEFENCES)} and guided")
    return DEFENCES[defence]()


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
