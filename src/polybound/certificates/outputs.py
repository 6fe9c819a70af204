"""`output_bounds`: how small and how large outputs get, proven; `decide`: whether they can meet linear conditions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from polybound.certificates.bounds.baselines import relax
from polybound.certificates.bounds.first_order import First, first_order
from polybound.certificates.forms import Cells, Combinations
from polybound.certificates.input_sets import (
    Balls,
    Boxes,
    Domain,
    Sides,
    checked_boxes,
    checked_domain,
    checked_forms,
    checked_method,
    checked_norm,
)
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.search.balls import ladder_over
from polybound.certificates.search.boxes import TOPS, Ladder
from polybound.certificates.search.proof_state import BallExtremes, Decisions, Extremes
from polybound.errors import PolyboundError
from polybound.models import Factors, PolynomialNetwork

__all__ = [
    "ENDS",
    "Answer",
    "BoundMethod",
    "Conjunctions",
    "Decision",
    "OutputBounds",
    "Polytope",
    "decide",
    "output_bounds",
]


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
    model: PolynomialNetwork | Factors | PreparedNetwork,
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
    net = model if isinstance(model, PreparedNetwork) else PreparedNetwork(model)
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


# Claims about several forms at once: that not all of them are at most zero at any point of the box.


_TURNS = 24
"""Steps towards the best combination of a claim's forms."""


class Conjunctions(Combinations):
    r"""Each claim says of some rows of `weights f + constant` that their maximum is positive all over the box.

    It holds where any combination `sum_i lambda_i g_i` with `lambda >= 0` is positive. Each cell has a
    combination of its own, whose first-order bound is nearly the largest.

    Args:
        net: the network.
        weights: (rows, classes).
        constant: (rows,).
        sizes: number of rows of each claim, at least 1; the rows stand in the order of the claims.
    """

    def __init__(self, net: PreparedNetwork, weights: Tensor, constant: Tensor, sizes: list[int]) -> None:
        super().__init__(net, weights, constant)
        self.claims = len(sizes)
        self.alone = all(size == 1 for size in sizes)
        starts = [sum(sizes[:claim]) for claim in range(len(sizes))]
        widest = max(sizes, default=1)
        # A claim with fewer rows than the widest has its last one several times.
        places = [[start + min(i, size - 1) for i in range(widest)] for start, size in zip(starts, sizes, strict=True)]
        self.places = torch.tensor(places, dtype=torch.int64).reshape(len(sizes), widest)
        self.sizes, self.starts = sizes, starts

    def by_claim(self, values: Tensor) -> Tensor:
        """The largest form of each claim."""
        return values[:, self.places].amax(-1)

    def first_rows(self, values: Tensor) -> Tensor:
        """The row of the largest form of each claim."""
        best = values[:, self.places].argmax(-1, keepdim=True)
        return self.places.expand(len(values), -1, -1).gather(-1, best).squeeze(-1)

    def coefficients(self, _image: int, claim: int, /) -> tuple[Tensor, Tensor]:
        """The rows of a claim."""
        rows = slice(self.starts[claim], self.starts[claim] + self.sizes[claim])
        return self.weights[rows], self.constant[rows]

    def members(self, cells: Cells, /) -> tuple[Tensor, Tensor] | None:
        """The forms of each cell's claim."""
        if self.alone:
            return None
        rows = self.places[cells.claim]
        return self.w[rows], self.offset[rows]

    def combined(self, cells: Cells) -> Cells:
        """The cells, each with the combination of its claim's forms whose first order is best over its box."""
        members = self.members(cells)
        if members is None or not len(cells):
            return cells
        c, r = cells.centre()
        reach = self.net.slack(torch.maximum(cells.lower.abs(), cells.upper.abs()))
        slack = self.slack(reach).gather(1, self.places[cells.claim])
        first = first_order(self.net, c, r, *members)
        share = _best_share(first)
        w, constant = ((share.unsqueeze(1) @ members[0]).squeeze(1), (share * members[1]).sum(-1))
        # The sum over the members adds as many roundings to each term as there are members, and one.
        more = (1 + (share.shape[1] + 2) / self.net.roundings) * (1 + 2.0**-20)
        total = (share * slack).sum(-1) * more + 2.0**-900
        return replace(cells, w=w, constant=constant, slack=total, target=total)


