"""Forged proofs of false claims, each of which needs one number that no honest file has: all of them are refused."""

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


@pytest.mark.parametrize("name", ["norms", "tops"])
def test_negative_norms(tmp_path, name):
    model = randomise(pb.NCP(3, 3, 2, 3, dtype=F64), 0, 1.0)
    x = torch.rand(8, 3, generator=torch.Generator().manual_seed(0), dtype=F64) * 2 - 1
    norm = "2" if name == "tops" else "inf"
    found = pb.certify(model, x, model(x).argmax(1), 0.9, norm=norm, keep=True, budget=600.0)
    content = saved(tmp_path, model, found, x, (-1.0, 1.0))
    entries = [entry for entry in content["images"] if entry["status"] == "falsified"]
    assert entries
    for entry in entries:
        del entry["counterexample"], entry["rival"]
        entry |= {"status": "verified", "proofs": {str(1 - entry["label"]): {"by": "ball" if norm == "2" else "first"}}}
    content["images"] = entries
    content[name][-1] *= -1e6
    refused(tmp_path, model, content, f"{name}.*negative")


def test_negative_norms_of_intervals(tmp_path):
    model = randomise(pb.NCP(2, 2, 2, 3, dtype=F64), 1, 1.0)
    x = torch.zeros(1, 2, dtype=F64)
    found = pb.output_bounds(model, x, 0.5, keep=True, budget=1.0)
    content = saved(tmp_path, model, found, x, (-1.0, 1.0))
    entry = content["images"][0]
    entry["lower"] = [value + 1.0 for value in entry["highest"]]
    entry["proofs"] = [{"by": "first"} for _ in entry["proofs"]]
    content["norms"] = [-1e6 * value for value in content["norms"]]
    refused(tmp_path, model, content, "norms.*negative")


def test_a_coordinate_that_a_step_names_twice(tmp_path):
    # 1.5 - x_0 + 3 x_1 is least at x_0 = 0.5; by the slope of x_1, the step would fix x_0 at -0.5.
    model = network([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], margin=[-1.0, 3.0, 1.5])
    content = verified_at(tmp_path, model, [0.0, 0.0])
    step = {"by": "second", "on": [0, 0, 1], "v": [0.0, 0.0], "mu": [0.0, 0.0], "box": [[0, -0.5, -0.5]]}
    step |= {"monotone": [0], "then": {"by": "first"}}
    content["images"][0] |= {"eps": 0.5, "proofs": {"1": step}}
    refused(tmp_path, model, content, "twice")


def test_monotone_coordinates_of_balls(tmp_path):
    # 1.2 + x_0 + x_1 is negative in the unit ball, and positive where x_0 = -1 in it.
    model = network([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], margin=[1.0, 1.0, 1.2])
    content = verified_at(tmp_path, model, [0.0, 0.0], norm="2")
    rest = {"split": [1, 0.1], "low": {"by": "first"}, "high": {"by": "outside"}}
    step = {"by": "second", "on": [0, 1], "v": [0.0, 0.0], "mu": [0.0, 0.0], "box": [[0, -1.0, -1.0]], "monotone": [0]}
    step["then"] = {"split": [1, -0.1], "low": {"by": "outside"}, "high": rest}
    content["images"][0] |= {"eps": 1.0, "proofs": {"1": step}}
    refused(tmp_path, model, content, "outside of the ball")


def test_negative_coordinates(tmp_path):
    # 0.9 + x is negative at -1. A cap is left, and in it the whole ball is to count x twice.
    model = network([[1.0, 0.0], [0.0, 1.0]], margin=[1.0, 0.9])
    content = verified_at(tmp_path, model, [0.0], norm="2")
    rest = {"by": "trust", "on": [0, -1], "v": [0.7, 0.7], "lam": 0.0, "nu": 2.0}
    cap = {"by": "cap", "on": [0], "v": [0.0], "lam": 0.0, "kappa": 1.0, "s": 0.89, "d": [-1.0]}
    cap |= {"centre": [-0.89], "radii": [0.457], "then": rest}
    content["images"][0] |= {"eps": 1.0, "proofs": {"1": cap}}
    refused(tmp_path, model, content, "a coordinate is -1")


@pytest.mark.parametrize("rival", [-2, 0, 2])
def test_a_rival_that_is_the_label_or_no_class(tmp_path, rival):
    model = network([[1.0, 0.0], [0.0, 1.0]], margin=[1.0, 0.9])
    content = verified_at(tmp_path, model, [0.0])
    del content["images"][0]["proofs"]
    content["images"][0] |= {"status": "falsified", "counterexample": [0.0], "rival": rival}
    refused(tmp_path, model, content, "rival is")


def test_whole_numbers_that_are_no_floats(tmp_path):
    # (s - 0.25) (s - 0.75) for s = x - (2^53 + 4) in [0, 4]: positive at 0 and from 1 on. The next float of 1 is 0.
    far = 2**53 + 4
    lifted = [1.0, -float(far)]
    model = network([lifted, lifted, [0.0, 1.0]], [lifted, [0.0, 1.0], [0.0, 1.0]], margin=[1.0, -1.0, 0.1875])
    content = verified_at(tmp_path, model, [float(far + 2)])
    step = {"by": "second", "on": [0], "v": [-0.55], "mu": [0.0], "box": [[0, float(far), far + 1]]}
    entry = content["images"][0]
    del entry["eps"]
    entry |= {
        "status": "verified",
        "box": [[float(far)], [float(far + 4)]],
        "proofs": {"1": step | {"then": {"by": "first"}}},
    }
    refused(tmp_path, model, content, "2\\^53")


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


def test_repeated_inputs_are_counted_once(tmp_path):
    model = network([[1.0, 0.0], [0.0, 1.0]], margin=[1.0, 0.9])
    content = verified_at(tmp_path, model, [0.0])
    content["images"] *= 20
    forge(tmp_path / "forged.json", content)
    counts = check_file(tmp_path / "forged.json", model)
    assert counts == {"verified": 1, "falsified": 0, "undecided": 0, "repeated": 19}
