"""`certify`: prove or refute that no perturbation of an input changes the prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from polybound.certificates.ball_ladder import ladder_over
from polybound.certificates.ball_ledgers import BallDecisions
from polybound.certificates.balls import Balls
from polybound.certificates.boxes import Domain
from polybound.certificates.decisions import Decisions
from polybound.certificates.forms import Margins
from polybound.certificates.inputs import (
    Boxes,
    checked_boxes,
    checked_domain,
    checked_labels,
    checked_method,
    checked_norm,
)
from polybound.certificates.ladder import TOPS
from polybound.certificates.network import Network
from polybound.certificates.relax import relax
from polybound.certificates.result import Certificates, Status
from polybound.errors import PolyboundError
from polybound.models import Factors, PolynomialNetwork

__all__ = ["Labelled", "Method", "certified_accuracy", "certify"]

Method = Literal["auto", "second", "first", "crown", "zonotope", "interval", "lipschitz"]


def certify(
    model: PolynomialNetwork | Factors | Network,
    x: Tensor,
    y: Tensor | Sequence[int],
    eps: float | Tensor | None = None,
    *,
    box: tuple[Tensor, Tensor] | None = None,
    domain: Domain | None = (-1.0, 1.0),
    norm: str | float = "inf",
    method: Method = "auto",
    budget: float = 10.0,
    keep: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Certificates:
    """Decide for each input whether some x' of the domain with `|x' - x| <= eps` is not classified as its label.

    The statement is about the polynomial with the model's weights in real arithmetic, and holds in spite of float64's
    rounding: see `Network`. `docs/certificates.md` says how it is proven.

    Args:
        model: a model, or its factors.
        x: inputs, (images, *shape) or (images, features).
        y: labels.
        eps: how far an entry of an input can move, in the units of x: one number for all, one for each input,
            (images,), or one for each feature, (1, *shape) or (images, *shape).
        box: in the place of eps, the sides (lower, upper) themselves, tensors that broadcast to x and have x between
            them. They must lie within the domain.
        domain: the smallest and largest value that an entry of an input can have, numbers or tensors of the shape of
            one input; None for no limits.
        norm: of the ball, "inf" or "2". With "2", `||x' - x||_2 <= eps`; with a radius for each feature,
            `sum_d ((x'_d - x_d) / eps_d)^2 <= 1`. There is no box then.
        method: "auto" takes all rungs: first order, attacks, second order, branch and bound. "first" and "second" stop
            after that rung. "crown", "zonotope", "interval" and "lipschitz" are bounds to compare with, without
            attacks; of these, l_2 balls have "lipschitz".
        budget: seconds of branch and bound for each image.
        keep: whether to keep the proofs, to save them.
        on_progress: called with the number of images that are through.

    >>> import torch, polybound as pb
    >>> model = pb.CCP(features=4, rank=3, classes=2, degree=2, seed=0, dtype=torch.float64)
    >>> x = torch.tensor([[0.5, -0.5, 0.25, 0.0]])
    >>> label = model(x.double()).argmax(1)
    >>> pb.certify(model, x, label, eps=0.01).status
    ['verified']
    >>> pb.certify(model, x, label, eps=torch.tensor([[0.02, 0.0, 0.01, 0.001]])).status
    ['verified']
    >>> pb.certify(model, x, label, eps=0.01, norm="2").status
    ['verified']
    """
    net = model if isinstance(model, Network) else Network(model)
    boxes = checked_boxes(net, x, eps, box, domain)
    labels = checked_labels(net, y, len(boxes.x))
    checked_method(method, get_args(Method), budget)
    norm = checked_norm(norm, box, method)
    forms = Margins(net, labels)
    balls = Balls.within(boxes, checked_domain(net, domain)) if norm == "2" else None
    ledger = _ledger(forms, boxes, balls, keep and method in TOPS)
    with torch.no_grad():
        _ = net.stretch, net.norms_S  # once for a model, before the clock of the first images starts
        if method in TOPS:
            options: dict[str, Any] = {"top": TOPS[method], "budget": budget, "on_progress": on_progress}
            ladder_over(forms, boxes, balls, ledger, **options).climb()
        else:
            relax(forms, boxes, ledger, method, on_progress, balls)
            ledger.rung = [method if rung == "first" else rung for rung in ledger.rung]
    return _certificates(ledger, labels, boxes, x.shape[1:], method, norm)


def _ledger(forms: Margins, boxes: Boxes, balls: Balls | None, keep: bool) -> Decisions:
    if balls is None:
        return Decisions(forms, len(boxes.x), boxes.inner, keep)
    return BallDecisions(forms, balls, boxes.inner, keep)


def _certificates(
    ledger: Decisions, labels: Tensor, boxes: Boxes, shape: Sequence[int], method: str, norm: str
) -> Certificates:
    margin = ledger.bound.amin(1)
    status: list[Status] = []
    for image, least in enumerate(margin.tolist()):
        falsified = image in ledger.counterexample
        if falsified and least > 0:
            raise AssertionError(f"image {image} is both verified and falsified: please report this")
        status.append("falsified" if falsified else "verified" if least > 0 else "undecided")
    found = [ledger.counterexample.get(image) for image in range(len(status))]
    return Certificates(
        status=status,
        margin=margin,
        counterexample=[None if pair is None else pair[0].reshape(tuple(shape)) for pair in found],
        rung=ledger.rung,
        seconds=ledger.spent,
        cost=ledger.cost,
        label=labels,
        rival=torch.tensor([-1 if pair is None else pair[1] for pair in found], dtype=torch.int64),
        eps=boxes.eps if boxes.eps is None or boxes.eps.ndim == 1 else boxes.eps.reshape(len(labels), *shape),
        box=boxes.sides and (boxes.sides[0].reshape(len(labels), *shape), boxes.sides[1].reshape(len(labels), *shape)),
        method=method,
        norm=norm,
        proofs=ledger.proofs if ledger.keep else None,
    )


class Labelled(Protocol):
    """What `certified_accuracy` needs of a data set."""

    @property
    def x(self) -> Tensor:
        """Inputs."""

    @property
    def y(self) -> Tensor:
        """Labels."""

    @property
    def domain(self) -> tuple[float, float]:
        """The smallest and largest value of an entry."""


def certified_accuracy(
    model: PolynomialNetwork | Factors | Network,
    data: Labelled,
    eps: float | Tensor | None = None,
    *,
    box: tuple[Tensor, Tensor] | None = None,
    images: int | None = None,
    norm: str | float = "inf",
    method: Method = "auto",
    budget: float = 1.0,
) -> float:
    """The share of inputs that are verified: no attack within eps can bring the accuracy below it.

    Args:
        model: a model, or its factors.
        data: a data set; its domain is what perturbations stay in.
        eps: how far an entry can move, in the units of the inputs, as in `certify`.
        box: as in `certify`.
        images: how many inputs, from the first on; all by default.
        norm: of the ball, "inf" or "2", as in `certify`.
        method: as in `certify`.
        budget: seconds of branch and bound for each input.

    >>> import polybound as pb
    >>> model = pb.paper_model("pn-4", shape=(1, 8, 8), seed=0)
    >>> 0 <= pb.certified_accuracy(model, pb.data.load_digits("test"), eps=0.1, images=8) <= 1
    True
    """
    x, y = data.x[:images], data.y[:images]
    if not len(x):
        raise PolyboundError("no inputs to certify")
    found = certify(model, x, y, eps, box=box, domain=data.domain, norm=norm, method=method, budget=budget)
    return found.count("verified") / len(x)
