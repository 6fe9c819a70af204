"""Algorithms 1 and 2, the baselines, recipes by name, and the built-in data they are shown on."""

import pytest
import torch

import polybound as pb
from helpers.errors import refuses
from helpers.networks import jacobian
from polybound.attacks import Classifier, adversarial_batch
from polybound.data import Dataset, load_digits
from polybound.training import (
    OPTIMISERS,
    AdamW,
    Adversary,
    Constant,
    Cosine,
    CrossEntropy,
    JacobianPenalty,
    Plain,
    Projected,
)
from polybound.training.engine import AutogradEngine, StepRandom, engine_for
from polybound.training.methods import jacobian_penalty


def test_training_learns_and_the_projection_holds():
    train, test = load_digits("train"), load_digits("test")
    one = pb.paper_model("pn-4", shape=train.shape, seed=0)
    models = pb.stack([one, one])
    losses = []
    plan = {"method": "projection", "bound": [float("inf"), 1.0], "epochs": 12, "start": 6}
    pb.fit(models, train, on_epoch=lambda e, x: losses.append(x), **plan)
    plain, projected = pb.accuracy(models, test).tolist()
    assert plain > 0.9 and projected > 0.7
    assert pb.Projection(models, [float("inf"), 1.0]).contains()
    # Before the constraint starts, both runs are one and the same.
    assert all(loss[0] == loss[1] for loss in losses[:6]) and losses[-1][0] < losses[-1][1]
    plain_bound, projected_bound = pb.lipschitz(models).value.tolist()
    assert projected_bound < plain_bound / 10


MODELS = {
    "ccp": lambda **kw: pb.CCP(64, 5, 10, 4, shape=(1, 8, 8), **kw),
    "product": lambda **kw: pb.CCP(64, 5, 10, 3, "product", shape=(1, 8, 8), **kw),
    "ncp": lambda **kw: pb.NCP(64, 5, 10, 3, shape=(1, 8, 8), **kw),
    "conv": lambda **kw: pb.ConvCCP((1, 8, 8), 3, 10, 2, 3, pre=3, pool=(1,), **kw),
}
FGSM, PGD = {"adversary": "fgsm-0.1"}, {"adversary": "pgd-0.1-3-0.05"}
METHODS = {
    "none": {},
    "projection": {"bound": [0.5, 1.0, 1.5, 2.0], "every": 2, "start": 1},
    "l2": {"weight": 0.01},
    "jacobian": {"weight": 0.01},
    "jacobian exact": {"weight": 0.01, "how": "exact"},
    "certified": {"start": 1},
    "none fgsm": {**FGSM, "start": 1},
    "none pgd": {**PGD, "start": 1},
    "projection fgsm": {**FGSM, "bound": [0.5, 1.0, 1.5, 2.0], "every": 2, "start": 1},
    "jacobian fgsm": {**FGSM, "weight": 0.01, "start": 1},
    **{
        f"projection {name}": {
            **FGSM,
            "bound": [0.5, 1.0, 2.0, 9.0],
            "start": 1,
            "optimiser": name,
            "learning_rate": 0.003,
        }
        for name in OPTIMISERS.names()
    },
}


def small(n=200):
    train = load_digits("train")
    return Dataset("digits", "train", train.x[:n].double(), train.y[:n], train.class_names)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_in_a_stack_trains_as_if_alone(kind, method):
    data = small()
    options = {"method": method.split()[0], "learning_rate": 0.02, **METHODS[method], "epochs": 2}
    seeds = [3, 3, 4, 4]
    stack = MODELS[kind](runs=4, seed=[5, 6, 7, 8], dtype=torch.float64)
    pb.fit(stack, data, seed=seeds, **options)
    for e in (1, 2):
        alone = MODELS[kind](seed=5 + e, dtype=torch.float64)
        mine = {"bound": options["bound"][e]} if "bound" in options else {}
        pb.fit(alone, data, seed=seeds[e], **options | mine)
        for name, tensor in alone.state_dict().items():
            torch.testing.assert_close(stack.run(e).state_dict()[name], tensor, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_a_step_is_plain_sgd_followed_by_the_projection(kind, decay):
    data = small(8)
    model, expected = (MODELS[kind](seed=0, dtype=torch.float64) for _ in range(2))
    loss = torch.nn.functional.cross_entropy(expected(data.x), data.y)
    loss.backward()
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter -= 0.5 * (parameter.grad + decay * parameter)
    plan = {"recipe": "paper", "epochs": 1, "learning_rate": 0.5, "batch_size": 8}
    if decay:
        pb.fit(model, data, method="l2", weight=decay, **plan)
    else:
        pb.Projection(expected, 0.4).apply_()
        pb.fit(model, data, method="projection", bound=0.4, every=1, start=0, **plan)
    for parameter, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter, wanted)


