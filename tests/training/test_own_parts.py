"""From outside of the package: a method, an optimiser and a schedule of one's own, each registered in one line."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

import polybound as pb
from helpers.errors import refuses
from helpers.training import weights_of
from polybound.errors import PolyboundError
from polybound.registry import Component, Components
from polybound.runs import DataSpec, Spec, train_runs
from polybound.training import METHODS, SCHEDULES, Method, Optimiser, Schedule, cross_entropies, register_method

DIGITS = pb.data.load_digits("train")


pytestmark = pytest.mark.usefixtures("registries")


@dataclass(frozen=True)
class LargeLogitPenalty(Method):
    """The example of `Method`: cross-entropy plus a penalty of large logits."""

    name: ClassVar[str] = "large-logits"
    weight: float = 0.1
    start: int = 1

    def loss(self, logits, inputs, labels, random):
        losses = cross_entropies(logits, labels)
        return losses, losses + self.weight * logits.square().sum((-2, -1))


@dataclass(frozen=True)
class Clip(Method):
    """After every step, no weight is above a limit."""

    name: ClassVar[str] = "clip"
    limit: float = 0.05

    def prepare(self, model):
        @torch.no_grad()
        def after(step, last):
            for parameter in model.parameters():
                parameter.clamp_(-self.limit, self.limit)

        return after


def small_model(**options):
    return pb.CCP(64, 4, 10, 3, shape=(1, 8, 8), **options)


def test_a_method_is_its_formula():
    register_method(LargeLogitPenalty)
    data = pb.data.Dataset("digits", "train", DIGITS.x[:8].double(), DIGITS.y[:8], DIGITS.class_names)
    model, expected = (small_model(seed=0, dtype=torch.float64) for _ in range(2))
    logits = expected(data.x)
    (F.cross_entropy(logits, data.y) + 0.7 * logits.square().sum() / 8).backward()
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter -= 0.1 * parameter.grad
    pb.fit(model, data, "paper", method="large-logits", weight=0.7, start=0, epochs=1, batch_size=8, learning_rate=0.1)
    torch.testing.assert_close(weights_of(model), weights_of(expected))


def test_a_loss_that_replaces_another_is_the_one_that_is_descended():
    """Also where the other one has a closed form, which is then no longer that of the loss."""

    @register_method
    @dataclass(frozen=True)
    class Without(pb.training.JacobianPenalty):
        name: ClassVar[str] = "jacobian-without"

        def loss(self, logits, inputs, labels, random):
            losses = cross_entropies(logits, labels)
            return losses, losses

    mine, plain, penalised = (small_model(seed=0, dtype=torch.float64) for _ in range(3))
    options = {"recipe": "paper", "epochs": 1, "learning_rate": 0.02, "batch_size": 256}
    pb.fit(mine, DIGITS, method="jacobian-without", weight=1.0, **options)
    pb.fit(plain, DIGITS, **options)
    pb.fit(penalised, DIGITS, method="jacobian", weight=1.0, **options)
    torch.testing.assert_close(weights_of(mine), weights_of(plain))
    assert not torch.allclose(weights_of(mine), weights_of(penalised))


def test_a_method_that_acts_after_a_step(tmp_path):
    register_method(Clip)
    recipe = pb.Recipe.from_options(method="clip", limit=0.04, epochs=2, batch_size=256)
    spec = Spec(DataSpec.of("digits"), recipe=recipe)
    (run,) = train_runs([spec], tmp_path, epochs=(1,))
    assert weights_of(run.model()).abs().max() == weights_of(run.model(1)).abs().max() == torch.tensor(0.04)


def test_names_are_taken_once():
    register_method(LargeLogitPenalty)
    register_method(LargeLogitPenalty)  # the same again does no harm
    parts = ((METHODS, "l2", Method), (pb.training.OPTIMISERS, "sgd", Optimiser), (SCHEDULES, "steps", Schedule))
    for registry, taken, base in parts:
        Other = dataclass(frozen=True)(type("Other", (base,), {"name": taken}))
        refuses(f"there is a.* {registry.what} called '{taken}' already", registry.register, Other)
        assert registry.find(taken) is not Other


def test_what_is_not_known_names_what_is():
    register_method(LargeLogitPenalty)
    with pytest.raises(PolyboundError, match=r"method must be one of none, .*large-logits, got 'dropout'"):
        pb.fit(small_model(), DIGITS, method="dropout")
    with pytest.raises(PolyboundError, match="method large-logits has no option 'bound'; it has weight, start"):
        METHODS.build({"name": "large-logits", "bound": 1.0})
    with pytest.raises(PolyboundError, match="bound is no option of large-logits training; it belongs to method proj"):
        pb.fit(small_model(), DIGITS, method="large-logits", bound=1.0)
    refuses("method none has no option 'weight'; it has none", METHODS.build, {"name": "none", "weight": 1.0})


def test_a_part_without_a_name_is_refused():
    @dataclass(frozen=True)
    class Nameless(Component):
        size: int = 1

    refuses("cannot be called None", Components[Component]("kind").register, Nameless)
