"""Inputs, labels and boxes in the shapes that certificates work on; whatever does not fit is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polybound.certificates.boxes import Domain, Sides, box_around
from polybound.certificates.network import Network
from polybound.errors import ArgumentError, PolyboundError
from polybound.registry import norm_name

__all__ = [
    "Boxes",
    "as_float64",
    "checked_boxes",
    "checked_domain",
    "checked_forms",
    "checked_labels",
    "checked_method",
    "checked_norm",
    "checked_points",
    "checked_radii",
]


@dataclass(frozen=True, eq=False)
class Boxes:
    """The boxes that a statement is about, one for each image.

    Attributes:
        x: the inputs, (images, features).
        outer: sides rounded outwards, (images, features) each: every bound holds within them.
        inner: sides rounded inwards: every point that is shown lies within them.
        eps: the radii as asked, (images,) or (images, features); None if the sides were given.
        sides: the sides as given; None if radii were.
    """

    x: Tensor
    outer: Sides
    inner: Sides
    eps: Tensor | None
    sides: Sides | None

    def part(self, some: slice) -> Boxes:
        """Those of some images."""
        outer, inner = ((lower[some], upper[some]) for lower, upper in (self.outer, self.inner))
        sides = self.sides and (self.sides[0][some], self.sides[1][some])
        return Boxes(self.x[some], outer, inner, None if self.eps is None else self.eps[some], sides)


def checked_points(net: Network, x: Tensor) -> Tensor:
    """Inputs as float64, (images, features)."""
    if not isinstance(x, Tensor) or not _is_one_input(net, x.shape[1:]):
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise PolyboundError(f"inputs must be floats of shape (images,) + {net.shape}, got {got}")
    if not x.is_floating_point():
        raise PolyboundError(f"inputs must be floats of shape (images,) + {net.shape}, got {x.dtype}")
    points = x.detach().double().cpu().reshape(len(x), net.features)
    if not torch.isfinite(points).all():
        raise PolyboundError("the inputs are not all finite")
    return points


def _is_one_input(net: Network, shape: Sequence[int]) -> bool:
    """Whether this is the shape of one input, as the model takes it: its own, or flat."""
    return tuple(shape) in (tuple(net.shape), (net.features,))


def checked_labels(net: Network, y: Tensor | Sequence[int], images: int) -> Tensor:
    """Labels (images,), whole numbers below the number of classes."""
    labels = torch.as_tensor(y).cpu()
    if labels.shape != (images,) or labels.is_floating_point():
        raise PolyboundError(f"one whole label for each of {images} inputs, got shape {tuple(labels.shape)}")
    labels = labels.long()
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < net.classes):
        raise PolyboundError(f"labels must be from 0 to {net.classes - 1}")
    return labels


def checked_radii(net: Network, eps: float | Tensor, images: int) -> Tensor:
    """Radii as float64: (images,), or (images, features) where each feature has one of its own."""
    radii = as_float64(eps, "eps")
    if not (torch.isfinite(radii) & (radii >= 0)).all():
        raise ArgumentError("eps", "must be finite and not negative")
    if radii.shape in ((), (images,)):
        return radii.expand(images).clone()
    if radii.ndim > 1 and radii.shape[0] in (1, images) and _is_one_input(net, radii.shape[1:]):
        return radii.reshape(len(radii), net.features).expand(images, -1).clone()
    raise PolyboundError(
        f"eps must be one number, one for each input, shape ({images},), or one for each feature, shape "
        f"{(1, *net.shape)} or {(images, *net.shape)}; got shape {tuple(radii.shape)}"
    )


def checked_domain(net: Network, domain: Domain | None) -> Sides | None:
    """A domain as numbers or (features,)."""
    if domain is None:
        return None
    if not isinstance(domain, Sequence) or len(domain) != 2:
        raise PolyboundError(f"a domain is a smallest and a largest value, got {domain!r}")
    sides = [as_float64(side, "the sides of a domain") for side in domain]
    for side in sides:
        if side.ndim > 0 and not _is_one_input(net, side.shape):
            raise PolyboundError(f"a side of a domain is a number or of shape {net.shape}, got {tuple(side.shape)}")
    least, most = (side if side.ndim == 0 else side.reshape(-1) for side in sides)
    if not (torch.isfinite(least).all() and torch.isfinite(most).all() and (least <= most).all()):
        raise PolyboundError(f"a domain is a smallest and a largest value, got {domain!r}")
    return least, most


def checked_boxes(
    net: Network,
    x: Tensor | None,
    eps: float | Tensor | None,
    box: tuple[Tensor, Tensor] | None,
    domain: Domain | None,
) -> Boxes:
    """The boxes of radius eps around x within the domain, or those with the given sides.

    Sides that leave the domain are refused, not cut. Without x, the boxes' centres are the inputs.
    """
    limits = checked_domain(net, domain)
    if (eps is None) == (box is None):
        raise PolyboundError("either eps or box=(lower, upper) says how far inputs can move")
    if box is not None:
        return _given(net, x, box, limits)
    if x is None:
        raise ArgumentError("eps", "needs the inputs that it is measured from")
    points = checked_points(net, x)
    radii = checked_radii(net, eps, len(points))  # type: ignore[arg-type]  # one of the two is there
    outer, inner = box_around(points, radii.unsqueeze(1) if radii.ndim == 1 else radii, limits)
    return Boxes(points, outer, inner, radii, None)


def _given(net: Network, x: Tensor | None, box: tuple[Tensor, Tensor], domain: Sides | None) -> Boxes:
    if not isinstance(box, Sequence) or len(box) != 2:
        raise PolyboundError("box must be a pair of tensors, (lower, upper)")
    points = None if x is None else checked_points(net, x)
    given = [as_float64(side, "the sides of a box") for side in box]
    sides = [_side(net, side, None if points is None else len(points)) for side in given]
    images = max(len(side) for side in sides) if points is None else len(points)
    if any(len(side) not in (1, images) for side in sides):
        raise PolyboundError("the sides of a box must be of the same shape")
    lower, upper = (side.expand(images, -1).contiguous() for side in sides)
    if not (torch.isfinite(lower) & torch.isfinite(upper) & (lower <= upper)).all():
        raise PolyboundError("the sides of a box must be finite, and the lower one not above the upper one")
    if points is None:
        points = lower + (upper - lower) / 2
    elif not ((points >= lower) & (points <= upper)).all():
        raise PolyboundError("an input lies outside of its box")
    if domain is not None and not ((lower >= domain[0]) & (upper <= domain[1])).all():
        raise PolyboundError("the box leaves the domain; cut it, or pass the domain of your data, or domain=None")
    return Boxes(points, (lower, upper), (lower, upper), None, (lower, upper))


def _side(net: Network, side: Tensor, images: int | None) -> Tensor:
    """A side as (1 or images, features)."""
    if side.ndim == 0:
        return side.expand(1, net.features)
    if _is_one_input(net, side.shape):
        return side.reshape(1, net.features)
    if _is_one_input(net, side.shape[1:]) and (len(side) == 1 or images is None or len(side) == images):
        return side.reshape(len(side), net.features)
    raise PolyboundError(
        f"a side of a box has the shape of the inputs, (images,) + {net.shape}, got {tuple(side.shape)}"
    )


def checked_method(method: str, allowed: Sequence[str], budget: float) -> None:
    """Refuse a method that there is not, and a budget that is no time."""
    if method not in allowed:
        raise ArgumentError("method", f"must be one of {', '.join(allowed)}, got {method!r}")
    if not budget >= 0:
        raise ArgumentError("budget", f"must be a number of seconds, got {budget!r}")


def checked_norm(norm: str | float, box: object, method: str) -> str:
    """The norm as "inf" or "2"; what there is for boxes only is refused for l_2 balls."""
    name = norm_name(norm)
    if name == "2" and box is not None:
        raise PolyboundError("the sides of a box say nothing about an l_2 ball; pass eps")
    if name == "2" and method in ("crown", "zonotope", "interval"):
        raise ArgumentError("method", f"{method!r} is about boxes; l_2 balls have auto, second, first, lipschitz")
    return name


def checked_forms(
    net: Network, weights: Tensor | Sequence[Sequence[float]] | None, constant: Tensor | Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """Linear forms of the outputs as float64, (rows, classes) and (rows,); by default each output by itself."""
    a = torch.eye(net.classes, dtype=torch.float64) if weights is None else as_float64(weights, "weights")
    if a.ndim != 2 or a.shape[1] != net.classes:
        raise PolyboundError(f"weights must have the shape (rows, {net.classes}), got {tuple(a.shape)}")
    b = a.new_zeros(len(a)) if constant is None else as_float64(constant, "constant")
    if b.shape != (len(a),):
        raise PolyboundError(f"constant must have the shape ({len(a)},), one for each row, got {tuple(b.shape)}")
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        raise PolyboundError("weights and constant must be finite")
    return a, b


def as_float64(values: Any, name: str) -> Tensor:
    """Numbers as a float64 tensor on the CPU; True and False are none."""
    if isinstance(values, bool) or getattr(values, "dtype", None) in (torch.bool, bool):
        raise PolyboundError(f"{name} must be numbers, not True or False")
    try:
        # With the type named: otherwise floats would pass through float32.
        return torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise PolyboundError(f"{name} must be numbers: {error}") from error
