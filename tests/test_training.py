"""Algorithm 1, and the built-in data it is shown on."""

import pytest
import torch

import polybound as pb
from polybound.data import Dataset, load_digits


def test_digits_are_scaled_split_and_always_the_same():
    train, test = load_digits("train"), load_digits("test")
    assert (len(train), len(test), train.shape, train.classes) == (1437, 360, (1, 8, 8), 10)
    assert train.x.min() == -1 and train.x.max() == 1 and train.domain == (-1.0, 1.0)
    assert torch.equal(train.x, load_digits("train").x)
    both = torch.cat([train.y, test.y]).bincount()
    assert (train.y.bincount() / both - 0.8).abs().max() < 0.01
    with pytest.raises(pb.PolyboundError):
        load_digits("validation")


def test_training_learns_and_the_projection_holds():
    train, test = load_digits("train"), load_digits("test")
    one = pb.paper_model("pn-4", shape=train.shape, seed=0)
    models = pb.stack([one, one])
    projection = pb.Projection(models, [float("inf"), 1.0])
    losses = []
    pb.fit(models, train, epochs=12, learning_rate=0.02, projection=projection, start=6, on_epoch=lambda e, x: losses.append(x))
    plain, projected = pb.accuracy(models, test).tolist()
    assert plain > 0.9 and projected > 0.7
    assert projection.contains()
    # Before the constraint starts, both runs are one and the same.
    assert all(loss[0] == loss[1] for loss in losses[:6]) and losses[-1][0] < losses[-1][1]
    plain_bound, projected_bound = pb.lipschitz(models).value.tolist()
    assert projected_bound < plain_bound / 10


def test_a_run_in_a_stack_trains_as_if_alone():
    train = load_digits("train")
    stack = pb.paper_model("pn-4", shape=train.shape, seed=[3, 4], runs=2)
    alone = pb.paper_model("pn-4", shape=train.shape, seed=4)
    for model in (stack, alone):
        pb.fit(model, train, epochs=2, learning_rate=0.02, projection=pb.Projection(model, 1.0), seed=7)
    torch.testing.assert_close(stack.run(1).V, alone.V, rtol=1e-4, atol=1e-6)


def test_a_step_is_plain_sgd_followed_by_the_projection():
    x, y = torch.rand(8, 5) * 2 - 1, torch.randint(3, (8,))
    data = Dataset("tiny", "train", x, y, ("a", "b", "c"))
    model = pb.CCP(5, 4, 3, 2, seed=0)
    expected = pb.CCP(5, 4, 3, 2, seed=0)
    loss = torch.nn.functional.cross_entropy(expected(x), y)
    loss.backward()
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter -= 0.5 * parameter.grad
    pb.Projection(expected, 0.4).apply_()
    pb.fit(model, data, epochs=1, learning_rate=0.5, batch_size=8, projection=pb.Projection(model, 0.4), every=1)
    torch.testing.assert_close(model.V, expected.V)
    torch.testing.assert_close(model.C, expected.C)


def test_a_loss_that_is_not_finite_is_an_error_that_says_where():
    train = load_digits("train")
    model = pb.paper_model("pn-10", shape=train.shape, seed=0)
    with pytest.raises(pb.NonFiniteError, match=r"the loss of the run became nan in epoch 1: .* of parameter \w+ are not"):
        pb.fit(model, train, epochs=2, learning_rate=1e4)
    good, bad = (pb.paper_model("pn-4", shape=train.shape, seed=0) for _ in range(2))
    with torch.no_grad():
        bad.V *= 1e25
    with pytest.raises(pb.NonFiniteError, match="the loss of run 1 became"):
        pb.fit(pb.stack([good, bad]), train, epochs=1)


@pytest.mark.parametrize("kwargs", [{"epochs": 0}, {"epochs": 1, "learning_rate": 0}, {"epochs": 1, "batch_size": 0}])
def test_bad_input(kwargs):
    with pytest.raises(pb.PolyboundError):
        pb.fit(pb.CCP(64, 3, 10, 2), load_digits("train"), **kwargs)
