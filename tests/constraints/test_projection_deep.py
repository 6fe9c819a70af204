"""Projection of deep networks: every map by its name, inside in float64, and never below the operator's norm."""

import pytest
import torch
from torch import nn

import polybound as pb
from helpers.errors import refuses
from helpers.networks import Written
from polybound.models import Applied
from polybound.theory import operator_norm

DIGITS = pb.data.load_digits("train")


def own():
    a, b = (nn.Conv2d(1, 4, 4, stride=2, padding=1, bias=bias) for bias in (True, False))
    parts = {"a": a, "b": b, "norm": nn.BatchNorm2d(4), "head": nn.Linear(64, 3)}
    return Written(lambda m, x: m.head(m.norm(m.a(x) * m.b(x)).flatten(1)), **parts)


def networks():
    torch.manual_seed(0)
    nets = [pb.PolyNet(DIGITS.shape, width=4, blocks=(1, 1), seed=0), pb.models.PolyMLP((64,), width=6, seed=0)]
    nets.append(pb.polynomial(own(), DIGITS.shape))
    for net in nets:
        net.train()
        with torch.no_grad():
            for weight in net.parameters():
                weight.mul_(3.0)
            for _ in range(3):
                net(DIGITS.x[:64].reshape(64, *net.shape))  # statistics
        net.eval()
    return nets


NORMS = [("inf", "weights", 0.7), ("inf", "operator", 0.7), ("2", "weights", 0.4)]


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize(("norm", "on", "bound"), NORMS)
def test_every_map_is_inside(index, norm, on, bound):
    net = networks()[index]
    projection = pb.Projection(net, bound, norm=norm, on=on)
    scales = {name for name in projection.names if "norm" in name or name == "body.1.weight"}
    assert len(scales) == {0: 3, 1: 2, 2: 1}[index]
    matrices = {name for name, weight in net.named_parameters() if weight.ndim > 1}
    assert set(projection.names) == matrices | scales and not projection.contains()
    before, sizes = {name: weight.clone() for name, weight in net.named_parameters()}, projection.norms()
    projection.apply_()
    assert projection.contains()
    for name, value in projection.norms().items():  # no further than is needed
        assert float(value) > 0.99 * min(bound, float(sizes[name]))
    free = {name for name, weight in net.named_parameters() if torch.equal(weight, before[name])}
    if on == "operator":
        assert any(name.endswith("bias") for name in free)  # biases stay
    # The bound is on the maps of the graph: without biases, in the operator norm that the bound is about.
    for node in net.graph(fused=False).double().nodes:
        kind = type(node.map).__name__ if isinstance(node, Applied) else ""
        if kind == "Convolution" and norm == "2":
            assert float(torch.linalg.matrix_norm(node.map.matrix(), 2)) <= bound * (1 + 1e-6)
        elif kind in ("Conv", "Convolution", "Dense") and norm == "inf":
            assert operator_norm(node.map, torch.inf) <= bound * (1 + 1e-9)
    after = {name: weight.clone() for name, weight in net.named_parameters()}
    projection.apply_()
    assert all(torch.equal(weight, after[name]) for name, weight in net.named_parameters())


def test_single_maps_by_name():
    net = networks()[0]
    before = {name: tensor.clone() for name, tensor in net.named_parameters()}
    projection = pb.Projection(net, {"body.2.a.weight": 0.5, "body.1.weight": 0.2})
    projection.apply_()
    changed = {name for name, tensor in net.named_parameters() if not torch.equal(tensor, before[name])}
    assert changed == {"body.2.a.weight", "body.1.weight"}
    deviation = (net.body[1].var.double() + 1e-5).sqrt()
    wanted = before["body.1.weight"].double().clamp(-0.2 * deviation, 0.2 * deviation)
    torch.testing.assert_close(net.body[1].weight.double(), wanted, rtol=1e-6, atol=0)
    refuses(r"no matrix called 'C'; there are body\.0\.weight, body\.1\.weight", pb.Projection, net, {"C": 1.0})
    refuses("on='product' is for CCP and ConvCCP, not for PolyNet", pb.Projection, net, 1.0, on="product")


def test_kernels_without_a_norm_on_the_torus_are_refused():
    def forward(m, x):
        return m.head(m.a(x).square().mean((2, 3)))

    for options in ({"groups": 2}, {"dilation": 2}):
        module = Written(forward, a=nn.Conv2d(2, 2, 3, **options), head=nn.Linear(2, 2))
        net = pb.polynomial(module, (2, 8, 8))
        refuses(r"the l2 norm of module\.a\.weight depends on the size of its input", pb.Projection, net, 1.0, norm="2")
        pb.Projection(net, 1.0).apply_()


def test_statistics_are_fixed_while_projections_are_in_force():
    """What is trained is what is bounded: from the first projection on, normalisations are fixed affine maps."""
    seen = []

    class Watch(pb.training.Callback):
        def after_step(self, trainer):
            seen.append((trainer.epoch, trainer.model.body[1].mean.clone(), trainer.model.body[1].training))

    net = pb.PolyNet(DIGITS.shape, width=4, blocks=(1,), seed=0)
    options = {"method": "projection", "bound": 1.0, "start": 1, "adversary": "fgsm-0.1", "adversary_start": 0}
    pb.fit(net, DIGITS.subset(64), epochs=3, batch_size=16, callbacks=[Watch()], **options)
    assert [training for epoch, _, training in seen] == [True] * 4 + [False] * 8
    assert all(torch.equal(mean, seen[3][1]) for _, mean, _ in seen[4:]) and not torch.equal(seen[2][1], seen[3][1])
    assert pb.Projection(net, 1.0).contains()


@pytest.mark.parametrize("p", ["inf", 2, 1])
def test_bounds_of_maps_bound_the_network(p):
    """The composed bound falls with the bound of the maps, and is above all quotients that were sampled."""
    found = []
    for bound in (2.0, 1.0, 0.5):
        net = networks()[0]
        pb.Projection(net, bound, norm="2" if p == 2 else "inf").apply_()
        composed, local = (float(pb.lipschitz(net, p, method=method)) for method in ("paper", "local"))
        x = 2 * torch.rand(200, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
        y = x + 0.01 * torch.randn(200, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        y = y.clamp(-1, 1)
        exact = net.graph().double()
        quotients = torch.linalg.vector_norm(exact(x) - exact(y), ord=float(p), dim=1)
        quotients /= torch.linalg.vector_norm(x - y, ord=float(p), dim=1)
        assert float(quotients.max()) <= min(composed, local)
        found.append(composed)
    assert found[0] > found[1] > found[2]
