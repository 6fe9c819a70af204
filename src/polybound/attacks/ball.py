"""The set that an adversarial example may come from: a ball around the image, cut by the range of pixels.

An example that is outside by one unit in the last place is outside. So the ball is built, in the image's own floating
point type, from numbers that are inside of it in exact arithmetic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

__all__ = ["Ball", "InfBall", "TwoBall", "ball_around", "round_down", "round_up"]


def ball_around(x: Tensor, eps: float, norm: str, clip: tuple[float, float]) -> Ball:
    """The ball of radius eps around images x, (G, n, d), in the norm "inf" or "2", clipped to [clip[0], clip[1]].

    If the images lie in the clip range the result lies in both sets. If they do not (the published protocol), the clip
    comes last and wins.
    """
    return (InfBall if norm == "inf" else TwoBall)(x, eps, clip)


class Ball(ABC):
    """Points near images x, (G, n, d); a point set is (G or E, n, d)."""

    def __init__(self, x: Tensor, eps: float, clip: tuple[float, float]) -> None:
        self.x, self.eps, self.clip = x, round_down(eps, x), (round_up(clip[0], x), round_down(clip[1], x))

    @staticmethod
    def _finite(z: Tensor, otherwise: Tensor) -> Tensor:
        # Points are bounded, so that their sum is finite if and only if they all are.
        return z if bool(torch.isfinite(z.sum())) else torch.where(torch.isfinite(z), z, otherwise)

    @abstractmethod
    def pick(self, keep: Tensor) -> Ball:
        """The ball of some of the images, by number."""

    @abstractmethod
    def project_(self, z: Tensor) -> Tensor:
        """Clip points to the ball and then to the range of pixels, in place."""

    @abstractmethod
    def ascend(self, z: Tensor, gradient: Tensor, size: float | Tensor) -> Tensor:
        """Points `size` further along the steepest direction of this norm, projected. `gradient` is used up."""

    @abstractmethod
    def inside(self, noise: Tensor, radius: Tensor) -> Tensor:
        """Random points of the ball, projected, from normal noise (1, n, d) and uniform radii (1, n, d)."""

    @abstractmethod
    def far(self, noise: Tensor, uniform: Tensor) -> Tensor:
        """Random points on the surface of the ball, projected; see `inside`."""

    def settle(self, z: Tensor) -> Tensor:
        """The points, exactly inside, those that are not finite replaced by the image."""
        return self.project_(self._finite(z, self.x))


class InfBall(Ball):
    """A box: `|z - x|_inf <= eps`; clipping to it and to the range of pixels is clipping to one box."""

    def __init__(
        self, x: Tensor, eps: float, clip: tuple[float, float], box: tuple[Tensor, Tensor] | None = None
    ) -> None:
        super().__init__(x, eps, clip)
        if box is None:
            # x - eps is rounded by up to half a unit in the last place: take that much off the radius beforehand.
            largest = float(x.abs().max()) if x.numel() else 0.0
            radius = max(0.0, self.eps - torch.finfo(x.dtype).eps * (largest + self.eps))
            # clip(clip(z, a, b), c, d) = clip(z, clip(a, c, d), clip(b, c, d)), as clipping is monotone.
            box = (x - radius).clamp_(*self.clip), (x + radius).clamp_(*self.clip)
        self.lower, self.upper = box

    def pick(self, keep: Tensor) -> InfBall:
        box = self.lower.index_select(1, keep), self.upper.index_select(1, keep)
        return InfBall(self.x.index_select(1, keep), self.eps, self.clip, box)

    def project_(self, z: Tensor) -> Tensor:
        return z.clamp_(self.lower, self.upper)

    def ascend(self, z: Tensor, gradient: Tensor, size: float | Tensor) -> Tensor:
        gradient.sign_()
        if isinstance(size, Tensor):
            return self.project_(gradient.mul_(size).add_(z))
        return self.project_(torch.add(z, gradient, alpha=size, out=gradient))

    def inside(self, noise: Tensor, radius: Tensor) -> Tensor:
        del noise  # a box is filled by independent uniform numbers
        return self.project_(torch.add(self.x, radius, alpha=2 * self.eps).sub_(self.eps))

    def far(self, noise: Tensor, uniform: Tensor) -> Tensor:
        del noise
        direction = 2 * uniform - 1
        return self.project_(self.x + self.eps * direction / direction.abs().amax(-1, keepdim=True).clamp_min(1e-12))


class TwoBall(Ball):
    """`|z - x|_2 <= eps`, then clipped to the range of pixels, which moves no point of that range away from x."""

    def pick(self, keep: Tensor) -> TwoBall:
        return TwoBall(self.x.index_select(1, keep), self.eps, self.clip)

    def project_(self, z: Tensor) -> Tensor:
        step = z - self.x
        length = step.norm(dim=-1, keepdim=True)
        factor = (self.eps / length.clamp_min(torch.finfo(z.dtype).tiny)).clamp_max_(1.0)
        return z.copy_(torch.where(factor < 1, self.x + step * factor, z)).clamp_(*self.clip)

    def ascend(self, z: Tensor, gradient: Tensor, size: float | Tensor) -> Tensor:
        # Scaled first: the squares of small gradients underflow.
        gradient /= gradient.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
        gradient /= gradient.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return self.project_(gradient.mul_(size).add_(z))

    def inside(self, noise: Tensor, radius: Tensor) -> Tensor:
        direction = noise / noise.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return self.project_(self.x + self.eps * radius[..., :1] ** (1 / noise.shape[-1]) * direction)

    def far(self, noise: Tensor, uniform: Tensor) -> Tensor:
        del uniform
        return self.project_(self.x + self.eps * noise / noise.norm(dim=-1, keepdim=True).clamp_min(1e-12))

    def settle(self, z: Tensor) -> Tensor:
        z = self._finite(z, self.x)
        # Short of eps by what the rounding of the sum of squares can amount to.
        limit = self.eps * (1 - 4 * self.x.shape[-1] * torch.finfo(torch.float64).eps)
        for attempt in range(8):
            step = z.double() - self.x.double()
            length = step.norm(dim=-1, keepdim=True)
            if not (too_far := length > limit).any():
                break
            # Rounding x + step to the dtype may lengthen it again; if it keeps doing so, stay at the image.
            margin = 1.0 - torch.finfo(z.dtype).eps * 8.0**attempt if attempt < 7 else 0.0
            shrunk = (self.x.double() + step * (limit / length.clamp_min(1e-300)) * margin).to(z.dtype)
            z = torch.where(too_far, shrunk, z)
        return z.clamp_(*self.clip)


def round_down(value: float, like: Tensor) -> float:
    """The largest number of the tensor's type that is not above `value`."""
    near = torch.tensor(value, dtype=like.dtype)
    if near.item() > value:
        near = torch.nextafter(near, torch.full_like(near, -torch.inf))
    return near.item()


def round_up(value: float, like: Tensor) -> float:
    """The smallest number of the tensor's type that is not below `value`."""
    return -round_down(-value, like)
