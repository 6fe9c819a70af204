"""`output_bounds`: how small and how large a network's outputs get over a box or an l_2 ball, proven."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from polybound.certificates.ball_ladder import ladder_over
from polybound.certificates.ball_ledgers import BallExtremes
from polybound.certificates.balls import Balls
from polybound.certificates.boxes import Domain, Sides
from polybound.certificates.extremes import Extremes
from polybound.certificates.forms import Combinations
from polybound.certificates.inputs import (
    Boxes,
    checked_boxes,
    checked_domain,
    checked_forms,
    checked_method,
    checked_norm,
)
from polybound.certificates.ladder import TOPS
from polybound.certificates.network import Network
from polybound.certificates.relax import relax
from polybound.errors import PolyboundError
from polybound.models import Factors, PolynomialNetwork

__all__ = ["ENDS", "BoundMethod", "OutputBounds", "output_bounds"]

ENDS = ("lower", "lowest", "highest", "upper")
"""The ends of the proven interval and, within it, of the attained one."""

BoundMethod = Literal["auto", "second", "first", "crown", "zonotope", "interval"]


@dataclass(frozen=True, eq=False, repr=False)
class OutputBounds:
    """For each image and each form g of the outputs: `lower <= min g <= lowest` and `highest <= max g <= upper`.

    All four hold of the real polynomial over the true box, in spite of rounding: `lowest` and `highest` are values in
    float64 at `lowest_at` and `highest_at`, moved by what they can be off (so that at a single point `lowest` is above
    `highest`, by that much).

    Attributes:
        lower: proven lower bounds, (images, rows), float64.
        upper: proven upper bounds.
        lowest: attained: at `lowest_at`, g is at most this.
        highest: attained: at `highest_at`, g is at least this.
        lowest_at: points of the boxes, (images, rows, *shape).
        highest_at: points of the boxes.
        seconds: time of each image, (images,).
        method: the method asked for.
        norm: of the ball, "inf" or "2".
        weights: of the forms, (rows, classes).
        constant: of the forms, (rows,).
        eps: as in `Certificates`.
        box: as in `Certificates`.
        proofs: proofs by image and claim, if they were kept; claim j is that form j is at least `lower`, claim `rows +
            j` that it is at most `upper`. `save_certificates` writes them.
    """

    lower: Tensor
    upper: Tensor
    lowest: Tensor
    highest: Tensor
    lowest_at: Tensor
    highest_at: Tensor
    seconds: Tensor
    method: str
    norm: str
    weights: Tensor
    constant: Tensor
    eps: Tensor | None
    box: Sides | None
    proofs: dict[tuple[int, int], dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def gap(self) -> Tensor:
        """What the proven interval has more than the attained one, both ends together, (images, rows)."""
        return (self.lowest - self.lower) + (self.upper - self.highest)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each image and form, as JSON can hold it: what has no finite bound is None."""
        ends = {name: getattr(self, name).tolist() for name in ENDS}
        return [
            {"image": image, "output": output}
            | {name: value[image][output] if isfinite(value[image][output]) else None for name, value in ends.items()}
            for image in range(len(self))
            for output in range(self.lower.shape[1])
        ]

    def __repr__(self) -> str:
        images, rows = self.lower.shape
        width = float((self.upper - self.lower).mean()) if self.lower.numel() else 0.0
        gap = float(self.gap.mean()) if self.lower.numel() else 0.0
        return f"OutputBounds(images={images}, rows={rows}, mean width={width:.4g}, mean gap={gap:.3g})"


