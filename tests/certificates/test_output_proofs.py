"""Intervals of outputs on disk: confirmed in ball arithmetic, refused when anything in them is wrong."""

import copy
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.networks import F64, ccps, convs, ncps, randomise, seeds
from helpers.profiles import examples
from helpers.tampering import refused
from polybound.certificates import check_file, save_certificates

pytest.importorskip("flint")


def bounded(model, eps, norm, seed=0, images=3, domain=(-1.0, 1.0), **options):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(images, model.features, generator=generator, dtype=F64) * 2 - 1
    x[::2, 0] = 1.0
    weights = torch.randn(2, model.classes, generator=generator, dtype=F64)
    options = {"weights": weights, "constant": [0.5, -1.0], "keep": True, "domain": domain, **options}
    return x, pb.output_bounds(model, x, eps, norm=norm, **options)


@settings(max_examples=examples(30))
@given(
    st.one_of(ccps(), ncps(), convs()),
    seeds,
    st.sampled_from([0.0, 1e-9, 0.05, 0.3, 1.0, None]),
    st.sampled_from(["inf", "2"]),
    st.booleans(),
    st.sampled_from(["auto", "auto", "second", "first"]),
)
def test_every_interval_is_confirmed(tmp_path_factory, model, seed, eps, norm, cut, method):
    path = tmp_path_factory.mktemp("proofs") / "intervals.json"
    sizes = torch.tensor([0.0, 1e-9, 0.1, 0.5], dtype=F64)
    radii = sizes[torch.randint(0, 4, (1, model.features), generator=torch.Generator().manual_seed(seed))]
    domain = (-1.0, 1.0) if cut else None
    options = {"domain": domain, "method": method, "budget": 0.03}
    x, found = bounded(model, radii if eps is None else eps, norm, seed, 2, **options)
    save_certificates(path, model, found, x, domain)
    repeated = int(torch.equal(x[0], x[1]))
    assert check_file(path, model) == {"bounded": 2 - repeated, "unbounded": 0, "repeated": repeated}
    # What is in the file is what was found, but for a billionth of the interval and a trillionth of its ends.
    for entry, low, high in zip(json.loads(path.read_text())["images"], found.lower, found.upper, strict=True):
        wider = 2.0**-29 * (high - low) + 2.0**-39 * (low.abs() + high.abs())
        ends = {name: torch.tensor(entry[name], dtype=F64) for name in ("lower", "upper")}
        assert bool(((low - wider <= ends["lower"]) & (ends["lower"] <= low)).all())
        assert bool(((high <= ends["upper"]) & (ends["upper"] <= high + wider)).all())


def test_boxes_by_their_sides(tmp_path):
    model = randomise(pb.CCP(3, 3, 2, 3, dtype=F64), 0, 0.5)
    box = (torch.full((2, 3), -0.2, dtype=F64), torch.tensor([[0.1, 0.5, -0.2], [0.3, 0.3, 0.3]], dtype=F64))
    found = pb.output_bounds(model, None, box=box, keep=True, budget=0.1)
    save_certificates(tmp_path / "x.json", model, found, None, (-1.0, 1.0))
    assert check_file(tmp_path / "x.json", model) == {"bounded": 2, "unbounded": 0, "repeated": 0}
    with pytest.raises(pb.PolyboundError, match="inputs"):
        save_certificates(tmp_path / "x.json", model, found, box[0][:1], None)
    ball = pb.output_bounds(model, box[0], 0.1, norm="2", keep=True, budget=0.1)
    with pytest.raises(pb.PolyboundError, match="inputs"):
        save_certificates(tmp_path / "x.json", model, ball, None, None)


def test_without_proofs_there_is_nothing_to_save(tmp_path):
    model = randomise(pb.CCP(3, 3, 2, 3, dtype=F64), 0, 0.5)
    x = torch.zeros(1, 3, dtype=F64)
    for options in ({}, {"keep": True, "method": "crown"}):
        with pytest.raises(pb.PolyboundError, match="no proofs"):
            save_certificates(tmp_path / "x.json", model, pb.output_bounds(model, x, 0.1, **options), x, (-1.0, 1.0))


def test_what_has_no_bound_has_no_proof(tmp_path):
    model = randomise(pb.CCP(4, 3, 2, 10, dtype=F64), 0, 1e60)
    x = torch.rand(1, 4, dtype=F64)
    found = pb.output_bounds(model, x, 0.1, keep=True)
    assert found.proofs == {} and bool((found.lower == -torch.inf).all())


@pytest.fixture(scope="module", params=["inf", "2"])
def proven(request, tmp_path_factory):
    """A file with every kind of step in it, and its model."""
    path = tmp_path_factory.mktemp("proofs") / "intervals.json"
    model = randomise(pb.CCP(3, 4, 3, 4, dtype=F64), 2, 0.5)
    tolerance = 0.02 if request.param == "inf" else 0.1
    x, found = bounded(model, 0.35, request.param, images=8, budget=600.0, tolerance=tolerance)
    save_certificates(path, model, found, x, (-1.0, 1.0))
    text = path.read_text()
    words = ("split", "box", "lowest_at") + (("trust", "cap", "outside") if request.param == "2" else ("monotone",))
    assert all(f'"{word}"' in text for word in words)
    return path, model, json.loads(text)


