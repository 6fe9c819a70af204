"""The sets of inputs that a certificate is about, boxes and l_2 balls in float64, and checks of what users pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from polybound.certificates.bounds.slopes import length
from polybound.errors import ArgumentError, PolyboundError, check_norm
from polybound.theory import ULP


class Sized(Protocol):
    """What the checks ask of a network."""

    shape: tuple[int, ...]
    features: int
    classes: int

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether this is the shape of one input: the network's own, or flat."""


Sides = tuple[Tensor, Tensor]

Domain = tuple[float | Tensor, float | Tensor]
"""The smallest and the largest value of an entry: a number for all, or a tensor of the shape of one input."""

Limits = Sides
"""The range that the domain leaves to each u_d of a ball: low <= 0 <= high, rounded outwards, within [-1, 1]."""

_DOWN, _UP = torch.tensor(-torch.inf, dtype=torch.float64), torch.tensor(torch.inf, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class InputSet:
    """The inputs that a statement is about: a box for each image.

    Attributes:
        x: the inputs, (images, features).
        outer: sides rounded outwards, (images, features) each: every bound holds within them.
        inner: sides rounded inwards: every point that is shown lies within them.
        eps: the radii as asked, (images,) or (images, features); None if the sides were given.
        sides: the sides as given; None if radii were.
        norm: "inf", or "2" for balls.
    """

    x: Tensor
    outer: Sides
    inner: Sides
    eps: Tensor | None
    sides: Sides | None
    norm: ClassVar[str] = "inf"

    def __len__(self) -> int:
        return len(self.x)

    def part(self, some: slice) -> Self:
        """The sets of some images."""

        def cut(value: Any) -> Any:
            return tuple(map(cut, value)) if isinstance(value, tuple) else value if value is None else value[some]

        return replace(self, **{field.name: cut(getattr(self, field.name)) for field in fields(self)})

    def asked(self, shape: Sequence[int]) -> tuple[Tensor | None, Sides | None]:
        """Radii and sides as they were asked, for inputs of a shape."""
        shape = (len(self), *shape)
        eps = self.eps if self.eps is None or self.eps.ndim == 1 else self.eps.reshape(shape)
        return eps, self.sides and (self.sides[0].reshape(shape), self.sides[1].reshape(shape))

    def reach(self, images: Tensor) -> Tensor:
        """The largest absolute values of the features, (images, features)."""
        return torch.maximum(self.outer[0][images].abs(), self.outer[1][images].abs())

    def inside(self, images: Tensor, x: Tensor) -> Tensor:
        """The nearest points of the images' true sets to points, (N, features)."""
        return torch.minimum(torch.maximum(x, self.inner[0][images]), self.inner[1][images])

    def outside(self, images: Tensor, _lower: Tensor, _upper: Tensor, /) -> Tensor:
        """Which boxes, (N, features) each, provably have no point in their image's set: none, as they are parts."""
        return torch.zeros_like(images, dtype=torch.bool)

    def rule(self, name: str) -> str:
        """The name of a bound of first order, "first" or "slopes", in proofs about the set."""
        return name


@dataclass(frozen=True, eq=False)
class Balls(InputSet):
    """The part of each box in an l_2 ball.

    `x' = x + r * u` with `||u||_2 <= 1` is an ellipsoid with a radius for each feature, a ball if all are the same.
    Inputs and radii are the float64 numbers that were asked: nothing is rounded. The domain cuts u to `[low, high]`.

    Attributes:
        r: the radii, (images, features).
        low: the least u_d that the domain leaves, rounded down, (images, features).
        high: the largest, rounded up.
    """

    r: Tensor
    low: Tensor
    high: Tensor
    norm = "2"

    def limits(self, images: Tensor) -> Limits:
        """The limits of some images, (images, features) each."""
        return self.low[images], self.high[images]

    def reach(self, images: Tensor) -> Tensor:
        """The largest absolute values in the whole ball, beyond the domain: expansions are about its centre."""
        return self.x[images].abs() + self.r[images]

    def unit(self, images: Tensor, x: Tensor) -> Tensor:
        """Points as u, up to rounding; 0 in the coordinates that do not move."""
        r = self.r[images]
        return torch.where(r > 0, (x - self.x[images]) / r.clamp_min(5e-324), 0.0)

    def point(self, images: Tensor, u: Tensor) -> Tensor:
        """`x + r * u`, up to rounding."""
        return self.x[images] + self.r[images] * u

    def inside(self, images: Tensor, x: Tensor) -> Tensor:
        """Points of the true balls within the domain: a rounding from x where such points are nearly x, else inputs."""
        found = self.x[images].clone()
        near = super().inside(images, x)
        for row, image in enumerate(images.tolist()):
            for shrink in (0.0, 2.0**-50, 2.0**-46, 2.0**-40, 2.0**-30, 2.0**-20, 2.0**-10):
                point = self.x[image] + (near[row] - self.x[image]) * (1.0 - shrink)
                point = torch.minimum(torch.maximum(point, self.inner[0][image]), self.inner[1][image])
                if self.holds(image, point):
                    found[row] = point
                    break
        return found

    def holds(self, image: int, x: Tensor) -> bool:
        """Whether a point, (features,), provably lies in the ball."""
        r, away = self.r[image], (x - self.x[image]).abs()
        if bool((away[r == 0] > 0).any()):
            return False
        part = away[r > 0] / r[r > 0]
        # Each is rounded twice, or underflows; `length` rounds up.
        return float(length(part * (1 + 4 * ULP) + 2.0**-1000)) <= 1.0

    def outside(self, images: Tensor, lower: Tensor, upper: Tensor, /) -> Tensor:
        """Which boxes, (N, features) each, provably have no point in their image's ball."""
        x, r = self.x[images], self.r[images]
        away = torch.maximum(lower - x, x - upper).clamp_min(0.0)
        part = torch.where(r > 0, away / r.clamp_min(5e-324), 0.0).clamp_max(2.0)
        return part.square().sum(-1) * (1 - (x.shape[-1] + 32) * ULP) > 1.0

    def rule(self, name: str) -> str:
        """Bounds of first order are about the whole ball."""
        return {"first": "ball", "slopes": "ball slopes"}[name]


# From what users pass to input sets; whatever does not fit is refused.


def input_set(
    net: Sized,
    x: Tensor | None,
    eps: float | Tensor | None,
    box: tuple[Tensor, Tensor] | None,
    domain: Domain | None,
    norm: str | float = "inf",
) -> InputSet:
    """The boxes or balls of radius eps around x within the domain, or the boxes with the given sides.

    Sides that leave the domain are refused, not cut. Without x, the boxes' centres are the inputs.
    """
    limits, name = checked_domain(net, domain), check_norm(norm)
    if (eps is None) == (box is None):
        raise PolyboundError("either eps or box=(lower, upper) says how far inputs can move")
    if box is not None:
        if name == "2":
            raise PolyboundError("the sides of a box say nothing about an l_2 ball; pass eps")
        return _with_sides(net, x, box, limits)
    if x is None or eps is None:
        raise ArgumentError("eps", "needs the inputs that it is measured from")
    x = checked_points(net, x)
    radii = checked_radii(net, eps, len(x))
    r = radii if radii.ndim == 2 else radii.unsqueeze(1)
    outer, inner = box_around(x, r, limits)
    if name == "inf":
        return InputSet(x, outer, inner, radii, None)
    r = r.expand_as(x)
    low, high = -torch.ones_like(x), torch.ones_like(x)
    if limits is not None:
        low, high = (_limit(side - x, r) for side in limits)
    return Balls(x, outer, inner, radii, None, r, low, high)


def _limit(away: Tensor, r: Tensor) -> Tensor:
    """`away / r`, rounded away from 0 and cut to [-1, 1]; 0 where nothing moves."""
    part = away / r.clamp_min(5e-324) * (1 + 8 * ULP) + 2.0**-1000 * away.sign()
    return torch.where(r > 0, part.clamp(-1.0, 1.0), 0.0)


def _with_sides(net: Sized, x: Tensor | None, box: tuple[Tensor, Tensor], domain: Sides | None) -> InputSet:
    if not isinstance(box, Sequence) or len(box) != 2:
        raise PolyboundError("box must be a pair of tensors, (lower, upper)")
    points = None if x is None else checked_points(net, x)
    sides = []
    for side in (as_float64(side, "the sides of a box") for side in box):
        if side.ndim == 0:
            sides.append(side.expand(1, net.features))
        elif net.takes(side.shape):
            sides.append(side.reshape(1, net.features))
        elif net.takes(side.shape[1:]) and (len(side) == 1 or points is None or len(side) == len(points)):
            sides.append(side.reshape(len(side), net.features))
        else:
            raise PolyboundError(
                f"a side of a box has the shape of the inputs, (images,) + {net.shape}, got {tuple(side.shape)}"
            )
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
    return InputSet(points, (lower, upper), (lower, upper), None, (lower, upper))


def checked_points(net: Sized, x: Tensor) -> Tensor:
    """Inputs as float64, (images, features)."""
    if not isinstance(x, Tensor) or not net.takes(x.shape[1:]) or not x.is_floating_point():
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise PolyboundError(f"inputs must be floats of shape (images,) + {net.shape}, got {got}")
    points = x.detach().double().cpu().reshape(len(x), net.features)
    if not torch.isfinite(points).all():
        raise PolyboundError("the inputs are not all finite")
    return points


def checked_labels(net: Sized, y: Tensor | Sequence[int], images: int) -> Tensor:
    """Labels (images,), whole numbers below the number of classes."""
    labels = torch.as_tensor(y).cpu()
    if labels.shape != (images,) or labels.is_floating_point():
        raise PolyboundError(f"one whole label for each of {images} inputs, got shape {tuple(labels.shape)}")
    labels = labels.long()
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < net.classes):
        raise PolyboundError(f"labels must be from 0 to {net.classes - 1}")
    return labels


