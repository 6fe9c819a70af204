"""Training for certificates: the bound that is descended, against corners, the verifier and finite differences."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import polybound as pb
from helpers.networks import ccps
from helpers.training import in_one_go_and_in_two, weights_of
from polybound.certificates import PreparedNetwork, box_of, margin_bounds
from polybound.certificates.bounds import differentiable
from polybound.certificates.bounds.first_order import first_order
from polybound.data import load_digits
from polybound.training import Certified, StepContext, Trainer

F64 = torch.float64
MODELS = {
    "residual": lambda **kw: pb.CCP(6, 5, 4, 4, dtype=F64, **kw),
    "product": lambda **kw: pb.CCP(6, 5, 4, 3, "product", dtype=F64, **kw),
    "linear": lambda **kw: pb.CCP(6, 5, 4, 1, dtype=F64, **kw),
    "ncp": lambda **kw: pb.NCP(6, 5, 4, 3, dtype=F64, **kw),
    "conv": lambda **kw: pb.ConvCCP((1, 2, 4), 3, 4, 3, 3, dtype=F64, **kw),
    "chains": lambda **kw: pb.ConvCCP((1, 2, 4), 3, 4, 3, 3, pre=3, pool=(2,), dtype=F64, **kw),
}


def samples(model, batch=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lead = () if model.runs is None else (model.runs,)
    x = torch.rand(*lead, batch, model.features, generator=generator, dtype=F64)
    return x, torch.randint(4, (*lead, batch), generator=generator)


def larger(model):
    """Weights of a size at which the remainder matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("eps", [0.0, 0.05, 0.4])
def test_no_point_of_the_ball_is_below_the_bound(kind, eps):
    model = larger(MODELS[kind](seed=1))
    x, y = samples(model)
    c, r = box_of(x, eps, (0.0, 1.0))
    assert ((c - r >= -1e-15) & (c + r <= 1 + 1e-15)).all()
    bounds = margin_bounds(model.factors(), c, r, y)
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=F64)] * model.features)
    inside = torch.rand(200, model.features, generator=torch.Generator().manual_seed(2), dtype=F64) * 2 - 1
    for u in torch.cat([corners, inside]):
        logits = model(c + r * u)
        margins = (logits.gather(1, y.unsqueeze(1)) - logits).gather(1, bounds.rivals)
        assert (margins >= bounds.lower - 1e-12).all()
        if kind == "linear" or eps == 0:  # then the bound is taken at a corner
            assert (bounds.remainder == 0).all()
    if kind == "linear":
        least = torch.stack([(lambda f: f.gather(1, y.unsqueeze(1)) - f)(model(c + r * u)) for u in corners]).amin(0)
        torch.testing.assert_close(bounds.lower, least.gather(1, bounds.rivals))


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "chains"])
def test_it_is_the_first_rung_with_all_bounds_by_entries(kind):
    model = larger(MODELS[kind](seed=1))
    x, y = samples(model)
    net = PreparedNetwork(model)
    c, r = box_of(x, 0.1, (0.0, 1.0))
    bounds = margin_bounds(model.factors(), c, r, y)
    w, constant = net.C[y].unsqueeze(1) - net.C, net.beta[y].unsqueeze(1) - net.beta
    first = first_order(net, c, r, w, constant)
    lower = (first.g0 - first.G.abs().sum(-1) - first.R).gather(1, bounds.rivals)
    assert (bounds.lower <= lower + 1e-12).all()  # the verifier may take norms
    net.__dict__ |= {"stretch": [torch.full((model.features,), 1e20, dtype=F64)] * model.degree}
    net.__dict__ |= {"norms_S": [1e20] * (model.degree - 1)}
    first = first_order(net, c, r, w, constant)
    for mine, wanted in ((bounds.centre, first.g0), (bounds.slope, first.G.abs().sum(-1)), (bounds.remainder, first.R)):
        torch.testing.assert_close(mine, wanted.gather(1, bounds.rivals))


@pytest.mark.parametrize("kind", MODELS)
def test_members_of_a_stack_have_their_own_bounds(kind):
    stack = MODELS[kind](runs=2, seed=[1, 2])
    x, y = samples(stack)
    c, r = box_of(x, 0.1, None)
    both = margin_bounds(stack.factors(), c, r, y, rivals=2)
    for e in range(2):
        alone = margin_bounds(stack.run(e).factors(), c[e], r[e], y[e])
        assert torch.equal(both.rivals[e], alone.rivals[:, :2])  # the nearest of all
        torch.testing.assert_close(both.lower[e], alone.lower[:, :2])


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("done", [0.0, 0.2, 1.0])
def test_gradients_of_the_loss_are_differences(kind, done):
    model = larger(MODELS[kind](seed=3))
    x, y = samples(model)
    method = Certified(0.3, weight=0.7, remainder=0.5, ramp=0.5, rivals=2)
    parameters = list(model.parameters())

    def loss(*weights):
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.data = weight.detach()
        return method.network_loss(model.factors(), x, y, StepContext(done, (0.0, 1.0)))[1]

    found = torch.autograd.grad(loss(*[p.detach().clone() for p in parameters]), parameters)
    start = [p.detach().clone() for p in parameters]
    generator = torch.Generator().manual_seed(4)
    for _ in range(5):
        way = [torch.randn(p.shape, generator=generator, dtype=F64) for p in start]
        ahead, behind = (loss(*[p + s * 1e-6 * v for p, v in zip(start, way, strict=True)]) for s in (1, -1))
        slope = sum((g * v).sum() for g, v in zip(found, way, strict=True))
        torch.testing.assert_close((ahead - behind) / 2e-6, slope, rtol=1e-5, atol=1e-6)


