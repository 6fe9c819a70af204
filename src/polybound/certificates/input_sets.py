"""The sets of inputs that a certificate is about: boxes and l_2 balls in float64, and checks of what users pass.

`x' = x + r * u` with `||u||_2 <= 1` is an ellipsoid with a radius for each feature, a ball if all are the same. Inputs
and radii are float64 numbers as they are asked: nothing is rounded in that. The domain cuts u to `[low, high]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polybound.certificates.bounds.slopes import length
from polybound.certificates.network import PreparedNetwork
from polybound.errors import ArgumentError, PolyboundError, check_norm
from polybound.theory import ULP

__all__ = [
    "Balls",
    "Boxes",
    "Domain",
    "Limits",
    "Sides",
    "as_float64",
    "box_around",
    "centre",
    "checked_boxes",
    "checked_domain",
    "checked_forms",
    "checked_labels",
    "checked_method",
    "checked_norm",
    "checked_points",
    "checked_radii",
    "least_linear",
    "nearest",
]


_DOWN, _UP = torch.tensor(-torch.inf, dtype=torch.float64), torch.tensor(torch.inf, dtype=torch.float64)


Sides = tuple[Tensor, Tensor]

Domain = tuple[float | Tensor, float | Tensor]
"""The smallest and the largest value of an entry: a number for all, or a tensor of the shape of one input."""


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
            raise PolyboundError(f"the inputs leave the domain {_shown(least, most)}; pass the domain of your data")
        outer, inner = ((torch.maximum(low, least), torch.minimum(high, most)) for low, high in (outer, inner))
    return outer, inner


def _shown(least: Tensor, most: Tensor) -> str:
    return f"[{float(least):g}, {float(most):g}]" if least.numel() == most.numel() == 1 else "of their features"


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


# Inputs, labels and boxes in the shapes that certificates work on; whatever does not fit is refused.


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


def checked_points(net: PreparedNetwork, x: Tensor) -> Tensor:
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


def _is_one_input(net: PreparedNetwork, shape: Sequence[int]) -> bool:
    """Whether this is the shape of one input, as the model takes it: its own, or flat."""
    return tuple(shape) in (tuple(net.shape), (net.features,))


def checked_labels(net: PreparedNetwork, y: Tensor | Sequence[int], images: int) -> Tensor:
    """Labels (images,), whole numbers below the number of classes."""
    labels = torch.as_tensor(y).cpu()
    if labels.shape != (images,) or labels.is_floating_point():
        raise PolyboundError(f"one whole label for each of {images} inputs, got shape {tuple(labels.shape)}")
    labels = labels.long()
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < net.classes):
        raise PolyboundError(f"labels must be from 0 to {net.classes - 1}")
    return labels


def checked_radii(net: PreparedNetwork, eps: float | Tensor, images: int) -> Tensor:
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


def checked_domain(net: PreparedNetwork, domain: Domain | None) -> Sides | None:
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
    net: PreparedNetwork,
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


def _given(net: PreparedNetwork, x: Tensor | None, box: tuple[Tensor, Tensor], domain: Sides | None) -> Boxes:
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


def _side(net: PreparedNetwork, side: Tensor, images: int | None) -> Tensor:
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
    name = check_norm(norm)
    if name == "2" and box is not None:
        raise PolyboundError("the sides of a box say nothing about an l_2 ball; pass eps")
    if name == "2" and method in ("crown", "zonotope", "interval"):
        raise ArgumentError("method", f"{method!r} is about boxes; l_2 balls have auto, second, first, lipschitz")
    return name


def checked_forms(
    net: PreparedNetwork, weights: Tensor | Sequence[Sequence[float]] | None, constant: Tensor | Sequence[float] | None
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


# Balls of the l_2 norm around inputs, cut to the domain, and the least values of linear forms over them.


Limits = Sides
"""What the domain leaves of each u_d: low <= 0 and high >= 0, rounded outwards, within [-1, 1]."""


@dataclass(frozen=True, eq=False)
class Balls:
    """A ball for each image.

    Attributes:
        x: the inputs, (images, features).
        r: the radii, (images, features).
        low: the least u_d that the domain leaves, rounded down, (images, features).
        high: the largest, rounded up.
    """

    x: Tensor
    r: Tensor
    low: Tensor
    high: Tensor

    @staticmethod
    def within(boxes: Boxes, domain: Sides | None) -> Balls:
        """The balls in boxes that were made from radii and a domain."""
        eps = boxes.eps
        if eps is None:
            raise AssertionError("balls have radii")
        x, r = boxes.x, (eps if eps.ndim == 2 else eps.unsqueeze(1).expand_as(boxes.x))
        if domain is None:
            return Balls(x, r, -torch.ones_like(x), torch.ones_like(x))
        low, high = (_limit(side - x, r) for side in domain)
        return Balls(x, r, low, high)

    def part(self, some: slice) -> Balls:
        """Those of some images."""
        return Balls(self.x[some], self.r[some], self.low[some], self.high[some])

    def limits(self, images: Tensor) -> Limits:
        """The limits of some images, (images, features) each."""
        return self.low[images], self.high[images]

    def unit(self, images: Tensor, x: Tensor) -> Tensor:
        """Points as u, up to rounding; 0 in the coordinates that do not move."""
        r = self.r[images]
        return torch.where(r > 0, (x - self.x[images]) / r.clamp_min(5e-324), 0.0)

    def point(self, images: Tensor, u: Tensor) -> Tensor:
        """`x + r * u`, up to rounding."""
        return self.x[images] + self.r[images] * u

    def holds(self, image: int, x: Tensor) -> bool:
        """Whether a point, (features,), provably lies in the ball."""
        r, away = self.r[image], (x - self.x[image]).abs()
        if bool((away[r == 0] > 0).any()):
            return False
        part = away[r > 0] / r[r > 0]
        # Each is rounded twice, or underflows; `length` rounds up.
        return float(length(part * (1 + 4 * ULP) + 2.0**-1000)) <= 1.0

    def outside(self, images: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Which boxes, (N, features) each, provably have no point in their image's ball."""
        x, r = self.x[images], self.r[images]
        away = torch.maximum(lower - x, x - upper).clamp_min(0.0)
        part = torch.where(r > 0, away / r.clamp_min(5e-324), 0.0).clamp_max(2.0)
        return part.square().sum(-1) * (1 - (x.shape[-1] + 32) * ULP) > 1.0


