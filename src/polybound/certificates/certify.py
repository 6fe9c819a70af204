"""`certify`, `certified_accuracy` and `certified_radius`: prove or refute that no perturbation changes a prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from polybound.certificates.bounds.baselines import relax
from polybound.certificates.bounds.slopes import length
from polybound.certificates.forms import Margins
from polybound.certificates.input_sets import (
    Balls,
    Boxes,
    Domain,
    as_float64,
    checked_boxes,
    checked_domain,
    checked_labels,
    checked_method,
    checked_norm,
)
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.search import boxes as ladder
from polybound.certificates.search.balls import ladder_over
from polybound.certificates.search.boxes import TOPS
from polybound.certificates.search.proof_state import BallDecisions, Decisions
from polybound.errors import PolyboundError, check_int
from polybound.models import Factors, PolynomialNetwork
from polybound.parallel import in_workers

__all__ = [
    "Certificates",
    "Method",
    "Question",
    "Radius",
    "Status",
    "bisected",
    "certified_accuracy",
    "certified_radius",
    "certify",
]


# What `certify` returns.


Status = Literal["verified", "falsified", "undecided"]


@dataclass(frozen=True, eq=False, repr=False)
class Certificates:
    """One certificate for each image.

    Attributes:
        status: "verified": every point of the box or ball is classified as the label. "falsified": `counterexample` is
            not. "undecided": neither was shown.
        margin: proven lower bounds of `min over rivals and points of f_label - f_rival`, (images,), float64.
        counterexample: a point of the box or ball whose margin is at most zero, in the input's shape, float64; None if
            there is none.
        rung: what decided each image: "clean" (misclassified as it is), "first", "second", "branch" (verified),
            "attack" (falsified), the method's name, or "".
        seconds: time of each image, its share of what was done in batches, (images,).
        cost: seconds of each rung, over all images.
        label: the labels.
        rival: the class that the counterexample is classified as at least as strongly; -1 if there is none.
        eps: radius of each box or ball, (images,), or of each feature, (images, *shape); None if the sides were given.
        box: the sides that were given, (images, *shape) each; None if radii were.
        method: the method asked for.
        norm: of the ball, "inf" or "2".
        proofs: proofs by image and rival, if they were kept; `save_certificates` writes them.
    """

    status: list[Status]
    margin: Tensor
    counterexample: list[Tensor | None]
    rung: list[str]
    seconds: Tensor
    cost: dict[str, float]
    label: Tensor
    rival: Tensor
    eps: Tensor | None
    box: tuple[Tensor, Tensor] | None
    method: str
    norm: str = "inf"
    proofs: dict[tuple[int, int], dict[str, Any]] | None = None

    @staticmethod
    def joined(parts: Sequence[Certificates]) -> Certificates:
        """Those of several groups of images, one after another."""
        first, cost = parts[0], Counter[str]()
        proofs: dict[tuple[int, int], dict[str, Any]] = {}
        start = 0
        for part in parts:
            cost.update(part.cost)
            proofs |= {(start + image, rival): proof for (image, rival), proof in (part.proofs or {}).items()}
            start += len(part)
        lists, tensors = ("status", "counterexample", "rung"), ("margin", "seconds", "label", "rival")
        changes: dict[str, Any] = {name: [v for part in parts for v in getattr(part, name)] for name in lists}
        changes |= {name: torch.cat([getattr(part, name) for part in parts]) for name in tensors}
        changes["eps"] = None if first.eps is None else torch.cat([part.eps for part in parts if part.eps is not None])
        changes["box"] = _joined_sides([part.box for part in parts if part.box is not None])
        return replace(first, **changes, cost=dict(cost), proofs=None if first.proofs is None else proofs)

    def __len__(self) -> int:
        return len(self.status)

    def __repr__(self) -> str:
        counts = ", ".join(f"{status}={self.count(status)}" for status in get_args(Status))
        return f"Certificates(images={len(self)}, {counts}, method={self.method!r})"

    def count(self, status: Status) -> int:
        """How many images have that status."""
        return self.status.count(status)

    def summary(self) -> dict[str, Any]:
        """Counts, shares and times, as JSON can hold them."""
        total = max(1, len(self))
        correct = len(self) - self.rung.count("clean")
        return {
            "images": len(self),
            "method": self.method,
            "clean accuracy": correct / total,
            "certified accuracy": self.count("verified") / total,
            "attacked accuracy": (len(self) - self.count("falsified")) / total,
            "verified": self.count("verified"),
            "falsified": self.count("falsified"),
            "undecided": self.count("undecided"),
            "rungs": dict(Counter(rung for rung in self.rung if rung)),
            "rung seconds": {rung: round(seconds, 6) for rung, seconds in self.cost.items()},
            "seconds": float(self.seconds.sum()),
            "mean milliseconds": 1000 * float(self.seconds.sum()) / total,
            "largest milliseconds": 1000 * float(self.seconds.max()) if len(self) else 0.0,
        }


def _joined_sides(sides: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
    return (torch.cat([low for low, _ in sides]), torch.cat([high for _, high in sides])) if sides else None


_HEAVY, _LEAST, _BLOCKS = 2**14, 4, 8
"""Networks with `_HEAVY` weights a factor are certified in `_BLOCKS` blocks, each of at least `_LEAST` images."""


# What `certify` is asked, in blocks of images that can be answered one by one, on any process.


@dataclass(frozen=True, eq=False)
class Question:
    """Whether some point of each box, or ball, is not classified as its label.

    Attributes:
        net: the network.
        labels: (images,).
        boxes: the boxes, or those around the balls.
        balls: the balls; None if it is about the boxes.
        shape: of one input.
        method: as in `certify`.
        budget: seconds of branch and bound for each image.
        nodes: cells that branch and bound splits for each image at most.
        keep: whether to keep the proofs.
    """

    net: PreparedNetwork
    labels: Tensor
    boxes: Boxes
    balls: Balls | None
    shape: tuple[int, ...]
    method: str
    budget: float
    nodes: float
    keep: bool

    def __len__(self) -> int:
        return len(self.labels)

    def answer(self, workers: int, on_progress: Callable[[int], None] | None) -> Certificates:
        """The certificates, some blocks at once with several workers.

        The blocks depend on the number of images alone, so that the answers do not depend on the number of workers.
        """
        net = self.net
        with torch.no_grad():
            _ = net.stretch, net.norms_S  # once for a model, before the clock of the first images starts
            if self.balls is not None:
                _ = net.norms_A
        found: list[Certificates] = []
        for part in in_workers(_answer, list(self._blocks()), workers):
            found.append(part)
            if on_progress is not None:
                on_progress(sum(map(len, found)))
        return Certificates.joined(found)

    def _blocks(self) -> Iterator[Question]:
        size = ladder.IMAGES
        if self.net.features * self.net.breadth >= _HEAVY:
            size = min(size, max(_LEAST, -(-len(self) // _BLOCKS)))
        for start in range(0, max(1, len(self)), size):
            some = slice(start, start + size)
            balls = None if self.balls is None else self.balls.part(some)
            yield replace(self, labels=self.labels[some], boxes=self.boxes.part(some), balls=balls)


def _answer(asked: Question) -> Certificates:
    """The certificates of one block."""
    forms, keep = Margins(asked.net, asked.labels), asked.keep and asked.method in TOPS
    boxes, balls = asked.boxes, asked.balls
    if balls is None:
        ledger = Decisions(forms, len(asked), boxes.inner, keep)
    else:
        ledger = BallDecisions(forms, balls, boxes.inner, keep)
    with torch.no_grad():
        if asked.method in TOPS:
            limits = {"budget": asked.budget, "nodes": asked.nodes}
            ladder_over(forms, boxes, balls, ledger, top=TOPS[asked.method], **limits).climb()
        else:
            relax(forms, boxes, ledger, asked.method, balls=balls)
            ledger.rung = [asked.method if rung == "first" else rung for rung in ledger.rung]
    return _certificates(ledger, asked)


def _certificates(ledger: Decisions, asked: Question) -> Certificates:
    margin = ledger.bound.amin(1)
    status: list[Status] = []
    for image, least in enumerate(margin.tolist()):
        falsified = image in ledger.counterexample
        if falsified and least > 0:
            raise AssertionError("an image is both verified and falsified: please report this")
        status.append("falsified" if falsified else "verified" if least > 0 else "undecided")
    found = [ledger.counterexample.get(image) for image in range(len(status))]
    boxes, shape = asked.boxes, (len(asked), *asked.shape)
    return Certificates(
        status=status,
        margin=margin,
        counterexample=[None if pair is None else pair[0].reshape(asked.shape) for pair in found],
        rung=ledger.rung,
        seconds=ledger.spent,
        cost=ledger.cost,
        label=asked.labels,
        rival=torch.tensor([-1 if pair is None else pair[1] for pair in found], dtype=torch.int64),
        eps=boxes.eps if boxes.eps is None or boxes.eps.ndim == 1 else boxes.eps.reshape(shape),
        box=boxes.sides and (boxes.sides[0].reshape(shape), boxes.sides[1].reshape(shape)),
        method=asked.method,
        norm="inf" if asked.balls is None else "2",
        proofs=ledger.proofs if ledger.keep else None,
    )


Method = Literal["auto", "second", "first", "crown", "zonotope", "interval", "lipschitz"]


def certify(
    model: PolynomialNetwork | Factors | PreparedNetwork,
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
    rounding: see `PreparedNetwork`. `docs/certificates.md` says how it is proven.

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
    net = model if isinstance(model, PreparedNetwork) else PreparedNetwork(model)
    boxes = checked_boxes(net, x, eps, box, domain)
    labels = checked_labels(net, y, len(boxes.x))
    if nodes is not None:
        check_int("nodes", nodes, 0)
    seconds = budget if budget is not None else 10.0 if nodes is None else inf
    checked_method(method, get_args(Method), seconds)
    norm = checked_norm(norm, box, method)
    check_int("workers", workers)
    balls = Balls.within(boxes, checked_domain(net, domain)) if norm == "2" else None
    limits = seconds, inf if nodes is None else nodes
    asked = Question(net, labels, boxes, balls, tuple(x.shape[1:]), method, *limits, keep)
    return asked.answer(workers, on_progress)


def certified_accuracy(
    model: PolynomialNetwork | Factors | PreparedNetwork,
    data: Any,
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
        data: a data set, with `x`, `y` and the `domain` that perturbations stay in.
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


# The largest certified radius of each input, by bisection.


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
    model: PolynomialNetwork | Factors | PreparedNetwork,
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
    net = model if isinstance(model, PreparedNetwork) else PreparedNetwork(model)
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


def _checked_scale(net: PreparedNetwork, scale: Tensor) -> Tensor:
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
