"""Certificates on disk: confirmed in ball arithmetic, refused when anything in them is wrong."""

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
from polybound.models import weights_digest

pytest.importorskip("flint")


def certified(model, eps=0.2, seed=0, images=6, budget=1.0):
    x = torch.rand(images, model.features, generator=torch.Generator().manual_seed(seed), dtype=F64) * 2 - 1
    y = model(x).argmax(1)
    return x, pb.certify(model, x, y, eps, keep=True, budget=budget)


@settings(max_examples=examples(50))
@given(st.one_of(ccps(), ncps(), convs()), seeds, st.sampled_from([0.02, 0.1, 0.3]))
def test_every_certificate_is_confirmed(tmp_path_factory, model, seed, eps):
    assume(model.classes > 1)
    path = tmp_path_factory.mktemp("proofs") / "proofs.json"
    x, found = certified(model, eps, seed, budget=0.3)
    save_certificates(path, model, found, x, (-1.0, 1.0))
    assert check_file(path, model) == counted(found, x)


@pytest.fixture(scope="module")
def proven(tmp_path_factory):
    """A file with every kind of step in it, and its model."""
    path = tmp_path_factory.mktemp("proofs") / "proofs.json"
    model = randomise(pb.CCP(6, 4, 3, 4, dtype=F64), 1, 0.5)
    x, found = certified(model, 0.2, 0, 60, budget=600.0)  # decided long before, on any machine
    save_certificates(path, model, found, x, (-1.0, 1.0))
    text = path.read_text()
    assert {"second", "branch", "attack"} <= set(found.stage)
    words = ("first", "second", "split", "absorbed", "box", "monotone", "counterexample")
    assert all(f'"{word}"' in text for word in words)
    return path, model, json.loads(text)


def entries(content, status):
    return [entry for entry in content["images"] if entry["status"] == status]


def steps(node):
    yield node
    for key in ("then", "low", "high"):
        if key in node:
            yield from steps(node[key])


def all_steps(content):
    for entry in entries(content, "verified"):
        for node in entry["proofs"].values():
            yield from steps(node)


def test_the_untouched_file_is_confirmed(proven):
    path, model, content = proven
    seen = []
    assert check_file(path, model, on_progress=lambda *row: seen.append(row))["verified"] > 0
    assert seen[-1] == (60, 60, "checking")
    assert content["model"] == weights_digest(model)


def test_any_change_is_noticed(proven, tmp_path):
    path, model, _ = proven
    text = path.read_text()
    position = text.index('"label": ') + len('"label": ')
    changed = text[:position] + str((int(text[position]) + 1) % 3) + text[position + 1 :]
    (tmp_path / "changed.json").write_text(changed)
    with pytest.raises(pb.FileFormatError, match="changed after"):
        check_file(tmp_path / "changed.json", model)


def test_other_weights_are_refused(proven):
    path, model, _ = proven
    other = copy.deepcopy(model)
    other.V.data[0, 0, 0] += 1e-12
    with pytest.raises(pb.PolyboundError, match="other weights"):
        check_file(path, other)


def test_a_larger_radius_is_refused(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    for entry in entries(content, "verified"):
        entry["eps"] *= 3
    refused(tmp_path, model, content, "not positive|before it|cut|monotone")


def test_a_falsified_image_is_not_verified(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    entry = entries(content, "falsified")[0]
    others = {str(rival): {"by": "first"} for rival in range(3) if rival != entry["label"]}
    entry |= {"status": "verified", "proofs": others}
    del entry["counterexample"], entry["rival"]
    refused(tmp_path, model, content, "not positive")


def test_another_label_is_refused(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    entry = entries(content, "verified")[0]
    rival = next(iter(entry["proofs"]))
    entry["proofs"][str(entry["label"])] = entry["proofs"].pop(rival)
    entry["label"] = int(rival)
    refused(tmp_path, model, content, "not positive|has no|cut|monotone")


def test_a_counterexample_outside_of_the_box_is_refused(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    entry = entries(content, "falsified")[0]
    entry["eps"] /= 2
    refused(tmp_path, model, content, "outside")


def test_a_counterexample_that_is_none_is_refused(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    entry = entries(content, "falsified")[0]
    entry["counterexample"] = entry["x"]
    refused(tmp_path, model, content, "classified as its label")


def test_a_missing_rival_or_branch_is_refused(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    entries(content, "verified")[0]["proofs"].popitem()
    refused(tmp_path, model, content, "damaged")
    _, model, content = copy.deepcopy(proven)
    next(node for node in all_steps(content) if "split" in node)["low"] = {}
    refused(tmp_path, model, content, "complete|before it is")


def test_a_cut_that_goes_too_far_is_refused(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    changed = 0
    for node in all_steps(content):
        for side in node.get("box", []):
            if side[0] not in node.get("monotone", []):
                middle = (side[1] + side[2]) / 2
                upper_was_cut = node["v"][node["on"].index(side[0])] < 0
                side[2 if upper_was_cut else 1] = (
                    side[1] + (middle - side[1]) * 0.01 if upper_was_cut else side[2] - 1e-6
                )
                changed += 1
    assert changed
    refused(tmp_path, model, content, "cut|before it|not positive|monotone")


def test_a_false_monotone_coordinate_is_refused(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    node = next(node for node in all_steps(content) if "monotone" in node)
    d = node["monotone"][0]
    side = next(side for side in node["box"] if side[0] == d)
    side[1] = side[2] = side[1] + (1e-3 if side[1] < 0 else -1e-3)
    refused(tmp_path, model, content, "monotone|before it")


def test_constants_that_are_too_small_are_refused(proven, tmp_path):
    for name in ("stretch", "norms"):
        _, model, content = copy.deepcopy(proven)
        if name == "stretch":
            content["stretch"][0] = [value * 0.9 for value in content["stretch"][0]]
        else:
            content["norms"][1] *= 0.9
        refused(tmp_path, model, content, "too small")


def test_a_norm_in_between_that_is_too_small_is_refused(tmp_path):
    model = randomise(pb.NCP(4, 3, 3, 3, dtype=F64), 0, 0.5)
    x, found = certified(model, 0.05)
    save_certificates(tmp_path / "proofs.json", model, found, x, (-1.0, 1.0))
    content = json.loads((tmp_path / "proofs.json").read_text())
    content["norms"] = [norm * (1 - 1e-6) for norm in content["norms"]]
    refused(tmp_path, model, content, "norm is too small")


def test_a_shift_that_is_too_small_proves_nothing(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    for node in all_steps(content):
        if "mu" in node and "box" not in node:
            node["mu"] = [value - 10 for value in node["mu"]]
    refused(tmp_path, model, content, "not positive")


def test_what_cannot_be_read_or_saved(proven, tmp_path):
    _, model, _ = proven
    file = tmp_path / "x.json"
    for text, message in (
        ("{", "not JSON"),
        ("[]", "not a file of certificates"),
        ("{}", "not a file of certificates"),
    ):
        file.write_text(text)
        with pytest.raises(pb.FileFormatError, match=message):
            check_file(file, model)
    x = torch.zeros(1, 6, dtype=F64)
    with pytest.raises(pb.PolyboundError, match="no proofs"):
        save_certificates(file, model, pb.certify(model, x, [0], 0.1), x, (-1.0, 1.0))
