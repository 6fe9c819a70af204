"""The recipes by name: the default, which suits the data, and the paper's."""

import pytest
import torch

import polybound as pb
from polybound.data import load_digits
from polybound.training import AdamW, Constant, Cosine, CrossEntropy, JacobianPenalty, Momentum, Steps


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
    assert recipe(milestones=(1, 2), epochs=4).schedule == Steps(4, milestones=(1, 2))
    assert recipe(momentum=0.5).optimiser == Momentum(0.005, momentum=0.5)
    assert recipe(optimiser=AdamW(0.1)).optimiser == AdamW(0.1)
    assert recipe(schedule=Constant(7)).schedule == Constant(7) and recipe(schedule="constant").epochs == 188
    assert recipe(loss="squared").loss.name == "squared" and recipe(loss="cross-entropy").loss == CrossEntropy()
    # A method with a loss of its own takes no label smoothing.
    for method in ("jacobian", JacobianPenalty(weight=0.1), {"name": "jacobian"}):
        assert recipe(method=method).loss == CrossEntropy()
    with pytest.raises(pb.PolyboundError, match="colour is no option of none training"):
        recipe(colour="red")
    with pytest.raises(pb.PolyboundError, match="batch_size"):
        recipe(batch_size=0)


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