def _limit(away: Tensor, r: Tensor) -> Tensor:
    """`away / r`, rounded away from 0 and cut to [-1, 1]; 0 where nothing moves."""
    part = away / r.clamp_min(5e-324) * (1 + 8 * ULP) + 2.0**-1000 * away.sign()
    return torch.where(r > 0, part.clamp(-1.0, 1.0), 0.0)


def least_linear(p: Tensor, limits: Limits) -> tuple[Tensor, Tensor]:
    r"""The largest `-p.u` over the unit ball within limits, rounded up, and the u where it (nearly) is.

    For every split `p = p1 + p2`, p1.u is least over the ball and p2.u over the limits:

        -p.u <= ||p1||_2 + sum_d max(-p2_d low_d, -p2_d high_d).

    With `u = clamp(-p / lam)` of length 1 and `p1 = -lam u` this is exact. The coordinates at their limits grow in
    number as lam falls, so that some steps find it; whatever they find proves a bound.

    Args:
        p: (..., n).
        limits: low and high, of shapes that broadcast to p's.

    >>> import torch
    >>> p, one = torch.tensor([3.0, 4.0], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    >>> [round(float(least_linear(p, limits)[0]), 9) for limits in ((-one, one), (0 * one, one), (-one / 10, one))]
    [5.0, 0.0, 0.7]
    """
    low, high = limits
    u, lam = _farthest(p, low, high)
    first = lam * u
    over = [_over_limits(p, low, high), length(first) + _over_limits(p + first, low, high)]
    total = torch.stack([length(p), *over])
    off = (p.abs() + first.abs()).sum(-1) * ((p.shape[-1] + 16) * ULP) + 2.0**-900
    return torch.nan_to_num(total.amin(0) + off, nan=torch.inf), u


def _farthest(p: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The u of `least_linear` and its lam, (..., 1). Proves nothing."""
    scale = p.abs().amax(-1, keepdim=True).clamp_min(2.0**-900)
    p = p / scale
    lam = p.norm(dim=-1, keepdim=True).clamp_min(2.0**-500)
    for _ in range(_STEPS):
        u = -p / lam
        inside = torch.maximum(torch.minimum(u, high), low)
        free = inside == u
        left = (1.0 - torch.where(free, 0.0, inside).square().sum(-1, keepdim=True)).clamp_min(1e-12)
        less = torch.minimum(lam, torch.where(free, p, 0.0).norm(dim=-1, keepdim=True) / left.sqrt())
        less = less.clamp_min(2.0**-500)
        if torch.equal(less, lam):
            break
        lam = less
    return torch.maximum(torch.minimum(-p / lam, high), low), lam * scale


_STEPS = 10


def _over_limits(p: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.maximum(-p * low, -p * high).sum(-1)


def nearest(z: Tensor, limits: Limits) -> Tensor:
    """The point of the unit ball within limits that is nearest to z, up to rounding."""
    inside = torch.maximum(torch.minimum(z, limits[1]), limits[0])
    size = inside.norm(dim=-1, keepdim=True)
    return inside if bool((size <= 1.0).all()) else torch.where(size <= 1.0, inside, _farthest(-z, *limits)[0])
