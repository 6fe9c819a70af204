"""Optimisers, schedules and losses: PyTorch's own as judges, in every engine, in stacks, and across a kill."""

import pytest
import torch
import torch.nn.functional as F

import polybound as pb
from helpers.errors import refuses
from helpers.networks import Written
from helpers.training import digits
from polybound.runs import Checkpoint, DataSpec, ModelSpec, Spec, checkpoints, train_runs
from polybound.training import OPTIMISERS, Callback, Cosine, Trainer
from polybound.training.engine import AutogradEngine, ClosedEngine, RowsEngine, StepRandom, engine_for
from polybound.training.losses import CrossEntropy, Squared
from polybound.training.methods import JacobianPenalty, Plain, WeightDecay
from polybound.training.optim import SGD, AdamW, Descent, Momentum, Muon

F64 = torch.float64
MODELS = {
    "ccp": lambda **kw: pb.CCP(6, 4, 3, 3, dtype=F64, **kw),
    "product": lambda **kw: pb.CCP(6, 4, 3, 3, "product", dtype=F64, **kw),
    "ncp": lambda **kw: pb.NCP(6, 4, 3, 3, dtype=F64, **kw),
    "conv": lambda **kw: pb.ConvCCP((1, 4, 4), 3, 3, 2, 3, pre=3, pool=(1,), dtype=F64, **kw),
}
ORACLES = {
    SGD(0.1): lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    Momentum(0.1, 0.8): lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.8),
    AdamW(0.1, 0.8, 0.95, 0.3): lambda all_: torch.optim.AdamW(all_, lr=0.1, betas=(0.8, 0.95), weight_decay=0.3),
}


def random():
    return StepRandom(1, [0], 0, 0)


def batches(model, count=5, samples=16):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        x = torch.rand(samples, model.features, dtype=F64, generator=generator)
        yield x, torch.randint(3, (samples,), generator=generator), torch.rand(samples, dtype=F64, generator=generator)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("optimiser", ORACLES, ids=lambda optimiser: optimiser.name)
@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("case", ["plain", "weighted", "squared"])
def test_steps_are_those_of_pytorch(kind, optimiser, by_hand, case):
    mine, theirs = MODELS[kind](seed=0), MODELS[kind](seed=0)
    oracle = ORACLES[optimiser](theirs.parameters())
    loss = Squared() if case == "squared" else CrossEntropy(0.2)
    engine = (engine_for if by_hand else AutogradEngine)(mine, Plain(), loss, Descent(mine, optimiser))
    assert isinstance(engine, ClosedEngine if by_hand else AutogradEngine)
    for x, y, weights in batches(mine):
        weights = weights if case == "weighted" else torch.ones_like(weights)
        y = x[:, :3].sin() if case == "squared" else y
        found = engine.step_(x[None], y[None], 0.1, random(), weights[None] if case == "weighted" else None)
        if case == "squared":
            wanted = F.mse_loss(theirs(x), y)
        else:
            wanted = (F.cross_entropy(theirs(x), y, label_smoothing=0.2, reduction="none") * weights).mean()
        oracle.zero_grad()
        wanted.backward()
        oracle.step()
        torch.testing.assert_close(found, wanted.detach()[None])
        for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("method", [JacobianPenalty(0.3), WeightDecay(0.3)], ids=lambda method: method.name)