def test_the_loss_is_between_clean_and_proven():
    model = MODELS["product"](seed=0)
    x, y = samples(model)
    logits = model(x)
    clean = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    c, r = box_of(x, 0.2, (0.0, 1.0))
    bounds = margin_bounds(model.factors(), c, r, y)
    proven = torch.log1p(torch.exp(-bounds.lower).sum(-1)).sum()
    at = StepContext(1.0, (0.0, 1.0))

    def loss(context=at, **options):
        method = Certified(0.2, **{"remainder": 1.0, "rivals": 0} | options)
        return method.network_loss(model.factors(), x, y, context)[1]

    torch.testing.assert_close(loss(), proven)
    torch.testing.assert_close(loss(weight=0.0), clean)
    torch.testing.assert_close(loss(weight=0.25), 0.25 * proven + 0.75 * clean)
    torch.testing.assert_close(loss(StepContext(0.0, (0.0, 1.0))), clean)  # the radius begins with 0
    assert clean < loss(rivals=1) < loss(remainder=0.5) < proven
    assert loss(StepContext(1.0, None)) > proven  # a ball that the domain does not cut is larger


def test_the_radius_rises_with_the_steps_and_a_resumed_training_ends_with_the_same_bits():
    data = load_digits("train")
    options = {"method": "certified", "eps": 0.2, "ramp": 0.5, "start": 1, "optimiser": "adamw"}
    recipe, seen = pb.Recipe.from_options(**options, epochs=3, batch_size=512), []

    def fresh():
        return pb.paper_model("pn-4", shape=data.shape, seed=0)

    trainer = Trainer(fresh(), data, recipe, [0])
    inner, steps = trainer.engine.step_, trainer.steps
    trainer.engine.step_ = lambda *a: seen.append(recipe.method.eps_at(trainer.engine.context.done)) or inner(*a)
    trainer.run()
    assert seen == pytest.approx([0.2 * min(1.0, t / steps) for t in range(2 * steps)])
    assert trainer.engine.context.domain == data.domain
    whole, resumed = in_one_go_and_in_two(fresh, data, recipe, [0], steps + 2)
    assert torch.equal(weights_of(whole), weights_of(resumed))


def test_early_stopping_waits_for_the_whole_radius():
    methods = {Certified(ramp=0.5): 5, Certified(ramp=0.45, start=4): 7, Certified(ramp=1.0): 9, Certified(ramp=0.0): 0}
    assert {method: method.complete_from(10) for method in methods} == methods
    model = pb.CCP(64, 2, 10, 2, seed=0)
    data = load_digits("train")
    options = {"method": "certified", "eps": 0.3, "ramp": 0.75, "learning_rate": 0.0, "epochs": 8, "batch_size": 1024}
    history = pb.fit(model, data.x.flatten(1), data.y, early_stopping=1, **options)
    assert history.best == 7 and len(history) == 8  # nothing is learnt: the first epoch that counts is the best


def test_it_certifies_more_and_projects_if_asked():
    train, test = load_digits("train"), load_digits("test")
    options = {"recipe": "paper", "epochs": 12, "optimiser": "adamw", "learning_rate": 0.01, "schedule": "cosine"}
    shares = {}
    for name, more in {
        "none": {},
        "certified": {"method": "certified", "eps": 0.2},
        "both": {"method": "certified-projection", "eps": 0.2, "bound": 1.0},
    }.items():
        model = pb.paper_model("pn-4", shape=train.shape, seed=0)
        pb.fit(model, train, **options, **more)
        shares[name] = pb.certified_accuracy(model, test, 0.2, images=100, budget=0.1)
        assert pb.accuracy(model, test) > 0.8
        assert pb.Projection(model, 1.0).contains() == (name == "both")
    assert min(shares["certified"], shares["both"]) > shares["none"] + 0.3


@given(ccps(), st.integers(0, 2**32 - 1))
def test_the_closed_form_has_the_gradient_of_autograd(model, seed):
    """Where a slope is zero there are several; finite differences across such a kink differ from both."""
    if model.classes < 2:
        return
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(3, model.features, generator=generator, dtype=F64)
    y = torch.randint(0, model.classes, (3,), generator=generator)
    weights = list(model.parameters())
    found = []
    for dense in (differentiable.Dense, SimpleNamespace):  # all maps in one product, or one after another
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(differentiable, "Dense", dense)
            lower = margin_bounds(model.factors(), *box_of(x, 0.1, (0.0, 1.0)), y).lower
        found.append(torch.autograd.grad(lower.sum(), weights, allow_unused=True))
    for closed, by_autograd in zip(*found, strict=True):
        assert (closed is None) == (by_autograd is None)
        if closed is not None:
            assert torch.allclose(closed, by_autograd, rtol=1e-9, atol=1e-9 * float(by_autograd.abs().max()))


def test_boxes_of_inputs_outside_of_the_domain_have_no_negative_radius():
    c, r = box_of(torch.tensor([1.5, 0.5, -2.0]), 0.25, (0.0, 1.0))
    assert c.tolist() == [1.0, 0.5, 0.0]
    assert r.tolist() == [0.0, 0.25, 0.0]