def test_the_schedule():
    recipe = pb.Recipe()
    assert [recipe.rate(epoch) for epoch in (0, 24, 25, 74, 75, 99)] == pytest.approx(
        [1e-3, 1e-3, 2e-4, 2e-4, 4e-5, 4e-5]
    )
    methods = {
        Plain(): 100,
        Projected(): 50,
        Projected(start=200): 100,
        pb.training.Certified(start=0.5): 50,
        pb.training.WeightDecay(): 0,
    }
    assert {method: method.plain_until(100) for method in methods} == methods
    adversary = Adversary("fgsm-0.1")
    assert recipe.phases() == pb.Recipe(JacobianPenalty()).phases() == [0]
    assert pb.Recipe(adversary=adversary).phases() == pb.Recipe(pb.training.Certified(start=0.5)).phases() == [0, 50]
    assert pb.Recipe(Projected(), Adversary("fgsm-0.1", start=20)).phases() == [0, 20, 50]
    assert pb.Recipe(Projected(start=100), adversary).phases() == [0, 50]


def test_a_shorter_recipe_has_everything_at_its_place():
    recipe = pb.Recipe.from_options(method="projection", adversary="fgsm-0.1", start=40, adversary_start=20)
    shorter = recipe.scaled(0.1)
    assert (shorter.epochs, shorter.method.start, shorter.adversary.start) == (10, 4, 2)
    assert shorter.schedule.milestones == (2, 8) and recipe.scaled(1.0) is recipe
    shortest = recipe.scaled(0.001)
    assert (shortest.epochs, shortest.method.start, shortest.adversary.start) == (2, 1, 1)


def test_options_find_their_part():
    options = {"method": "projection", "bound": 2.0, "start": 3, "epochs": 7}
    recipe = pb.Recipe.from_options(**options, adversary="fgsm-0.1", protocol="published")
    assert recipe.method == Projected(2.0, start=3) and recipe.adversary == Adversary("fgsm-0.1", "published", 3)
    assert recipe.replace({"adversary_start": 5}).adversary == Adversary("fgsm-0.1", "published", 5)
    assert recipe.replace({"adversary": None}) == pb.Recipe.from_options(**options)
    assert recipe.replace({"method": "none"}).adversary == recipe.adversary
    given = {"attack": "pgd-0.1-20-0.01", "start": 9}
    assert pb.Recipe.from_options(adversary=given, start=3, method="projection").adversary.start == 9


def test_callbacks_see_every_step_and_can_end_it():
    class Watch(pb.training.Callback):
        def __init__(self):
            self.steps, self.epochs = [], []

        def after_step(self, trainer):
            self.steps.append((trainer.epoch, trainer.step))

        def after_epoch(self, trainer, losses):
            self.epochs.append((trainer.epoch, losses.shape))
            if trainer.epoch == 2:
                trainer.stop()

    watch, model = Watch(), MODELS["ccp"](seed=0, dtype=torch.float64)
    history = pb.fit(model, small(), epochs=5, batch_size=64, callbacks=[watch])
    assert watch.steps == [(epoch, step) for epoch in (0, 1) for step in (1, 2, 3, 4)]
    assert watch.epochs == [(1, (1,)), (2, (1,))] and history["epoch"] == [1, 2]
    assert len(history) == 2 and all(isinstance(loss, float) for loss in history["loss"])


