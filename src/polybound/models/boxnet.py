"""A network of affine maps and squares that keeps boxes small, so that intervals alone certify it."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, prod
from typing import Unpack

import torch
from torch import Tensor, nn

from polybound.errors import PolyboundError, check_int
from polybound.models.base import ModelOptions
from polybound.models.deep import DeepNetwork, Norm, Quadratic


class BoxNet(DeepNetwork):
    """Squares of each pixel, convolutions and a dense layer with two composed squares per channel, a linear head.

    It is made for method `certified`. The interval of a square, and so of squares after one another, is exact: only
    the affine maps between them lose something. The squares of the pixels begin as a smooth step, which shrinks boxes
    around dark and bright pixels; those of the channels begin flat on one side. Every map is followed by `Norm`.

    Args:
        shape: (channels, height, width) of the input, whose entries go from -1 to 1.
        classes: number of outputs.
        pixels: learned squares of each entry of the input, one after another; 0 for none.
        channels: of the convolutions, which have no padding.
        kernels: their sizes.
        strides: how far their windows are apart.
        hidden: width of the dense layer.
        **options: see `DeepNetwork`.

    >>> import torch, polybound as pb
    >>> net = pb.models.BoxNet((1, 28, 28), pixels=2, seed=0)
    >>> net(torch.zeros(2, 1, 28, 28)).shape, net.degree
    (torch.Size([2, 10]), 256)
    """

    _arguments = ("shape", "classes", "pixels", "channels", "kernels", "strides", "hidden")

    def __init__(
        self,
        shape: Sequence[int],
        classes: int = 10,
        pixels: int = 6,
        channels: Sequence[int] = (16, 32),
        kernels: Sequence[int] = (5, 4),
        strides: Sequence[int] = (2, 2),
        hidden: int = 200,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(shape, classes, **options)
        self.pixels, self.hidden = check_int("pixels", pixels, 0), check_int("hidden", hidden)
        self.channels, self.kernels, self.strides = (
            tuple(check_int(name, number) for number in numbers)
            for name, numbers in (("channels", channels), ("kernels", kernels), ("strides", strides))
        )
        if len(self.shape) != 3:
            raise PolyboundError(f"BoxNet takes images (channels, height, width), got {self.shape}")
        if not len(self.channels) == len(self.kernels) == len(self.strides):
            raise PolyboundError("BoxNet takes as many kernels and strides as channels, one for each convolution")
        squares = self.pixels + 2 * len(self.channels) + 2
        if squares > 20:
            raise PolyboundError(f"BoxNet takes at most 20 squares after one another, got {squares}")
        self.degree = 2**squares
        size: tuple[int, ...] = self.shape
        with self._place():
            parts: list[nn.Module] = [Quadratic(self.features, self.pixels, step=True)] if self.pixels else []
            parts.append(nn.Unflatten(1, self.shape))
            for width, kernel, stride in zip(self.channels, self.kernels, self.strides, strict=True):
                parts += [nn.Conv2d(size[0], width, kernel, stride, bias=False), Norm(width), Quadratic(width)]
                size = (width, *((n - kernel) // stride + 1 for n in size[1:]))
                if min(size[1:]) < 1:
                    raise PolyboundError(f"images of shape {self.shape} are too small for kernels {self.kernels}")
            parts += [nn.Flatten(), nn.Linear(prod(size), self.hidden, bias=False), Norm(self.hidden)]
            self.body, self.head = nn.Sequential(*parts, Quadratic(self.hidden)), nn.Linear(self.hidden, self.classes)
        self._finish()

    def _initialise(self, weights: dict[str, Tensor], generator: torch.Generator | None) -> None:
        for part in self.body:
            if isinstance(part, Norm | Quadratic):
                part.reset_parameters()
        for name, weight in weights.items():
            if name == "head.bias":
                weight.zero_()
            elif isinstance(self.get_submodule(name.rpartition(".")[0]), nn.Conv2d | nn.Linear):
                # So that `|W| r` is about as large as r, whatever the number of inputs.
                weight.normal_(0.0, (2 * pi) ** 0.5 / weight[0].numel(), generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self._flat(x)))  # type: ignore[no-any-return]
