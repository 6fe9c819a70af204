"""Deep networks by name beside `PolyNet`: Pi-nets, products of polynomials; one for tables; one for certificates."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, prod
from typing import Unpack

import torch
from torch import Tensor, nn

from polybound.errors import PolyboundError, check_int
from polybound.models.base import ModelOptions
from polybound.models.deep import DeepNetwork, Norm, ProductBlock, Quadratic


class Polynomial(nn.Module):
    """`norm(C h_k)` with `h_1 = U_1 z`, `h_n = U_n z * h_(n-1) + h_(n-1)`: one polynomial of a Pi-net.

    Args:
        channels: of its input.
        width: of its hidden vectors and its output.
        degree: k.
        image: whether the `U_n` are 3x3 convolutions and C a 1x1 convolution; else all are matrices.
    """

    def __init__(self, channels: int, width: int, degree: int, image: bool) -> None:
        super().__init__()
        self.U = nn.ModuleList(
            nn.Conv2d(channels, width, 3, padding=1, bias=False) if image else nn.Linear(channels, width, bias=False)
            for _ in range(degree)
        )
        self.C = nn.Conv2d(width, width, 1, bias=False) if image else nn.Linear(width, width, bias=False)
        self.norm = Norm(width)

    def forward(self, z: Tensor) -> Tensor:
        h = self.U[0](z)
        for step in self.U[1:]:
            h = step(z) * h + h
        return self.norm(self.C(h))  # type: ignore[no-any-return]


class PiNet(DeepNetwork):
    """A product of polynomials (Chrysos et al., 2020): the output of each polynomial is the input of the next.

    On images the polynomials are convolutional, with average pooling between them.

    Args:
        shape: of one input; (channels, height, width) is an image.
        classes: number of outputs.
        width: size of the hidden vectors, or channels.
        degrees: of the polynomials; the network has their product as its degree.
        **options: see `DeepNetwork`.

    >>> import torch, polybound as pb
    >>> net = pb.models.PiNet((1, 8, 8), width=8, degrees=(2, 3), seed=0)
    >>> net(torch.zeros(2, 1, 8, 8)).shape, net.degree, net.eval().graph().degree
    (torch.Size([2, 10]), 6, 6)
    """

    _arguments = ("shape", "classes", "width", "degrees")

    def __init__(
        self,
        shape: Sequence[int],
        classes: int = 10,
        width: int = 32,
        degrees: Sequence[int] = (2, 2, 2),
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(shape, classes, **options)
        self.width = check_int("width", width)
        self.degrees = tuple(check_int("degrees", degree) for degree in degrees)
        self.degree, self.image = prod(self.degrees), len(self.shape) == 3
        if not self.degrees or self.degree > 2**20:
            raise PolyboundError(f"PiNet takes one or more degrees, their product at most 2^20, got {self.degrees}")
        if self.image and min(self.shape[1:]) < 2 ** (len(self.degrees) - 1):
            raise PolyboundError(f"images of {self.shape} are too small for {len(self.degrees) - 1} poolings")
        self._gates = tuple(f"U.{n}.weight" for n in range(1, max(self.degrees)))
        with self._place():
            first = self.shape[0] if self.image else self.features
            self.polynomials = nn.ModuleList(
                Polynomial(width if n else first, width, degree, self.image) for n, degree in enumerate(self.degrees)
            )
            self.head = nn.Linear(width, classes)
        self._finish()

    def forward(self, x: Tensor) -> Tensor:
        x = self._flat(x)
        x = x.reshape(-1, *self.shape) if self.image else x
        for n, polynomial in enumerate(self.polynomials):
            if self.image and n > 0:
                x = nn.functional.avg_pool2d(x, 2)
            x = polynomial(x)
        return self.head(x.mean((2, 3)) if self.image else x)  # type: ignore[no-any-return]


class PolyMLP(DeepNetwork):
    """A network for tables: a map, product blocks with skips, a map.

    Args:
        shape: of one input; it is flattened.
        classes: number of outputs.
        width: size of the hidden vectors.
        blocks: how many; each multiplies the degree by two.
        **options: see `DeepNetwork`.

    >>> import torch, polybound as pb
    >>> net = pb.models.PolyMLP((4,), 3, width=8, seed=0)
    >>> net(torch.zeros(2, 4)).shape, net.degree
    (torch.Size([2, 3]), 4)
    """

    _arguments = ("shape", "classes", "width", "blocks")

    def __init__(
        self,
        shape: Sequence[int],
        classes: int = 10,
        width: int = 64,
        blocks: int = 2,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(shape, classes, **options)
        self.width, self.blocks = check_int("width", width), check_int("blocks", blocks, 1, 20)
        self.degree = 2**self.blocks
        with self._place():
            self.stem = nn.Linear(self.features, width)
            self.body = nn.Sequential(*(ProductBlock(width, image=False) for _ in range(self.blocks)))
            self.head = nn.Linear(width, classes)
        self._finish()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(self._flat(x))))  # type: ignore[no-any-return]


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
