"""Certificates of l_2 balls on disk: confirmed in ball arithmetic, refused when anything in them is wrong."""

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


def certified(model, eps, domain, seed=0, images=6, budget=1.0):
    x = torch.rand(images, model.features, generator=torch.Generator().manual_seed(seed), dtype=F64) * 2 - 1
    x[::2, 0] = 1.0
    y = model(x).argmax(1)
    return x, pb.certify(model, x, y, eps, norm="2", domain=domain, keep=True, budget=budget)


@settings(max_examples=examples(50))
@given(st.one_of(ccps(), ncps(), convs()), seeds, st.sampled_from([0.0, 0.05, 0.3, 1.0, None]), st.booleans())
def test_every_certificate_is_confirmed(tmp_path_factory, model, seed, eps, bounded):
    assume(model.classes > 1)
    path = tmp_path_factory.mktemp("proofs") / "proofs.json"
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([0.0, 1e-9, 0.1, 0.5], dtype=F64)
    radii = sizes[torch.randint(0, 4, (1, model.features), generator=generator)]
    domain = (-1.0, 1.0) if bounded else None
    x, found = certified(model, radii if eps is None else eps, domain, seed, budget=0.1)
    save_certificates(path, model, found, x, domain)
    assert check_file(path, model) == counted(found, x)


@pytest.fixture(scope="module")
def proven(tmp_path_factory):
    """A file with every kind of step in it, and its model."""
    path = tmp_path_factory.mktemp("proofs") / "proofs.json"
    model = randomise(pb.CCP(3, 4, 3, 4, dtype=F64), 0, 0.5)
    x, found = certified(model, 0.35, (-1.0, 1.0), images=24, budget=600.0)  # decided long before, on any machine
    save_certificates(path, model, found, x, (-1.0, 1.0))
    text = path.read_text()
    assert {"first", "second", "branch", "attack"} <= set(found.stage)
    assert all(
        f'"{word}"' in text
        for word in ("ball", "trust", "trust absorbed", "split", "outside", "counterexample", "tops", "cap")
    )
    return path, model, json.loads(text)


def entries(content, status):
    return [entry for entry in content["images"] if entry["status"] == status]


def steps(node):
    yield node
    for key in ("then", "low", "high"):
        if key in node:
            yield from steps(node[key])


def steps_by(content, rule):
    for entry in entries(content, "verified"):
        for node in entry["proofs"].values():
            yield from (step for step in steps(node) if step.get("by") == rule)


def test_the_untouched_file_is_confirmed(proven):
    path, model, _ = proven
    assert check_file(path, model)["verified"] > 0


@pytest.mark.parametrize("factor", [1.2, 3.0])
def test_a_larger_radius_is_refused(proven, tmp_path, factor):
    _, model, content = proven
    content = copy.deepcopy(content)
    for entry in entries(content, "verified"):
        entry["eps"] = 0.35 * factor
    refused(tmp_path, model, content, "not positive|does not lie|meets the ball|too far")


def test_a_ball_is_no_box(proven, tmp_path):
    _, model, content = proven
    content = copy.deepcopy(content)
    for entry in content["images"]:
        del entry["norm"]
    refused(tmp_path, model, content, "about a ball")


def test_other_norms_are_refused(proven, tmp_path):
    _, model, content = proven
    content = copy.deepcopy(content)
    content["images"][0]["norm"] = "1"
    refused(tmp_path, model, content, "norm is '1'")


def test_a_wider_domain_is_refused(proven, tmp_path):
    _, model, content = proven
    content = copy.deepcopy(content)
    content["domain"] = None
    refused(tmp_path, model, content, "not positive|does not lie|meets the ball|too far")


@pytest.mark.parametrize("change", ["lam", "sign", "v", "on"])
def test_a_false_trust_region_is_refused(proven, tmp_path, change):
    _, model, content = proven
    content = copy.deepcopy(content)
    for step in [*steps_by(content, "trust"), *steps_by(content, "trust absorbed")]:
        if change == "lam":
            step["lam"] = 0.0
        elif change == "sign":
            step["lam"] = -1.0
        elif change == "v":
            step["v"] = [10.0 for _ in step["v"]]
        else:
            step["on"], step["v"] = step["on"][1:], step["v"][1:]
    refused(tmp_path, model, content, "not positive|negative|leaves out")