def output_bounds(
    model: PolynomialNetwork | Factors | Network,
    x: Tensor | None,
    eps: float | Tensor | None = None,
    *,
    box: tuple[Tensor, Tensor] | None = None,
    weights: Tensor | Sequence[Sequence[float]] | None = None,
    constant: Tensor | Sequence[float] | None = None,
    domain: Domain | None = (-1.0, 1.0),
    norm: str | float = "inf",
    budget: float = 1.0,
    method: BoundMethod = "auto",
    tolerance: float = 1e-3,
    keep: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> OutputBounds:
    """Bound every output, or `weights f + constant`, over all x' of the domain with `|x' - x| <= eps`.

    The ladder is that of `certify`: a margin is such a form. Branch and bound goes on until the gap is small enough or
    the time is up.

    Args:
        model: a model, or its factors.
        x: inputs, (images, *shape) or (images, features); with `box`, None stands for the boxes' centres.
        eps: as in `certify`.
        box: as in `certify`.
        weights: (rows, classes), the linear combinations of outputs; by default each output by itself.
        constant: (rows,), zero by default.
        domain: as in `certify`.
        norm: of the ball, "inf" or "2", as in `certify`.
        budget: seconds for each image, of all its rows together; first order is computed in any case.
        method: "auto" takes all rungs; "first" and "second" stop after that rung; "crown", "zonotope" and "interval"
            are bounds to compare with, without a search for attained values; l_2 balls have none of these.
        tolerance: what each end may lack, as a share of the attained width, before branch and bound stops there.
        keep: whether to keep the proofs, to save them.
        on_progress: called with the number of images that are through.

    >>> import torch, polybound as pb
    >>> model = pb.CCP(features=4, rank=3, classes=2, degree=2, seed=0, dtype=torch.float64)
    >>> x = torch.tensor([[0.5, -0.5, 0.25, 0.0]])
    >>> found = pb.output_bounds(model, x, eps=0.1)
    >>> bool((found.lower < model(x.double())).all() and (model(x.double()) < found.upper).all())
    True
    >>> pb.output_bounds(model, x, eps=0.1, weights=[[1.0, -1.0]]).lower.shape
    torch.Size([1, 1])
    >>> ball = pb.output_bounds(model, x, eps=0.1, norm="2")
    >>> bool((found.lower <= ball.lowest).all() and (ball.highest <= found.upper).all())
    True
    """
    net = model if isinstance(model, Network) else Network(model)
    boxes = checked_boxes(net, x, eps, box, domain)
    checked_method(method, get_args(BoundMethod), budget)
    if not 0 <= tolerance < torch.inf:
        raise PolyboundError(f"tolerance must not be negative, got {tolerance!r}")
    norm = checked_norm(norm, box, method)
    a, b = checked_forms(net, weights, constant)
    forms = Combinations(net, torch.cat([a, -a]), torch.cat([b, -b]))
    balls = Balls.within(boxes, checked_domain(net, domain)) if norm == "2" else None
    ledger = _ledger(forms, boxes, balls, tolerance, keep and method in TOPS)
    with torch.no_grad():
        _ = net.stretch, net.norms_S  # once for a model, before the clock of the first images starts
        if method in TOPS:
            options: dict[str, Any] = {"top": TOPS[method], "budget": budget, "strict": True}
            ladder_over(forms, boxes, balls, ledger, **options, on_progress=on_progress).climb()
        else:
            relax(forms, boxes, ledger, method, on_progress)
    return _found(ledger, boxes, (a, b), net.shape if x is None else x.shape[1:], method, norm)


def _ledger(forms: Combinations, boxes: Boxes, balls: Balls | None, tolerance: float, keep: bool) -> Extremes:
    if balls is None:
        return Extremes(forms, len(boxes.x), boxes.inner, tolerance, keep)
    return BallExtremes(forms, balls, boxes.inner, tolerance, keep)


def _found(
    ledger: Extremes, boxes: Boxes, forms: tuple[Tensor, Tensor], shape: Sequence[int], method: str, norm: str
) -> OutputBounds:
    with torch.no_grad():
        value, where = ledger.attained()
    images, rows = len(boxes.x), len(forms[0])
    where = where.reshape(*value.shape, *shape)
    return OutputBounds(
        lower=ledger.bound[:, :rows],
        upper=-ledger.bound[:, rows:],
        lowest=value[:, :rows],
        highest=-value[:, rows:],
        lowest_at=where[:, :rows],
        highest_at=where[:, rows:],
        seconds=ledger.spent,
        method=method,
        norm=norm,
        weights=forms[0],
        constant=forms[1],
        eps=boxes.eps if boxes.eps is None or boxes.eps.ndim == 1 else boxes.eps.reshape(images, *shape),
        box=boxes.sides and (boxes.sides[0].reshape(images, *shape), boxes.sides[1].reshape(images, *shape)),
        proofs=ledger.proven() if ledger.keep else None,
    )
