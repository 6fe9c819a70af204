"""Guided denoising: a small U-Net trained so that the classifier does not notice the attack."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polybound.attacks import GROUP, PGD, PROTOCOLS
from polybound.defences.base import Defence, check_image_shape
from polybound.registry import check_choice, check_number, check_whole

__all__ = ["GuidedDenoiser"]


class GuidedDenoiser(Defence):
    """High-level guided denoising (Liao et al., 2018), guided by the logits.

    A U-Net D estimates the perturbation, `x_hat = x_adv - D(x_adv)`. It is trained on what the classifier f makes of
    it, not on the pixels, and f is not changed:

        minimise  sum_i |f(x_hat_i) - f(x_i)|_1

    over adversarial examples of f: of one or of a few gradient steps, within balls of random radius, and clean images
    among them.

    Args:
        shape: of an image, (channels, height, width).
        width: channels of the U-Net's first level; the second has twice as many.
        seed: of its initial weights, of the order of the images in training and of their attacks.
        epochs: passes over the images.
        batch_size: images in a step.
        learning_rate: of Adam, which falls to zero along a cosine.
        least_eps: the radii of the attacks to learn from are drawn from the range between this
        most_eps: and this.
        protocol: what those attacks clip to.

    >>> GuidedDenoiser((1, 28, 28))(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 1, 28, 28])
    """

    kind: ClassVar[str] = "guided"
    needs_training: ClassVar[bool] = True

    def __init__(
        self,
        shape: Sequence[int],
        width: int = 16,
        seed: int = 0,
        *,
        epochs: int = 2,
        batch_size: int = 128,
        learning_rate: float = 0.002,
        least_eps: float = 0.01,
        most_eps: float = 0.3,
        protocol: str = "sound",
    ) -> None:
        super().__init__()
        channels, _, _ = check_image_shape(shape)
        for name, count in (("width", width), ("epochs", epochs), ("batch_size", batch_size)):
            check_whole(name, count)
        for name, size in (("learning_rate", learning_rate), ("least_eps", least_eps), ("most_eps", most_eps)):
            check_number(name, size)
        check_whole("seed", seed, 0)
        check_choice("protocol", protocol, PROTOCOLS)
        self.width, self.seed, self.epochs, self.batch_size = width, seed, epochs, batch_size
        self.learning_rate, self.protocol = learning_rate, protocol
        self.least_eps, self.most_eps = least_eps, most_eps
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.enter = _block(channels, width)
            self.down = _block(width, 2 * width)
            self.deep = _block(2 * width, 2 * width)
            self.up = _block(4 * width, width)
            self.leave = _block(2 * width, width)
            self.estimate = nn.Conv2d(width, channels, 1)
        # It starts as the identity: no perturbation.
        nn.init.zeros_(self.estimate.weight)
        nn.init.zeros_(self.estimate.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        x = images.to(self.estimate.weight.dtype)
        first = self.enter(x)
        second = self.down(F.avg_pool2d(first, 2, ceil_mode=True))
        third = self.deep(F.avg_pool2d(second, 2, ceil_mode=True))
        back = self.up(torch.cat([F.interpolate(third, size=second.shape[-2:]), second], 1))
        back = self.leave(torch.cat([F.interpolate(back, size=first.shape[-2:]), first], 1))
        cleaned: Tensor = images - self.estimate(back).to(images.dtype)
        return cleaned

    def fit(self, model: nn.Module, x: Tensor, y: Tensor, *, domain: Sequence[float]) -> Self:
        """Train for a classifier on its training images; see `Defence.fit`."""
        guide = copy.deepcopy(model).eval().requires_grad_(False)
        like = next(guide.parameters())
        generator = torch.Generator().manual_seed(self.seed)
        steps = self.epochs * (len(x) // self.batch_size or 1)
        optimiser = torch.optim.Adam(self.parameters(), self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        self.train()
        for step in range(steps):
            batch = torch.randint(len(x), (self.batch_size,), generator=generator)
            clean, labels = x[batch].to(like), y[batch]
            share = torch.rand((), generator=generator).item()
            radius = self.least_eps + (self.most_eps - self.least_eps) * share
            attack = PGD(radius, *((1, radius) if step % 2 else (4, radius / 2)), random_start=False)
            attacked = attack(guide, clean, labels, domain=domain, protocol=self.protocol, start=GROUP * step)
            attacked[: self.batch_size // 8] = clean[: self.batch_size // 8]
            loss = (guide(self(attacked)) - guide(clean)).abs().sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        self.eval()
        return self.requires_grad_(False)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
