"""What all attacks share: checks, batches, random numbers, exactness."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polybound.attacks.ball import Ball, ball_around, round_down, round_up
from polybound.attacks.losses import Loss
from polybound.attacks.noise import GROUP, Noise
from polybound.attacks.protocol import Protocol, check_domain, check_protocol, clip_range
from polybound.attacks.victim import Victim, right
from polybound.errors import PolyboundError

__all__ = ["Attack", "climb", "first_success"]

TOLERANCE = 1e-5
"""How far outside of the domain an image may lie by rounding; it is moved into it."""

_CACHE = 2**20
"""Bytes of images that are attacked at once: so few that they stay in a core's cache from step to step."""


@dataclass(frozen=True)
class Attack(ABC):
    """An attack with its settings. Call it with a model, images and labels; it returns adversarial examples.

    Attributes:
        eps: radius of the ball that it searches.
        norm: of the ball, "inf" or "2".
    """

    kind: ClassVar[str]
    """The name's first word."""
    numbers: ClassVar[tuple[str, ...]] = ("eps",)
    """The fields that a name gives as plain numbers, in this order."""
    uses_gradients: ClassVar[bool] = True
    only_sound: ClassVar[bool] = False
    """Whether it can do no other protocol."""

    eps: float = 8 / 255
    norm: str = field(default="inf", kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.eps, int | float) or not 0 <= self.eps < math.inf:
            raise PolyboundError(f"eps must be a finite number of at least 0, got {self.eps!r}")
        if self.norm not in ("inf", "2"):
            raise PolyboundError(f"norm must be inf or 2, got {self.norm!r}")

    @property
    def name(self) -> str:
        """The name that `parse_attack` reads back: "pgd-0.1-20-0.01:restarts=5"."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        parts = [self.kind, *(_number(values[name]) for name in self.numbers)]
        for f in fields(self):
            if f.name not in self.numbers and values[f.name] != f.default and f.default is not MISSING:
                parts[-1] += f":{f.name}={_number(values[f.name])}"
        return "-".join(parts)

    def caveats(self, classes: int) -> list[str]:
        """What a reader of its results must know, if anything, for a model of so many classes."""
        del classes
        return []

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
        chosen = check_protocol(protocol)
        clip = clip_range(chosen, domain)
        if self.only_sound and chosen != "sound":
            raise PolyboundError(f"{self.name} knows the sound protocol only")
        lead = _lead(model, x, y)
        shape = tuple(x.shape[lead:])
        images = _checked(x, check_domain(domain)).reshape(*((1,) * (2 - lead)), *x.shape[:lead], math.prod(shape))
        with Victim(model, shape) as victim:
            images, y = images.to(victim.device), _labels(y).to(victim.device)
            _check_classes(victim, images, y)
            rows = _CACHE // (victim.runs * images.shape[-1] * images.element_size())
            if victim.form is not None and victim.form.batch is not None:
                rows = min(rows, victim.form.batch)
            rows = max(1, rows // GROUP) * GROUP
            parts = []
            for first in range(0, len(y), rows):
                batch = images[:, first : first + rows]
                ball = ball_around(batch, self.eps, self.norm, clip)
                noise = Noise(seed, start + first, batch.shape[1], batch.shape[2], batch)
                found = self._run(victim, ball, y[first : first + rows], noise, chosen)
                parts.append(ball.settle(found.expand(victim.runs, -1, -1)))
            found = torch.cat(parts, 1) if parts else images.expand(victim.runs, -1, -1)
        found = found.to(x.device).reshape(victim.runs, len(y), *shape)
        return found if victim.stacked else found[0]

    @abstractmethod
    def _run(self, victim: Victim, ball: Ball, y: Tensor, noise: Noise, protocol: Protocol) -> Tensor:
        """Points of the ball, (E or 1, n, d), for a batch; the ball is that of the protocol, gradients may be."""


def climb(
    victim: Victim, ball: Ball, z: Tensor, loss: Loss, steps: int, size: float, *, early_stop: bool = False
) -> Tensor:
    """Ascend a loss by steps of one size; with `early_stop`, an image stays where it first is misclassified."""
    if not early_stop:
        for _ in range(steps):
            _, gradient = victim.gradient(z, loss.slopes)
            z = ball.ascend(z, gradient, size)
        return z
    z = found = z.repeat(victim.runs // len(z), 1, 1)
    keep = torch.arange(z.shape[1], device=z.device)
    standing = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device)
    for step in range(steps + 1):
        last = step == steps
        logits, gradient = (victim.logits(z), z) if last else victim.gradient(z, loss.slopes)
        fallen = standing & ~right(logits, loss.y)
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


def first_success(victim: Victim, y: Tensor, z: Tensor, attempts: Iterable[Callable[[Tensor], Tensor]]) -> Tensor:
    """The points of the first attempt that succeeds, image by image and run by run; z where none does.

    An attempt is given the numbers of the images that some run still classifies right, and returns points for those.
    """
    z = z.repeat(victim.runs // len(z), 1, 1)
    standing = victim.correct(z, y)
    for attempt in attempts:
        keep = standing.any(0).nonzero().flatten()
        if not len(keep):
            break
        points = attempt(keep)
        fallen = ~victim.correct(points, y[keep]) & standing[:, keep]
        store(z, keep, points, fallen)
        standing[:, keep] &= ~fallen
    return z


def _number(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value).lower()


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


def _checked(x: Tensor, domain: tuple[float, float]) -> Tensor:
    """The images, moved into the domain if rounding put them outside; further outside is an error."""
    if not x.numel():
        return x
    least, most = (float(value) for value in torch.aminmax(x.detach()))
    slack = TOLERANCE * (domain[1] - domain[0])
    if not (domain[0] - slack <= least and most <= domain[1] + slack):
        raise PolyboundError(f"images with values from {least:.4g} to {most:.4g} are outside of the domain {domain}")
    if domain[0] <= least and most <= domain[1]:
        return x.detach()
    return x.detach().clamp(round_up(domain[0], x), round_down(domain[1], x))


def _labels(y: Tensor) -> Tensor:
    return y.detach().long()


def _check_classes(victim: Victim, x: Tensor, y: Tensor) -> None:
    if not len(y):
        return
    classes = victim.logits(x[:, :1]).shape[1]
    least, most = (int(value) for value in torch.aminmax(y))
    if least < 0 or most >= classes:
        bad = least if least < 0 else most
        raise PolyboundError(f"label {bad} is out of range for a model with {classes} classes")
