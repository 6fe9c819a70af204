"""Methods of training: plain, projected, certified, with a Jacobian penalty or weight decay; `register_method`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from polybound.certificates import box_of, margin_bounds
from polybound.constraints import Projection
from polybound.errors import PolyboundError, check_choice, check_int, check_norm, check_number
from polybound.models import DeepNetwork, Factors, PolynomialNetwork
from polybound.registry import Component, Components, check_start, format_value, start_epoch
from polybound.training.boxes import worst_logits

if TYPE_CHECKING:
    from polybound.training.engine import RowsEngine, StepRandom

AfterStep = Callable[[int, bool], None]
"""What a method does to the weights after a step: its number, from 0 across epochs, and whether it is the very last."""


@dataclass(frozen=True)
class StepContext:
    """Where in the training a step is, for losses that change on the way.

    Attributes:
        done: the share of the method's own epochs that is done, from 0 to 1.
        domain: the smallest and largest value an input entry can have; None if unknown.
    """

    done: float = 1.0
    domain: tuple[float, float] | None = None


@dataclass(frozen=True)
class Method(Component):
    """A way to train against overfitting and attacks: what it does to the loss and after a step, and when it begins.

    A method of your own is a frozen dataclass with a `name` and any of the functions below, and one line that
    registers it; from then on `fit`, `train --method` and experiments know it:

        @pb.training.register_method
        @dataclass(frozen=True)
        class LargeLogitPenalty(pb.training.Method):
            name = "large-logits"
            weight: float = 0.1

            def loss(self, logits, inputs, labels, random):
                losses = pb.training.cross_entropies(logits, labels)
                return losses, losses + self.weight * logits.square().sum((-2, -1))
    """

    takes_adversary: ClassVar[bool] = True
    """Whether it can be trained on adversarial examples."""
    uses_inputs: ClassVar[bool] = False
    """Whether its loss differentiates by the inputs."""
    fixes_statistics: ClassVar[bool] = False
    """Whether normalisations keep the statistics that they have when it begins: they are fixed affine maps from then
    on, and what is trained is the network that is bounded."""

    @property
    def own_loss(self) -> bool:
        """Whether it replaces the loss; then the recipe's is the plain cross-entropy, and samples have no weights."""
        return type(self).loss is not Method.loss or self.bounds_network

    @property
    def bounds_network(self) -> bool:
        """Whether its loss is of the network itself, `network_loss`, and not of logits."""
        return type(self).network_loss is not Method.network_loss

    @property
    def begins(self) -> int:
        """The first epoch, from 0, in which it does anything; before that, training is plain.

        A `start` may be a share of the epochs; a recipe, which knows how many there are, makes it an epoch.
        """
        start = getattr(self, "start", 0)
        if isinstance(start, float):
            raise PolyboundError(f"{self.name} begins after {start:g} of the epochs: only a recipe knows how many")
        return int(start)

    def plain_until(self, epochs: int) -> int:
        """For how many of the epochs it is plain training, so that runs of one seed need be trained once."""
        return min(start_epoch(getattr(self, "start", 0), epochs), epochs)

    def complete_from(self, epochs: int) -> int:
        """The first of all epochs, from 0, in which all of it is in force; the last at the latest."""
        return min(self.begins, epochs - 1)

    @property
    def decay(self) -> float:
        """The weight decay of a step: `w <- w - rate (gradient + decay w)`."""
        return 0.0

    def loss(self, logits: Tensor, inputs: Tensor, labels: Tensor, random: StepRandom) -> tuple[Tensor, Tensor]:
        """The losses to report and the losses to descend, each summed over the batch: one value for each run.

        Args:
            logits: (*lead, batch, classes), computed from `inputs`; lead is (E,) for a stack and () for a model.
            inputs: (*lead, batch, features); they require gradients if `uses_inputs`.
            labels: (*lead, batch).
            random: draws random numbers for each run.
        """
        del inputs, random
        losses = cross_entropies(logits, labels)
        return losses, losses

    def network_loss(
        self, factors: Factors, inputs: Tensor, labels: Tensor, context: StepContext
    ) -> tuple[Tensor, Tensor]:
        """In the place of `loss`, for one that needs more than logits: what is reported, and what is descended.

        Args:
            factors: of the model or stack, differentiable by its weights.
            inputs: (*lead, batch, features).
            labels: (*lead, batch).
            context: where in the training the step is.
        """
        del factors, inputs, labels, context
        raise PolyboundError(f"method {self.name} has no loss of the network")

    def deep_loss(
        self, model: DeepNetwork, inputs: Tensor, labels: Tensor, context: StepContext
    ) -> tuple[Tensor, Tensor]:
        """The same as `network_loss` for a deep network, which is no chain of factors."""
        del model, inputs, labels, context
        raise PolyboundError(f"method {self.name} is for chains of products, and this is a deep network")

    def closed_loss(self, engine: RowsEngine, x: Tensor, y: Tensor, random: StepRandom) -> Any:
        """The same for CCP by hand: gradients by logits and by rows of the Jacobian, and the reported losses."""
        del engine, x, y, random
        raise PolyboundError(f"method {self.name} has no closed form")

    def prepare(self, model: PolynomialNetwork) -> AfterStep | None:
        """Called once, before the first step: what to do after each step from `begins` on, if anything."""
        del model
        return None

    def settle(self, model: PolynomialNetwork) -> None:
        """Called where training is left before its end: do what would be done after the last step."""
        if (after := self.prepare(model)) is not None:
            after(0, True)

    def join(self, methods: Sequence[Method]) -> Method:
        """One method for a stack whose runs have these methods; self is one of them."""
        if any(method != self for method in methods):
            raise PolyboundError(f"runs with different options of {self.name} do not train as one stack")
        return self


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy summed over the batch: one value for each run."""
    losses = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.flatten(), reduction="none")
    return losses.view(labels.shape).sum(-1)


def drop_subnormal(logit_grad: Tensor) -> Tensor:
    """Gradients by logits, with those set to zero that are too small to move a weight.

    Once the training data is fitted, most classes of most samples have such; their products with what follows are
    subnormal numbers, with which a CPU takes four times as long. An adversary needs the sign of all of them.
    """
    return F.hardshrink(logit_grad, 1e-20)


METHODS: Components[Method] = Components("method")
"""All methods by name."""

register_method = METHODS.register


@register_method
@dataclass(frozen=True)
class Plain(Method):
    """The cross-entropy, and nothing else."""

    name: ClassVar[str] = "none"

    def plain_until(self, epochs: int) -> int:
        return epochs


def join_methods(methods: Sequence[Method]) -> Method:
    """One method for a stack: of runs that are plain and runs that are not, the latter can say how they join."""
    leader = next((method for method in methods if not isinstance(method, Plain)), methods[0])
    return leader.join(methods)


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
    fixes_statistics: ClassVar[bool] = True

    bound: BoundLike = 1.0
    norm: Literal["inf", "2"] = "inf"
    on: Literal["weights", "operator", "product"] = "weights"
    every: int = 10
    start: int | float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", check_norm(self.norm))
        check_choice("on", self.on, ("weights", "operator", "product"))
        check_int("every", self.every)
        check_start("start", self.start)
        # 1 and 1.0 are one bound, in whatever order bounds are named, and have one address.
        object.__setattr__(self, "bound", _checked_bound(self.bound))

    @property
    def label(self) -> str:
        kind = {"weights": "", "operator": "operator "}.get(self.on, "") + ("spectral " if self.norm == "2" else "")
        kind = "product " if self.on == "product" else kind
        return f"{kind}projection {format_value(self.bound)}"

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
        bounds: list[Any] = []
        for method in methods:
            if isinstance(method, Projected) and replace(method, bound=self.bound) == self:
                bounds.append(method.bound)
            elif isinstance(method, Plain):
                bounds.append(inf)
            else:
                return super().join(methods)  # type: ignore[return-value]  # which raises
        named = next((bound for bound in bounds if isinstance(bound, Mapping)), None)
        if named is None:
            return replace(self, bound=bounds)
        # Bounds by name are one list for each matrix; a number stands for all matrices of a run.
        by_name = {name: [bound[name] if isinstance(bound, Mapping) else bound for bound in bounds] for name in named}
        return replace(self, bound=by_name)


def projection_kind(bound: object, norm: str, on: str) -> str:
    """The kind of a projection with these options: "product", "spectral", "layer-wise" or "single".

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


