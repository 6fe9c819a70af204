"""A network of affine maps and squares that keeps boxes small, so that intervals alone certify it."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, prod

import torch
from torch import Tensor, nn

from polybound.errors import PolyboundError, check_int
from polybound.models.deep import DeepNetwork, Norm, Quadratic


class BoxNet(DeepNetwork):
    """Steps of the pixels, convolutions and a dense layer, each with two composed squares per channel, a linear head.

    It is made for method `certified`. An interval of one square, and so of squares after one another, is exact: only
    the affine maps between them lose something. The steps take boxes around dark and bright pixels closer to the ends;
    the squares begin flat on one side, where boxes shrink. Every map is followed by `Norm`.

    Args:
        shape: (channels, height, width) of the input, whose entries go from -1 to 1.
        classes: number of outputs.
        steps: learned squares of the pixels, one after another, for each channel; 0 for none.
        layers: of the convolutions, (channels, kernel, stride) each; without padding.
        hidden: width of the dense layer.
        runs: None; such networks have no stacks.
        seed: of the initial weights.
        device: where the parameters live.
        dtype: their type.

    >>> import torch, polybound as pb
    >>> net = pb.models.BoxNet((1, 28, 28), steps=2, seed=0)
    >>> net(torch.zeros(2, 1, 28, 28)).shape, net.degree
    (torch.Size([2, 10]), 256)
    """

    _arguments = ("shape", "classes", "steps", "layers", "hidden")

    def __init__(
        self,
        shape: Sequence[int],
        classes: int = 10,
        steps: int = 6,
        layers: Sequence[Sequence[int]] = ((16, 5, 2), (32, 4, 2)),
        hidden: int = 200,
        *,
        runs: int | None = None,
        seed: int | Sequence[int] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, classes, runs, seed)
        self.steps, self.hidden = check_int("steps", steps, 0), check_int("hidden", hidden)
        if len(self.shape) != 3:
            raise PolyboundError(f"BoxNet takes images (channels, height, width), got {self.shape}")
        if any(len(layer) != 3 for layer in layers):
            raise PolyboundError(f"a layer of BoxNet is (channels, kernel, stride), got {tuple(layers)}")
        self.layers = tuple(tuple(check_int("layers", number) for number in layer) for layer in layers)
        if self.steps + 2 * len(self.layers) + 2 > 20:
            raise PolyboundError("BoxNet takes at most 20 squares after one another: steps, and two a layer")
        self.degree = 2 ** (self.steps + 2 * len(self.layers) + 2)
        parts: list[nn.Module] = []
        size: tuple[int, ...] = self.shape
        with torch.device(device or "cpu"):
            if self.steps:
                parts.append(Quadratic(self.shape[0], self.steps, step=True))
            for channels, kernel, stride in self.layers:
                parts += [nn.Conv2d(size[0], channels, kernel, stride, bias=False), Norm(channels), Quadratic(channels)]
                size = (channels, *((n - kernel) // stride + 1 for n in size[1:]))
                if min(size[1:]) < 1:
                    raise PolyboundError(f"images of shape {self.shape} are too small for the layers {self.layers}")
            parts += [nn.Flatten(), nn.Linear(prod(size), self.hidden, bias=False), Norm(self.hidden)]
            self.body, self.head = nn.Sequential(*parts, Quadratic(self.hidden)), nn.Linear(self.hidden, self.classes)
        if dtype is not None:
            self.to(dtype)
        self.reset_parameters()

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
        return self.head(self.body(self._flat(x).reshape(-1, *self.shape)))  # type: ignore[no-any-return]