@pytest.mark.parametrize("optimiser", ORACLES, ids=lambda optimiser: optimiser.name)
def test_methods_are_descended_by_any_optimiser_as_by_autograd(method, optimiser):
    """The penalty of weights is part of the loss, so that its gradient goes through the optimiser's memory."""
    models = [MODELS["ccp"](seed=0) for _ in range(2)]
    closed = engine_for(models[0], method, None, Descent(models[0], optimiser))
    autograd = AutogradEngine(models[1], method, None, Descent(models[1], optimiser))
    assert type(closed) is (RowsEngine if method.own_loss else ClosedEngine)
    for x, y, _ in batches(models[0], 3):
        closed.step_(x[None], y[None], 0.05, random())
        autograd.step_(x[None], y[None], 0.05, random())
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other)
    if method.decay:
        theirs = MODELS["ccp"](seed=0)
        oracle = ORACLES[optimiser](theirs.parameters())
        for group in oracle.param_groups:
            group["lr"] = 0.05
        for x, y, _ in batches(theirs, 3):
            penalty = sum(parameter.square().sum() for parameter in theirs.parameters())
            oracle.zero_grad()
            (F.cross_entropy(theirs(x), y) + method.weight * penalty / 2).backward()
            oracle.step()
        torch.testing.assert_close(models[0].C, theirs.C)


def specs_of(name, **changes):
    options = {"epochs": 4, "start": 2, "batch_size": 128, "learning_rate": 0.01, "every": 3, **changes}
    recipes = [
        pb.Recipe.from_options(method="projection", bound=bound, optimiser=name, **options) for bound in (0.5, 2.0, 1e5)
    ]
    data = DataSpec.of("digits", samples=500)
    return [Spec(data, ModelSpec("pn-4"), recipe, seed) for seed in (1, 2) for recipe in recipes]


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_branches_go_on_with_the_memory_of_their_trunk(tmp_path, name):
    specs = specs_of(name)
    runs = train_runs(specs, tmp_path)
    for spec, run in list(zip(specs, runs, strict=True))[::2]:
        alone = pb.paper_model("pn-4", shape=(1, 8, 8), seed=spec.seed)
        pb.fit(alone, digits(500), spec.recipe, seed=spec.seed)
        for key, tensor in alone.state_dict().items():
            torch.testing.assert_close(run.model().state_dict()[key], tensor, rtol=1e-4, atol=1e-5)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("name", ["momentum", "adamw"])
@pytest.mark.parametrize("epoch", [0, 1, 2, 3])
def test_what_was_interrupted_goes_on_to_the_same_bits(tmp_path, name, epoch, monkeypatch):
    specs = specs_of(name)
    undisturbed = train_runs(specs, tmp_path / "whole")

    def interrupt(self, file):
        write(self, file)
        if (self.epoch, self.step) == (epoch, 3):
            raise Interrupted

    write = Checkpoint.write
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "write", interrupt)
        patch.setattr("polybound.runs.train.Session.after_step", _save_every_step)
        with pytest.raises(Interrupted):
            train_runs(specs, tmp_path / "cut")
    (file,) = checkpoints(tmp_path / "cut")
    memory = Checkpoint.read(file).memory
    assert int(memory["steps"]) == 4 * epoch + 3
    resumed = train_runs(specs, tmp_path / "cut")
    for one, other in zip(undisturbed, resumed, strict=True):
        assert one.digest() == other.digest()
        for mine, theirs in zip(one.history(), other.history(), strict=True):
            assert all(mine.get(key) == theirs.get(key) for key in ("epoch", "loss", "rate"))


def _save_every_step(self, trainer):
    if trainer.step < trainer.steps:
        self._save(trainer)


def test_a_run_that_overflows_does_not_take_the_others_along(tmp_path):
    """What an optimiser remembers of it is forgotten, too: it would be NaN for ever, and no projection takes that."""
    good = pb.paper_model("pn-4", shape=(1, 8, 8), seed=0)
    bad = pb.paper_model("pn-4", shape=(1, 8, 8), seed=0)
    with torch.no_grad():
        bad.V *= 1e12

    class Look(Callback):
        def after_epoch(self, trainer, losses):
            assert trainer.failures.keys() == {1} and torch.isfinite(losses[0])
            trainer.epoch_losses = losses

    both = pb.stack([good, bad])
    options = {"method": "projection", "optimiser": "adamw", "start": 0, "every": 1, "epochs": 2}
    recipe = pb.Recipe.from_options(bound=[1.0, 1e9], **options)
    Trainer(both, digits(300), recipe, [0, 0], [Look()]).run()
    alone = pb.paper_model("pn-4", shape=(1, 8, 8), seed=0)
    pb.fit(alone, digits(300), recipe, bound=1.0)
    torch.testing.assert_close(both.run(0).V, alone.V, rtol=1e-4, atol=1e-5)