def _checked_bound(bound: Any) -> Any:
    """The bound in its one form: floats, tuples, and mappings in the order of their names."""
    if isinstance(bound, Mapping):
        return {name: _checked_bound(bound[name]) for name in sorted(bound)}
    if isinstance(bound, Sequence) and not isinstance(bound, str):
        return tuple(map(_checked_bound, bound))
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not bound >= 0:
        raise PolyboundError(f"a bound must be a number of at least 0, got {bound!r}")
    return float(bound) + 0.0  # which makes 0 of -0


@register_method
@dataclass(frozen=True)
class Certified(Method):
    r"""`(1 - weight) CE(f(x)) + weight CE(-low)`, low being lower bounds of the margins over balls of radius eps.

    For each of the `rivals` that are nearest at the centre of the ball, which is cut to the data's domain,

        low_j = g_j - ||G_j||_1 - remainder R_j

    is the bound of the first stage of certificates, by entries: see `polybound.certificates.bounds.differentiable`.
    With `remainder=1` it is proven, up to rounding. With less it is between that and the least margin to first order,
    and trains networks that later stages prove robust. Of the other rivals `g_j` itself counts. The radius rises from
    0 in proportion to the steps, over a share `ramp` of the method's epochs.

    Deep networks are bounded by intervals, all rivals of each sample, with `low` the bounds of the certificates' stage
    of that name: see `polybound.training.boxes`. `remainder` and `rivals` are of chains alone.

    Attributes:
        eps: radius of the l_inf balls.
        weight: of the certified loss, from 0 to 1; the rest is the clean loss's.
        remainder: what share of the remainder counts, in chains of products.
        ramp: share of the epochs from `start` on in which the radius rises.
        rivals: how many rivals of each sample are bounded, in chains of products; 0 for all.
        start: first epoch with that loss, from 0, or a share of all epochs.
    """

    name: ClassVar[str] = "certified"
    takes_adversary: ClassVar[bool] = False  # the loss sees the whole ball

    eps: float = 0.1
    weight: float = 1.0
    remainder: float = 0.3
    ramp: float = 0.6
    rivals: int = 3
    start: int | float = 0

    def __post_init__(self) -> None:
        check_number("eps", self.eps)
        for name in ("weight", "remainder", "ramp"):
            check_number(name, getattr(self, name), 1)
        check_int("rivals", self.rivals, 0)
        check_start("start", self.start)
        super().__post_init__()

    @property
    def label(self) -> str:
        return f"certified training {self.eps:g}"

    def eps_at(self, done: float) -> float:
        """The radius where a share of the method's epochs is done.

        >>> Certified(eps=0.2, ramp=0.5).eps_at(0.25), Certified(eps=0.2, ramp=0.5).eps_at(0.75)
        (0.1, 0.2)
        """
        return self.eps if done >= self.ramp else self.eps * done / self.ramp

    def complete_from(self, epochs: int) -> int:
        rising = ceil(self.ramp * (epochs - self.begins) - 1e-9)
        return min(self.begins + rising, epochs - 1)

    def network_loss(
        self, factors: Factors, inputs: Tensor, labels: Tensor, context: StepContext
    ) -> tuple[Tensor, Tensor]:
        c, r = box_of(inputs, self.eps_at(context.done), context.domain)
        bounds = margin_bounds(factors, c, r, labels, self.rivals or None)
        low = bounds.centre - bounds.slope - self.remainder * bounds.remainder
        losses = self.weight * cross_entropies(bounds.logits.scatter(-1, bounds.rivals, -low), labels)
        if self.weight < 1:
            losses = losses + (1 - self.weight) * cross_entropies(factors(inputs), labels)
        return losses, losses

    def deep_loss(
        self, model: DeepNetwork, inputs: Tensor, labels: Tensor, context: StepContext
    ) -> tuple[Tensor, Tensor]:
        eps = self.eps_at(context.done)
        lower, upper = inputs - eps, inputs + eps
        if context.domain is not None:
            lower, upper = lower.clamp_min(context.domain[0]), upper.clamp_max(context.domain[1])
        if self.weight == 1:
            losses = cross_entropies(worst_logits(model, lower, upper, labels), labels)
            return losses, losses
        # Points are boxes as well, in the same batch, so that both have the same normalisation.
        ends = torch.cat([lower, inputs]), torch.cat([upper, inputs])
        worst, clean = worst_logits(model, *ends, labels.repeat(2)).chunk(2)
        losses = self.weight * cross_entropies(worst, labels) + (1 - self.weight) * cross_entropies(clean, labels)
        return losses, losses


