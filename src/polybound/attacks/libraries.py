"""Attack suites of other libraries behind one adapter: second opinions.

They know images in [0, 1] only. So they are given a classifier of rescaled images and a rescaled eps, and what they
find is scaled back and, against rounding, clipped to the ball and to the domain. What they cannot do is the published
protocol, which is no attack within a ball.
"""

from __future__ import annotations

import logging
import warnings
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polybound.attacks.ball import Ball
from polybound.attacks.base import GROUP, Attack, RandomNumbers
from polybound.attacks.classifier import Classifier
from polybound.errors import check_choice, check_int, check_number, require


class _Rescaled(nn.Module):
    """One run of a classifier, for images in [0, 1]."""

    def __init__(self, model: Classifier, run: int, clip: tuple[float, float]) -> None:
        super().__init__()
        self.classify, self.clip = model.alone(run), clip

    def forward(self, images: Tensor) -> Tensor:
        lower, upper = self.clip
        x = (lower + (upper - lower) * images).flatten(1)
        return self.classify(x)


@dataclass(frozen=True)
class OtherLibrary(Attack):
    """An attack from another library, run by run and in groups of 64 images.

    What such a library finds for an image may depend on the others that it is given: on random numbers that are drawn
    for all at once, and on when all are done. So the groups are those of the random numbers, whatever a batch is.
    """

    only_sound: ClassVar[bool] = True

    def perturb(self, model: Classifier, ball: Ball, labels: Tensor, random: RandomNumbers) -> Tensor:
        lower, upper = ball.clip
        shape = model.shape if len(model.shape) == 3 else (1, 1, ball.x.shape[-1])
        found = []
        for run in range(model.runs):
            x = ball.x[run * len(ball.x) // model.runs]
            y = labels if labels.ndim == 1 else labels[run]
            images = ((x - lower) / (upper - lower)).clamp_(0.0, 1.0).to(model.dtype or x.dtype)
            single = _Rescaled(model, run, ball.clip).eval()
            parts = []
            groups = zip(random.seeds(), torch.split(images, GROUP), torch.split(y, GROUP), strict=True)
            with torch.enable_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for seed, some, truth in groups:
                    torch.manual_seed(seed)
                    parts.append(self._suite(single, some.view(-1, *shape), truth, self.eps / (upper - lower), seed))
            found.append((lower + (upper - lower) * torch.cat(parts).detach()).flatten(1).to(x.dtype))
        return torch.stack(found)

    @abstractmethod
    def _suite(self, model: nn.Module, images: Tensor, y: Tensor, eps: float, seed: int) -> Tensor:
        """Adversarial examples of images in [0, 1]."""


@dataclass(frozen=True)
class AutoAttack(OtherLibrary):
    """AutoAttack (Croce and Hein, 2020) by its authors: APGD, targeted APGD, FAB and the square attack.

    It needs the package pyautoattack, which the extra `attacks` brings.

    Attributes:
        version: "standard", "plus" or "rand"; or "apgd" for the standard one's two gradient attacks alone, which take a
            tenth of the time.
    """

    kind: ClassVar[str] = "autoattack"

    version: str = field(default="standard", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("version", self.version, ("standard", "plus", "rand", "apgd"))

    def _suite(self, model: nn.Module, images: Tensor, y: Tensor, eps: float, seed: int) -> Tensor:
        suite = require("pyautoattack", "attacks", "this attack")
        logging.getLogger("auto-attack").setLevel(logging.ERROR)
        chosen: dict[str, Any] = {"version": self.version}
        if self.version == "apgd":
            chosen = {"version": "custom", "attacks": ["apgd-ce", "apgd-t"]}
        norm = "Linf" if self.norm == "inf" else "L2"
        attack = suite.AutoAttack(model, norm=norm, eps=eps, seed=seed, device=images.device, **chosen)
        if self.version == "apgd":
            attack.apgd.n_restarts = 1
        found = attack.run_standard_evaluation(images, y, batch_size=len(images))
        return found if isinstance(found, Tensor) else found[0]


@dataclass(frozen=True)
class Foolbox(OtherLibrary):
    """An attack of foolbox by its class name; it needs foolbox, which the extra `attacks` brings.

    Attributes:
        attack: "pgd", "fgsm", "basic" (iterations without a random start) or "deepfool".
        steps: number of steps.
        step_size: of each, relative to eps.
    """

    kind: ClassVar[str] = "foolbox"

    attack: str = field(default="pgd", kw_only=True)
    steps: int = field(default=20, kw_only=True)
    step_size: float = field(default=0.1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("attack", self.attack, ("pgd", "fgsm", "basic", "deepfool"))
        check_int("steps", self.steps)
        check_number("step_size", self.step_size)

    def _suite(self, model: nn.Module, images: Tensor, y: Tensor, eps: float, seed: int) -> Tensor:
        del seed  # it draws from torch's global generator, which the caller has seeded
        suite = require("foolbox", "attacks", "this attack")
        prefix = "Linf" if self.norm == "inf" else "L2"
        steps: dict[str, Any] = {"rel_stepsize": self.step_size, "steps": self.steps}
        kinds: dict[str, tuple[str, dict[str, Any]]] = {
            "pgd": (f"{prefix}ProjectedGradientDescentAttack", steps),
            "basic": (f"{prefix}BasicIterativeAttack", steps),
            "fgsm": (f"{prefix}FastGradientAttack", {}),
            "deepfool": (f"{prefix}DeepFoolAttack", {"steps": self.steps}),
        }
        name, options = kinds[self.attack]
        attack = getattr(suite.attacks, name)(**options)
        wrapped = suite.PyTorchModel(model, bounds=(0.0, 1.0), device=images.device)
        _, clipped, _ = attack(wrapped, images, y, epsilons=eps)
        found: Tensor = clipped
        return found
