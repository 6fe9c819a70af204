"""The largest certified radius of each input, by bisection."""

from __future__ import annotations

from collections.abc import Sequence
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

__all__ = ["Radius", "certified_radius"]


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
        tolerance: how close the bracket gets, where everything is decided.
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
    certified = torch.zeros(len(points), dtype=torch.float64)
    attacked = torch.full_like(certified, torch.inf)
    failed = torch.full_like(certified, largest)  # the least radius that is not verified
    tried = torch.full_like(certified, min(largest, 8 * tolerance))
    searching = torch.ones(len(points), dtype=torch.bool)
    while searching.any():
        rows = torch.nonzero(searching).squeeze(1)
        found = certify(net, points[rows], labels[rows], _scaled(tried[rows], units), **options)
        for row, status, point in zip(rows.tolist(), found.status, found.counterexample, strict=True):
            if status == "verified":
                certified[row] = max(certified[row], tried[row])
                continue
            failed[row] = min(failed[row], tried[row])
            if point is not None:
                away = _distance(point.reshape(-1) - points[row], units, norm)
                attacked[row] = min(attacked[row], away * (1 + 2.0**-50))
                # The sides are rounded outwards: a point may be a rounding farther off than what was tried.
                failed[row] = min(failed[row], away)
        searching = (failed - certified > tolerance) & (certified < largest)
        # Doubling until something fails, halving from then on.
        doubled = (2 * tried).clamp_max(largest)
        tried = torch.where((failed >= largest) & (tried < largest), doubled, (certified + failed) / 2)
    return Radius(certified, attacked)


def _checked_scale(net: Network, scale: Tensor) -> Tensor:
    units = as_float64(scale, "scale")
    if units.numel() != net.features:
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
