"""A network made ready for bounding is a copy, and takes inputs of its own shape only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64
from polybound.certificates import PreparedNetwork


@pytest.mark.parametrize("kind", ["factors", "model"])
@pytest.mark.parametrize("name", ["pn-4", "ncp-4", "pn-conv"])
def test_later_changes_of_the_weights_do_not_reach_it(name: str, kind: str):
    model = pb.paper_model(name, shape=(1, 8, 8), seed=0).double()
    net = PreparedNetwork(model if kind == "model" else model.factors().double())
    x = torch.full((1, 64), 0.25, dtype=F64)
    before = (net(x), net.slack(x), [a.weight.clone() for a in net.A], net.factors(x))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    after = (net(x), net.slack(x), [a.weight for a in net.A], net.factors(x))
    assert all(torch.equal(a, b) for a, b in zip(before[2], after[2], strict=True))
    assert all(torch.equal(before[i], after[i]) for i in (0, 1, 3))


@pytest.mark.parametrize("shape", [(2, 3, 1), (3, 2), (6, 1), (1, 6), (1, 3, 2)])
def test_inputs_of_another_shape_are_refused_as_the_model_does(shape: tuple[int, ...]):
    model = pb.ConvCCP((1, 2, 3), 2, 3, 2, 3, seed=0, dtype=F64)
    x, y = torch.zeros(4, *shape, dtype=F64), torch.zeros(4, dtype=torch.long)
    fine = torch.zeros(4, 1, 2, 3, dtype=F64)
    one = torch.zeros(shape, dtype=F64)
    for refused in (
        lambda: model(x),
        lambda: pb.certify(model, x, y, 0.1),
        lambda: pb.output_bounds(model, x, 0.1),
        lambda: pb.certified_radius(model, x, y),
        lambda: pb.certify(model, fine, y, x[:1]),
        lambda: pb.certify(model, fine, y, box=(x, x)),
        lambda: pb.certify(model, fine, y, 0.1, domain=(one - 1, one + 1)),
    ):
        refuses("shape", refused)


def test_flat_inputs_are_taken_as_the_model_takes_them():
    model = pb.ConvCCP((1, 2, 3), 2, 3, 2, 3, seed=0, dtype=F64)
    x = torch.linspace(-0.5, 0.5, 12, dtype=F64).reshape(2, 6)
    y = model(x).argmax(1)
    flat, image = (pb.certify(model, v, y, 0.01) for v in (x, x.reshape(2, 1, 2, 3)))
    assert flat.status == image.status
    assert torch.equal(flat.margin, image.margin)


def test_a_plain_module_is_refused_in_one_line_that_says_what_is_taken(tmp_path):
    data = pb.data.load_digits("test")
    message = r"^needs a polynomial network .*CCP.*, got Sequential|^relu in 2: no polyn"
    net, x, y = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU()), data.x[:2], data.y[:2]
    for refused in (
        lambda: pb.certify(net, x, y, 0.1),
        lambda: pb.certified_radius(net, x, y),
        lambda: pb.output_bounds(net, x, 0.1),
        lambda: pb.certified_accuracy(net, data, 0.1, images=2),
        lambda: PreparedNetwork(net),
        lambda: pb.lipschitz(net),
        lambda: pb.bounds(net),
        lambda: pb.theta(net),
        lambda: pb.gamma(net),
        lambda: pb.rademacher(net, 10),
        lambda: pb.generalisation(net, x, y),
        lambda: pb.theory.sensitivity(net),
        lambda: pb.stack([net]),
        lambda: pb.fit(net, x, y),
        lambda: pb.evaluate(net, data, [], certify=[0.1], limit=2),
        lambda: pb.deploy.to_onnx(net, tmp_path / "net.onnx"),
        lambda: pb.report.model_card(net, data, name="net"),
        lambda: pb.report.build_explorer({"net": net}, data, tmp_path / "page.html"),
    ):
        refuses(message, refused)
    refuses(r"needs a torch\.nn\.Module", pb.Projection, y, 1.0)