@pytest.mark.parametrize(("epoch", "step"), [(0, 2), (1, 0), (2, 0), (2, 3), (3, 0)])
def test_every_end_of_a_training_is_inside_of_its_bounds(epoch, step):
    class Stop(pb.training.Callback):
        def after_step(self, trainer):
            if (trainer.epoch, trainer.step) == (epoch, step):
                trainer.stop()

        def after_epoch(self, trainer, losses):
            if (trainer.epoch, step) == (epoch, 0):
                trainer.stop()

    model = pb.CCP(64, 2, 10, 2, shape=(1, 8, 8), seed=0, dtype=torch.float64, runs=2)
    options = {"method": "projection", "bound": [0.1, 0.3], "start": 2, "every": 1000, "learning_rate": 0.1}
    history = pb.fit(model, small(), epochs=4, batch_size=64, callbacks=[Stop()], **options)
    assert len(history) == epoch and pb.Projection(model, [0.1, 0.3]).contains()


def test_a_loss_that_is_not_finite_is_an_error_that_says_where():
    train = load_digits("train")
    model = pb.paper_model("pn-10", shape=train.shape, seed=0)
    message = r"the loss of the run became nan in epoch 1: .* of parameter \w+ are not"
    refuses(message, pb.fit, model, train, error=pb.NonFiniteError, epochs=2, learning_rate=1e4)
    good, bad = (pb.paper_model("pn-4", shape=train.shape, seed=0) for _ in range(2))
    with torch.no_grad():
        bad.V *= 1e25
    refuses("the loss of run 1 became", pb.fit, pb.stack([good, bad]), train, error=pb.NonFiniteError, epochs=1)


def test_jacobian_penalty_is_exact_in_expectation():
    model = pb.CCP(6, 4, 3, 3, dtype=torch.float64, seed=0)
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    J = torch.stack([jacobian(model, point) for point in x])
    exact = jacobian_penalty(model(x), x)
    torch.testing.assert_close(exact, J.square().sum() / 2)
    directions = torch.nn.functional.normalize(torch.randn(4000, 4, 3, dtype=torch.float64), dim=-1)
    draws = torch.stack([jacobian_penalty(model(x), x, v).detach() for v in directions])
    error = draws.std() / len(draws) ** 0.5
    assert (draws.mean() - exact).abs() < 5 * error and error < 0.02 * exact


@pytest.mark.parametrize("by_hand", [True, False])
def test_what_cannot_move_a_weight_is_left_out_of_a_step_but_not_of_an_attack(by_hand):
    """Products with such gradients would be subnormal, and those are slow; an adversary needs their signs."""
    model = pb.CCP(6, 4, 3, 3, seed=0)
    with torch.no_grad():
        model.C[:, -1] = torch.tensor([60.0, 0.0, 0.0])  # the bias
    before = [parameter.detach().clone() for parameter in model.parameters()]
    engine = engine_for(model) if by_hand else AutogradEngine(model, Plain())
    x, y = torch.rand(1, 8, 6), torch.zeros(1, 8, dtype=torch.long)
    engine.step_(x, y, 1e25, StepRandom(1, [0], 0, 0))
    assert all(map(torch.equal, before, model.parameters()))
    attacked = adversarial_batch(pb.FGSM(0.1), Classifier(model, (6,)), x, y, domain=(-2.0, 2.0))
    assert ((attacked - x).abs() > 0.05).all()


def test_fit_by_default_is_accurate():
    train, test = load_digits("train"), load_digits("test")
    model = pb.paper_model("pn-4", shape=train.shape, seed=0)
    history = pb.fit(model, train.x, train.y)
    assert pb.accuracy(model, test) > 0.95 and len(history) == pb.Recipe.for_data(1437, 64).epochs


def test_the_default_depends_on_the_size_of_the_data():
    small, large = pb.Recipe.for_data(100, 4), pb.Recipe.for_data(60_000, 784)
    assert (small.optimiser, small.schedule) == (AdamW(0.003, weight_decay=1.0), Cosine(200))
    assert large.schedule == Cosine(20) and large.loss == CrossEntropy(0.1)
    assert large.optimiser.learning_rate == pytest.approx(0.003 * (64 / 784) ** 0.5)
    assert large.optimiser.weight_decay == pytest.approx(25 * 784 / 60_000)


