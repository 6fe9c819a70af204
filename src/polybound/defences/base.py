"""What all defences share: a name with its settings, and a classifier behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING
from inspect import Parameter, signature
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from polybound.errors import PolyboundError
from polybound.registry import Named


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
