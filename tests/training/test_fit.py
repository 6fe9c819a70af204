"""`fit` on anyone's arrays: what it takes, what it refuses, weights, validation, early stopping, the history."""

import io
import sys
from math import nan

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from conftest import Terminal
from helpers.errors import refuses
from helpers.networks import Written, layers
from helpers.profiles import examples
from helpers.training import weights_of
from polybound.data import load_digits
from polybound.errors import PolyboundError
from polybound.training import Callback, Trainer, training_set
from polybound.training.losses import CrossEntropy, Squared
from polybound.training.samples import class_weights

ADAMW = {"optimiser": "adamw", "learning_rate": 0.01, "schedule": "cosine", "batch_size": 64}


def digits(n=300):
    data = load_digits("train").subset(n)
    return data.x.flatten(1), data.y


def model_for(classes=10, features=64, **options):
    return pb.CCP(features, 8, classes, 3, seed=0, **options)


def test_samples_may_come_as_anything():
    x, y = digits()
    expected = model_for()
    pb.fit(expected, x, y, epochs=2, seed=3)
    dataset = load_digits("train").subset(300)
    forms = {
        "dataset": (dataset, None),
        "numpy": (x.numpy(), y.numpy()),
        "small integers": (x, y.numpy().astype(np.uint8)),
        "whole floats": (x, y.double().numpy()),
        "a column": (x, y.numpy()[:, None]),
        "frame": (pd.DataFrame(x.numpy()), pd.Series(y.numpy())),
        "lists": (x.tolist(), y.tolist()),
        "objects": (x.numpy().astype(object), y.numpy().astype(object)),
        "images": (x.view(-1, 1, 8, 8), y),
        "wide floats": (x.double().numpy(), y),
    }
    for name, (X, labels) in forms.items():
        model = model_for()
        pb.fit(model, X, labels, epochs=2, seed=3)
        assert torch.equal(weights_of(model), weights_of(expected)), name


def test_a_plain_module_is_trained_in_place_and_keeps_its_mode():
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10), torch.nn.BatchNorm1d(10))
    digits = pb.data.load_digits("train")
    pb.fit(module, digits, epochs=20)
    assert not module.training
    found = pb.accuracy(module, digits)
    assert found > 0.9 and not module.training
    assert found == pb.accuracy(module, digits.x.numpy(), digits.y.numpy())
    refuses(r"pb.polynomial\(module, shape\) takes modules", pb.accuracy, module, [[0.0] * 64], [1])


def test_a_recipe_may_stand_where_the_labels_of_a_data_set_would():
    data, recipe = load_digits("train").subset(100), pb.Recipe.from_options(epochs=1, learning_rate=0.5)
    models = [model_for() for _ in range(3)]
    pb.fit(models[0], data, recipe)
    pb.fit(models[1], data, recipe=recipe)
    pb.fit(models[2], data.x, data.y, recipe)
    assert all(torch.equal(weights_of(models[0]), weights_of(model)) for model in models)


def test_numbers_out_of_an_array_are_numbers():
    x, y = digits(100)
    models = [model_for() for _ in range(2)]
    pb.fit(models[0], x, y, epochs=np.int64(2), learning_rate=np.float32(0.5), seed=np.int64(3))
    pb.fit(models[1], x, y, epochs=2, learning_rate=0.5, seed=3)
    assert torch.equal(weights_of(models[0]), weights_of(models[1]))


def test_what_is_no_model_and_no_recipe():
    refuses("got str", pb.fit, "pn-4", *digits(10))
    refuses("relu", pb.fit, torch.nn.Sequential(torch.nn.Linear(64, 10), torch.nn.ReLU()), *digits(10))
    with pytest.raises(PolyboundError, match=r"recipe must be 'default', 'paper' or a polybound\.Recipe, got 'adamw'"):
        pb.fit(model_for(), *digits(10), "adamw")


X, Y = digits(30)
SEVENTH = torch.tensor([7]), torch.tensor([3])