def test_options_override_the_default():
    def recipe(**options):
        return pb.Recipe.for_data(1000, 64, options)

    assert recipe(epochs=3, batch_size=10).schedule == Cosine(3, 10)
    assert recipe(batch_size=10).epochs == 30 and recipe(optimiser="adamw").optimiser == recipe().optimiser
    assert recipe(learning_rate=0.5, weight_decay=0.0).optimiser == AdamW(0.5, weight_decay=0.0)
    assert recipe(milestones=(1, 2), epochs=4).schedule == pb.training.Steps(4, milestones=(1, 2))
    assert recipe(momentum=0.5).optimiser == pb.training.Momentum(0.005, momentum=0.5)
    assert recipe(optimiser=AdamW(0.1)).optimiser == AdamW(0.1)
    assert recipe(schedule=Constant(7)).schedule == Constant(7) and recipe(schedule="constant").epochs == 188
    assert recipe(loss="squared").loss.name == "squared" and recipe(loss="cross-entropy").loss == CrossEntropy()
    # A method with a loss of its own takes no label smoothing.
    for method in ("jacobian", JacobianPenalty(weight=0.1), {"name": "jacobian"}):
        assert recipe(method=method).loss == CrossEntropy()
    refuses("colour is no option of none training", recipe, colour="red")
    refuses("batch_size", recipe, batch_size=0)


def test_fit_takes_recipes_by_name():
    data = load_digits("train").subset(100)

    def trained(*recipe, **options):
        model = pb.CCP(64, 3, 10, 2, shape=data.shape, seed=0)
        pb.fit(model, data, *recipe, epochs=2, **options)
        return model.C

    assert torch.equal(trained("paper"), trained(pb.Recipe.from_options(epochs=2)))
    assert torch.equal(trained("default"), trained(pb.Recipe.for_data(100, 64, epochs=2)))
    assert torch.equal(trained(recipe="default"), trained())
    # What is held out does not count.
    assert torch.equal(trained(validation=0.5), trained(pb.Recipe.for_data(50, 64, epochs=2), validation=0.5))


@pytest.mark.parametrize(
    ("epochs", "milestones"), [(100, (25, 75)), (20, (5, 15)), (10, (3, 8)), (2, (1, 2)), (1, (1, 1))]
)
def test_milestones_scale_with_the_epochs(epochs, milestones):
    recipe = pb.Recipe.from_options(epochs=epochs)
    assert recipe.schedule.milestones == milestones and recipe.rate(0) == 0.001
    assert pb.Recipe.from_options(epochs=epochs, milestones=(25, 75)).schedule.milestones == (25, 75)
    stored = {"name": "steps", "epochs": epochs, "batch_size": 64, "milestones": [25, 75], "factor": 0.2}
    assert pb.training.SCHEDULES.build(stored).as_dict() == stored


@pytest.mark.parametrize("optimiser", ["adamw", "momentum", "sgd"])
def test_equal_runs_of_a_stack_have_equal_bits(optimiser):
    data = load_digits("train")
    one = pb.paper_model("pn-4", shape=data.shape, seed=0)
    stack = pb.stack([one, one, one])
    pb.fit(stack, data, optimiser=optimiser, learning_rate=0.003, schedule="constant", label_smoothing=0.1, epochs=4)
    for weights in stack.parameters():
        assert torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])


def test_deep_networks_have_a_default_of_their_own():
    def named(**options):
        return pb.Recipe.named("default", 1437, 64, options, deep=True)

    recipe = named()
    assert (recipe.optimiser.name, recipe.schedule.name, recipe.schedule.batch_size) == ("muon", "one-cycle", 128)
    assert recipe.optimiser.learning_rate == 0.02 and recipe.epochs == 200 and recipe.loss.label_smoothing == 0.1
    assert named(optimiser="adamw") == pb.Recipe.for_data(1437, 64, schedule="one-cycle", batch_size=128)
    assert named(milestones=(3,)).schedule.name == "steps" and named(batch_size=32).schedule.batch_size == 32
    assert named(method="jacobian") == pb.Recipe.for_data(1437, 64, method="jacobian")
    assert pb.Recipe.named("paper", 1437, 64, {}, deep=True) == pb.Recipe()