def test_the_rates_of_the_schedules():
    assert [Cosine(4).factor_at(epoch) for epoch in range(4)] == pytest.approx([1.0, 0.8535534, 0.5, 0.1464466])
    recipe = pb.Recipe.from_options(schedule="constant", learning_rate=0.5, epochs=3)
    assert [recipe.rate(epoch) for epoch in range(3)] == [0.5] * 3
    # Another schedule goes through the same epochs, unless they are given too.
    assert recipe.replace({"schedule": "cosine"}).epochs == 3
    assert recipe.replace({"schedule": "cosine", "epochs": 5, "batch_size": 8}).schedule == Cosine(5, 8)
    assert recipe.replace({"schedule": {"name": "steps"}}).epochs == 100
    assert recipe.scaled(2 / 3).schedule.epochs == 2


BOTH = "certified-projection"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimiser": "adam"}, "optimiser must be one of sgd, momentum, adamw"),
        ({"optimiser": "adamw", "beta1": 1.0}, "beta1 must be a number of at least 0 and below 1"),
        ({"momentum": 0.9}, "momentum is no option .*belongs to optimiser momentum"),
        ({"schedule": "cosine", "milestones": [1]}, "milestones is no option .*belongs to schedule steps"),
        ({"method": "jacobian", "label_smoothing": 0.1}, "method jacobian has a loss of its own"),
        ({"loss": "squared", "adversary": "fgsm-0.1"}, "an adversary attacks classes"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1"),
        ({"learning_rate": -1}, "learning_rate must be a finite number of at least 0"),
        ({"method": 3}, "method must be one of none"),
        ({"method": {"name": "l2", "bound": 1.0}}, "method l2 has no option"),
        ({"method": "certified", "adversary": "fgsm-0.1"}, "method certified takes no adversary"),
        ({"protocol": "sound"}, "protocol requires an adversary"),
        ({"adversary": "fgsm-0.1", "start": -1}, "start is an epoch"),
        ({"adversary": {"start": 3}}, "an adversary needs an attack"),
        ({"adversary": {"attack": "fgsm-0.1", "eps": 3}}, "an adversary has no"),
        ({"start": 1}, "start is no option of none training"),
        ({"method": "jacobian", "how": "roughly"}, "how must be one of random"),
        ({"colour": "red"}, "colour is no option of none training"),
        ({"method": "projection", "bound": -1}, "a bound must be a number of at least 0"),
        ({"milestones": [3, -1]}, "a milestone is an epoch, counted from 0"),
        ({"precision": "half"}, "precision must be one of float32, bfloat16, got 'half'"),
        ({"method": "certified", "eps": -1}, "eps must be"),
        ({"method": BOTH, "weight": 1.5}, "weight must be a number from 0 to 1"),
        ({"method": BOTH, "rivals": -1}, "rivals must be"),
        ({"method": BOTH, "adversary": "fgsm-0.1"}, "certified-projection takes no adversary"),
        ({"method": BOTH, "loss": "squared"}, "has a loss of its own"),
    ],
    ids=str,
)
def test_options_that_cannot_be(options, message):
    refuses(message, pb.Recipe.from_options, **options)


