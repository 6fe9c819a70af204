"""Training for certificates: the bound that is descended, against corners, the verifier and finite differences."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import polybound as pb
from helpers.errors import refuses
from helpers.networks import Written, ccps, layers
from helpers.training import digits, in_one_go_and_in_two, weights_of
from polybound.certificates import PreparedNetwork, box_of, margin_bounds
from polybound.certificates.bounds import differentiable
from polybound.certificates.bounds.first_order import first_order
from polybound.certificates.bounds.graphs import GraphBoxes, interval_bounds
from polybound.data import load_digits
from polybound.errors import PolyboundError
from polybound.models import BoxNet, Norm, PolyNet, Quadratic
from polybound.training import Certified, StepContext, Trainer
from polybound.training.boxes import Box, worst_logits

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


class Many(nn.Module):
    """Whatever has a rule: strides, both normalisations, pooling, sums, products, powers, slices, a matrix product."""

    def __init__(self):
        super().__init__()
        self.steps, self.first = Quadratic(2, 2, step=True), nn.Conv2d(2, 4, 3, stride=2)
        self.second = nn.BatchNorm2d(4)
        self.third, self.fourth, self.last = Norm(4), Quadratic(4, 2), nn.Linear(6, 3)
        self.matrix, self.square = nn.Parameter(torch.randn(16, 6)), nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        x = self.first(self.steps(x / 3))
        x = self.second(x * 0.5 + 0.1 * x * x.flip(3)) + (1 - x) - x.square() * 0.1
        x = self.fourth(self.third(F.pad(x, (0, 1, 0, 1))))
        x = torch.cat([F.avg_pool2d(x, 2), x[:, :, ::2, ::2] * 2], 1).mean(1, keepdim=True)
        x = x.flatten(1).repeat(1, 4) @ self.matrix
        x = torch.einsum("bi,ij->bj", F.interpolate(x.unsqueeze(1), scale_factor=2).flatten(1)[:, ::2], self.square)
        return self.last(x**2 - 0.01 * x**3 + 2 * x)


def networks():
    torch.manual_seed(0)
    many = pb.polynomial(Many(), (2, 7, 7))
    small = BoxNet((1, 6, 6), 4, 2, (3,), (3,), (2,), hidden=5, seed=1)
    deep = PolyNet((1, 4, 4), 3, width=2, blocks=(1, 1), seed=2)
    no_last_map = Written(lambda m, x: m.a(x) * m.b(x), **layers(5, 3, "ab"))
    return [many, many.stored(), small, deep, pb.polynomial(no_last_map, (5,))]


@pytest.mark.parametrize("number", range(5))
def test_boxes_are_the_intervals_of_certificates_and_hold_every_point(number):
    network = networks()[number].double()
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(4, network.features, generator=generator, dtype=torch.float64) * 2 - 1
    y = torch.randint(network.classes, (4,), generator=generator)
    network.train()
    worst_logits(network, x, x, y)  # gives the normalisation some statistics
    network.eval()
    worst = worst_logits(network, x - 0.02, x + 0.02, y)
    boxes = GraphBoxes.over(network.graph().double(), x - 0.02, x + 0.02)
    forms = torch.eye(network.classes, dtype=torch.float64)
    for rival in range(network.classes):
        proven = -interval_bounds(boxes, forms[y] - forms[rival])
        torch.testing.assert_close(worst[:, rival], proven, rtol=1e-9, atol=1e-9)
    for _ in range(20):
        point = x + 0.02 * (torch.rand(x.shape, generator=generator, dtype=torch.float64) * 2 - 1)
        logits = network(point)
        assert bool((logits - logits.gather(1, y.unsqueeze(1)) <= worst + 1e-12).all())
    assert worst.requires_grad


@given(st.integers(0, 2**32 - 1))
def test_the_gradient_of_a_quadratic_is_that_of_its_formula(seed):
    generator = torch.Generator().manual_seed(seed)
    c, r, *parts = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((4, 3, 2), (4, 3, 2), *[(3, 1)] * 3)
    )
    leaves = [part.requires_grad_() for part in (c, r.abs(), *parts)]

    def by_formula(c, r, scale, shift, bias):
        box = torch.square(Box(c + shift, r))
        return box.centre * scale + bias, box.radius * scale.abs()

    def in_one(c, r, *parts):
        from polybound.models.deep import quadratic

        box = quadratic(Box(c, r), *parts)
        return box.centre, box.radius

    weights = [torch.randn(c.shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    found = []
    for function in (by_formula, in_one):
        made = function(*leaves)
        total = sum((weight * part).sum() for weight, part in zip(weights, made, strict=True))
        found.append((*made, *torch.autograd.grad(total, leaves)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_normalisation_takes_the_statistics_of_centres_and_keeps_them():
    for norm in (Norm(3), nn.BatchNorm1d(3)):
        c, r = torch.randn(16, 3) * 3 + 1, torch.rand(16, 3)
        box = norm(Box(c, r))
        torch.testing.assert_close(box.centre, F.batch_norm(c, None, None, training=True))
        torch.testing.assert_close(box.radius, r / (c.var(0, correction=0) + 1e-5).sqrt())
        mean, var = norm.state_dict()[next(n for n in norm.state_dict() if "mean" in n)], list(norm.buffers())[1]
        torch.testing.assert_close(mean, 0.1 * c.mean(0))
        torch.testing.assert_close(var, 0.9 + 0.1 * c.var(0))
        norm.eval()
        box = norm(Box(c, r))
        torch.testing.assert_close(box.centre, norm(c))
        torch.testing.assert_close(box.radius, r / (var + 1e-5).sqrt())


def small():
    return BoxNet((1, 8, 8), 10, 2, (8,), (3,), (2,), hidden=32, seed=0)


OPTIONS = {
    **{"recipe": "paper", "method": "certified", "eps": 0.2, "ramp": 0.5, "optimiser": "adamw", "learning_rate": 0.01},
    **{"weight_decay": 0.0, "schedule": "one-cycle", "clip": 1.0, "batch_size": 32},
}


def test_it_certifies_what_plain_training_does_not():
    train, test = digits(800), load_digits("test").subset(100)
    shares = {}
    for name, more in {"plain": {"method": "none"}, "certified": {}, "mixed": {"weight": 0.7}}.items():
        options = {key: value for key, value in OPTIONS.items() if name != "plain" or key not in ("eps", "ramp")}
        net = small()
        pb.fit(net, train, epochs=10, seed=0, **options | more)
        net.eval()
        shares[name] = pb.certify(net, test.x, test.y, 0.2, method="interval", domain=test.domain).summary()
        assert shares[name]["clean accuracy"] > 0.8
    least = min(shares[name]["certified accuracy"] for name in ("certified", "mixed"))
    assert least > shares["plain"]["certified accuracy"] + 0.4


def test_a_resumed_training_has_the_same_radii_and_ends_with_the_same_bits():
    recipe = pb.Recipe.from_options(**{key: value for key, value in OPTIONS.items() if key != "recipe"}, epochs=2)
    whole, resumed = in_one_go_and_in_two(small, digits(400), recipe, [0], steps=15)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda a: (a.unsqueeze(1) @ a.unsqueeze(2)).squeeze(2).repeat(1, 3), "product of two matrices of values"),
        (lambda a: torch.einsum("bi,bi->bi", a, a), "no interval rule for einsum"),
    ],
)
def test_what_has_no_rule_is_named(how, said):
    network = pb.polynomial(Written(lambda m, x: how(m.a(x)), a=nn.Linear(4, 4)), (4,))
    x = torch.zeros(2, 4)
    refuses(said, worst_logits, network, x, x, torch.tensor([0, 1]))
    worst_logits(network.stored(), x, x, torch.tensor([0, 1]))


def test_other_methods_that_bound_the_network_name_what_they_take():
    class Own(pb.training.Method):
        name = "own"

        def network_loss(self, factors, inputs, labels, context):
            raise AssertionError("not reached")

    with pytest.raises(PolyboundError, match="own is for chains of products"):
        Own().deep_loss(small(), torch.zeros(1, 64), torch.zeros(1), pb.training.methods.StepContext())


def test_a_box_net_is_known_by_its_seed_and_read_back(tmp_path):
    net = small()
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), small().state_dict().values(), strict=True))
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    pb.fit(net, digits(64), epochs=1, method="certified", eps=0.1)
    net.save(tmp_path / "net.safetensors")
    again = pb.load(tmp_path / "net.safetensors")
    assert isinstance(again, BoxNet) and again.graph().digest == net.eval().graph().digest
    net.reset_parameters()
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())
    assert net.degree == net.graph().degree == 2**6