@register_method
@dataclass(frozen=True)
class CertifiedProjected(Certified):
    """Training for certificates whose weights are projected as well, from `start` on, as method `projection` does it.

    Attributes:
        bound: of the l_inf norms of all matrices.
        every: a projection follows each step whose number is a multiple of this, and the last one.
    """

    name: ClassVar[str] = "certified-projection"

    bound: float = 1.0
    every: int = 10

    def __post_init__(self) -> None:
        check_number("bound", self.bound)
        check_int("every", self.every)
        super().__post_init__()

    @property
    def label(self) -> str:
        return f"{super().label} + projection {self.bound:g}"

    def prepare(self, model: PolynomialNetwork) -> ProjectAfterStep:
        return ProjectAfterStep(Projection(model, self.bound), self.every)


@register_method
@dataclass(frozen=True)
class JacobianPenalty(Method):
    """Cross-entropy plus `weight ||J(x)||_F^2 / 2`, J being the Jacobian of the logits by the input.

    From Hoffman, Roberts and Yaida, Robust learning with Jacobian regularization, 2019.

    Attributes:
        weight: of the penalty. The paper does not say which it used.
        how: "random", one random projection a step, or "exact".
    """

    name: ClassVar[str] = "jacobian"
    uses_inputs: ClassVar[bool] = True

    weight: float = 0.01
    how: Literal["random", "exact"] = "random"

    def __post_init__(self) -> None:
        check_number("weight", self.weight)
        check_choice("how", self.how, ("random", "exact"))
        super().__post_init__()

    @property
    def label(self) -> str:
        return f"Jacobian {self.weight:g}{' exact' if self.how == 'exact' else ''}"

    def loss(self, logits: Tensor, inputs: Tensor, labels: Tensor, random: StepRandom) -> tuple[Tensor, Tensor]:
        losses = cross_entropies(logits, labels)
        directions = random.unit_vectors(logits).view_as(logits) if self.how == "random" else None
        return losses, losses + self.weight * jacobian_penalty(logits, inputs, directions)

    def closed_loss(
        self, engine: RowsEngine, x: Tensor, y: Tensor, random: StepRandom
    ) -> tuple[Tensor, Tensor, Tensor]:
        logit_grad, losses = engine.logit_grad(x, y)
        classes, batch = logit_grad.shape[1:]
        if self.how == "exact":
            one = torch.eye(classes).to(logit_grad).view(1, classes, -1, 1)
            v, scale = one.expand(engine.runs, -1, -1, batch), self.weight
        else:
            v, scale = random.unit_vectors(logit_grad.mT).mT.unsqueeze(1), self.weight * classes
        return drop_subnormal(logit_grad), engine.rows(v).mul_(scale), losses


