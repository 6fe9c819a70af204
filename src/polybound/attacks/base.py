"""What all attacks share: checks, batches, random numbers, exactness; and adversarial training batches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from polybound.attacks.ball import Ball, InfBall, TwoBall, check_protocol, round_down, round_up
from polybound.attacks.classifier import Classifier, is_correct
from polybound.attacks.losses import Loss
from polybound.errors import PolyboundError, check_domain, check_norm, check_number
from polybound.registry import Named
from polybound.seeds import drawn, seeded

GROUP = 64
"""Images that share a generator. Batches start at multiples of it, so that their size changes no random number."""

TOLERANCE = 1e-5
"""How far outside of the domain an image may lie by rounding; it is moved into it."""

_CACHE = 2**20
"""Bytes of images that are attacked at once: so few that they stay in a core's cache from step to step."""


@dataclass(frozen=True)
class Attack(Named, ABC):
    """An attack with its settings. Call it with a model, images and labels; it returns adversarial examples.

    An attack of your own is a frozen dataclass with a method `perturb` and some of these class variables:

    * `kind`, which must be set: the first word of its name, lower-case letters and digits.
    * `numbers`: the settings that its name gives as plain numbers, in this order; `("eps",)` by default. The name gives
      all others as `:setting=value` where they differ from their defaults. They are numbers, truth values or
      lower-case words.
    * `uses_gradients`: False if it only asks for logits. True by default.
    * `only_sound`: True if it can do no other protocol. False by default.
    * `skips_misclassified`: True if it counts as robust only what was classified right before the attack. False by
      default.

    `register_attack` makes it known by its name, also to the command line:

    >>> import polybound as pb
    >>> from dataclasses import dataclass
    >>> from polybound.attacks import Attack, parse_attack, register_attack
    >>> @register_attack
    ... @dataclass(frozen=True)
    ... class Brighter(Attack):
    ...     kind = "brighter"
    ...     uses_gradients = False
    ...
    ...     def perturb(self, model, ball, labels, random):
    ...         return ball.project_(ball.x + self.eps)
    >>> data = pb.data.load_digits("test")
    >>> model = pb.paper_model("pn-4", shape=data.shape, seed=0)
    >>> adversarial = parse_attack("brighter-0.1")(model, data.x, data.y, domain=data.domain)
    >>> bool((adversarial >= data.x).all()), adversarial.max().item() == data.domain[1]
    (True, True)

    Attributes:
        eps: radius of the ball that it searches.
        norm: of the ball, "inf" or "2".
    """

    numbers: ClassVar[tuple[str, ...]] = ("eps",)
    uses_gradients: ClassVar[bool] = True
    only_sound: ClassVar[bool] = False
    skips_misclassified: ClassVar[bool] = False

    eps: float = 8 / 255
    norm: str = field(default="inf", kw_only=True)

    def __post_init__(self) -> None:
        check_number("eps", self.eps)
        object.__setattr__(self, "norm", check_norm(self.norm))

    @abstractmethod
    def perturb(self, model: Classifier, ball: Ball, labels: Tensor, random: RandomNumbers) -> Tensor:
        """Points of the ball, up to rounding: (E, n, d) for the E runs of the model, or fewer rows, as in `ball.x`.

        Args:
            model: gives logits (E, classes, n), and gradients (E, n, d), of points (G, n, d).
            ball: the points to choose from, around images `ball.x`, (G, n, d), and the protocol, `ball.protocol`.
            labels: of the images, (n,), or (E, n) with a row for each run.
            random: all random numbers come from here.
        """

    @property
    def label(self) -> str:
        """What tables and figures call it; the name by default."""
        return self.name

    def caveats(self, classes: int) -> list[str]:
        """Caveats that a reader of its results must know, for a model with this number of classes."""
        del classes
        return []

    def ball(self, x: Tensor, *, domain: Sequence[float], protocol: str) -> Ball:
        """The points that it may choose from for images x, (G, n, d), of the domain."""
        chosen, clip = check_protocol(protocol), check_domain(domain)
        if self.only_sound and chosen != "sound":
            raise PolyboundError(f"{self.name} knows the sound protocol only")
        clip = (0.0, 1.0) if chosen == "published" else clip
        return (InfBall if self.norm == "inf" else TwoBall)(x, self.eps, clip, chosen)

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        domain: Sequence[float],
        protocol: str = "sound",
        seed: int = 0,
        start: int = 0,
    ) -> Tensor:
        """Adversarial examples for images x with labels y, of the type of x.

        Under the sound protocol each lies in its ball and in the domain, exactly. Under the published one it lies in
        [0, 1], also where that is outside of its ball, and comes of gradients as rounding left them.

        Args:
            model: any classifier; a stack of E models gets adversarial examples for each, (E, n, ...).
            x: images, (n, ...), or, for a stack, (E, n, ...).
            y: labels, (n,).
            domain: smallest and largest value that a pixel can have.
            protocol: "sound" or "published".
            seed: of everything random.
            start: number of the first image in its data set, a multiple of 64; an image's random numbers depend on
                its number and the seed only, so that batches can be of any size.
        """
        check_protocol(protocol)
        lead = _lead(model, x, y)
        shape = tuple(x.shape[lead:])
        low, high = check_domain(domain)
        if x.numel():
            least, most = (float(value) for value in torch.aminmax(x.detach()))
            slack = TOLERANCE * (high - low)
            if not (low - slack <= least and most <= high + slack):
                values = f"images with values from {least:.4g} to {most:.4g}"
                raise PolyboundError(f"{values} are outside of the domain {low, high}")
        # Moved into the domain, if rounding put them outside.
        inside = x.detach().clamp(round_up(low, x), round_down(high, x))
        images = inside.reshape(*((1,) * (2 - lead)), *x.shape[:lead], math.prod(shape))
        with Classifier(model, shape) as classifier:
            images, labels = images.to(classifier.device), y.detach().long().to(classifier.device)
            runs = classifier.runs
            classes = classifier.logits(images[:, :1]).shape[1] if len(y) else 0
            if wrong := [label for label in y.tolist() if not 0 <= label < classes]:
                raise PolyboundError(f"label {wrong[0]} is out of range for a model with {classes} classes")
            rows = _CACHE // (runs * images.shape[-1] * images.element_size())
            if classifier.form is not None and classifier.form.batch is not None:
                rows = min(rows, classifier.form.batch)
            rows = max(1, rows // GROUP) * GROUP
            parts = []
            for first in range(0, len(labels), rows):
                batch = images[:, first : first + rows]
                ball = self.ball(batch, domain=domain, protocol=protocol)
                random = ImageRandom(seed, start + first, batch.shape[1], batch.shape[2], batch)
                points = self.perturb(classifier, ball, labels[first : first + rows], random)
                parts.append(ball.settle(points).expand(runs, -1, -1))
            found = torch.cat(parts, 1) if parts else images.expand(runs, -1, -1)
        found = found.to(x.device).reshape(runs, len(y), *shape)
        return found if classifier.stacked else found[0]


def pgd_steps(
    model: Classifier, ball: Ball, z: Tensor, loss: Loss, steps: int, size: float, *, early_stop: bool = False
) -> Tensor:
    """Ascend a loss by steps of one size; with `early_stop`, an image stays where it first is misclassified."""
    if not early_stop:
        for _ in range(steps):
            _, gradient = model.gradient(z, loss.logit_grad)
            z = ball.ascend(z, gradient, size)
        return z
    z = found = z.repeat_interleave(model.runs // len(z), 0)
    keep = torch.arange(z.shape[1], device=z.device)
    standing = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device)
    for step in range(steps + 1):
        last = step == steps
        logits, gradient = (model.logits(z), z) if last else model.gradient(z, loss.logit_grad)
        fallen = standing & ~is_correct(logits, loss.y)
        store(found, keep, z, standing if last else fallen)
        standing &= ~fallen
        open_ = standing.any(0)
        if last or not bool(open_.any()):
            break
        if int(open_.sum()) < 0.7 * len(open_):
            # Images that no run still classifies right are done; leaving a few of them in is cheaper than copying.
            rest = open_.nonzero().flatten()
            keep, ball, loss = keep[rest], ball.pick(rest), loss.pick(rest)
            z, gradient, standing = (part.index_select(1, rest) for part in (z, gradient, standing))
        z = ball.ascend(z, gradient, size)
    return found


def store(found: Tensor, keep: Tensor, z: Tensor, which: Tensor) -> None:
    """Write the points z, (E, m, d), of the images `keep`, where `which`, (E, m), says so."""
    run, image = which.nonzero(as_tuple=True)
    if len(run) and found is not z:
        found[run, keep[image]] = z[run, image]


def first_success(
    model: Classifier, labels: Tensor, z: Tensor, attempts: Iterable[Callable[[Tensor], Tensor]]
) -> Tensor:
    """The points of the first attempt that succeeds, image by image and run by run; z where none does.

    An attempt is given the numbers of the images that some run still classifies right, and returns points for those.
    """
    z = z.repeat_interleave(model.runs // len(z), 0)
    standing = model.correct(z, labels)
    for attempt in attempts:
        keep = standing.any(0).nonzero().flatten()
        if not len(keep):
            break
        points = attempt(keep)
        fallen = ~model.correct(points, labels[..., keep]) & standing[:, keep]
        store(z, keep, points, fallen)
        standing[:, keep] &= ~fallen
    return z


def _lead(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """How many dimensions come before an image's own: 1, or 2 where each run of a stack has its own images."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise PolyboundError(f"images must be a tensor of floating-point numbers, got {_kind(x)}")
    if not isinstance(y, Tensor) or y.is_floating_point() or y.dtype == torch.bool or y.ndim != 1:
        raise PolyboundError(f"labels must be a tensor of whole numbers of shape (n,), got {_kind(y)}")
    runs = getattr(model, "runs", None)
    shared = x.ndim >= 2 and len(x) == len(y)
    own = isinstance(runs, int) and x.ndim >= 3 and tuple(x.shape[:2]) == (runs, len(y))
    if shared and own:  # as many runs as images: the model's own shape decides
        shape, features = getattr(model, "shape", None), getattr(model, "features", None)
        shared = tuple(x.shape[1:]) == shape or tuple(x.shape[1:]) == (features,)
    if not shared and not own:
        stacked = f" or ({runs}, {len(y)}, ...)" if isinstance(runs, int) else ""
        raise PolyboundError(f"{len(y)} labels need images of shape ({len(y)}, ...){stacked}, got {tuple(x.shape)}")
    return 1 if shared else 2


def _kind(value: object) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


# What is random: numbers that belong to the image, or to a batch of training, not to the attack.


class RandomNumbers(ABC):
    """Random numbers for the images of a ball, a new draw at each call; they broadcast with its points."""

    def uniform(self, numbers: int | None = None) -> Tensor:
        """Uniform on [0, 1), (1 or G, n, numbers): by default one for each feature of an image."""
        return self._draw(torch.rand, numbers)

    def normal(self) -> Tensor:
        """Standard normal, (1 or G, n, d)."""
        return self._draw(torch.randn, None)

    @abstractmethod
    def _draw(self, sample: Callable[..., Tensor], numbers: int | None) -> Tensor:
        """Numbers by `torch.rand` or `torch.randn`, as many for each image as asked, or one for each feature."""

    @abstractmethod
    def seeds(self) -> list[int]:
        """A whole number below 2**31 for each `GROUP` images, for a library that draws its random numbers itself."""


class ImageRandom(RandomNumbers):
    """Random numbers for the images `start` to `start + count` of a data set, (1, count, d).

    They depend on the seed and on the images' numbers alone: neither the size of a batch nor the number of runs that
    are attacked together changes an adversarial example.
    """

    def __init__(self, seed: int, start: int, count: int, features: int, like: Tensor) -> None:
        if start % GROUP:
            raise AssertionError(f"a batch starts at image {start}, which is no multiple of {GROUP}")
        first = start // GROUP
        groups = range(first, first + -(-count // GROUP))
        self.generators = [seeded(seed, group + 1) for group in groups]
        self.count, self.features, self.like = count, features, like

    def _draw(self, sample: Callable[..., Tensor], numbers: int | None) -> Tensor:
        width = self.features if numbers is None else numbers
        parts = [sample(GROUP, width, generator=generator) for generator in self.generators]
        # Whole groups, cut afterwards: the last image's numbers must not depend on how many there are. And float32
        # whatever the images' type, so that a float64 model starts where its float32 twin does.
        return torch.cat(parts)[: self.count].to(self.like).unsqueeze(0)

    def seeds(self) -> list[int]:
        return [generator.initial_seed() % 2**31 for generator in self.generators]


class BatchRandom(RandomNumbers):
    """Random numbers for batches `like`, (groups, n, d), from one generator for each group."""

    def __init__(self, generators: Sequence[torch.Generator], like: Tensor) -> None:
        self.generators, self.like = generators, like

    def _draw(self, sample: Callable[..., Tensor], numbers: int | None) -> Tensor:
        self._check()
        groups, count, features = self.like.shape
        return drawn(sample, self.generators, groups, (count, features if numbers is None else numbers), self.like)

    def seeds(self) -> list[int]:
        self._check()
        groups = -(-self.like.shape[1] // GROUP)
        return torch.randint(2**31, (groups,), generator=self.generators[0]).tolist()

    def _check(self) -> None:
        if len(self.generators) != len(self.like):
            given, groups = len(self.generators), len(self.like)
            raise PolyboundError(f"random numbers for {groups} batches need a generator for each, got {given}")


# Adversarial examples for one step of training.


def adversarial_batch(
    attack: Attack,
    classifier: Classifier,
    x: Tensor,
    y: Tensor,
    *,
    domain: Sequence[float],
    protocol: str = "sound",
    generators: Sequence[torch.Generator] = (),
) -> Tensor:
    """Adversarial examples (E, batch, d) of each run's own, from batches that groups of runs share.

    It is made for the inside of a training loop: images and labels are not checked, and the points are as
    `attack.perturb` left them. What random numbers an image gets depends on its place in the batch.

    Args:
        attack: any attack.
        classifier: of E runs; one for the whole training, as it always sees the model's present weights.
        x: images of the domain, (groups, batch, d); run e belongs to group `e // (E // groups)`.
        y: their labels, (groups, batch).
        domain: smallest and largest value that a pixel can have.
        protocol: "sound" or "published".
        generators: one for each group, whose runs share its numbers; none if the attack draws none.

    >>> import polybound as pb
    >>> from polybound.attacks import Classifier
    >>> data = pb.data.load_digits("train")
    >>> model = pb.paper_model("pn-4", shape=data.shape, runs=4, seed=0)
    >>> x, y = data.x[:64].reshape(2, 32, -1), data.y[:64].reshape(2, 32)
    >>> adversarial_batch(pb.FGSM(0.1), Classifier(model, data.shape), x, y, domain=data.domain).shape
    torch.Size([4, 32, 64])
    """
    ball = attack.ball(x, domain=domain, protocol=protocol)
    labels = y[0] if len(y) == 1 else y.repeat_interleave(classifier.runs // len(y), 0)
    found = attack.perturb(classifier, ball, labels, BatchRandom(generators, x))
    return found if len(found) == classifier.runs else found.repeat_interleave(classifier.runs // len(found), 0)
