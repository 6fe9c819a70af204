"""`certify`: prove or refute that no perturbation of an input changes the prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Literal, Protocol, get_args

from torch import Tensor

from polybound.certificates.balls import Balls
from polybound.certificates.boxes import Domain
from polybound.certificates.inputs import (
    checked_boxes,
    checked_domain,
    checked_labels,
    checked_method,
    checked_norm,
)
from polybound.certificates.network import Network
from polybound.certificates.questions import Question
from polybound.certificates.result import Certificates
from polybound.errors import PolyboundError
from polybound.models import Factors, PolynomialNetwork
from polybound.parallel import checked_workers
from polybound.registry import check_whole

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
    budget: float | None = None,
    nodes: int | None = None,
    keep: bool = False,
    workers: int = 1,
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
        budget: seconds of branch and bound for each image; 10 by default, and no limit where `nodes` has one.
        nodes: how many cells branch and bound splits for each image at most, a limit that is the same on every machine.
        keep: whether to keep the proofs, to save them.
        workers: processes that images are shared out to, each with one thread. What is decided does not depend on
            their number; that of PyTorch's threads may change last bits, and `budget` is time, which `nodes` is not.
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
    if nodes is not None:
        check_whole("nodes", nodes, 0)
    seconds = budget if budget is not None else 10.0 if nodes is None else inf
    checked_method(method, get_args(Method), seconds)
    norm = checked_norm(norm, box, method)
    checked_workers(workers)
    balls = Balls.within(boxes, checked_domain(net, domain)) if norm == "2" else None
    limits = seconds, inf if nodes is None else nodes
    asked = Question(net, labels, boxes, balls, tuple(x.shape[1:]), method, *limits, keep)
    return asked.answer(workers, on_progress)


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
    workers: int = 1,
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
        workers: processes, as in `certify`.

    >>> import polybound as pb
    >>> model = pb.paper_model("pn-4", shape=(1, 8, 8), seed=0)
    >>> 0 <= pb.certified_accuracy(model, pb.data.load_digits("test"), eps=0.1, images=8) <= 1
    True
    """
    x, y = data.x[:images], data.y[:images]
    if not len(x):
        raise PolyboundError("no inputs to certify")
    options: dict[str, Any] = {"norm": norm, "method": method, "budget": budget, "workers": workers}
    found = certify(model, x, y, eps, box=box, domain=data.domain, **options)
    return found.count("verified") / len(x)
