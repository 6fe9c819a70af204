"""`decide`: whether a box holds a point whose outputs are in a set that is called unsafe."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from polybound.certificates.conjunctions import Conjunctions
from polybound.certificates.decisions import Decisions
from polybound.certificates.inputs import Boxes, checked_boxes, checked_forms
from polybound.certificates.ladder import Ladder
from polybound.certificates.network import Network
from polybound.errors import PolyboundError
from polybound.models import Factors, PolynomialNetwork

__all__ = ["Answer", "Decision", "Polytope", "decide"]

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
    model: PolynomialNetwork | Factors | Network,
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
    net = model if isinstance(model, Network) else Network(model)
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
    net: Network, boxes: Boxes, rows: list[tuple[Tensor, Tensor]], deadline: float
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