def _best_share(first: First) -> Tensor:
    """Shares of a claim's forms, (N, forms), not negative, with a large bound of first order; they prove nothing.

    `L(lambda) = sum_i lambda_i (g0_i - R_i) - ||sum_i lambda_i G_i||_1` is concave: multiplicative steps along its
    slope, each form scaled to size 1, from the best single form and from the mean of all.
    """
    scale = (first.g0.abs() + first.G.abs().sum(-1) + first.R).clamp_min(2.0**-500)
    level, G = (first.g0 - first.R) / scale, first.G / scale.unsqueeze(-1)
    single = level - G.abs().sum(-1)
    best, which = single.max(-1)
    chosen = torch.nn.functional.one_hot(which, single.shape[1]).to(single.dtype)
    share = torch.full_like(single, 1 / single.shape[1])
    for turn in range(_TURNS):
        total = (share.unsqueeze(1) @ G).squeeze(1)
        value = (share * level).sum(-1) - total.abs().sum(-1)
        better = value > best
        best, chosen = torch.where(better, value, best), torch.where(better.unsqueeze(-1), share, chosen)
        slope = level - (G @ total.sign().unsqueeze(-1)).squeeze(-1)
        share = torch.softmax(share.clamp_min(1e-12).log() + slope * (4 / (1 + turn / 4)), -1)
    return chosen / scale


# `decide`: whether a box holds a point whose outputs are in a set that is called unsafe.


Answer = Literal["unsat", "sat", "unknown"]


@dataclass(frozen=True, eq=False)
class Polytope:
    """The outputs f with `weights f + constant <= 0` in every row.

    Attributes:
        weights: (rows, classes).
        constant: (rows,).
    """

    weights: Tensor
    constant: Tensor


@dataclass(frozen=True, eq=False)
class Decision:
    """What is known of a box and an unsafe set.

    Attributes:
        answer: "unsat": no point of the box has unsafe outputs, proven. "sat": `point` has. "unknown": neither was
            shown in time.
        point: a float64 point of the box in the shape of an input. That its outputs are unsafe is proven: by values
            farther from zero than float64 can be off, or else in rational arithmetic. None unless "sat".
        outputs: the outputs there as float64 computes them, (classes,); None unless "sat".
        polytope: which of the polytopes holds those outputs; None unless "sat".
        seconds: how long it took.
    """

    answer: Answer
    point: Tensor | None
    outputs: Tensor | None
    polytope: int | None
    seconds: float


def decide(
    model: PolynomialNetwork | Factors | PreparedNetwork,
    box: tuple[Tensor, Tensor],
    unsafe: Polytope | Sequence[Polytope],
    *,
    timeout: float = 60.0,
) -> Decision:
    """Decide whether some x of a box has outputs in a union of polytopes, as VNN-LIB asks.

    A polytope is excluded from a cell of the box when one of its rows, or a combination of them with weights that are
    not negative, is positive all over the cell; other cells are split. The bounds are those of `certify`, for which a
    rival is a polytope of one row.

    Args:
        model: a model, or its factors.
        box: the sides (lower, upper), tensors of the shape of one input.
        unsafe: the polytopes, or the only one; none at all means "unsat".
        timeout: seconds, after which the answer is "unknown". It may be overrun by what one batch of cells takes.

    >>> import torch, polybound as pb
    >>> model = pb.CCP(features=2, rank=3, classes=2, degree=2, seed=0, dtype=torch.float64)
    >>> box = (torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.5]))
    >>> least = pb.certificates.Polytope(torch.tensor([[1.0, 0.0]]), torch.tensor([100.0]))
    >>> pb.certificates.decide(model, box, [least]).answer
    'unsat'
    """
    begun = time.perf_counter()
    if not timeout >= 0:
        raise PolyboundError(f"timeout must be a number of seconds, got {timeout!r}")
    net = model if isinstance(model, PreparedNetwork) else PreparedNetwork(model)
    boxes = checked_boxes(net, None, None, box, None)
    if len(boxes.x) != 1:
        raise PolyboundError(f"one box at a time, got {len(boxes.x)}")
    polytopes = [unsafe] if isinstance(unsafe, Polytope) else unsafe
    rows = [checked_forms(net, polytope.weights, polytope.constant) for polytope in polytopes]
    empty = [index for index, (a, _) in enumerate(rows) if not len(a)]
    if empty:  # no condition: every point will do
        found: tuple[Tensor, int] | None = boxes.x[0], empty[0]
        open_ = False
    else:
        found, open_ = _search(net, boxes, rows, begun + timeout)
    seconds = time.perf_counter() - begun
    if found is None:
        return Decision("unknown" if open_ else "unsat", None, None, None, seconds)
    point, polytope = found
    return Decision("sat", point.reshape(net.shape), net(point.unsqueeze(0))[0], polytope, seconds)


def _search(
    net: PreparedNetwork, boxes: Boxes, rows: list[tuple[Tensor, Tensor]], deadline: float
) -> tuple[tuple[Tensor, int] | None, bool]:
    """A point with the polytope it falls into, or None; and whether anything was left open."""
    if not rows:
        return None, False
    weights, constant = (torch.cat(part) for part in zip(*rows, strict=True))
    forms = Conjunctions(net, weights, constant, [len(a) for a, _ in rows])
    ledger = Decisions(forms, 1, boxes.inner, keep=False)
    with torch.no_grad():
        _ = net.stretch, net.norms_S
        Ladder(forms, boxes, ledger, budget=max(0.0, deadline - time.perf_counter()), strict=True).climb()
    return ledger.counterexample.get(0), not bool((ledger.bound > 0).all())