@pytest.mark.parametrize("shape", [(8, 3, 3, 3), (3, 40), (40, 3), (6, 6), (1, 5)])
def test_muon_steps_along_the_directions_of_a_matrix(shape):
    """With the singular vectors of the first gradient, all at about the same speed, whatever their gradients."""
    gradient = torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(0))
    weight, memory = torch.zeros_like(gradient), [[torch.zeros_like(gradient)] for _ in range(2)]
    Muon(weight_decay=0.0).update_([weight], [1e-3 * gradient], memory, 0.5, 1)
    u, _, v = torch.linalg.svd(gradient.flatten(1), full_matrices=False)
    step = -u.T @ weight.flatten(1) @ v.T / (0.2 * 0.5 * max(shape[0], gradient[0].numel()) ** 0.5)
    speeds = step.diagonal()
    torch.testing.assert_close(step, speeds.diag())
    assert speeds.min() > 0.5 and speeds.max() < 1.3
    # Weights decay, a gradient of zeros changes nothing else, and momentum goes on.
    weight, memory = torch.ones(3, 4, dtype=F64), [[torch.zeros(3, 4, dtype=F64)] for _ in range(2)]
    Muon(weight_decay=0.1).update_([weight], [torch.zeros_like(weight)], memory, 0.5, 1)
    torch.testing.assert_close(weight, torch.full_like(weight, 0.95))
    memory[0][0] += 1.0
    Muon(weight_decay=0.0).update_([weight], [torch.zeros_like(weight)], memory, 0.5, 2)
    assert (weight < 0.95).all() and (memory[0][0] == 0.9).all()


def test_muon_takes_vectors_as_adamw_does():
    mine, theirs = torch.ones(5, dtype=F64), torch.ones(5, dtype=F64)
    memories = [[torch.zeros(5, dtype=F64) for _ in range(2)] for _ in range(2)]
    matrix, kept = torch.ones(2, 2, dtype=F64), [torch.zeros(2, 2, dtype=F64) for _ in range(2)]
    for step in range(1, 4):
        gradient = torch.arange(5, dtype=F64) - step
        given = [gradient[:4].view(2, 2).clone(), gradient.clone()]
        pairs = [list(pair) for pair in zip(kept, memories[0], strict=True)]
        Muon(weight_decay=0.3).update_([matrix, mine], given, pairs, 0.1, step)
        AdamW(beta2=0.95, weight_decay=0.3).update_([theirs], [gradient.clone()], [[m] for m in memories[1]], 0.1, step)
    assert torch.equal(mine, theirs) and torch.equal(memories[0][1], memories[1][1])


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch before 2.9 has no Muon")
def test_muon_agrees_with_pytorch():
    """Whose steps are computed in bfloat16, five of them."""
    mine = torch.randn(6, 20, generator=torch.Generator().manual_seed(0))
    theirs = torch.nn.Parameter(mine.clone())
    oracle = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.3, momentum=0.9, adjust_lr_fn="match_rms_adamw")
    kept = [[torch.zeros_like(mine)], [torch.zeros_like(mine)]]
    for step in range(1, 4):
        theirs.grad = torch.randn(6, 20, generator=torch.Generator().manual_seed(step))
        Muon(weight_decay=0.3).update_([mine], [theirs.grad.clone()], kept, 0.1, step)
        oracle.step()
    assert torch.cosine_similarity(mine.flatten(), theirs.detach().flatten(), dim=0) > 0.99
    torch.testing.assert_close(mine, theirs.detach(), atol=0.1, rtol=0.0)


@pytest.mark.parametrize("name", OPTIMISERS.names())
def test_steps_do_not_depend_on_how_weights_lie_in_memory(name):
    """A user's module in channels-last format: fused kernels go through memory, whatever the strides."""

    def network():
        maps = {name: torch.nn.Conv2d(2, 4, 3) for name in "ab"}
        return Written(lambda m, x: m.c((m.a(x) * m.b(x)).mean((2, 3))), **maps, c=torch.nn.Linear(4, 3))

    x, y = torch.rand(32, 2, 6, 6), torch.arange(32) % 3
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        module = network().to(memory_format=layout)
        pb.fit(pb.polynomial(module, (2, 6, 6)), x, y, optimiser=name, learning_rate=0.05, epochs=2, clip=1.0)
        found.append(module.a.weight.detach().clone())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
