"""`Projection` on every model: inside in float64, idempotent, as published, for stacks and for anybody's modules."""

from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64, ccps, networks, randomise
from polybound.models import Conv
from polybound.theory import factor_norms, lifted_norm, theta

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


def test_spectral_projection_of_kernels_bounds_the_operator():
    model = randomise(pb.ConvCCP((2, 5, 5), 3, 2, 2, 3, dtype=F64), 0, 1.0)
    pb.Projection(model, 0.8, norm="2").apply_()
    for kernel in model.K:
        matrix = Conv(kernel.detach(), None, (2, 5, 5)).matrix()
        assert torch.linalg.matrix_norm(matrix, 2) <= 0.8


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
        ({"bound": float("nan")}, "at least 0"),
        ({"bound": "one"}, "a number"),
        ({"bound": [1.0, 2.0]}, "2 bounds for a single model"),
        ({"bound": {"U7": 1.0}}, "U7"),
        ({"norm": "1"}, "norm"),
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
