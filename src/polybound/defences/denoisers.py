"""Denoisers in front of a classifier: what all share, filters, a trained U-Net, and how they are found by name."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING
from inspect import Parameter, signature
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polybound.attacks import GROUP, PGD, PROTOCOLS
from polybound.errors import PolyboundError, check_choice, check_int, check_number
from polybound.registry import Kinds, Named


class Defence(Named, nn.Module, ABC):
    """A map from images to cleaner images, (n, channels, height, width) to the same.

    A defence of your own sets the class variable `kind`, the first word of its name. Its constructor may take the shape
    of an image, as `shape`; everything else it takes has a default and is kept as an attribute of the same name.
    `register_defence` makes it known by its name, also to the command line:

    >>> import torch
    >>> from polybound.defences import Defence, find_defence, register_defence
    >>> @register_defence
    ... class Rounding(Defence):
    ...     kind = "rounding"
    ...
    ...     def __init__(self, levels: int = 16) -> None:
    ...         super().__init__()
    ...         self.levels = levels
    ...
    ...     def forward(self, images):
    ...         return (images * self.levels).round() / self.levels
    >>> defence = find_defence("rounding:levels=4", (1, 28, 28))
    >>> defence(torch.tensor([0.3])).item(), defence.name
    (0.25, 'rounding:levels=4')
    """

    needs_training: ClassVar[bool] = False
    """Whether it is of no use before its method `fit` has trained it for a model."""

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """The denoised images."""

    def fit(self, model: nn.Module, x: Tensor, y: Tensor, *, domain: Sequence[float]) -> Self:
        """Train for a classifier on its training images; a filter has nothing to learn.

        Args:
            model: a single classifier; it stays as it is.
            x: training images, (n, channels, height, width).
            y: their labels.
            domain: of the images.
        """
        del model, x, y, domain
        return self

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """What its constructor takes, but for the shape of an image, with the defaults."""
        given = signature(cls).parameters.values()
        named = (one for one in given if one.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD))
        defaults = {one.name: one.default for one in named if one.name != "shape"}
        return {name: MISSING if default is Parameter.empty else default for name, default in defaults.items()}


class Defended(nn.Module):
    """A classifier with a defence in front of it. Attacks on it see both, and go through both.

    >>> import polybound as pb
    >>> import torch
    >>> from polybound.defences import MedianDenoiser
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


def check_image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """The shape, if it is that of an image: channels, height, width."""
    if len(shape) != 3:
        raise PolyboundError(f"denoising needs images of shape (channels, height, width), not {tuple(shape)}")
    return shape[0], shape[1], shape[2]


# Filters.


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
    check_int("size", size)
    if size % 2 == 0:
        raise PolyboundError(f"a window must have an odd size, got {size}")
    return size


def _reflected(images: Tensor, size: int) -> Tensor:
    pad = size // 2
    if min(images.shape[-2:]) <= pad:
        raise PolyboundError(f"a window of size {size} is too large for images of {tuple(images.shape[-2:])}")
    return F.pad(images, (pad, pad, pad, pad), mode="reflect") if pad else images


# Guided denoising: a small U-Net trained so that the classifier does not notice the attack.


class GuidedDenoiser(Defence):
    """High-level guided denoising (Liao et al., 2018), guided by the logits.

    A U-Net D estimates the perturbation, `x_hat = x_adv - D(x_adv)`. It is trained on what the classifier f makes of
    it, not on the pixels, and f is not changed:

        minimise  sum_i |f(x_hat_i) - f(x_i)|_1

    over adversarial examples of f: of one or of a few gradient steps, within balls of a radius that is drawn from 0.01
    to 0.3 for each step, and clean images among them.

    Args:
        shape: of an image, (channels, height, width).
        width: channels of the U-Net's first level; the second has twice as many.
        seed: of its initial weights, of the order of the images in training and of their attacks.
        epochs: passes over the images.
        batch_size: images in a step.
        learning_rate: of Adam, which falls to zero along a cosine.
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
        protocol: str = "sound",
    ) -> None:
        super().__init__()
        channels, _, _ = check_image_shape(shape)
        for name, count in (("width", width), ("epochs", epochs), ("batch_size", batch_size)):
            check_int(name, count)
        check_number("learning_rate", learning_rate)
        check_int("seed", seed, 0)
        check_choice("protocol", protocol, PROTOCOLS)
        self.width, self.seed, self.epochs, self.batch_size = width, seed, epochs, batch_size
        self.learning_rate, self.protocol = learning_rate, protocol
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
            radius = 0.01 + 0.29 * share
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


# Defences by name: "gaussian", "median:size=5", "guided".


DEFENCES: Kinds[Defence] = Kinds("defence")
"""The classes of defences by the first word of their names."""

register_defence = DEFENCES.register

for _made in (GaussianDenoiser, MedianDenoiser, GuidedDenoiser):
    register_defence(_made)


def parse_defence(name: str, shape: Sequence[int]) -> Defence:
    """The defence of a name, for images of a shape; one that needs training is not trained yet.

    >>> parse_defence("gaussian:size=5:sigma=2", (1, 28, 28)).name
    'gaussian:size=5:sigma=2'
    """
    made, settings = DEFENCES.parse(name)
    if "shape" in signature(made).parameters:
        settings["shape"] = check_image_shape(shape)
    return made(**settings)


def canonical_defence(name: str) -> str:
    """The one name of a defence, without settings that are the default.

    >>> canonical_defence("gaussian:sigma=2.0:size=3")
    'gaussian:sigma=2'
    """
    return parse_defence(name, (1, 28, 28)).name  # which is the same for all images


def find_defence(defence: str | Defence, shape: Sequence[int]) -> Defence:
    """The defence of a name, ready for images of a shape; a defence itself is taken as it is.

    Raises:
        PolyboundError: the name is unknown, the inputs are not images, or the defence has to be trained first.
    """
    check_image_shape(shape)
    if isinstance(defence, Defence):
        return defence
    found = parse_defence(defence, shape)
    if found.needs_training:
        made = type(found).__name__
        raise PolyboundError(f"{found.kind} denoising is trained: {made}(shape).fit(model, x, y, domain=...)")
    return found
