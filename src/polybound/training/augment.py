"""Random changes of training images, by name: "flip", "crop-4", "shift-2"; `register_augmentation`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from polybound.errors import PolyboundError, check_choice, check_int
from polybound.registry import Kinds, Named


@dataclass(frozen=True)
class Augmentation(Named):
    """A random change of images that keeps their labels.

    One of your own is a function `(images, generator)`, or a frozen dataclass with a `kind` and `__call__`, if it has
    settings, and one line that registers it. All its random numbers come from the generator.

    >>> from polybound.training import Recipe, register_augmentation
    >>> @register_augmentation
    ... def upside_down(images, generator):
    ...     turned = torch.rand(len(images), generator=generator) < 0.1
    ...     return torch.where(turned[:, None, None, None], images.flip(-2), images)
    >>> [one.name for one in Recipe(augment="flip, upside_down, crop").augment]
    ['flip', 'upside_down', 'crop-4']
    """

    @abstractmethod
    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Changed images, of the same shape; the given ones stay as they are.

        Args:
            images: a batch, (n, *shape).
            generator: where all random numbers come from; it is on the CPU.
        """


AUGMENTATIONS: Kinds[Augmentation] = Kinds("augmentation")
"""The classes of augmentations by the first word of their names."""

T = TypeVar("T", bound=Callable[..., Any])


def register_augmentation(made: T) -> T:
    """Make an augmentation known by its name; a class with a `kind`, or a function, which is called by its own name."""
    if isinstance(made, type):
        AUGMENTATIONS.register(made)
    else:
        # Without settings of its own, and therefore no dataclass of its own.
        members = {"kind": made.__name__, "__doc__": made.__doc__, "__call__": lambda _, *given: made(*given)}
        AUGMENTATIONS.register(type(made.__name__, (Augmentation,), members))
    return made


@register_augmentation
@dataclass(frozen=True)
class Flip(Augmentation):
    """Left and right are swapped in every other image."""

    kind: ClassVar[str] = "flip"

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        chosen = (torch.rand(len(images), generator=generator) < 0.5).to(images.device)
        return torch.where(chosen.view(-1, *(1,) * (images.ndim - 1)), images.flip(-1), images)


@register_augmentation
@dataclass(frozen=True)
class Shift(Augmentation):
    """Images moved by up to some pixels, up or down and left or right; the border is repeated.

    Attributes:
        pixels: how many at most, in each direction.
        border: what comes in from outside: "repeat" the outermost pixels, "reflect" the image, or "zero".
    """

    kind: ClassVar[str] = "shift"
    numbers: ClassVar[tuple[str, ...]] = ("pixels",)

    pixels: int = 2
    border: str = "repeat"

    def __post_init__(self) -> None:
        check_int("pixels", self.pixels)
        check_choice("border", self.border, ("repeat", "reflect", "zero"))

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        if self.pixels >= min(images.shape[-2:]):
            raise PolyboundError(f"augmentation {self.name} moves images of {tuple(images.shape[1:])} out of sight")
        moved = images
        for dim in (2, 3):
            size = images.shape[dim]
            by = torch.randint(-self.pixels, self.pixels + 1, (len(images), 1), generator=generator)
            places = torch.arange(size) + by
            sources = places.clamp(0, size - 1)
            if self.border == "reflect":
                sources = (size - 1 - (size - 1 - places.abs()).abs()).abs()
            index = sources.to(images.device).view(-1, 1, *((size, 1) if dim == 2 else (1, size)))
            moved = moved.gather(dim, index.expand(images.shape))
            if self.border == "zero":
                inside = (places == sources).to(images.device).view(index.shape)
                moved = torch.where(inside, moved, 0.0)
        return moved


@register_augmentation
@dataclass(frozen=True)
class Crop(Shift):
    """A random part of the image with a border of some pixels around it, which is the image reflected."""

    kind: ClassVar[str] = "crop"

    pixels: int = 4
    border: str = "reflect"


def augmentations(given: str | Augmentation | Iterable[str | Augmentation]) -> tuple[Augmentation, ...]:
    """Several augmentations, given as a list or as one comma-separated text; "none" and "" are none."""
    if isinstance(given, str):
        given = [name for name in given.replace(" ", "").split(",") if name not in ("", "none")]
    elif isinstance(given, Augmentation):
        given = [given]
    elif not isinstance(given, Iterable):
        raise PolyboundError(f"augment takes names such as flip, crop-4 or shift-2, got {given!r}")
    found: list[Augmentation] = []
    for one in given:
        if not isinstance(one, Augmentation):
            made, settings = AUGMENTATIONS.parse(one)
            one = made(**settings)
        found.append(one)
    return tuple(found)


def augmented(changes: Sequence[Augmentation], x: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Flat inputs (batch, features) after some augmentations.

    Raises:
        PolyboundError: the inputs are no images, or a result has another shape.
    """
    images = x.view(len(x), *shape)
    for one in changes:
        if isinstance(one, Flip | Shift) and len(shape) != 3:
            raise PolyboundError(f"augmentation {one.name} takes images (channels, height, width), not {shape}")
        changed = one(images, generator)
        if not isinstance(changed, Tensor) or changed.shape != images.shape:
            found = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
            raise PolyboundError(f"augmentation {one.name} made {found} of images {tuple(images.shape)}")
        images = changed.to(x.dtype)
    return images.reshape(len(x), -1)
