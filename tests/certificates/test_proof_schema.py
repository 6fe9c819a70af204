"""The schema of proof files refuses whatever is not of the form of an honest one, in one line that says where."""

import copy
import json

import pytest
import torch

import polybound as pb
from helpers.errors import refuses
from helpers.networks import F64, randomise
from helpers.tampering import forge, refused
from polybound.certificates import check_file, save_certificates

pytest.importorskip("flint")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Contents of a file of decisions and of one of intervals, and their model."""
    model = randomise(pb.CCP(2, 2, 3, 3, dtype=F64), 0, 1.0)
    path = tmp_path_factory.mktemp("proofs") / "proofs.json"
    x = torch.tensor([[0.1, 0.2], [0.9, -0.3], [-0.5, 0.4]], dtype=F64)
    contents = []
    for found in (
        pb.certify(model, x, model(x).argmax(1), 0.02, keep=True),
        pb.output_bounds(model, x, 0.02, keep=True, budget=1.0),
    ):
        save_certificates(path, model, found, x, (-1.0, 1.0))
        contents.append(json.loads(path.read_text()))
    assert [entry["status"] for entry in contents[0]["images"]] == ["verified"] * 3
    return model, contents


STEP = {"by": "second", "on": [0, 1], "v": [0.0, 0.0], "mu": [1.0, 1.0]}
CUT = STEP | {"box": [[0, 0.1, 0.11]], "then": {"by": "first"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "unknown field 'extra'"),
        ({"domain": [1.0, -1.0]}, "above the upper"),
        ({"domain": [-1.0]}, "length of 1"),
        ({"stretch": [[1.0, 1.0]]}, "does not fit"),
        ({"stretch": [[1.0, 0.0]] * 3}, "below"),
        ({"norms": [1.0, True]}, "not a number"),
        ({"norms": [1.0, -1e6]}, "norms.*negative"),
        ({"tops": [1.0, 1.0, -1.0]}, "negative"),
        ({"images": [1]}, "not an object"),
        ({"model": None}, "other weights"),
        ({"format": "polybound certificates 2"}, "not a file of certificates"),
    ],
)
def test_what_is_wrong_with_a_file(honest, tmp_path, change, message):
    model, (content, _) = honest
    refused(tmp_path, model, content | change, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": [0.1]}, "x has a length of 1"),
        ({"x": [0.1, "0.2"]}, "not a number"),
        ({"x": [0.1, 2**53 + 1]}, "2\\^53"),
        ({"eps": 2**53 + 4}, "2\\^53"),
        ({"x": [0.1, 1e999]}, "not a finite"),
        ({"x": [5.0, 0.2]}, "outside"),
        ({"eps": -0.1}, "negative"),
        ({"eps": None}, "not a number"),
        ({"eps": 1e308}, "not positive|range of float64"),
        ({"box": [[0.0, 0.0], [1.0, 1.0]]}, "either sides or radii"),
        ({"norm": 2}, "the norm is 2"),
        ({"norm": "2"}, "another norm"),
        ({"label": 3}, "label is 3"),
        ({"label": 1.0}, "not a whole number"),
        ({"status": "proven"}, "the status is 'proven'"),
        ({"status": "bounded"}, "the status is 'bounded'"),
        ({"margin": 1.0}, "unknown field 'margin'"),
        ({"proofs": {}}, "the proofs has no"),
        ({"proofs": []}, "not an object"),
    ],
)
def test_what_is_wrong_with_an_image(honest, tmp_path, change, message):
    model, (content, _) = copy.deepcopy(honest)
    content["images"][1] |= change
    refused(tmp_path, model, content, message)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (None, "not an object"),
        ({}, "ends before it is complete"),
        ({"by": "magic"}, "a step is by 'magic'"),
        ({"by": "first", "then": {"by": "first"}}, "unknown field 'then'"),
        ({"by": "ball"}, "about a ball in a proof about a box"),
        ({"split": [0, 0.1], "low": {"by": "first"}}, "no 'high'"),
        ({"split": [2, 0.1], "low": {"by": "first"}, "high": {"by": "first"}}, "a coordinate is 2"),
        ({"split": [0, 0.1], "low": {"by": "first"}, "high": {"by": "first"}, "by": "first"}, "unknown field 'by'"),
        (STEP | {"on": [0, 0]}, "twice"),
        (STEP | {"on": [0, -1]}, "a coordinate is -1"),
        (STEP | {"on": [0, 1.0]}, "not a whole number"),
        (STEP | {"v": [0.0]}, "v has a length of 1"),
        (STEP | {"v": [0.0, 1.5]}, "above 1.0"),
        (STEP | {"lam": 0.0}, "unknown field 'lam'"),
        (STEP | {"then": {"by": "first"}}, "no 'box'"),
        (STEP | {"box": []}, "no 'then'"),
        (CUT | {"box": [[0, 0.1]]}, "length of 2"),
        (CUT | {"box": [[-1, 0.1, 0.11]]}, "a coordinate is -1"),
        (CUT | {"on": [0, 0, 1], "monotone": [0]}, "twice"),
        (CUT | {"box": [[0, 0.2, 0.1]]}, "above the upper"),
        (CUT | {"box": [[0, 0.1, 0.11], [0, 0.1, 0.11]]}, "twice"),
        (CUT | {"on": [1], "v": [0.0], "mu": [1.0]}, "not one of the step's"),
        (CUT | {"monotone": [1]}, "has no side"),
        (CUT | {"monotone": [0, 0]}, "twice"),
    ],
)
def test_what_is_wrong_with_a_step(honest, tmp_path, step, message):
    model, (content, _) = copy.deepcopy(honest)
    proofs = content["images"][1]["proofs"]
    proofs[next(iter(proofs))] = step
    refused(tmp_path, model, content, f"image 1: .*{message}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lower": [0.0] * 2}, "lower has a length"),
        ({"lower": [0.0, 2**53 + 1, 0.0]}, "2\\^53"),
        ({"lowest_at": [[0.1, 0.2]] * 2}, "lowest_at has a length"),
        ({"lowest_at": [[0.1, 0.2], [0.1, 0.2], None]}, "not a list"),
        ({"proofs": [None] * 6}, "not an object"),
        ({"proofs": {}}, "not a list"),
        ({"status": "verified"}, "the status is 'verified'"),
    ],
)
def test_what_is_wrong_with_intervals(honest, tmp_path, change, message):
    model, (_, content) = copy.deepcopy(honest)
    content["images"][1] |= change
    refused(tmp_path, model, content, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "polybound certificates 1", "format": "polybound certificates 1"}', "twice"),
        ('{"format": "polybound certificates 1", "domain": NaN}', "NaN is not a finite number"),
        ("[" * 100_000, "not JSON"),
        ("{", "not JSON"),
        ("{}", "not a file of certificates"),
        ('{"format": ' + "1" * 5000 + "}", "not JSON"),
        ("\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), "not JSON"),
    ],
)
def test_texts_that_are_no_proof_files(honest, tmp_path, text, message):
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    refuses(message, check_file, tmp_path / "x.json", honest[0], error=pb.FileFormatError)


def test_a_deep_proof_is_read_without_recursion(honest, tmp_path):
    model, (content, _) = copy.deepcopy(honest)
    proofs = content["images"][1]["proofs"]
    rival, root = next(iter(proofs)), {"by": "first"}
    for _ in range(300):
        root = {"split": [0, 0.9], "low": root, "high": {"by": "first"}}
    proofs[rival] = root
    forge(tmp_path / "deep.json", content)
    assert check_file(tmp_path / "deep.json", model)["verified"] == 3
