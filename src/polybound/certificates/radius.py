"""The largest certified radius of each input, by bisection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polybound.certificates.boxes import Domain
from polybound.certificates.certify import Method, certify
from polybound.certificates.inputs import as_float64, checked_boxes, checked_labels, checked_norm
from polybound.certificates.network import Network
from polybound.certificates.regions import length
from polybound.errors import PolyboundError
from polybound.models import Factors, PolynomialNetwork

__all__ = ["Radius", "bisected", "certified_radius"]


@dataclass(frozen=True, eq=False, repr=False)
class Radius:
    """For each input: no perturbation within `certified` changes its prediction; one within `attacked` does.

    Both are in units of `scale`: feature d moves by at most `certified * scale_d`.

    Attributes:
        certified: (images,); 0 where nothing is certified, also of misclassified inputs.
        attacked: (images,); infinity where no counterexample was found within the largest radius tried.
    """

    certified: Tensor
    attacked: Tensor

    def __repr__(self) -> str:
        """The range of both ends, in one line."""
        if not len(self.certified):
            return "Radius(0 images)"
        ends = ((name, getattr(self, name)) for name in ("certified", "attacked"))
        ranges = (f"{name} {float(values.min()):.3g} to {float(values.max()):.3g}" for name, values in ends)
        return f"Radius({len(self.certified)} images: {', '.join(ranges)})"


def certified_radius(
    model: PolynomialNetwork | Factors | Network,
    x: Tensor,
    y: Tensor | Sequence[int],
    *,
    largest: float = 1.0,
    tolerance: float = 1e-3,
    scale: Tensor | None = None,
    domain: Domain | None = (-1.0, 1.0),
    norm: str | float = "inf",
    method: Method = "auto",
    budget: float = 1.0,
) -> Radius:
    """Bracket the largest r for which every x' with `|x' - x| <= r * scale` is classified as x is labelled.

    All inputs are bisected together; a counterexample moves the upper end to its own distance.

    Args:
        model: a model, or its factors.
        x: inputs.
        y: labels.
        largest: no radius above this is tried.
        tolerance: how close the bracket gets, where everything is decided, but no closer than float64 numbers are.
        scale: how far each feature moves for a radius of 1, of the shape of one input, not negative; 1 by default,
            which is the norm itself. Features of scale 0 stay as they are.
        domain: as in `certify`.
        norm: "inf" or "2"; with "2" and a scale, of `(x' - x) / scale`.
        method: as in `certify`.
        budget: seconds of branch and bound for each input and radius.

    >>> import torch, polybound as pb
    >>> model = pb.CCP(features=4, rank=3, classes=2, degree=2, seed=0, dtype=torch.float64)
    >>> x = torch.tensor([[0.5, -0.5, 0.25, 0.0]])
    >>> radius = pb.certified_radius(model, x, model(x.double()).argmax(1))
    >>> bool(0 < radius.certified[0] <= radius.attacked[0])
    True
    """
    if not tolerance > 0 or not 0 < largest < torch.inf:
        raise PolyboundError("tolerance and the largest radius must be positive")
    net = model if isinstance(model, Network) else Network(model)
    points = checked_boxes(net, x, 0.0, None, domain).x
    labels = checked_labels(net, y, len(points))
    norm = checked_norm(norm, None, method)
    units = None if scale is None else _checked_scale(net, scale)
    options: dict[str, Any] = {"domain": domain, "norm": norm, "method": method, "budget": budget}
    attacked = torch.full((len(points),), torch.inf, dtype=torch.float64)

    def tried(rows: Tensor, radii: Tensor) -> tuple[Tensor, Tensor]:
        found = certify(net, points[rows], labels[rows], _scaled(radii, units), **options)
        held = torch.tensor([status == "verified" for status in found.status])
        least = radii.clone()
        for index, (row, point) in enumerate(zip(rows.tolist(), found.counterexample, strict=True)):
            if point is not None:
                away = _distance(point.reshape(-1) - points[row], units, norm)
                attacked[row] = min(attacked[row], away * (1 + 2.0**-50))
                # The sides are rounded outwards: a point may be a rounding farther off than what was tried.
                least[index] = min(least[index], away)
        return held, least

    return Radius(bisected(tried, len(points), largest, tolerance), attacked)


def bisected(
    tried: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], rows: int, largest: float, tolerance: float
) -> Tensor:
    """For each row the largest radius that held, by doubling and bisection; 0 if none did.

    A row is done when the least radius that failed is within `tolerance` of it, or when no number lies between the
    two: a tolerance below the spacing of numbers ends there.

    Args:
        tried: given rows and a radius for each, tells which held, and for those that did not a radius that fails, at
            most the one that was tried.
        rows: how many there are.
        largest: no radius above this is tried.
        tolerance: not negative.
    """
    held = torch.zeros(rows, dtype=torch.float64)
    failed = torch.full_like(held, torch.inf)
    radius = torch.full_like(held, min(largest, max(8 * tolerance, 2.0**-1022)))
    going = torch.arange(rows)
    while len(going):
        well, least = tried(going, radius[going])
        held[going] = torch.where(well, torch.maximum(held[going], radius[going]), held[going])
        failed[going] = torch.where(well, failed[going], torch.minimum(failed[going], least))
        # Doubling until something fails, halving from then on.
        radius = torch.where(torch.isinf(failed), (2 * radius).clamp_max(largest), held + (failed - held) / 2)
        close = (failed - held <= tolerance) | (held >= largest) | (radius <= held) | (radius >= failed)
        going = torch.nonzero(~close).squeeze(1)
    return held


def _checked_scale(net: Network, scale: Tensor) -> Tensor:
    units = as_float64(scale, "scale")
    if tuple(units.shape) not in (tuple(net.shape), (net.features,)):
        raise PolyboundError(f"scale must have the shape of one input, {net.shape}, got {tuple(units.shape)}")
    if not (torch.isfinite(units) & (units >= 0)).all() or not units.any():
        raise PolyboundError("scale must be finite and not negative, and not zero everywhere")
    return units.reshape(-1)


def _scaled(radius: Tensor, units: Tensor | None) -> Tensor:
    """`radius * units` rounded up, (images, features); without units the radii themselves."""
    if units is None:
        return radius
    eps = radius.unsqueeze(1) * units
    exact = (units == 0) | (units == 1)
    return torch.where(exact, eps, torch.nextafter(eps, eps.new_tensor(torch.inf)))


def _distance(away: Tensor, units: Tensor | None, norm: str) -> Tensor:
    """The least radius whose box or ball holds a point that far away, up to rounding."""
    part = away.abs() if units is None else away.abs()[units > 0] / units[units > 0]
    return length(part) if norm == "2" else part.max()
