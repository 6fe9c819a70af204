"""The set that an adversarial example may come from: a ball around the image, cut by the range of pixels.

An example that is outside by one unit in the last place is outside. So the ball is built, in the image's own floating
point type, from numbers that are inside of it in exact arithmetic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import Literal, Self

import torch
from torch import Tensor

from polybound.errors import check_choice

Protocol = Literal["sound", "published"]
"""What an attack clips its images to and which gradients it follows: the honest choice, and the paper's."""

PROTOCOLS: tuple[Protocol, ...] = ("sound", "published")

PUBLISHED_NOTE = (
    "protocol published: images are clipped to [0, 1] whatever their domain is, as in the paper's experiments; in data "
    "from -1 to 1 that moves every pixel below 0 by up to 1, beyond eps; and gradients are used as rounding leaves "
    "them, which for a network that is sure of itself is next to nothing"
)
"""The line that goes with every number of the published protocol."""


def protocols(choice: str) -> tuple[Protocol, ...]:
    """The protocols that "sound", "published" or "both" stand for.

    >>> protocols("both")
    ('sound', 'published')
    """
    check_choice("protocol", choice, (*PROTOCOLS, "both"))
    return PROTOCOLS if choice == "both" else (check_protocol(choice),)


def check_protocol(name: str) -> Protocol:
    """The protocol of that name."""
    check_choice("protocol", name, PROTOCOLS)
    return "published" if name == "published" else "sound"


class Ball(ABC):
    """Points near images x, (G, n, d); a point set is (G, n, d), or (E, n, d) with points of each run's own.

    G is 1, the number E of runs, or a divisor of it: then neighbouring runs share their images. If the images lie in
    the range of pixels, so do all points; if they do not (the published protocol), that range comes last and wins.

    Attributes:
        x: the images.
        eps: the radius, rounded down.
        clip: the least and the greatest value of a pixel.
        protocol: "sound" or "published"; the clip range is that of the protocol, and gradients should be.
    """

    def __init__(self, x: Tensor, eps: float, clip: tuple[float, float], protocol: Protocol = "sound") -> None:
        self.x, self.eps, self.clip = x, round_down(eps, x), (round_up(clip[0], x), round_down(clip[1], x))
        self.protocol = protocol

    def pick(self, keep: Tensor) -> Self:
        """The ball of some of the images, by number."""
        picked = copy(self)
        picked.x = self.x.index_select(1, keep)
        return picked

    def _finite(self, z: Tensor) -> Tensor:
        """The points, those coordinates that are not finite replaced by the image's."""
        # Points are bounded, so that their sum is finite if and only if they all are.
        if torch.isfinite(z.sum()):
            return z
        return torch.where(torch.isfinite(z), z, repeat_for_runs(self.x, len(z)))

    @abstractmethod
    def project_(self, z: Tensor) -> Tensor:
        """Clip points to the ball and then to the range of pixels, in place."""

    @abstractmethod
    def ascend(self, z: Tensor, gradient: Tensor, size: float | Tensor) -> Tensor:
        """Points `size` further along the steepest direction of this norm, projected. `gradient` is used up."""

    @abstractmethod
    def inside(self, noise: Tensor, radius: Tensor) -> Tensor:
        """Random points of the ball, projected, from normal and uniform numbers, (1 or G, n, d)."""

    @abstractmethod
    def far(self, noise: Tensor, uniform: Tensor) -> Tensor:
        """Random points on the surface of the ball, projected; see `inside`."""

    @abstractmethod
    def settle(self, z: Tensor) -> Tensor:
        """New points: z, but exactly inside; coordinates that are not finite become the image's."""


