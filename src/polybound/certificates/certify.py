"""`certify`, `certified_accuracy` and `certified_radius`: prove or refute that no perturbation changes a prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from polybound.certificates.bounds.baselines import relax
from polybound.certificates.bounds.slopes import length
from polybound.certificates.forms import Margins
from polybound.certificates.graphs import GraphMargins, PreparedGraph, graph_margins, prepared
from polybound.certificates.input_sets import Domain, InputSet, checked_labels, input_set
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.search import boxes
from polybound.certificates.search.balls import verifier
from polybound.certificates.search.boxes import STAGES, Progress, Search
from polybound.certificates.search.cells import branch
from polybound.certificates.search.proof_state import SignProofs
from polybound.errors import PolyboundError, check_int
from polybound.models import Factors
from polybound.parallel import in_workers

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
        stage: what decided each image: "clean" (misclassified as it is), "first", "second", "branch" (verified),
            "attack" (falsified), the method's name, or "".
        seconds: time of each image, its share of the batches that it was in, (images,).
        cost: seconds of each stage, over all images.
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
    stage: list[str]
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
        """The certificates of several groups of images, one after another."""
        first, cost = parts[0], Counter[str]()
        proofs: dict[tuple[int, int], dict[str, Any]] = {}
        start = 0
        for part in parts:
            cost.update(part.cost)
            proofs |= {(start + image, rival): proof for (image, rival), proof in (part.proofs or {}).items()}
            start += len(part)
        lists, tensors = ("status", "counterexample", "stage"), ("margin", "seconds", "label", "rival")
        changes: dict[str, Any] = {name: [v for part in parts for v in getattr(part, name)] for name in lists}
        changes |= {name: torch.cat([getattr(part, name) for part in parts]) for name in tensors}
        changes["eps"] = None if first.eps is None else torch.cat([part.eps for part in parts if part.eps is not None])
        sides = zip(*(part.box for part in parts if part.box is not None), strict=True)
        changes["box"] = None if first.box is None else tuple(map(torch.cat, sides))
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
        correct = len(self) - self.stage.count("clean")
        return {
            "images": len(self),
            "method": self.method,
            "clean accuracy": correct / total,
            "certified accuracy": self.count("verified") / total,
            "attacked accuracy": (len(self) - self.count("falsified")) / total,
            "verified": self.count("verified"),
            "falsified": self.count("falsified"),
            "undecided": self.count("undecided"),
            # Readers of `polybound certify --json` know the stages as rungs.
            "rungs": dict(Counter(stage for stage in self.stage if stage)),
            "rung seconds": {stage: round(seconds, 6) for stage, seconds in self.cost.items()},
            "seconds": float(self.seconds.sum()),
            "mean milliseconds": 1000 * float(self.seconds.sum()) / total,
            "largest milliseconds": 1000 * float(self.seconds.max()) if len(self) else 0.0,
        }


Method = Literal["auto", "second", "first", "crown", "interval", "lipschitz"]


def certify(
    model: nn.Module | Factors | PreparedNetwork | PreparedGraph,
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
    on_progress: Progress | None = None,
) -> Certificates:
    """Decide for each input whether some x' of the domain with `|x' - x| <= eps` is not classified as its label.

    The statement is about the polynomial with the model's weights in real arithmetic, and holds in spite of float64's
    rounding: see `PreparedNetwork`. `docs/certificates.md` says how it is proven.

    Args:
        model: a polynomial network, or any module that `polynomial` takes, then with inputs of their own shape; or
            factors.
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
        method: "auto" takes all stages: first order, attacks, second order, branch and bound. "first" and "second"
            stop after that stage. "crown", "interval" and "lipschitz" are bounds to compare with, without attacks; of
            these, l_2 balls have "lipschitz". Networks that are no chain of products have "auto" (attacks, intervals,
            planes through the products, the best mixtures of them, what bounds products together, and cells where few
            inputs move), "first" (the same up to the mixtures of planes), "crown" and "interval".
        budget: seconds of branch and bound for each image; 10 by default, and no limit where `nodes` has one.
        nodes: the most cells that branch and bound splits for each image, a limit that is the same on every machine.
        keep: whether to keep the proofs, to save them.
        workers: processes, each with one thread. The results do not depend on their number; the number of PyTorch's
            threads may change last bits. `budget` is time, so that a busy machine decides less; `nodes` is not.
        on_progress: called as `on_progress(done, total, text)`, with numbers of images.

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
    net = prepared(model, tuple(x.shape[1:]))
    inputs = input_set(net, x, eps, box, domain, norm)
    labels = checked_labels(net, y, len(inputs))
    if nodes is not None:
        check_int("nodes", nodes, 0)
    seconds = budget if budget is not None else 10.0 if nodes is None else inf
    check_int("workers", workers)
    search = Search(method, seconds, inf if nodes is None else nodes)
    search.check(get_args(Method), inputs.norm)
    size = boxes.IMAGES
    if isinstance(net, PreparedGraph):
        size = min(size, net.images)
    else:
        net.prepare(inputs.norm)
        if net.features * net.breadth >= HEAVY:
            size = min(size, max(LEAST, -(-len(inputs) // BLOCKS)))
    # The blocks depend on the number of images alone, so that the answers do not depend on the number of workers.
    blocks = [slice(start, start + size) for start in range(0, max(1, len(inputs)), size)]
    tasks = [(net, inputs.part(block), labels[block], tuple(x.shape[1:]), search, keep) for block in blocks]
    found: list[Certificates] = []
    for part in in_workers(_certify_block, tasks, workers):
        found.append(part)
        if on_progress is not None:
            on_progress(sum(map(len, found)), len(inputs), "")
    return Certificates.joined(found)


HEAVY, LEAST, BLOCKS = 2**14, 4, 8
"""Networks with `HEAVY` weights a factor are certified in `BLOCKS` blocks, each of at least `LEAST` images."""


def _certify_block(
    task: tuple[PreparedNetwork | PreparedGraph, InputSet, Tensor, tuple[int, ...], Search, bool],
) -> Certificates:
    """The certificates of some images; a task has all that another process needs."""
    net, inputs, labels, shape, search, keep = task
    state: SignProofs | GraphMargins
    if isinstance(net, PreparedGraph):
        state = graph_margins(net, inputs, labels, search.method, keep)
        if search.method == "auto":
            with torch.no_grad():
                branch(net, inputs, labels, state, search.budget, search.nodes)
    else:
        staged = search.method in STAGES
        state = SignProofs(Margins(net, labels), inputs, keep and staged)
        with torch.no_grad():
            if staged:
                verifier(state, search).run()
            else:
                relax(state, search.method)
                state.stage = [search.method if stage == "first" else stage for stage in state.stage]
    margin = state.bound.amin(1)
    status: list[Status] = []
    for image, least in enumerate(margin.tolist()):
        falsified = image in state.counterexample
        if falsified and least > 0:
            raise AssertionError("an image is both verified and falsified: please report this")
        status.append("falsified" if falsified else "verified" if least > 0 else "undecided")
    found = [state.counterexample.get(image) for image in range(len(status))]
    eps, box = inputs.asked(shape)
    return Certificates(
        status=status,
        margin=margin,
        counterexample=[None if pair is None else pair[0].reshape(shape) for pair in found],
        stage=state.stage,
        seconds=state.spent,
        cost=state.cost,
        label=labels,
        rival=torch.tensor([-1 if pair is None else pair[1] for pair in found], dtype=torch.int64),
        eps=eps,
        box=box,
        method=search.method,
        norm=inputs.norm,
        proofs=state.proofs if state.keep else None,
    )


def certified_accuracy(
    model: nn.Module | Factors | PreparedNetwork | PreparedGraph,
    data: Any,
    eps: float | Tensor | None = None,
    *,
    images: int | None = None,
    budget: float = 1.0,
    **options: Any,
) -> float:
    """The share of inputs that are verified: no attack within eps can bring the accuracy below it.

    Args:
        model: a model, or its factors.
        data: a data set, with inputs `x`, labels `y` and the `domain` that perturbations stay in.
        eps: how far an entry can move, in the units of the inputs, as in `certify`.
        images: how many inputs, from the first on; all by default.
        budget: seconds of branch and bound for each input.
        **options: others of `certify`.

    >>> import polybound as pb
    >>> model = pb.paper_model("pn-4", shape=(1, 8, 8), seed=0)
    >>> 0 <= pb.certified_accuracy(model, pb.data.load_digits("test"), eps=0.1, images=8) <= 1
    True
    """
    x, y = data.x[:images], data.y[:images]
    if not len(x):
        raise PolyboundError("no inputs to certify")
    found = certify(model, x, y, eps, domain=data.domain, budget=budget, **options)
    return found.count("verified") / len(x)


# The largest certified radius of each input, by bisection.


@dataclass(frozen=True, eq=False, repr=False)
class Radius:
    """For each input, a radius that is proven robust and one that is not: the true radius lies between them.

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
    model: nn.Module | Factors | PreparedNetwork | PreparedGraph,
    x: Tensor,
    y: Tensor | Sequence[int],
    *,
    largest: float = 1.0,
    tolerance: float = 1e-3,
    domain: Domain | None = (-1.0, 1.0),
    norm: str | float = "inf",
    method: Method = "auto",
    budget: float = 1.0,
) -> Radius:
    """Bracket the largest r for which every x' with `|x' - x| <= r` is classified as x is labelled.

    All inputs are bisected together; a counterexample moves the upper end to its own distance.

    Args:
        model: a model, or its factors.
        x: inputs.
        y: labels.
        largest: no radius above this is tried.
        tolerance: how close the bracket gets, where everything is decided, but no closer than float64 numbers are.
        domain: as in `certify`.
        norm: "inf" or "2".
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
    net = prepared(model, tuple(x.shape[1:]))
    inputs = input_set(net, x, 0.0, None, domain, norm)
    points, norm = inputs.x, inputs.norm
    labels = checked_labels(net, y, len(points))
    options: dict[str, Any] = {"domain": domain, "norm": norm, "method": method, "budget": budget}
    attacked = torch.full((len(points),), torch.inf, dtype=torch.float64)

    def tried(rows: Tensor, radii: Tensor) -> tuple[Tensor, Tensor]:
        found = certify(net, points[rows], labels[rows], radii, **options)
        held = torch.tensor([status == "verified" for status in found.status])
        least = radii.clone()
        for index, (row, point) in enumerate(zip(rows.tolist(), found.counterexample, strict=True)):
            if point is not None:
                away = (point.reshape(-1) - points[row]).abs()
                away = length(away) if norm == "2" else away.max()
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
        tried: called with rows and a radius for each; returns which held, and for the others a radius that fails, at
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
