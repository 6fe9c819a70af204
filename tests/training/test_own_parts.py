"""From outside of the package: a method, an optimiser and a schedule of one's own, each registered in one line."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

import polybound as pb
from polybound.errors import PolyboundError
from polybound.registry import Component, Components
from polybound.runs import DataSpec, Run, Spec, train_runs
from polybound.training import (
    METHODS,
    OPTIMISERS,
    SCHEDULES,
    JacobianPenalty,
    Method,
    Optimiser,
    Schedule,
    cross_entropies,
    register_method,
)

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


@dataclass(frozen=True)
class Late(Optimiser):
    """Plain SGD with another learning rate of its own."""

    name: ClassVar[str] = "late"
    learning_rate: float = 0.02


@dataclass(frozen=True)
class Linear(Schedule):
    """The learning rate falls in a line to a share of it."""

    name: ClassVar[str] = "linear"
    end: float = 0.5

    def factor_at(self, epoch):
        return 1.0 - (1.0 - self.end) * epoch / max(self.epochs - 1, 1)


def weights_of(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


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
    class Without(JacobianPenalty):
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


def test_a_method_is_used_by_name_everywhere(tmp_path):
    register_method(LargeLogitPenalty)
    options = {"method": "large-logits", "weight": 0.5, "epochs": 3, "learning_rate": 0.02, "batch_size": 256}
    specs = [Spec(DataSpec.of("digits"), recipe=pb.Recipe.from_options(**options), seed=seed) for seed in (1, 2)]
    assert Spec.from_dict(json.loads(json.dumps(specs[0].as_dict()))) == specs[0]
    assert specs[0].columns()["method.weight"] == 0.5 and specs[0].recipe.label == "large-logits, weight 0.5"
    runs = train_runs(specs, tmp_path)
    for spec, run in zip(specs, runs, strict=True):
        model = pb.paper_model("pn-4", shape=(1, 8, 8), seed=spec.seed)
        pb.fit(model, DIGITS, spec.recipe, seed=spec.seed)
        torch.testing.assert_close(weights_of(model), weights_of(run.model()), rtol=1e-4, atol=1e-5)
        assert Run(run.path).spec() == spec
    plain = pb.paper_model("pn-4", shape=(1, 8, 8), seed=1)
    pb.fit(plain, DIGITS, "paper", seed=1, epochs=3, learning_rate=0.02, batch_size=256)
    data = pb.data.load_digits("test")
    assert plain(data.x).abs().mean() > 1.2 * runs[0].model()(data.x).abs().mean()
    result = pb.evaluate_run(runs[0].path, "fgsm-0.1", limit=10)
    assert result.scores.values("method") == ["large-logits"] and result.scores.values("method.weight") == [0.5]


def test_a_method_trains_a_stack_and_takes_an_adversary():
    register_method(LargeLogitPenalty)
    options = {"method": "large-logits", "adversary": "fgsm-0.1", "epochs": 2, "start": 1, "batch_size": 256}
    stack = small_model(runs=2, seed=[5, 6], dtype=torch.float64)
    pb.fit(stack, DIGITS, seed=[3, 4], learning_rate=0.02, **options)
    for e in range(2):
        alone = small_model(seed=5 + e, dtype=torch.float64)
        pb.fit(alone, DIGITS, seed=3 + e, learning_rate=0.02, **options)
        torch.testing.assert_close(weights_of(stack.run(e)), weights_of(alone))


def test_a_method_that_acts_after_a_step(tmp_path):
    register_method(Clip)
    spec = Spec(
        DataSpec.of("digits"), recipe=pb.Recipe.from_options(method="clip", limit=0.04, epochs=2, batch_size=256)
    )
    (run,) = train_runs([spec], tmp_path, epochs=(1,))
    assert weights_of(run.model()).abs().max() == weights_of(run.model(1)).abs().max() == torch.tensor(0.04)


def test_methods_of_different_options_do_not_train_as_one(tmp_path):
    register_method(LargeLogitPenalty)
    recipes = [pb.Recipe.from_options(method="large-logits", weight=weight, epochs=2) for weight in (0.1, 0.2)]
    with pytest.raises(PolyboundError, match="different options of large-logits do not train as one stack"):
        train_runs([Spec(DataSpec.of("digits"), recipe=recipe) for recipe in recipes], tmp_path)


def test_an_optimiser_and_a_schedule(tmp_path):
    OPTIMISERS.register(Late)
    SCHEDULES.register(Linear)
    recipe = pb.Recipe.from_options(optimiser="late", schedule="linear", epochs=3, end=0.1, batch_size=256)
    assert [recipe.rate(epoch) for epoch in range(3)] == pytest.approx([0.02, 0.011, 0.002])
    spec = Spec(DataSpec.of("digits"), recipe=recipe)
    assert Spec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec
    assert spec.difference(Spec(spec.data, recipe=recipe.replace({"end": 0.2}))) == {"schedule.end": (0.1, 0.2)}
    (run,) = train_runs([spec], tmp_path)
    assert [line["rate"] for line in run.history()[:3]] == pytest.approx([0.02, 0.011, 0.002])
    assert recipe.scaled(0.7).schedule == Linear(2, 256, 0.1)


def test_names_are_taken_once():
    register_method(LargeLogitPenalty)
    register_method(LargeLogitPenalty)  # the same again does no harm
    for registry, taken, base in (
        (METHODS, "l2", Method),
        (OPTIMISERS, "sgd", Optimiser),
        (SCHEDULES, "steps", Schedule),
    ):

        @dataclass(frozen=True)
        class Other(base):
            name: ClassVar[str] = taken

        with pytest.raises(PolyboundError, match=f"there is a.* {registry.what} called '{taken}' already"):
            registry.register(Other)
        assert registry.find(taken) is not Other


def test_what_is_not_known_names_what_is():
    register_method(LargeLogitPenalty)
    with pytest.raises(PolyboundError, match=r"method must be one of none, .*large-logits, got 'dropout'"):
        pb.fit(small_model(), DIGITS, method="dropout")
    with pytest.raises(PolyboundError, match="method large-logits has no option 'bound'; it has weight, start"):
        METHODS.build({"name": "large-logits", "bound": 1.0})
    with pytest.raises(
        PolyboundError, match="bound is no option of large-logits training; it belongs to method projection"
    ):
        pb.fit(small_model(), DIGITS, method="large-logits", bound=1.0)
    with pytest.raises(PolyboundError, match="method none has no option 'weight'; it has none"):
        METHODS.build({"name": "none", "weight": 1.0})
    with pytest.raises(PolyboundError, match="optimiser must be one of sgd, momentum, adamw, muon, got 'adam'"):
        pb.Recipe.from_options(optimiser="adam")
    with pytest.raises(PolyboundError, match="schedule must be one of steps, cosine, one-cycle, constant, got 'warm'"):
        pb.Recipe.from_options(schedule="warm")


def test_a_part_without_a_name_is_refused():
    @dataclass(frozen=True)
    class Nameless(Component):
        size: int = 1

    with pytest.raises(PolyboundError, match="cannot be called None"):
        Components[Component]("kind").register(Nameless)


def test_equal_numbers_are_one_option_also_of_ones_own():
    register_method(LargeLogitPenalty)
    assert LargeLogitPenalty(1).as_dict() == LargeLogitPenalty(1.0).as_dict()
    data = DataSpec.of("digits")
    one, other = (Spec(data, recipe=pb.Recipe(LargeLogitPenalty(weight))) for weight in (1, 1.0))
    assert json.dumps(one.as_dict()) == json.dumps(other.as_dict()) and one.address == other.address
