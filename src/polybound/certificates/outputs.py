"""`output_bounds`: how small and how large outputs get, proven; `decide`: whether they can meet linear conditions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from polybound.certificates.bounds.baselines import relax
from polybound.certificates.forms import Combinations
from polybound.certificates.graphs import GRAPH_METHODS, PreparedGraph, graph_ranges, prepared
from polybound.certificates.input_sets import Domain, Sides, checked_forms, input_set
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.search.balls import verifier
from polybound.certificates.search.boxes import STAGES, Progress, Search
from polybound.certificates.search.cells import find_unsafe
from polybound.certificates.search.proof_state import RangeProofs, SignProofs
from polybound.errors import ArgumentError, PolyboundError
from polybound.models import Factors

ENDS = ("lower", "lowest", "highest", "upper")
"""The ends of the proven interval and, within it, of the attained one."""

BoundMethod = Literal["auto", "second", "first", "crown", "interval"]


@dataclass(frozen=True, eq=False, repr=False)
class OutputBounds:
    """For each image and each form g of the outputs: `lower <= min g <= lowest` and `highest <= max g <= upper`.

    All four hold for the real polynomial over the true box, in spite of rounding: `lowest` and `highest` are values in
    float64 at `lowest_at` and `highest_at`, moved by their largest possible error (so that at a single point `lowest`
    is above `highest`, by that much).

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
        """The width of the proven interval less that of the attained one, (images, rows)."""
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
    model: nn.Module | Factors | PreparedNetwork | PreparedGraph,
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
    on_progress: Progress | None = None,
) -> OutputBounds:
    """Bound every output, or `weights f + constant`, over all x' of the domain with `|x' - x| <= eps`.

    The stages are those of `certify`: a margin is such a form. Branch and bound goes on until the gap is small enough
    or the time is up.

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
        method: "auto" takes all stages; "first" and "second" stop after that stage; "crown" and "interval" are bounds
            to compare with, without a search for attained values; l_2 balls have none of these.
        tolerance: branch and bound stops where the gap of an end is below this share of the attained width.
        keep: whether to keep the proofs, to save them.
        on_progress: called as `on_progress(done, total, text)`, with numbers of images.

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
    net = prepared(model, None if x is None else tuple(x.shape[1:]))
    inputs = input_set(net, x, eps, box, domain, norm)
    if not 0 <= tolerance < torch.inf:
        raise PolyboundError(f"tolerance must not be negative, got {tolerance!r}")
    search = Search(method, budget, strict=True)
    search.check(get_args(BoundMethod), inputs.norm)
    a, b = checked_forms(net, weights, constant)
    both, proofs = (torch.cat([a, -a]), torch.cat([b, -b])), dict[tuple[int, int], Any]() if keep else None
    if isinstance(net, PreparedGraph):
        if method not in GRAPH_METHODS:
            known = ", ".join(GRAPH_METHODS)
            raise ArgumentError("method", f"{method!r} is for chains of products; deep networks have {known}")
        begun = time.perf_counter()
        with torch.no_grad():
            bound, value, where = graph_ranges(net, inputs, *both, method, proofs)
        taken = (time.perf_counter() - begun) / max(1, len(inputs))
        seconds = torch.full((len(inputs),), taken, dtype=torch.float64)
    else:
        state = RangeProofs(Combinations(net, *both), inputs, tolerance, keep and method in STAGES)
        net.prepare(inputs.norm)
        with torch.no_grad():
            if method in STAGES:
                verifier(state, search).run(on_progress)
            else:
                relax(state, method, on_progress)
            value, where = state.attained()
        bound, seconds, proofs = state.bound, state.spent, state.proven() if state.keep else None
    rows, shape = len(a), tuple(net.shape if x is None else x.shape[1:])
    where = where.reshape(*value.shape, *shape)
    radii, sides = inputs.asked(shape)
    return OutputBounds(
        lower=bound[:, :rows],
        upper=-bound[:, rows:],
        lowest=value[:, :rows],
        highest=-value[:, rows:],
        lowest_at=where[:, :rows],
        highest_at=where[:, rows:],
        seconds=seconds,
        method=method,
        norm=inputs.norm,
        weights=a,
        constant=b,
        eps=radii,
        box=sides,
        proofs=proofs,
    )


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
    """The answer about a box and an unsafe set.

    Attributes:
        answer: "unsat": proven, no point of the box has unsafe outputs. "sat": `point` has unsafe outputs. "unknown":
            neither was shown in time.
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
    model: nn.Module | Factors | PreparedNetwork | PreparedGraph,
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
        model: a model, or its factors. Deep networks have the bounds of `output_bounds`, and cells as well.
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
    net = prepared(model, tuple(box[0].shape))
    inputs = input_set(net, None, None, box, None)
    if len(inputs) != 1:
        raise PolyboundError(f"one box at a time, got {len(inputs)}")
    polytopes = [unsafe] if isinstance(unsafe, Polytope) else unsafe
    rows = [checked_forms(net, polytope.weights, polytope.constant) for polytope in polytopes]
    found, open_ = None, False
    empty = [index for index, (a, _) in enumerate(rows) if not len(a)]
    if empty:  # no condition: every point will do
        found = inputs.x[0], empty[0]
    elif rows and isinstance(net, PreparedGraph):
        with torch.no_grad():
            found, open_ = find_unsafe(net, inputs.outer[0], inputs.outer[1], rows, begun + timeout)
    elif rows and isinstance(net, PreparedNetwork):
        weights, constant = (torch.cat(part) for part in zip(*rows, strict=True))
        state = SignProofs(Combinations(net, weights, constant, [len(a) for a, _ in rows]), inputs)
        net.prepare("inf")
        with torch.no_grad():
            left = max(0.0, begun + timeout - time.perf_counter())
            verifier(state, Search(budget=left, strict=True)).run()
        found, open_ = state.counterexample.get(0), not bool((state.bound > 0).all())
    seconds = time.perf_counter() - begun
    if found is None:
        return Decision("unknown" if open_ else "unsat", None, None, None, seconds)
    point, polytope = found
    with torch.no_grad():
        outputs = (net.graph if isinstance(net, PreparedGraph) else net)(point.unsqueeze(0))[0]
    return Decision("sat", point.reshape(net.shape), outputs, polytope, seconds)
