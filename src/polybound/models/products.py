"""Two deep networks by name beside `PolyNet`: Pi-nets, products of polynomials; and one for tables."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from polybound.errors import PolyboundError, check_int
from polybound.models.deep import DeepNetwork, Norm


class _Built(DeepNetwork):
    """A network whose constructor makes the parts; their weights are uniform, of variance `1 / (2 fan_in)`.

    Maps that a product multiplies by have half of that standard deviation, so that the products start small.
    """

    _gates: tuple[str, ...] = ()
    """Ends of the names of such maps' weights."""

    def _finish(self, dtype: torch.dtype | None) -> None:
        if dtype is not None:
            self.to(dtype)
        self.reset_parameters()

    def _initialise(self, weights: dict[str, Tensor], generator: torch.Generator | None) -> None:
        for name, weight in weights.items():
            if weight.ndim >= 2:
                limit = (1.5 / weight[0].numel()) ** 0.5 * (0.5 if name.endswith(self._gates) else 1.0)
                weight.uniform_(-limit, limit, generator=generator)
            else:
                weight.fill_(1.0 if name.endswith("weight") else 0.0)


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


class PiNet(_Built):
    """A product of polynomials (Chrysos et al., 2020): the output of each polynomial is the input of the next.

    On images the polynomials are convolutional, with average pooling between them.

    Args:
        shape: of one input; (channels, height, width) is an image.
        classes: number of outputs.
        width: size of the hidden vectors, or channels.
        degrees: of the polynomials; the network has their product as its degree.
        runs: None; such networks have no stacks.
        seed: of the initial weights.
        device: where the parameters live.
        dtype: their type.

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
        *,
        runs: int | None = None,
        seed: int | Sequence[int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, classes, runs, seed)
        self.width = check_int("width", width)
        self.degrees = tuple(check_int("degrees", degree) for degree in degrees)
        self.degree, self.image = prod(self.degrees), len(self.shape) == 3
        if not self.degrees or self.degree > 2**20:
            raise PolyboundError(f"PiNet takes one or more degrees, their product at most 2^20, got {self.degrees}")
        if self.image and min(self.shape[1:]) < 2 ** (len(self.degrees) - 1):
            raise PolyboundError(f"images of {self.shape} are too small for {len(self.degrees) - 1} poolings")
        self._gates = tuple(f"U.{n}.weight" for n in range(1, max(self.degrees)))
        with torch.device(device or "cpu"):
            first = self.shape[0] if self.image else self.features
            self.polynomials = nn.ModuleList(
                Polynomial(width if n else first, width, degree, self.image) for n, degree in enumerate(self.degrees)
            )
            self.head = nn.Linear(width, classes)
        self._finish(dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = self._flat(x)
        x = x.reshape(-1, *self.shape) if self.image else x
        for n, polynomial in enumerate(self.polynomials):
            if self.image and n > 0:
                x = nn.functional.avg_pool2d(x, 2)
            x = polynomial(x)
        return self.head(x.mean((2, 3)) if self.image else x)  # type: ignore[no-any-return]


class _Block(nn.Module):
    """`x + norm(a(x) * b(x) + a(x))` with two matrices a and b."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.norm = Norm(width)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        return x + self.norm(a * self.b(x) + a)  # type: ignore[no-any-return]


class PolyMLP(_Built):
    """A network for tables: a map, product blocks with skips, a map.

    Args:
        shape: of one input; it is flattened.
        classes: number of outputs.
        width: size of the hidden vectors.
        blocks: how many; each multiplies the degree by two.
        runs: None; such networks have no stacks.
        seed: of the initial weights.
        device: where the parameters live.
        dtype: their type.

    >>> import torch, polybound as pb
    >>> net = pb.models.PolyMLP((4,), 3, width=8, seed=0)
    >>> net(torch.zeros(2, 4)).shape, net.degree
    (torch.Size([2, 3]), 4)
    """

    _arguments = ("shape", "classes", "width", "blocks")
    _gates = (".b.weight",)

    def __init__(
        self,
        shape: Sequence[int],
        classes: int = 10,
        width: int = 64,
        blocks: int = 2,
        *,
        runs: int | None = None,
        seed: int | Sequence[int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, classes, runs, seed)
        self.width, self.blocks = check_int("width", width), check_int("blocks", blocks, 1, 20)
        self.degree = 2**self.blocks
        with torch.device(device or "cpu"):
            self.stem = nn.Linear(self.features, width)
            self.body = nn.Sequential(*(_Block(width) for _ in range(self.blocks)))
            self.head = nn.Linear(width, classes)
        self._finish(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(self._flat(x))))  # type: ignore[no-any-return]