class InfBall(Ball):
    """A box: `|z - x|_inf <= eps`; clipping to it and to the range of pixels is clipping to one box."""

    def __init__(self, x: Tensor, eps: float, clip: tuple[float, float], protocol: Protocol = "sound") -> None:
        super().__init__(x, eps, clip, protocol)
        # x - eps is rounded by up to half a unit in the last place: take that much off the radius beforehand, by the
        # largest value that a pixel can have and not that it has here: an image's ball is its own.
        largest = max(abs(end) for end in self.clip)
        radius = max(0.0, self.eps - torch.finfo(x.dtype).eps * (largest + self.eps))
        # clip(clip(z, a, b), c, d) = clip(z, clip(a, c, d), clip(b, c, d)), as clipping is monotone.
        self.lower, self.upper = (x - radius).clamp_(*self.clip), (x + radius).clamp_(*self.clip)

    def pick(self, keep: Tensor) -> Self:
        picked = super().pick(keep)
        picked.lower, picked.upper = self.lower.index_select(1, keep), self.upper.index_select(1, keep)
        return picked

    def project_(self, z: Tensor) -> Tensor:
        _in_groups(z, len(self.x)).clamp_(self.lower.unsqueeze(1), self.upper.unsqueeze(1))
        return z

    def settle(self, z: Tensor) -> Tensor:
        return self._finite(z).clamp(repeat_for_runs(self.lower, len(z)), repeat_for_runs(self.upper, len(z)))

    def ascend(self, z: Tensor, gradient: Tensor, size: float | Tensor) -> Tensor:
        gradient.sign_()
        if isinstance(size, Tensor):
            gradient.mul_(size)
            size = 1.0
        steps = _in_groups(gradient, len(z))
        torch.add(z.unsqueeze(1), steps, alpha=size, out=steps)
        return self.project_(gradient)

    def inside(self, noise: Tensor, radius: Tensor) -> Tensor:
        del noise  # a box is filled by independent uniform numbers
        return self.project_(torch.add(self.x, radius, alpha=2 * self.eps).sub_(self.eps))

    def far(self, noise: Tensor, uniform: Tensor) -> Tensor:
        del noise
        direction = 2 * uniform - 1
        return self.project_(self.x + self.eps * direction / direction.abs().amax(-1, keepdim=True).clamp_min(1e-12))


class TwoBall(Ball):
    """`|z - x|_2 <= eps`, then clipped to the range of pixels, which moves no point of that range away from x."""

    def project_(self, z: Tensor) -> Tensor:
        x, grouped = self.x.unsqueeze(1), _in_groups(z, len(self.x))
        step = grouped - x
        length = step.norm(dim=-1, keepdim=True)
        factor = (self.eps / length.clamp_min(torch.finfo(z.dtype).tiny)).clamp_max_(1.0)
        grouped.copy_(torch.where(factor < 1, x + step * factor, grouped))
        return z.clamp_(*self.clip)

    def ascend(self, z: Tensor, gradient: Tensor, size: float | Tensor) -> Tensor:
        # Scaled first: the squares of small gradients underflow.
        gradient /= gradient.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
        gradient /= gradient.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return self.project_(gradient.mul_(size).add_(repeat_for_runs(z, len(gradient))))

    def inside(self, noise: Tensor, radius: Tensor) -> Tensor:
        direction = noise / noise.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return self.project_(self.x + self.eps * radius[..., :1] ** (1 / noise.shape[-1]) * direction)

    def far(self, noise: Tensor, uniform: Tensor) -> Tensor:
        del uniform
        return self.project_(self.x + self.eps * noise / noise.norm(dim=-1, keepdim=True).clamp_min(1e-12))

    def settle(self, z: Tensor) -> Tensor:
        z, x = self._finite(z), repeat_for_runs(self.x, len(z)).double()
        # Short of eps by what the rounding of the sum of squares can amount to.
        limit = self.eps * (1 - 4 * self.x.shape[-1] * torch.finfo(torch.float64).eps)
        for attempt in range(8):
            step = z.double() - x
            length = step.norm(dim=-1, keepdim=True)
            if not (too_far := length > limit).any():
                break
            # Rounding x + step to the dtype may lengthen it again; if it keeps doing so, stay at the image.
            margin = 1.0 - torch.finfo(z.dtype).eps * 8.0**attempt if attempt < 7 else 0.0
            shrunk = (x + step * (limit / length.clamp_min(1e-300)) * margin).to(z.dtype)
            z = torch.where(too_far, shrunk, z)
        return z.clamp(*self.clip)


def repeat_for_runs(part: Tensor, rows: int) -> Tensor:
    """A tensor (G, ...) so that it broadcasts with (rows, ...): as it is if G is 1, else repeated for each row.

    >>> repeat_for_runs(torch.tensor([[1], [2]]), 4).flatten().tolist()
    [1, 1, 2, 2]
    """
    return part if len(part) in (1, rows) else part.repeat_interleave(rows // len(part), 0)


def _in_groups(z: Tensor, groups: int) -> Tensor:
    """A view of points (E, n, d) as (groups, E // groups, n, d), to go with what is (groups, 1, n, d)."""
    return z.view(groups, len(z) // groups, *z.shape[1:])


def round_down(value: float, like: Tensor) -> float:
    """The largest number of the tensor's type that is not above `value`."""
    near = torch.tensor(value, dtype=like.dtype)
    if near.item() > value:
        near = torch.nextafter(near, torch.full_like(near, -torch.inf))
    return near.item()


def round_up(value: float, like: Tensor) -> float:
    """The smallest number of the tensor's type that is not below `value`."""
    return -round_down(-value, like)
