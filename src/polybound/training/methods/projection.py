"""The paper's Algorithm 1: a projection onto norm balls after every few steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, Literal

from polybound.constraints import Projection
from polybound.errors import PolyboundError
from polybound.models import PolynomialNetwork
from polybound.registry import check_choice, check_start, check_whole, norm_name, shown
from polybound.training.methods.base import Method, Plain, register_method

__all__ = ["ProjectAfterStep", "Projected", "projection_kind"]

BoundLike = float | Sequence[float] | Mapping[str, float | Sequence[float]]


@register_method
@dataclass(frozen=True)
class Projected(Method):
    """SGD whose weights are projected onto norm balls, `w <- Pi_{||w|| <= bound}(w)`.

    Attributes:
        bound: as `polybound.Projection` takes it; for a stack also one for each run.
        norm: "inf" or "2".
        on: what the bound is about: "weights", "operator" or "product".
        every: f of Algorithm 1: from `start` on, a projection follows step t if `t mod f = 0`. Steps are counted from
            0 on, from the beginning of the training and across epochs. The very last step is always followed by one.
        start: first epoch with a projection, from 0, or a share of all epochs; the paper pre-trains for half of them.
    """

    name: ClassVar[str] = "projection"

    bound: BoundLike = 1.0
    norm: Literal["inf", "2"] = "inf"
    on: Literal["weights", "operator", "product"] = "weights"
    every: int = 10
    start: int | float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", norm_name(self.norm))
        check_choice("on", self.on, ("weights", "operator", "product"))
        check_whole("every", self.every)
        check_start("start", self.start)
        for bound in _numbers(self.bound):
            if isinstance(bound, bool) or not isinstance(bound, int | float) or not bound >= 0:
                raise PolyboundError(f"a bound must be a number of at least 0, got {bound!r}")
        # 1 and 1.0 are one bound, in whatever order bounds are named, and have one address.
        object.__setattr__(self, "bound", _floats(self.bound))

    @property
    def label(self) -> str:
        kind = {"weights": "", "operator": "operator "}.get(self.on, "") + ("spectral " if self.norm == "2" else "")
        kind = "product " if self.on == "product" else kind
        return f"{kind}projection {shown(self.bound)}"

    def __hash__(self) -> int:
        return hash(json.dumps(self.as_dict(), sort_keys=True))  # bounds by name are a dictionary

    @property
    def kind(self) -> str:
        """What it projects onto: "product", "spectral", "layer-wise" (a bound for each matrix) or "single"."""
        return projection_kind(self.bound, self.norm, self.on)

    def projection(self, model: PolynomialNetwork) -> Projection:
        """The projection of a model's weights."""
        return Projection(model, self.bound, norm=self.norm, on=self.on)

    def prepare(self, model: PolynomialNetwork) -> ProjectAfterStep:
        return ProjectAfterStep(self.projection(model), self.every)

    def join(self, methods: Sequence[Method]) -> Projected:
        """All but the bounds must agree; a plain run is one whose bound is infinite."""
        bounds = []
        for method in methods:
            if isinstance(method, Projected) and replace(method, bound=self.bound) == self:
                bounds.append(method.bound)
            elif isinstance(method, Plain):
                bounds.append(inf)
            else:
                return super().join(methods)  # type: ignore[return-value]  # which raises
        return replace(self, bound=_side_by_side(bounds))


def projection_kind(bound: object, norm: str, on: str) -> str:
    """What a projection with these options projects onto.

    >>> projection_kind(1.0, "inf", "weights"), projection_kind({"C": 1.0}, "2", "weights")
    ('single', 'spectral')
    """
    if on == "product":
        return "product"
    if norm == "2":
        return "spectral"
    return "layer-wise" if isinstance(bound, Mapping) else "single"


class ProjectAfterStep:
    """Projects after every few steps of the training, and after the last step of all."""

    def __init__(self, projection: Projection, every: int) -> None:
        self.projection, self.every = projection, every
        self.watch: Callable[[Projection], None] | None = None

    def __call__(self, step: int, last: bool) -> None:
        if step % self.every and not last:
            return
        if self.watch is not None:
            self.watch(self.projection)
        self.projection.apply_()


def _numbers(bound: Any) -> list[Any]:
    if isinstance(bound, Mapping):
        return [number for entry in bound.values() for number in _numbers(entry)]
    return list(bound) if isinstance(bound, Sequence) and not isinstance(bound, str) else [bound]


def _floats(bound: Any) -> Any:
    if isinstance(bound, Mapping):
        return {name: _floats(bound[name]) for name in sorted(bound)}
    return tuple(map(_floats, bound)) if isinstance(bound, Sequence) else float(bound) + 0.0  # which makes 0 of -0


def _side_by_side(bounds: list[Any]) -> BoundLike:
    """Bounds of the runs as `Projection` takes them for a stack; a number stands for all matrices of a run."""
    named = next((bound for bound in bounds if isinstance(bound, Mapping)), None)
    if named is None:
        return bounds
    return {name: [bound[name] if isinstance(bound, Mapping) else bound for bound in bounds] for name in named}