def test_leaving_out_a_box_that_meets_the_ball_is_refused(proven, tmp_path):
    _, model, content = proven
    content = copy.deepcopy(content)
    for step in [*steps_by(content, "second"), *steps_by(content, "absorbed")]:
        step.clear()
        step["by"] = "outside"
    refused(tmp_path, model, content, "meets the ball")


def test_first_order_where_it_is_not_enough_is_refused(proven, tmp_path):
    _, model, content = proven
    content = copy.deepcopy(content)
    for step in [*steps_by(content, "trust"), *steps_by(content, "trust absorbed")]:
        step.clear()
        step["by"] = "ball"
    refused(tmp_path, model, content, "not positive")


def test_norms_that_are_too_small_are_refused(proven, tmp_path):
    _, model, content = proven
    content = copy.deepcopy(content)
    content["tops"][0] *= 0.9
    refused(tmp_path, model, content, "norm is too small")
    del content["tops"]
    refused(tmp_path, model, content, "tops")


def test_a_counterexample_outside_of_its_ball_is_refused(proven, tmp_path):
    _, model, content = proven
    content = copy.deepcopy(content)
    for entry in entries(content, "falsified"):
        # In the box around the ball, at one of its corners.
        entry["counterexample"] = [max(-1.0, min(1.0, v - 0.349 if v > 0 else v + 0.349)) for v in entry["x"]]
    refused(tmp_path, model, content, "outside of its ball")


@pytest.fixture(scope="module")
def capped(tmp_path_factory):
    """A file in which balls are cut to caps, and its model."""
    path = tmp_path_factory.mktemp("proofs") / "caps.json"
    model = randomise(pb.CCP(5, 4, 3, 4, dtype=F64), 12, 0.4)
    x = torch.rand(10, 5, generator=torch.Generator().manual_seed(12), dtype=F64) * 2 - 1
    x[::2, 0] = 1.0
    found = pb.certify(model, x, model(x).argmax(1), 0.7, norm="2", keep=True, method="second")
    save_certificates(path, model, found, x, (-1.0, 1.0))
    content = json.loads(path.read_text())
    assert len(list(steps_by(content, "cap"))) > 1
    return path, model, content


def test_caps_are_confirmed(capped):
    path, model, _ = capped
    assert check_file(path, model)["verified"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"s": lambda s: s + 0.02}, "not positive|leaves the ball"),
        ({"s": lambda s: -s}, "negative"),
        ({"kappa": lambda kappa: -kappa}, "negative"),
        ({"kappa": lambda kappa: 0.0}, "not positive"),
        ({"d": lambda d: [-v for v in d]}, "not positive"),
        ({"d": lambda d: d[1:]}, "d has a length"),
        ({"radii": lambda r: [0.98 * v for v in r]}, "leaves the ball"),
        ({"radii": lambda r: [0.0 for _ in r]}, "no radius"),
        ({"radii": lambda r: [float("nan") for _ in r]}, "not a finite"),
        ({"centre": lambda c: [v + 0.02 for v in c]}, "leaves the ball"),
        ({"centre": lambda c: c[1:]}, "centre has a length"),
        ({"nu": lambda nu: -1.0}, "negative"),
        ({"on": lambda on: on[1:]}, "has a length"),
        ({"then": lambda then: {}}, "before it is complete"),
        ({"then": lambda then: {"by": "ball"}}, "not positive"),
    ],
)
def test_false_caps_are_refused(capped, tmp_path, change, message):
    _, model, content = copy.deepcopy(capped)
    for step in list(steps_by(content, "cap")):
        for name, function in change.items():
            step[name] = function(step.get(name, 0.0))
    refused(tmp_path, model, content, message)


def test_another_multiplier_of_the_whole_ball_is_refused(capped, tmp_path):
    for factor in (-1.0, 0.0, 30.0):
        _, model, content = copy.deepcopy(capped)
        steps = [step for rule in ("trust absorbed", "cap") for step in steps_by(content, rule) if step.get("nu")]
        assert steps
        for step in steps:
            step["nu"] *= factor
        refused(tmp_path, model, content, "negative|not positive")


def test_a_cap_in_a_proof_about_a_box_is_refused(capped, tmp_path):
    _, model, content = copy.deepcopy(capped)
    for entry in content["images"]:
        del entry["norm"]
        if entry["status"] == "verified":
            entry["proofs"] = {rival: next(iter(steps_by(capped[2], "cap"))) for rival in entry["proofs"]}
    refused(tmp_path, model, content, "about a ball")