def checked_radii(net: Sized, eps: float | Tensor, images: int) -> Tensor:
    """Radii as float64: (images,), or (images, features) where each feature has one of its own."""
    radii = as_float64(eps, "eps")
    if not (torch.isfinite(radii) & (radii >= 0)).all():
        raise ArgumentError("eps", "must be finite and not negative")
    if radii.shape in ((), (images,)):
        return radii.expand(images).clone()
    if radii.ndim > 1 and radii.shape[0] in (1, images) and net.takes(radii.shape[1:]):
        return radii.reshape(len(radii), net.features).expand(images, -1).clone()
    raise PolyboundError(
        f"eps must be one number, one for each input, shape ({images},), or one for each feature, shape "
        f"{(1, *net.shape)} or {(images, *net.shape)}; got shape {tuple(radii.shape)}"
    )


def checked_domain(net: Sized, domain: Domain | None) -> Sides | None:
    """A domain as numbers or (features,)."""
    if domain is None:
        return None
    if not isinstance(domain, Sequence) or len(domain) != 2:
        raise PolyboundError(f"a domain is a smallest and a largest value, got {domain!r}")
    sides = [as_float64(side, "the sides of a domain") for side in domain]
    for side in sides:
        if side.ndim > 0 and not net.takes(side.shape):
            raise PolyboundError(f"a side of a domain is a number or of shape {net.shape}, got {tuple(side.shape)}")
    least, most = (side if side.ndim == 0 else side.reshape(-1) for side in sides)
    if not (torch.isfinite(least).all() and torch.isfinite(most).all() and (least <= most).all()):
        raise PolyboundError(f"a domain is a smallest and a largest value, got {domain!r}")
    return least, most


