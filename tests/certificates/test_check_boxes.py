"""Files of certificates over boxes of any kind: confirmed in ball arithmetic, refused when anything in them is wrong."""

import copy
import json

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.networks import F64, ccps, convs, ncps, randomise, seeds
from helpers.profiles import examples
from helpers.tampering import counted, refused
from polybound.certificates import check_file, save_certificates

pytest.importorskip("flint")

SIZES = torch.tensor([0.0, 1e-9, 0.02, 0.1, 0.4], dtype=F64)


def inputs(model, seed, images=4):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(images, *model.shape, generator=generator, dtype=F64) * 2 - 1
    down, up = (SIZES[torch.randint(0, len(SIZES), x.shape, generator=generator)] for _ in range(2))
    return x, down, up, model(x).argmax(1)


@settings(max_examples=examples(30))
@given(st.one_of(ccps(), ncps(), convs()), seeds, st.sampled_from(["eps", "box"]))
def test_every_certificate_is_confirmed(tmp_path_factory, model, seed, kind):
    assume(model.classes > 1)
    path = tmp_path_factory.mktemp("proofs") / "proofs.json"
    x, down, up, y = inputs(model, seed)
    domain = (x.amin(0) - 0.05, x.amax(0) + 0.05) if kind == "eps" else None
    options = {"eps": down} if kind == "eps" else {"box": (x - down, x + up)}
    found = pb.certify(model, x, y, **options, domain=domain, keep=True, budget=0.2)
    save_certificates(path, model, found, x, domain)
    assert check_file(path, model) == counted(found, x)


@pytest.fixture(scope="module", params=["eps", "box"])
def proven(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("proofs") / "proofs.json"
    model = randomise(pb.CCP(4, 4, 3, 4, dtype=F64), 3, 0.7)
    x, down, up, y = inputs(model, 0, 40)
    options = {"eps": down} if request.param == "eps" else {"box": (x - down, x + up)}
    found = pb.certify(model, x, y, **options, domain=None, keep=True, budget=600.0)  # decided long before
    save_certificates(path, model, found, x, None)
    content = json.loads(path.read_text())
    assert found.count("verified") > 3 and found.count("falsified") > 3 and found.count("undecided") == 0
    assert all((request.param in entry) and isinstance(entry[request.param], list) for entry in content["images"])
    return model, content, request.param


def entries(content, status):
    return [entry for entry in content["images"] if entry["status"] == status]


def test_one_feature_more_is_refused(proven, tmp_path):
    model, content, kind = copy.deepcopy(proven)
    for entry in entries(content, "verified"):
        if kind == "eps":
            entry["eps"][0] += 2.0
        else:
            entry["box"][0][0] -= 2.0
            entry["box"][1][0] += 2.0
    refused(tmp_path, model, content, "not positive|before it|cut|monotone|leaves out")


def test_a_coordinate_that_moves_in_secret_is_refused(proven, tmp_path):
    """A feature that was fixed gets a width which the proof does not know of."""
    model, content, kind = copy.deepcopy(proven)
    changed = 0
    for entry in entries(content, "verified"):
        widths = entry["eps"] if kind == "eps" else [b - a for a, b in zip(*entry["box"], strict=True)]
        for d in (d for d, width in enumerate(widths) if width == 0.0):
            sides = [entry["eps"]] if kind == "eps" else entry["box"][1:]
            sides[0][d] += 3.0
            changed += 1
    assert changed
    refused(tmp_path, model, content, "not positive|before it|cut|monotone|leaves out")


def test_a_counterexample_must_lie_in_the_smaller_box(proven, tmp_path):
    model, content, kind = copy.deepcopy(proven)
    for entry in entries(content, "falsified"):
        if kind == "eps":
            entry["eps"] = [value / 1024 for value in entry["eps"]]
        else:
            entry["box"] = [entry["x"], entry["x"]]
    refused(tmp_path, model, content, "outside")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eps": [0.1, 0.1]}, "does not fit"),
        ({"eps": [0.1, 0.1, 0.1, -0.1]}, "negative"),
        ({"eps": [0.1, 0.1, 0.1, float("inf")]}, "damaged"),
        ({"eps": [0.1, 0.1, 0.1, float("nan")]}, "damaged"),
        ({"box": [[0.0] * 4, [0.0] * 3]}, "does not fit"),
        ({"box": [[5.0] * 4, [6.0] * 4]}, "outside|about boxes"),
        ({"box": [[1.0] * 4, [-1.0] * 4]}, "above the upper"),
        ({"box": [[-1.0] * 4]}, "damaged"),
        ({}, "either sides or radii"),
        ({"eps": 0.1, "box": [[-1.0] * 4, [1.0] * 4]}, "either sides or radii"),
    ],
)
def test_boxes_that_are_none_are_refused(proven, tmp_path, change, message):
    model, content, _ = copy.deepcopy(proven)
    entry = entries(content, "verified")[0]
    entry.pop("eps", None)
    entry.pop("box", None)
    entry |= change
    refused(tmp_path, model, content, message)


def test_a_wider_domain_is_refused(tmp_path):
    model = randomise(pb.CCP(3, 3, 2, 3, dtype=F64), 4, 0.6)
    x, _, _, y = inputs(model, 1, 20)
    domain = (x.amin(0), x.amax(0) * 0.5 + x.amin(0) * 0.5)
    x = torch.minimum(x, domain[1])
    y = model(x).argmax(1)
    found = pb.certify(model, x, y, 0.3, domain=domain, keep=True, budget=600.0)
    assert found.count("verified") > 0
    path = tmp_path / "proofs.json"
    save_certificates(path, model, found, x, domain)
    assert check_file(path, model)["verified"] == found.count("verified")
    content = json.loads(path.read_text())
    for entry in content["images"]:
        if entry["status"] == "verified":
            entry["eps"] = 9.0
    content["domain"] = [[-9.0] * 3, [9.0] * 3]
    refused(tmp_path, model, content, "not positive|before it|cut|monotone|leaves out")
    content["domain"] = [[-1.0] * 2, [1.0] * 2]
    content.setdefault("digest", "")
    refused(tmp_path, model, content, "does not fit")


def test_bounds_to_compare_with_have_no_proofs(tmp_path):
    model = randomise(pb.CCP(3, 3, 2, 2, dtype=F64), 0, 0.3)
    x = torch.zeros(1, 3, dtype=F64)
    found = pb.certify(model, x, [0], 0.1, method="crown", keep=True)
    with pytest.raises(pb.PolyboundError, match="no proofs"):
        save_certificates(tmp_path / "proofs.json", model, found, x, (-1.0, 1.0))
