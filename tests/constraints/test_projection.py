"""`Projection` on every model: inside in float64, idempotent, as published, for stacks and for anybody's modules."""

from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64, Written, ccps, networks, randomise
from polybound.models import Applied
from polybound.theory import factor_norms, lifted_norm, operator_norm, theta

bounds = st.sampled_from([0.2, 0.6, 1.0, 1.5, 3.0, 100.0])


def snapshot(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@given(networks(runs=(None, 2)), bounds, st.sampled_from(["inf", "2", "product"]), st.booleans())
def test_inside_and_idempotent(model, bound, norm, single_precision):
    if single_precision:
        model = model.float()
    product = norm == "product" and not isinstance(model, pb.NCP)
    options = {"on": "product"} if product else {"norm": norm.replace("product", "inf")}
    projection = pb.Projection(model, bound, **options)
    assert ("product" in projection.names) == product
    projection.apply_()
    assert projection.contains()
    before = snapshot(model)
    projection.apply_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@given(ccps(), bounds)
def test_product_bounds_theta(model, bound):
    pb.Projection(model, bound, on="product").apply_()
    # The lemma's constant unit, which the residual form has and no weight can move, has norm 1.
    floor = 1.0 if model.form == "residual" else 0.0
    assert theta(model) <= max(bound, floor) * (1 + 1e-12)


@given(ccps(), st.sampled_from([1.0, 1.5, 3.0]))
def test_operator_bounds_the_lifted_norms(model, bound):
    projection = pb.Projection(model, bound, on="operator")
    projection.apply_()
    assert projection.contains()
    for norm in factor_norms(model).values():
        assert norm <= bound * (1 + 1e-12)


def test_weights_as_published():
    model = randomise(pb.CCP(6, 3, 2, 2, dtype=F64), 0, 1.0)
    before = snapshot(model)
    pb.Projection(model, 0.7).apply_()
    for i in range(2):
        assert torch.equal(model.V[i], pb.project_l1_rows(before["V"][i], 0.7))
    # [C, bias] together
    assert torch.equal(model.C, pb.project_l1_rows(before["C"], 0.7))
    assert model.C.abs().sum(-1).max() > 0.699


def test_pn_conv_as_published():
    model = pb.paper_model("pn-conv", shape=(1, 8, 8), rank=2, seed=0, dtype=F64)
    randomise(model, 0, 1.0)
    before = snapshot(model)
    projection = pb.Projection(model, 0.5)
    assert projection.names == ("pre", "U1", "U2", "U3", "U4", "C")
    wanted = dict.fromkeys(projection.names, 0.5) | {"U1": 1.0}
    assert {name: float(b) for name, b in projection.bounds().items()} == wanted
    projection.apply_()
    for i, radius in enumerate((1.0, 0.5, 0.5, 0.5)):
        kernel = pb.project_linf_operator(before["K"][i], radius, kernel_dims=2)
        assert torch.equal(model.K[i], kernel)
    rows = pb.project_l1_rows(torch.cat([before["P"].flatten(1), before["c"].unsqueeze(1)], 1), 0.5)
    assert torch.equal(model.P, rows[:, :-1].view_as(model.P)) and torch.equal(model.c, rows[:, -1])


def test_a_bound_given_by_name_is_taken_as_it_is():
    model = randomise(pb.paper_model("pn-conv", shape=(1, 8, 8), rank=2, dtype=F64), 0, 1.0)
    before = snapshot(model)
    projection = pb.Projection(model, {"U1": 0.5, "C": 2.0})
    projection.apply_()
    norms = projection.norms()
    assert norms["U1"] <= 0.5 and norms["C"] <= 2.0
    assert torch.equal(model.K[1:], before["K"][1:]) and torch.equal(model.P, before["P"])


def test_stack_with_a_bound_for_each_run():
    model = randomise(pb.NCP(6, 3, 2, 3, runs=3, dtype=F64), 0, 2.0)
    singles = [model.run(e) for e in range(3)]
    for norm in ("inf", "2"):
        stacked = pb.stack(singles)
        pb.Projection(stacked, [0.5, inf, 2.0], norm=norm).apply_()
        for e, bound in enumerate((0.5, inf, 2.0)):
            alone = pb.stack(singles).run(e)
            pb.Projection(alone, bound, norm=norm).apply_()
            for name, tensor in alone.state_dict().items():
                torch.testing.assert_close(stacked.run(e).state_dict()[name], tensor, rtol=1e-12, atol=1e-12)
        assert torch.equal(stacked.run(1).V, singles[1].V)
    model = randomise(pb.CCP(6, 3, 2, 3, runs=3, dtype=F64), 0, 2.0)
    before = model.run(1)
    projection = pb.Projection(model, {"product": [2.0, inf, 5.0]}, on="product")
    projection.apply_()
    assert projection.contains() and torch.equal(model.run(1).V, before.V)
    found, wanted = projection.norms()["product"][[0, 2]], torch.tensor([2.0, 5.0], dtype=F64)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=0)