def checked_forms(
    net: Sized, weights: Tensor | Sequence[Sequence[float]] | None, constant: Tensor | Sequence[float] | None
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


# Boxes in float64.


def box_around(x: Tensor, eps: Tensor, domain: Domain | None) -> tuple[Sides, Sides]:
    """The box `[x - eps, x + eps]` cut to the domain, its sides rounded outwards, and the same rounded inwards.

    Args:
        x: (batch, features), float64.
        eps: (batch, features), (batch, 1) or (), float64, not negative.
        domain: the smallest and largest value of an entry, numbers or (features,); None for no limits.
    """
    lower, upper = x - eps, x + eps
    # Where nothing was rounded (eps = 0, or all bits fit) nothing is moved.
    below, above = _excess(x, -eps, lower), _excess(x, eps, upper)
    outer = (
        torch.where(below < 0, torch.nextafter(lower, _DOWN), lower),
        torch.where(above > 0, torch.nextafter(upper, _UP), upper),
    )
    inner = (
        torch.where(below > 0, torch.nextafter(lower, _UP), lower),
        torch.where(above < 0, torch.nextafter(upper, _DOWN), upper),
    )
    if domain is not None:
        least, most = (torch.as_tensor(side, dtype=torch.float64) for side in domain)
        if not ((x >= least) & (x <= most)).all():
            shown = (
                f"[{float(least):g}, {float(most):g}]" if least.numel() == most.numel() == 1 else "of their features"
            )
            raise PolyboundError(f"the inputs leave the domain {shown}; pass the domain of your data")
        outer, inner = ((torch.maximum(low, least), torch.minimum(high, most)) for low, high in (outer, inner))
    return outer, inner


def _excess(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """`a + b - total` exactly, for `total = fl(a + b)` (Knuth's two-sum)."""
    part = total - a
    return (a - (total - part)) + (b - part)


def centre(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Centres and radii with `[lower, upper]` inside of `[c - r, c + r]`; r is zero where both sides are equal."""
    c = lower + (upper - lower) / 2
    r = torch.maximum(upper - c, c - lower)
    # Both differences are rounded once; the next number up is above the true radius.
    return c, torch.where(upper > lower, torch.nextafter(r, _UP), torch.zeros_like(r))
