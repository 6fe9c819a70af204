"""`certify`: prove or refute that no perturbation of an input changes the prediction."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf, isfinite
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from polybound.certificates.baselines import crown_bound, interval_bound, lipschitz_bound, zonotope_bound
from polybound.certificates.boxes import box_around, centre
from polybound.certificates.ladder import Ladder
from polybound.certificates.ledger import Ledger
from polybound.certificates.network import Network
from polybound.certificates.result import Certificates, Status
from polybound.errors import PolyboundError
from polybound.models import Factors, PolynomialNetwork

__all__ = ["Labelled", "Method", "certified_accuracy", "certify", "checked"]

Method = Literal["auto", "second", "first", "crown", "zonotope", "interval", "lipschitz"]
_TOPS = {"auto": "branch", "second": "second", "first": "first"}
_RELAXATIONS = {
    "crown": crown_bound,
    "zonotope": zonotope_bound,
    "interval": interval_bound,
    "lipschitz": lipschitz_bound,
}
_CHUNK = 32
_ENTRIES = 2**24  # of the rows that a linear relaxation sends back through the network, one for each unit


def certify(
    model: PolynomialNetwork | Factors | Network,
    x: Tensor,
    y: Tensor | Sequence[int],
    eps: float | Tensor,
    *,
    domain: tuple[float, float] | None = (-1.0, 1.0),
    method: Method = "auto",
    budget: float = 10.0,
    keep: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Certificates:
    """Decide for each input whether some x' of the domain with `|x' - x|_inf <= eps` is not classified as its label.

    The statement is about the polynomial with the model's weights in real arithmetic, and holds in spite of float64's
    rounding: see `Network`. `docs/certificates.md` says how it is proven.

    Args:
        model: a model, or its factors.
        x: inputs, (images, *shape) or (images, features).
        y: labels.
        eps: radius of the l_inf ball, one for all or one for each, in the units of x.
        domain: the smallest and largest value that an entry of an input can have; None for no limits.
        method: "auto" takes all rungs: first order, attacks, second order, branch and bound. "first" and "second" stop
            after that rung. "crown", "zonotope", "interval" and "lipschitz" are bounds to compare with, without
            attacks.
        budget: seconds of branch and bound for each image.
        keep: whether to keep the proofs, to save them.
        on_progress: called with the number of images that are through.

    >>> import torch, polybound as pb
    >>> model = pb.CCP(features=4, rank=3, classes=2, degree=2, seed=0, dtype=torch.float64)
    >>> x = torch.tensor([[0.5, -0.5, 0.25, 0.0]])
    >>> label = model(x.double()).argmax(1)
    >>> pb.certify(model, x, label, eps=0.01).status
    ['verified']
    """
    net = model if isinstance(model, Network) else Network(model)
    points, labels, radii = checked(net, x, y, eps, domain)
    if method not in get_args(Method):
        raise PolyboundError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if not budget >= 0:
        raise PolyboundError(f"budget must be a number of seconds, got {budget!r}")
    (lower, upper), inner = box_around(points, radii.unsqueeze(1), domain)
    with torch.no_grad():
        _ = net.stretch, net.norms_S  # once for a model, before the clock of the first images starts
        if method in _TOPS:
            options: dict[str, Any] = {"top": _TOPS[method], "budget": budget, "keep": keep, "on_progress": on_progress}
            ledger = Ladder(net, points, labels, lower, upper, inner, **options).climb()
        else:
            ledger = _relaxed(net, points, labels, lower, upper, inner, method, on_progress)
    return _certificates(ledger, radii, x.shape[1:], method, keep)


def checked(
    net: Network, x: Tensor, y: Tensor | Sequence[int], eps: float | Tensor, domain: tuple[float, float] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (images, features) and radii (images,) in float64, and labels; anything else is refused."""
    if x.ndim < 2 or x[0:1].numel() != net.features or not x.is_floating_point():
        raise PolyboundError(f"inputs must be floats of shape (images,) + {net.shape}, got {tuple(x.shape)}")
    points = x.detach().double().cpu().reshape(len(x), net.features)
    labels = torch.as_tensor(y).cpu()
    if labels.shape != (len(x),) or labels.is_floating_point():
        raise PolyboundError(f"one whole label for each of {len(x)} inputs, got shape {tuple(labels.shape)}")
    labels = labels.long()
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < net.classes):
        raise PolyboundError(f"labels must be from 0 to {net.classes - 1}")
    # Not by way of `torch.as_tensor(eps)`, which would round a float to float32.
    radii = eps.detach().double().cpu() if isinstance(eps, Tensor) else torch.tensor(eps, dtype=torch.float64)
    if radii.shape not in ((), (len(x),)):
        raise PolyboundError(f"eps must be one number or one for each of {len(x)} inputs")
    if not (torch.isfinite(radii) & (radii >= 0)).all():
        raise PolyboundError("eps must be finite and not negative")
    if not torch.isfinite(points).all():
        raise PolyboundError("the inputs are not all finite")
    if domain is not None and not (len(domain) == 2 and all(isfinite(s) for s in domain) and domain[0] <= domain[1]):
        raise PolyboundError(f"a domain is a smallest and a largest value, got {domain!r}")
    return points, labels, radii.expand(len(x)).clone()


def _relaxed(
    net: Network,
    x: Tensor,
    y: Tensor,
    lower: Tensor,
    upper: Tensor,
    inner: tuple[Tensor, Tensor],
    method: str,
    on_progress: Callable[[int], None] | None,
) -> Ledger:
    ledger = Ledger(net, y, inner, keep=False)
    units = max(At.shape[1] for At in net.At)
    chunk = max(1, min(_CHUNK, _ENTRIES // units**2))
    for start in range(0, len(x), chunk):
        begun = time.perf_counter()
        images = torch.arange(start, min(start + chunk, len(x)))
        label = y[images].unsqueeze(1)
        logits = net(x[images]).scatter(1, label, -inf)
        c, r = centre(lower[images], upper[images])
        slack = net.slack(torch.maximum(lower[images].abs(), upper[images].abs()))
        slack = slack + slack.gather(1, label)
        w, constant = net.C[y[images]].unsqueeze(1) - net.C, net.beta[y[images]].unsqueeze(1) - net.beta
        bound = _RELAXATIONS[method](net, c, r, w, constant, slack).scatter(1, label, inf)
        for row in torch.nonzero((bound <= 0).any(1)).squeeze(1).tolist():
            ledger.falsify(int(images[row]), x[images[row]], int(logits[row].argmax()), "clean")
        ledger.first(images, bound)
        ledger.charge(method, images, begun)
        if on_progress is not None:
            on_progress(int(images[-1]) + 1)
    ledger.rung = [method if rung == "first" else rung for rung in ledger.rung]
    return ledger


def _certificates(ledger: Ledger, eps: Tensor, shape: Sequence[int], method: str, keep: bool) -> Certificates:
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
        label=ledger.y,
        rival=torch.tensor([-1 if pair is None else pair[1] for pair in found], dtype=torch.int64),
        eps=eps,
        method=method,
        proofs=ledger.proofs if keep else None,
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
    eps: float,
    *,
    images: int | None = None,
    method: Method = "auto",
    budget: float = 1.0,
) -> float:
    """The share of inputs that are verified: no attack within eps can bring the accuracy below it.

    Args:
        model: a model, or its factors.
        data: a data set; its domain is what perturbations stay in.
        eps: radius of the l_inf ball, in the units of the inputs.
        images: how many inputs, from the first on; all by default.
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
    return certify(model, x, y, eps, domain=data.domain, method=method, budget=budget).count("verified") / len(x)