def jacobian_penalty(logits: Tensor, inputs: Tensor, directions: Tensor | None = None) -> Tensor:
    """`sum over the batch of ||J(x)||_F^2 / 2`, differentiable: one value for each run.

    With random unit vectors v, one for each sample, it is `o ||v^T J||^2 / 2`, whose expectation is exact; without,
    there is a backward pass for each of the o classes.

    Args:
        logits: (*lead, batch, classes), computed from `inputs`.
        inputs: (*lead, batch, features), with `requires_grad`.
        directions: the unit vectors, shaped as the logits.
    """
    classes = logits.shape[-1]
    every = torch.eye(classes, dtype=logits.dtype, device=logits.device).unbind()
    scale = 1.0 if directions is None else float(classes)
    total = logits.new_zeros(logits.shape[:-2])
    for direction in every if directions is None else (directions,):
        (rows,) = torch.autograd.grad((logits * direction).sum(), inputs, create_graph=True)
        total = total + rows.square().sum((-2, -1))
    return total * (scale / 2)


@register_method
@dataclass(frozen=True)
class WeightDecay(Method):
    """Cross-entropy plus `weight ||w||^2 / 2` of all weights.

    Attributes:
        weight: of the penalty. The paper does not say which it used.
    """

    name: ClassVar[str] = "l2"

    weight: float = 0.01

    def __post_init__(self) -> None:
        check_number("weight", self.weight)
        super().__post_init__()

    @property
    def label(self) -> str:
        return f"L2 {self.weight:g}"

    @property
    def decay(self) -> float:
        return self.weight