def test_any_module_of_linear_and_conv_layers():
    first, second = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 3, groups=4, bias=False)
    net = nn.Sequential(first, nn.ReLU(), second, nn.Flatten(), nn.Linear(32, 5))
    projection = pb.Projection(net, bound=0.9)
    assert projection.names == ("0", "2", "4")
    projection.apply_()
    assert projection.contains()
    rows = torch.cat([net[0].weight.flatten(1), net[0].bias.unsqueeze(1)], dim=1)
    assert rows.double().abs().sum(1).max() <= 0.9
    assert torch.allclose(rows.abs().sum(1).max(), torch.tensor(0.9))
    pb.Projection(net, bound={"4": 0.1}).apply_()
    assert net[4].weight.detach().abs().sum(1).max() <= 0.1
    linear = nn.Linear(6, 4)
    pb.Projection(linear, bound=0.3, norm="2").apply_()
    assert torch.linalg.matrix_norm(torch.cat([linear.weight, linear.bias.unsqueeze(1)], 1).double(), 2) <= 0.3


def test_it_follows_a_model_whose_parameters_were_replaced():
    model = pb.CCP(6, 3, 2, 2, seed=0)
    projection = pb.Projection(model, 0.1)
    model.double()
    model.load_state_dict({name: 5 * tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)
    projection.apply_()
    assert projection.contains() and model.V.abs().sum(-1).max() <= 0.1
    assert model.V.requires_grad and model.V.is_leaf


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"bound": -1}, "at least 0"),
        ({"bound": "one"}, "a number"),
        ({"bound": [1.0, 2.0]}, "2 bounds for a single model"),
        ({"bound": {"U7": 1.0}}, "U7"),
        ({"on": "everything"}, "on"),
        ({"on": "operator", "bound": 0.5}, "constant column of U2"),
        ({"on": "product", "norm": "2"}, "norm='inf'"),
    ],
)
def test_bad_input(kwargs, says):
    refuses(says, pb.Projection, pb.CCP(6, 3, 2, 2), **kwargs)


def test_modules_that_cannot_be_projected():
    refuses("no Linear or Conv", pb.Projection, nn.ReLU())
    refuses("depends on the size", pb.Projection, nn.Conv2d(1, 1, 3), norm="2")
    refuses("NCP", pb.Projection, pb.NCP(6, 3, 2, 2), on="product")


@pytest.mark.parametrize("norm", ["inf", "2"])
def test_the_bound_of_the_product_form_is_on_all_of_its_matrices(norm):
    """Their constant columns too, which no bound of the weights of x alone would keep from growing."""
    model = randomise(pb.CCP(6, 3, 2, 2, "product", dtype=F64), 0, 0.01)
    with torch.no_grad():
        model.U[0, 0, -1] = 50.0
    projection = pb.Projection(model, 1.0, norm=norm)
    assert projection.norms()["U1"] >= 50 and not projection.contains()
    projection.apply_()
    assert projection.contains() and all(norm <= 1 for norm in projection.norms().values())
    if norm == "inf":
        assert float(lifted_norm(model.factors().A[0], False)) <= 1 + 1e-12
        assert projection.norms() == pb.Projection(model, 1.0, on="operator").norms()


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