def all_steps(content):
    stack = [node for entry in content["images"] for node in entry["proofs"]]
    while stack:
        node = stack.pop()
        yield node
        stack += [node[key] for key in ("then", "low", "high") if key in node]


def test_the_untouched_file_is_confirmed(proven):
    path, model, _ = proven
    assert check_file(path, model) == {"bounded": 8, "unbounded": 0, "repeated": 0}


REFUSED = "not positive|cut|before it|meets the ball|monotone|outside|attained"


@pytest.mark.parametrize("name", ["lower", "upper"])
def test_a_narrower_interval_is_refused(proven, tmp_path, name):
    _, model, content = copy.deepcopy(proven)
    for entry in content["images"]:
        for row in range(2):
            width = entry["upper"][row] - entry["lower"][row]
            # Far less than what the attained values would contradict by themselves.
            entry[name][row] += (1 if name == "lower" else -1) * 1e-6 * width
    refused(tmp_path, model, content, REFUSED)


@pytest.mark.parametrize("name", ["lowest", "highest"])
def test_values_that_are_not_attained_are_refused(proven, tmp_path, name):
    sign = -1 if name == "lowest" else 1
    _, model, content = copy.deepcopy(proven)
    content["images"][0][name][0] += sign * 1e-6
    refused(tmp_path, model, content, "not attained")
    _, model, content = copy.deepcopy(proven)
    content["images"][0][f"{name}_at"][0] = [v + sign * 0.36 for v in content["images"][0]["x"]]
    refused(tmp_path, model, content, "outside of its")


def test_points_outside_of_the_ball_but_in_its_box_are_refused(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    if content["images"][0].get("norm") != "2":
        return
    entry = content["images"][0]
    entry["lowest_at"][0] = [max(-1.0, v - 0.34) for v in entry["x"]]
    refused(tmp_path, model, content, "outside of its ball")


def test_other_forms_are_refused(proven, tmp_path):
    for change in ("weights", "constant"):
        _, model, content = copy.deepcopy(proven)
        if change == "weights":
            content["forms"]["weights"][0][0] += 0.2
        else:
            content["forms"]["constant"][1] -= 0.2
        refused(tmp_path, model, content, REFUSED)
    _, model, content = copy.deepcopy(proven)
    content["forms"]["weights"][0].append(0.0)
    refused(tmp_path, model, content, "does not fit")
    _, model, content = copy.deepcopy(proven)
    content["forms"] = {"weights": [], "constant": []}
    refused(tmp_path, model, content, "no forms")


def test_a_larger_radius_or_domain_is_refused(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    for entry in content["images"]:
        entry["eps"] *= 1.05
    refused(tmp_path, model, content, REFUSED)
    _, model, content = copy.deepcopy(proven)
    content["domain"] = [-1.5, 1.5]
    refused(tmp_path, model, content, REFUSED)


def test_another_norm_is_refused(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    for entry in content["images"]:
        if entry.pop("norm", "inf") == "inf":
            entry["norm"] = "2"
    refused(tmp_path, model, content, "about a ball|outside of the ball|tops")


def test_missing_proofs_and_branches_are_refused(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    content["images"][0]["proofs"].pop()
    refused(tmp_path, model, content, "does not fit")
    _, model, content = copy.deepcopy(proven)
    content["images"][0]["proofs"][0] = None
    refused(tmp_path, model, content, "damaged")
    _, model, content = copy.deepcopy(proven)
    next(node for node in all_steps(content) if "split" in node)["low"] = {}
    refused(tmp_path, model, content, "before it is complete")
    _, model, content = copy.deepcopy(proven)
    content["images"][0]["lower"].pop()
    refused(tmp_path, model, content, "does not fit")


def test_swapped_proofs_and_weaker_steps_are_refused(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    entry = content["images"][0]
    entry["proofs"] = entry["proofs"][2:] + entry["proofs"][:2]
    refused(tmp_path, model, content, REFUSED)
    _, model, content = copy.deepcopy(proven)
    for entry in content["images"]:
        entry["proofs"] = [{"by": "first"}] * 4
    refused(tmp_path, model, content, "not positive")
    _, model, content = copy.deepcopy(proven)
    for node in all_steps(content):
        if "mu" in node and "box" not in node:
            node["mu"] = [value - 1 for value in node["mu"]]
    refused(tmp_path, model, content, REFUSED)


def test_cuts_that_go_too_far_are_refused(proven, tmp_path):
    _, model, content = copy.deepcopy(proven)
    for node in all_steps(content):
        for side in node.get("box", []):
            if side[0] not in node.get("monotone", []):
                below = node["v"][node["on"].index(side[0])] < 0
                side[2 if below else 1] = side[1] + (side[2] - side[1]) * (0.3 if below else 0.7)
    refused(tmp_path, model, content, REFUSED)


def test_a_status_that_is_no_interval_is_refused(proven, tmp_path):
    for status in ("verified", "undecided", "proven"):
        _, model, content = copy.deepcopy(proven)
        content["images"][0]["status"] = status
        refused(tmp_path, model, content, "the status is")
    _, model, content = copy.deepcopy(proven)
    del content["forms"]
    refused(tmp_path, model, content, "the status is")
