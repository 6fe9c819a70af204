"""Boxes through modules: the intervals of certificates, with gradients; and the training that rests on them."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import polybound as pb
from helpers.errors import refuses
from helpers.networks import Written, layers
from helpers.training import digits, in_one_go_and_in_two
from polybound.certificates.bounds.graphs import GraphBoxes, interval_bounds
from polybound.data import load_digits
from polybound.errors import PolyboundError
from polybound.models import BoxNet, Norm, PolyNet, Quadratic
from polybound.training.boxes import Box, worst_logits


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
