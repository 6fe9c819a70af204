"""How to train: every choice of the paper's Algorithms 1 and 2 and of its baselines, with the published defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from polybound.errors import PolyboundError

__all__ = ["METHODS", "Recipe"]

METHODS = ("none", "projection", "jacobian", "l2", "certified")
"""What can be done against overfitting and attacks; each but the last also as `NAME+at`, with adversarial training."""

BoundLike = float | Sequence[float] | Mapping[str, float | Sequence[float]]


@dataclass(frozen=True)
class Recipe:
    """One way to train. The defaults are the paper's: `Recipe(method="projection", bound=1.0)` is its Algorithm 1.

    Attributes:
        method: "none", "projection", "jacobian" or "l2"; with "+at" appended, on adversarial examples. Or "certified":
            for proven lower bounds of the margins over balls of radius `eps`, to first order.
        bound: of the projection; as `polybound.Projection` takes it, also one for each run of a stack.
        norm: of the projection, "inf" or "2".
        on: what the projection bounds: "weights", "operator" or "product".
        penalty: weight of the Jacobian or l2 penalty. The paper does not say which ones it used.
        jacobian: "random", one random projection a step (Hoffman et al., 2019), or "exact".
        adversary: "fgsm" or "pgd".
        eps: radius of the adversary's l_inf ball, or of the certificates'.
        adversary_steps: steps of pgd.
        adversary_step_size: size of a step of pgd.
        random_start: whether the adversary starts from a random point of the ball.
        protocol: what the adversary clips to: "sound", the domain of the data, or "published", [0, 1] whatever that is.
        epochs: passes over the data.
        batch_size: samples in a step.
        learning_rate: of plain SGD.
        milestones: epochs (from 0) at which the learning rate is multiplied by `factor`.
        factor: see there.
        start: first epoch (from 0) with a projection, an adversary or certificates; those before are pre-training.
        adversary_start: first epoch with an adversary, if that is not `start`.
        every: steps of an epoch between projections.
    """

    method: str = "none"
    bound: BoundLike = 1.0
    norm: Literal["inf", "2"] = "inf"
    on: Literal["weights", "operator", "product"] = "weights"
    penalty: float = 0.01
    jacobian: Literal["random", "exact"] = "random"
    adversary: Literal["fgsm", "pgd"] = "fgsm"
    eps: float = 0.1
    adversary_steps: int = 20
    adversary_step_size: float = 0.01
    random_start: bool = False
    protocol: Literal["sound", "published"] = "sound"
    epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 0.001
    milestones: tuple[int, ...] = (25, 75)
    factor: float = 0.2
    start: int = 50
    adversary_start: int | None = None
    every: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if self.regulariser not in METHODS:
            choices = ", ".join(METHODS)
            raise PolyboundError(f"method must be one of {choices}, each possibly with +at, got {self.method!r}")
        if self.method == "certified+at":
            raise PolyboundError("certified training sees the whole ball: it takes no +at")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise PolyboundError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("epochs", "batch_size", "every", "adversary_steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PolyboundError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("learning_rate", "factor", "eps", "adversary_step_size", "penalty"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise PolyboundError(f"{name} must be a finite number of at least 0, got {value!r}")
        starts = (self.start, self.adversary_from)
        if not all(isinstance(start, int) and start >= 0 for start in starts) or any(m < 0 for m in self.milestones):
            raise PolyboundError("start, adversary_start and milestones are epochs, counted from 0")

    @property
    def regulariser(self) -> str:
        """The method without its "+at"."""
        return self.method.removesuffix("+at")

    @property
    def adversarial(self) -> bool:
        """Whether training is on adversarial examples."""
        return self.method.endswith("+at")

    @property
    def constrained(self) -> bool:
        """Whether something other than an adversary begins with `start`: projections or certificates."""
        return self.regulariser in ("projection", "certified")

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch."""
        passed = sum(epoch >= milestone for milestone in self.milestones)
        return float(self.learning_rate * self.factor**passed)

    @property
    def adversary_from(self) -> int:
        """The first epoch with an adversary, in adversarial training."""
        return self.start if self.adversary_start is None else self.adversary_start

    def phases(self) -> list[int]:
        """The epochs with which something new begins: the first, and those of the adversary and the constraint."""
        begins = {0}
        if self.adversarial:
            begins.add(self.adversary_from)
        if self.constrained:
            begins.add(self.start)
        return sorted(epoch for epoch in begins if epoch < self.epochs)

    def shared(self) -> Recipe:
        """What the runs of a seed have in common with one another before `start`, whatever their bounds."""
        return replace(self, method="none+at" if self.adversarial else "none")

    def shared_until(self) -> int:
        """How many epochs, from the first on, are those of `shared()`."""
        if self.regulariser in ("jacobian", "l2"):
            return 0
        return min(self.start, self.epochs) if self.constrained else self.epochs

    def as_dict(self) -> dict[str, Any]:
        """All choices that are made, as JSON can hold them."""
        choices = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in choices.items()}

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Recipe:
        """A recipe from a mapping, such as a TOML file; unknown names are refused."""
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in options if name not in known]:
            raise PolyboundError(f"a recipe has no {unknown[0]!r}; it has {', '.join(known)}")
        return replace(cls(), **options)


_CHOICES: dict[str, tuple[str, ...]] = {
    "norm": ("inf", "2"),
    "on": ("weights", "operator", "product"),
    "jacobian": ("random", "exact"),
    "adversary": ("fgsm", "pgd"),
    "protocol": ("sound", "published"),
}