@pytest.mark.parametrize(
    ("inputs", "labels", "options", "message"),
    [
        (X, digits(50)[1], {}, "30 inputs have 50 labels"),
        (X, None, {}, r"arrays need targets: fit\(model, X, y\)"),
        (X.index_put(SEVENTH, torch.tensor(nan)), Y, {}, "X has NaN in row 7"),
        (X[:, :5], Y, {}, r"the model takes inputs of shape \(64,\), 64 numbers each; X has the shape \(30, 5\)"),
        (3.0, Y, {}, "X has the shape"),
        (np.array([["a"] * 64] * 30), Y, {}, "inputs must be numbers, got <U1"),
        ([[1.0] * 64, [1.0]], Y, {}, "inputs must be numbers, one row for each sample"),
        (X, Y + 10, {}, "labels must be 0 to 9 for a model of 10; there is 1"),
        (X, Y + 0.5, {}, "labels must be whole numbers; for numbers take loss='squared'"),
        (X, list("abcdefghijklmnopqrstuvwxyzabcd"), {}, "PolynomialClassifier takes any others"),
        (X, torch.eye(30)[:, :10], {}, "labels must be one whole number for each sample"),
        (X, Y, {"loss": "squared"}, r"the model has 10 outputs: targets must be \(samples, 10\)"),
        (load_digits("train"), Y, {}, "digits has labels of its own"),
        (X, Y, {"adversary": "fgsm-0.1", "epochs": 2}, r"give domain=\(low, high\)"),
        (X, Y, {"domain": (0, 1)}, r"inputs from -1 to 1 are not in the domain \[0, 1\]"),
        (X, Y, {"domain": (1, -1)}, "a domain is its smallest and largest value"),
        (X, Y, {"sample_weight": [1.0]}, "30 samples need as many weights"),
        (X, Y, {"sample_weight": -np.ones(30)}, "sample_weight must be finite numbers of at least 0"),
        (X, Y, {"class_weight": "even"}, "class_weight must be 'balanced', a mapping or one weight a class"),
        (X, Y, {"class_weight": {11: 1.0}}, "class_weight has 11, which is no label from 0 to 9"),
        (X, Y, {"class_weight": "balanced", "method": "jacobian"}, "method jacobian has a loss of its own"),
        (X, torch.zeros(30, 10), {"loss": "squared", "class_weight": "balanced"}, "numbers have no classes"),
        (X, Y, {"validation": 1.5}, "the validation share must lie between 0 and 1"),
        (X, Y, {"validation": 0.001}, "too few to carve"),
        (X, Y, {"validation": (X, Y, Y)}, r"validation takes \(X, y\), a Dataset or a share"),
        (X, Y, {"verbose": "yes"}, "verbose must be True, False or None"),
        (X, Y, {"seed": [1, 2]}, "2 seeds for 1 runs"),
        (X, Y, {"sample_weights": 1}, "sample_weights is no option"),
        (X, Y, {"adversary": "fgsm-0.1", "epochs": 3, "start": 3, "domain": (-1, 1)}, "would never be applied"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_said_in_one_line(inputs, labels, options, message):
    model = model_for()
    before = weights_of(model)
    refuses(message, pb.fit, model, inputs, labels, **options)
    assert torch.equal(weights_of(model), before)


def test_arrays_with_a_domain_have_adversaries():
    x, y = digits()
    models = [model_for(shape=(1, 8, 8)) for _ in range(2)]
    plan = {"adversary": "pgd-0.1-3-0.05", "epochs": 2, "learning_rate": 0.02}
    pb.fit(models[0], x, y, domain=(-1, 1), **plan)
    pb.fit(models[1], load_digits("train").subset(300), **plan)
    assert torch.equal(weights_of(models[0]), weights_of(models[1]))


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=6, max_size=6).filter(any), st.sampled_from(["sgd", "adamw"]))
def test_a_weight_of_n_is_n_samples(counts, optimiser):
    """One step on all samples at once, as the mean over the repeated ones."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(6, 5, generator=generator, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    weighted, repeated = (pb.CCP(5, 4, 3, 3, seed=0, dtype=torch.float64) for _ in range(2))
    options = {"epochs": 1, "learning_rate": 0.1, "optimiser": optimiser, "batch_size": 100}
    history = pb.fit(weighted, x, y, sample_weight=counts, **options)
    times = torch.tensor(counts)
    other = pb.fit(repeated, x.repeat_interleave(times, 0), y.repeat_interleave(times), **options)
    torch.testing.assert_close(weights_of(weighted), weights_of(repeated), rtol=1e-6, atol=1e-9)
    assert history["loss"] == pytest.approx(other["loss"])


def test_class_weights():
    labels = torch.tensor([0, 0, 0, 1])
    assert class_weights("balanced", labels, 3).tolist() == [4 / 6, 2.0, 0.0]
    assert class_weights({1: 5}, labels, 3).tolist() == [1.0, 5.0, 1.0]
    x, y = torch.rand(40, 5), torch.tensor([0] * 39 + [1])
    losses = []
    for weight in ("balanced", {0: 20 / 39, 1: 20.0}, [1.0, 39.0], None):
        model = pb.CCP(5, 4, 2, 2, seed=0)
        losses.append(pb.fit(model, x, y, class_weight=weight, epochs=1, learning_rate=0.1)["loss"][0])
    assert losses[0] == pytest.approx(losses[1]) == pytest.approx(losses[2]) != pytest.approx(losses[3])


def test_regression_learns_a_polynomial():
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(500, 3, generator=generator) - 1
    y = x[:, 0] * x[:, 1] + x[:, 2]
    model = pb.CCP(3, 8, 1, 2, seed=0)
    history = pb.fit(model, x, y.numpy(), loss="squared", epochs=60, validation=0.2, **ADAMW)
    assert history["validation loss"][-1] < 0.01 * float(y.var()) and "validation accuracy" not in history.lines[0]
    assert history["loss"][-1] < history["loss"][0]
    both = pb.CCP(3, 8, 2, 2, runs=2, seed=[0, 1])
    history = pb.fit(both, x, torch.stack([y, -y], 1), loss="squared", epochs=60, seed=[0, 1], **ADAMW)
    assert max(history["loss"][-1]) < 0.05 * float(y.var())


def test_a_validation_share_is_not_trained_on():
    x, y = digits()
    model, expected = model_for(), model_for()
    history = pb.fit(model, x, y, validation=0.2, epochs=3, **ADAMW)
    left, carved = training_set(model, x, y, loss=CrossEntropy()).split(0.2, 0)
    assert (len(left), len(carved)) == (240, 60)
    assert (carved.y.bincount() - 0.2 * y.bincount()).abs().max() < 1.01  # of each class the same share
    pb.fit(expected, left.x, left.y, epochs=3, **ADAMW)
    assert torch.equal(weights_of(model), weights_of(expected))
    assert history["validation accuracy"][-1] == pytest.approx(pb.accuracy(model, carved.x, carved.y).item())
    loss = torch.nn.functional.cross_entropy(model(carved.x), carved.y, label_smoothing=0.1)
    assert history["validation loss"][-1] == pytest.approx(loss.item(), rel=1e-5)
    for given_as in ((carved.x.numpy(), carved.y), pb.data.Dataset("c", "validation", carved.x, carved.y, ("",) * 10)):
        again = pb.fit(model_for(), left.x, left.y, validation=given_as, epochs=3, **ADAMW)
        assert again["validation accuracy"] == history["validation accuracy"] and again["loss"] == history["loss"]


class Weights(Callback):
    """Keeps the weights after every epoch."""

    def __init__(self):
        self.kept = []

    def after_epoch(self, trainer, losses):
        self.kept.append([parameter.detach().clone() for parameter in trainer.model.parameters()])


def test_early_stopping_restores_the_best_epoch():
    x, y = digits(120)
    noise = torch.randint(10, (120,), generator=torch.Generator().manual_seed(0))
    model, seen = model_for(), Weights()
    options = {"validation": (x, y), "early_stopping": 4, "epochs": 60, **ADAMW, "learning_rate": 0.05}
    history = pb.fit(model, x, noise, callbacks=[seen], **options)
    scores = list(zip(history["validation accuracy"], [-loss for loss in history["validation loss"]], strict=True))
    assert len(history) < 60 and len(history) == history.best + 4
    assert history.best == 1 + scores.index(max(scores))
    assert all(map(torch.equal, seen.kept[history.best - 1], model.parameters()))
    assert pb.accuracy(model, x, y).item() == pytest.approx(max(history["validation accuracy"]))


def test_early_stopping_of_a_stack_is_that_of_each_run():
    x, y = digits()
    stack = model_for(runs=3, dtype=torch.float64)
    with torch.no_grad():
        for run in range(3):
            stack.V[run] *= 1 + run
    singles = [stack.run(run) for run in range(3)]
    options = {"validation": 0.3, "early_stopping": 3, "epochs": 30, **ADAMW, "learning_rate": 0.1}
    history = pb.fit(stack, x, y, **options)
    alone = [pb.fit(single, x, y, **options) for single in singles]
    assert len(history) == max(map(len, alone)) and len(set(history.best)) > 1
    assert history.best == [one.best for one in alone]
    for run, single in enumerate(singles):
        torch.testing.assert_close(weights_of(stack.run(run)), weights_of(single), rtol=1e-3, atol=1e-4)


def test_what_early_stopping_restores_is_inside_its_bound_and_what_was_measured():
    x, y = digits()
    model = model_for()
    options = {"method": "projection", "bound": 0.3, "epochs": 12, "start": 6, "every": 1000}
    history = pb.fit(model, x, y, validation=0.3, early_stopping=2, **options, **ADAMW)
    assert pb.Projection(model, 0.3).contains()
    assert history.best > 6 and max(history["validation accuracy"][:6]) > history["validation accuracy"][-1]
    _, carved = training_set(model, x, y, loss=CrossEntropy()).split(0.3, 0)
    measured = pb.accuracy(model, carved.x, carved.y).item()
    assert measured == pytest.approx(history["validation accuracy"][history.best - 1])


def test_early_stopping_holds_out_a_tenth_by_default():
    x, y = digits()
    history = pb.fit(model_for(), x, y, early_stopping=2, epochs=5, **ADAMW)
    assert "validation accuracy" in history.lines[0] and history.best is not None
    shares = {round(value * 30, 6) for value in history["validation accuracy"]}
    assert all(share == int(share) for share in shares)


def test_norms_are_kept_if_asked_for():
    x, y = digits()
    model = model_for()
    options = {"method": "projection", "bound": 0.5, "epochs": 4, "every": 1000}
    history = pb.fit(model, x, y, norms=True, **options, **ADAMW)
    assert max(history["norm U1"][:2]) > 0.5 and max(history["norm U1"][2:] + history["norm C"][2:]) <= 0.5
    final = pb.Projection(model, 0.5).norms()
    assert {name: history[f"norm {name}"][-1] for name in final} == {name: norm.item() for name, norm in final.items()}
    stack = pb.fit(model_for(runs=2), x, y, norms=True, epochs=1)
    assert len(stack["norm C"][0]) == 2


def test_the_history_as_a_frame():
    x, y = digits()
    history = pb.fit(model_for(), x, y, validation=0.2, epochs=3)
    frame = pd.DataFrame(history)
    assert list(frame.columns) == ["epoch", "loss", "validation loss", "validation accuracy", "rate", "seconds"]
    assert frame["loss"].tolist() == history["loss"] and len(frame) == 3


@pytest.mark.parametrize(
    ("verbose", "terminal", "seen"),
    [(None, False, ""), (False, True, ""), (True, False, "epoch 2/2: loss"), (None, True, "epoch 2/2")],
)
def test_progress_is_shown_where_a_person_looks(monkeypatch, verbose, terminal, seen):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    x, y = digits()
    pb.fit(model_for(), x, y, epochs=2, verbose=verbose, validation=0.1)
    text = stream.getvalue()
    assert bool(text) == bool(seen) and seen in text


def test_the_bar_is_gone_after_an_error(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    x, y = digits()
    for _ in range(2):  # two at once would be refused
        refuses("", pb.fit, model_for(), x, y, error=pb.NonFiniteError, epochs=2, learning_rate=1e9)


def test_targets_of_a_loss_of_numbers_may_belong_to_the_inputs_of_a_data_set():
    data = load_digits("train").subset(50)
    samples = training_set(pb.CCP(64, 4, 1, 2), data, data.y.double() / 10, loss=Squared())
    assert samples.y.shape == (50, 1) and samples.domain == (-1.0, 1.0)


def test_steps_are_counted_across_epochs_as_algorithm_1_prints_it():
    """With fewer steps an epoch than `every`: `t mod f = 0`, t from 0, once the projection has begun; and the last."""
    x, y = digits(300)  # 5 steps an epoch
    model = model_for()
    recipe = pb.Recipe.from_options(method="projection", bound=0.4, every=7, start=1, epochs=4, batch_size=64)
    trainer = Trainer(model, training_set(model, x, y, loss=CrossEntropy()), recipe, [0])
    times, project = [], trainer.after_method.projection.apply_

    def count():
        times.append(5 * trainer.epoch + trainer.step - 1)
        project()

    trainer.after_method.projection.apply_ = count
    trainer.run()
    assert times == [7, 14, 19]


def test_a_start_is_a_share_of_the_epochs():
    assert pb.Recipe.from_options(method="projection", epochs=20).method.start == 10
    assert pb.Recipe.from_options(adversary="fgsm-0.1", epochs=7).adversary.start == 3
    assert pb.Recipe.from_options(method="certified", epochs=1).method.start == 0
    assert pb.Recipe.from_options(method="projection", start=0.0, epochs=8).method.start == 0
    both = pb.Recipe.from_options(method="projection", adversary="fgsm-0.1", start=0.25, adversary_start=0.75, epochs=8)
    assert (both.method.start, both.adversary.start) == (2, 6)
    for start in (1.0, -0.5, nan, "half", True, 8):
        refuses("start", pb.Recipe.from_options, method="projection", start=start, epochs=8)
    with pytest.raises(PolyboundError, match="only a recipe knows"):
        _ = pb.training.Projected().begins
    # A run of long ago can be read, though nobody can train by its recipe.
    old = pb.Recipe(pb.training.Projected(start=50), schedule=pb.training.Steps(epochs=20))
    refuses("would never be applied: it starts after 50 epochs, and there are 20", pb.fit, model_for(), *digits(), old)


def own(forward=lambda m, x: m.c(m.a(x) * m.b(x)), **parts):
    """Two maps and a product, and what a test changes of them."""
    return Written(forward, **{**layers(4, 4, "ab"), "c": torch.nn.Linear(4, 3)} | parts)


def frozen():
    net = own()
    net.a.requires_grad_(False)
    return net


def spoilt(value):
    net = own()
    net.b.weight.data[0, 0] = value
    return net


def squared(m, x):
    x = m.a(x)
    for _ in range(21):
        x = x * x
    return m.c(x)


WHOLE = torch.nn.Parameter(torch.arange(4), requires_grad=False)
TAKEN = {
    "a module that is used twice": lambda: own(lambda m, x: m.c(m.a(m.a(x)) * m.a(x))),
    "a dead branch": lambda: own(lambda m, x: (m.b(x), m.c(m.a(x) ** 2))[1]),
    "whole numbers": lambda: own(lambda m, x: m.c(m.a(x) * m.n * m.b(x)), n=WHOLE),
    "frozen weights": frozen,
    "a buffer": lambda: own(lambda m, x: m.c(m.a(x) * m.n.running_mean + m.n(m.b(x))), n=torch.nn.BatchNorm1d(4)),
    "dropout": lambda: own(lambda m, x: m.c(m.n(m.a(x)) * m.b(x)), n=torch.nn.Dropout(0.5)),
}


@pytest.mark.parametrize("name", TAKEN)
def test_unusual_modules_are_trained_bounded_and_stored(name, tmp_path):
    torch.manual_seed(0)
    net = pb.polynomial(TAKEN[name](), (4,))
    x, y = torch.rand(40, 4) - 0.5, torch.arange(40) % 3
    before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    history = pb.fit(net, x, y, epochs=2)
    assert history["loss"][-1] < 2 and not torch.equal(before["module.c.weight"], net.module.c.weight)
    fixed = {"a dead branch": "b", "frozen weights": "a"}.get(name)
    assert all(torch.equal(before[key], net.state_dict()[key]) for key in before if key.startswith(f"module.{fixed}."))
    net.save(tmp_path / "net.safetensors")
    stored = pb.load(tmp_path / "net.safetensors")
    torch.testing.assert_close(stored(x), net(x), rtol=1e-4, atol=1e-5)
    assert float(pb.lipschitz(net)) > 0 and len(pb.certify(net, x[:2], y[:2], 0.01).status) == 2


REFUSED = {
    "NaN": (lambda: spoilt(float("nan")), "not all finite|not finite"),
    "infinity": (lambda: spoilt(float("inf")), "not all finite|not finite"),
    "no weights": (lambda: own(lambda m, x: x * x, a=None, b=None, c=None), "has no weights to train"),
    "degree": (lambda: own(squared), "the network has degree 2,097,152.*; at most 2\\^20 is taken"),
    "batch statistics": (
        lambda: own(lambda m, x: m.c(m.n(m.a(x))), n=torch.nn.BatchNorm1d(4, track_running_stats=False)),
        "batch norm in training mode in n.*with running statistics",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_modules_that_cannot_be_trained(name):
    make, message = REFUSED[name]
    x, y = torch.rand(40, 4) - 0.5, torch.arange(40) % 3
    uses = [lambda net: pb.fit(net, x, y, epochs=1)]
    if "finite" in message:
        uses += [pb.lipschitz, pb.bounds, lambda net: pb.certify(net, x[:2], y[:2], 0.01)]
    for use in uses:
        refuses(message, lambda use=use: use(pb.polynomial(make(), (4,))))
