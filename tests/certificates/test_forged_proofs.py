"""Forged proofs of false claims are refused; honest proofs of small outputs, and of repeated inputs, are not."""

import json

import pytest
import torch

import polybound as pb
from helpers.networks import F64, randomise
from helpers.tampering import forge, refused
from polybound.certificates import check_file, save_certificates

pytest.importorskip("flint")


def saved(tmp_path, model, found, x, domain=None):
    save_certificates(tmp_path / "honest.json", model, found, x, domain)
    return json.loads((tmp_path / "honest.json").read_text())


def network(*factors, margin):
    """Two logits, the first of which is a weighted sum of units and the other zero; a unit is a product of rows of z."""
    U = torch.tensor(factors, dtype=F64)
    model = pb.CCP(U.shape[2] - 1, U.shape[1], 2, len(U), "product", dtype=F64)
    with torch.no_grad():
        model.U.copy_(U)
        model.C.copy_(torch.tensor([margin, [0.0] * len(margin)], dtype=F64))
    return model


def verified_at(tmp_path, model, x, norm="inf"):
    """The content of an honest file about one point, to be forged."""
    x = torch.tensor([x], dtype=F64)
    found = pb.certify(model, x, [0], 0.0, norm=norm, domain=None, keep=True)
    return saved(tmp_path, model, found, x)


def test_monotone_coordinates_of_balls(tmp_path):
    # 1.2 + x_0 + x_1 is negative in the unit ball, and positive where x_0 = -1 in it.
    model = network([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], margin=[1.0, 1.0, 1.2])
    content = verified_at(tmp_path, model, [0.0, 0.0], norm="2")
    rest = {"split": [1, 0.1], "low": {"by": "first"}, "high": {"by": "outside"}}
    step = {"by": "second", "on": [0, 1], "v": [0.0, 0.0], "mu": [0.0, 0.0], "box": [[0, -1.0, -1.0]], "monotone": [0]}
    step["then"] = {"split": [1, -0.1], "low": {"by": "outside"}, "high": rest}
    content["images"][0] |= {"eps": 1.0, "proofs": {"1": step}}
    refused(tmp_path, model, content, "outside of the ball")


@pytest.mark.parametrize("rival", [-2, 0, 2])
def test_a_rival_that_is_the_label_or_no_class(tmp_path, rival):
    model = network([[1.0, 0.0], [0.0, 1.0]], margin=[1.0, 0.9])
    content = verified_at(tmp_path, model, [0.0])
    del content["images"][0]["proofs"]
    content["images"][0] |= {"status": "falsified", "counterexample": [0.0], "rival": rival}
    refused(tmp_path, model, content, "rival is")


@pytest.mark.parametrize("size", [1e-9, 1e-15, 1e-60])
def test_honest_proofs_of_small_outputs_are_confirmed(tmp_path, size):
    model = randomise(pb.CCP(4, 4, 3, 3, dtype=F64), 1, 0.6)
    with torch.no_grad():
        model.C.mul_(size)
    x = torch.rand(12, 4, generator=torch.Generator().manual_seed(0), dtype=F64) * 2 - 1
    found = pb.certify(model, x, model(x).argmax(1), 0.4, keep=True, budget=600.0)
    assert {"second", "branch"} & set(found.stage)
    save_certificates(tmp_path / "proofs.json", model, found, x, (-1.0, 1.0))
    assert check_file(tmp_path / "proofs.json", model)["verified"] == found.count("verified") > 1


def test_intervals_without_ends_are_not_bounded(tmp_path):
    model = network([[1.0, 0.0], [0.0, 1.0]], margin=[1.0, 0.9])
    x = torch.tensor([[0.0], [0.5]], dtype=F64)
    found = pb.output_bounds(model, x, 0.1, domain=None, keep=True)
    content = saved(tmp_path, model, found, x)
    entry = content["images"][0]
    entry |= {name: [None] * 2 for name in ("lower", "upper", "lowest", "highest")} | {"proofs": [None] * 4}
    forge(tmp_path / "forged.json", content)
    assert check_file(tmp_path / "forged.json", model) == {"bounded": 1, "unbounded": 1, "repeated": 0}
