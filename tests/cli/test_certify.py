"""`polybound certify` as its users see it."""

import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import polybound as pb
from helpers.networks import Written, layers
from helpers.tampering import forge
from polybound.runs import Run


@pytest.fixture(scope="module")
def trained(digits_run, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "digits.safetensors"
    path.write_bytes((digits_run / "model.safetensors").read_bytes())
    return path


def test_certify_save_and_check(cli, refused, trained, tmp_path):
    proofs = tmp_path / "proofs.json"
    words = ("--dataset", "digits", "--eps", 0.05, "--images", 12, "--save", proofs, "--json")
    found = cli("certify", trained, *words)
    assert found.code == 0, found.err
    row = found.json["rows"][0]
    assert row["images"] == 12 and row["verified"] + row["falsified"] + row["undecided"] == 12 and row["verified"] > 0
    assert row["certified accuracy"] <= row["attacked accuracy"] <= row["clean accuracy"]
    checked = cli("certify", trained, "--check", proofs)
    assert checked.code == 0, checked.err
    line = " ".join(checked.out.split())
    assert f"confirmed {row['verified']} verified and {row['falsified']} falsified" in line
    assert "l_inf balls of radius 0.05" in line and "repeated" not in line
    counts = cli("certify", trained, "--check", proofs, "--json").json
    assert (counts["verified"], counts["falsified"]) == (row["verified"], row["falsified"])
    # What was typed fits the file, or is refused.
    assert cli("certify", trained, "--check", proofs, "--eps", 0.05, "--norm", "inf").code == 0
    for options in (("--eps", 0.2), ("--eps", 0.05, "--eps", 0.2), ("--norm", 2), ("--eps", 0.2, "--norm", 2)):
        assert "l_inf balls of radius 0.05" in refused("certify", trained, "--check", proofs, *options)
    for options in (("--dataset", "digits"), ("--images", 12), ("--outputs",), ("--save", tmp_path / "x.json")):
        assert options[0] in refused("certify", trained, "--check", proofs, *options)
    content = json.loads(proofs.read_text())
    forge(proofs, content | {"images": content["images"] + content["images"][:1] * 20})
    line = " ".join(cli("certify", trained, "--check", proofs).out.split())
    assert f"confirmed {row['verified']} verified" in line and "20 repeated and not counted" in line
    content["images"][0]["eps"] = 0.5
    proofs.write_text(json.dumps(content))
    assert "changed after it was written" in refused("certify", trained, "--check", proofs)


def test_table_and_run_folder(cli, digits_run):
    found = cli("certify", digits_run, "--eps", 0.02, "--eps", 0.1, "--images", 5, "--method", "first")
    assert found.code == 0, found.err
    assert all(word in found.out for word in ("certified", "attacked", "undecided", "0.02", "0.1"))


def test_balls_of_the_l2_norm(cli, refused, trained, tmp_path):
    words = ("--dataset", "digits", "--eps", 0.3, "--images", 12, "--norm", 2)
    found = cli("certify", trained, *words, "--json")
    assert found.code == 0, found.err
    row = found.json["rows"][0]
    assert found.json["norm"] == "2" and row["images"] == 12 and row["verified"] > 0
    box = cli("certify", trained, "--dataset", "digits", "--eps", 0.3, "--images", 12, "--json").json["rows"][0]
    assert box["verified"] <= row["verified"] + row["undecided"]  # the ball lies in the box
    assert "l_2 balls" in " ".join(cli("certify", trained, *words).out.split())
    proofs = tmp_path / "balls.json"
    assert cli("certify", trained, *words, "--save", proofs).code == 0
    assert cli("certify", trained, "--check", proofs, "--json").json["verified"] == row["verified"]
    assert "about boxes" in refused("certify", trained, *words, "--method", "crown")
    assert "norm must be" in refused("certify", trained, *words[:-1], "two")


def test_intervals_of_outputs(cli, refused, trained, tmp_path):
    words = ("--dataset", "digits", "--eps", 0.05, "--images", 2, "--outputs", "--budget", 0.2)
    found = cli("certify", trained, *words, "--json")
    assert found.code == 0, found.err
    rows = found.json["rows"]
    assert len(rows) == 20 and {row["output"] for row in rows} == set(range(10))
    labels = pb.data.load_digits("test").y
    for row in rows:
        assert row["lower"] <= row["lowest"] <= row["highest"] <= row["upper"]
        assert row["label"] == int(labels[row["image"]])
    shown = cli("certify", trained, *words, "--save", tmp_path / "intervals.json")
    assert shown.code == 0 and all(word in shown.out for word in ("proven from", "attained from", "output"))
    checked = cli("certify", trained, "--check", tmp_path / "intervals.json")
    assert checked.code == 0 and "confirmed the intervals of 2 inputs, l_inf" in " ".join(checked.out.split())
    assert "one --eps" in refused("certify", trained, *words, "--eps", 0.2, "--save", tmp_path / "x.json")
    assert "no such folder" in refused("certify", trained, *words, "--save", tmp_path / "none" / "x.json")
    assert "no proofs" in refused("certify", trained, *words, "--method", "crown", "--save", tmp_path / "x.json")
    assert "method must be" in refused("certify", trained, *words, "--method", "lipschitz")


def test_proofs_of_deep_networks(cli, refused, trained, tmp_path):
    net, proofs = pb.PolyNet((1, 8, 8), width=2, blocks=(1,), seed=0).eval(), tmp_path / "proofs.json"
    net.save(tmp_path / "deep.safetensors")
    words = ("--dataset", "digits", "--eps", 0.0001, "--images", 10)
    for options in ((), ("--outputs",)):
        found = cli("certify", tmp_path / "deep.safetensors", *words, *options, "--save", proofs)
        assert found.code == 0, found.err
        checked = cli("certify", tmp_path / "deep.safetensors", "--check", proofs)
        assert checked.code == 0 and "confirmed" in checked.out
    assert "about a deep network, and this is a chain" in refused("certify", trained, "--check", proofs)


ATTACK = ("--attacks", "fgsm-0.1", "--protocol", "both", "--limit", 80)


@pytest.fixture
def folder(digits_run, tmp_path):
    """A run on which nothing was measured yet."""
    return Path(shutil.copytree(digits_run, tmp_path / digits_run.name))


def test_pictures_examples_and_checks(cli, folder, tmp_path):
    words = ("evaluate", folder, "--attacks", "fgsm-0.1,pgd-0.2-3-0.1", "--protocol", "both", "--limit", 80)
    result = cli(*words, "--picture", tmp_path / "p.png", "--save-examples", tmp_path / "e.npz", "--check", 20)
    assert result.code == 0, result.err
    assert "fgsm-0.1" in result.out and "published" in result.out and "gradient masking" in result.out
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    saved = np.load(tmp_path / "e.npz")
    assert saved["x"].shape == (80, 1, 8, 8) and saved["fgsm-0.1 sound"].shape == (1, 80, 1, 8, 8)
    assert set(saved) == {"x", "y", "runs"} | {
        f"{name} {protocol}" for name in ("fgsm-0.1", "pgd-0.2-3-0.1") for protocol in ("sound", "published")
    }


def test_what_the_command_prints(cli, folder):
    words = ("evaluate", folder, *ATTACK)
    found = cli(*words, "--json")
    assert found.code == 0 and len(found.json["scores"]) == 3 and (folder / "scores.csv").exists()
    spec = Run(folder).spec()
    for score in found.json["scores"]:
        assert score["run"] == str(folder) and score["address"] == spec.address
        assert score["accuracy"] == score["correct"] / score["total"] and score["low"] < score["high"]
        assert {name: score[name] for name in spec.columns()} == spec.columns()
    for mean, score in zip(cli(*words, "--means", "--json").json["means"], found.json["scores"], strict=True):
        assert (mean["attack"], mean["protocol"]) == (score["attack"], score["protocol"])
        assert mean["mean"] == pytest.approx(100 * score["accuracy"]) and (mean["seeds"], mean["std"]) == (1, 0.0)
        assert f"{mean['mean']:.2f}" in cli(*words, "--means").out
    assert "attacked images alone" in cli(*words, "--count", "attacked").out
    narrow = re.sub(r"\x1b\[[\d;]*m", "", cli(*words, columns=80).out).splitlines()
    assert len(narrow) > 4 and max(len(line.rstrip()) for line in narrow) <= 80 and "…" not in "".join(narrow)
    for score in cli(*words, "--per-class", "--json").json["scores"]:
        assert [sum(pair) for pair in zip(*score["per_class"], strict=True)] == [score["correct"], score["total"]]
    defended = cli(*words, "--defence", "gaussian", "--per-class")
    assert defended.code == 0 and "by class" in defended.out and "gaussian denoising" in defended.out


def test_csv_is_what_the_folder_keeps(cli, folder):
    shown = list(csv.DictReader(io.StringIO(cli("evaluate", folder, *ATTACK, "--csv").out)))
    kept = list(csv.DictReader(io.StringIO((folder / "scores.csv").read_text())))
    robust = [row for row in kept if row["counted"] != "attacked"]
    assert all(len(row.pop("check")) == 16 for row in robust)
    assert len(shown) == 3 and sorted(map(str, shown)) == sorted(map(str, robust))


def test_scores_that_are_not_measured_now_are_marked(cli, folder):
    words = ("evaluate", folder, "--attacks", "fgsm-0.1", "--limit", 8)
    first = cli(*words)
    again, more = cli(*words), cli(*words[:3], "fgsm-0.1,fgsm-0.2", *words[4:])
    assert "stored" not in first.out and "2 of 2 scores" in again.out and "2 of 3 scores" in more.out
    assert more.out.count("%*") == 2
    assert [row["stored"] for row in cli(*words, "--json").json["scores"]] == [True, True]
    assert "stored scores" in cli("runs", "show", folder).out


def test_a_picture_needs_matplotlib(refused, folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "needs matplotlib" in refused("evaluate", folder, "--picture", tmp_path / "p.png")


def test_a_folder_that_cannot_be_written_is_a_warning(cli, folder, monkeypatch):
    def read_only(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("polybound.runs.folder.write_atomically", read_only)
    result = cli("evaluate", folder, *ATTACK)
    assert result.code == 0 and "fgsm-0.1" in result.out and not (folder / "scores.csv").exists()
    assert folder.name in result.err and "could not be kept there (Permission denied)" in " ".join(result.err.split())


def own():
    def forward(m, x):
        y = m.a(x.flatten(1)) * m.b(x.flatten(1))
        return m.c(y * y + y)

    return pb.polynomial(Written(forward, **layers(64, 6, "ab"), c=torch.nn.Linear(6, 10)), (1, 8, 8))


@pytest.fixture(params=["polynet", "own"])
def deep(request, tmp_path):
    torch.manual_seed(0)
    net = own() if request.param == "own" else pb.PolyNet((1, 8, 8), width=2, blocks=(1, 1), seed=0)
    path = tmp_path / f"{request.param}.safetensors"
    net.save(path)
    return path


def test_info_shows_maps_with_norms_and_where_values_lie(deep, cli):
    facts = cli("info", deep, "--json").json
    shown = cli("info", deep.name, cwd=deep.parent, columns=80)
    assert facts["degree"] == 4 and "nodes [" not in shown.out
    assert [line for line in re.sub(r"\x1b\[[\d;]*m", "", shown.out).splitlines() if len(line) > 80] == []
    network, found = pb.load(deep), {}
    graph = network.graph()
    x = torch.rand(200, 64) * 2 - 1
    graph.evaluate(pb.models.Numbers(), x, watch=found.__setitem__)
    assert len(facts["nodes"]) == len(graph.nodes)
    for number, node in enumerate(facts["nodes"]):
        values = found[number].detach()
        assert node["size"] == values.shape[1] and node["node"].split(" (")[0] in shown.out
        assert node["from"] <= float(values.min()) and float(values.max()) <= node["to"]
        step = getattr(graph.nodes[number], "map", None)
        assert (node["norm"] is None) == (step is None)
        if step is not None:
            largest = float(step.double().matrix().abs().sum(1).max())
            assert largest * (1 - 1e-12) <= node["norm"]


def test_bounds_and_cards_are_of_deep_networks_too(deep, cli):
    shown = cli("bounds", deep, columns=80)
    assert shown.code == 0 and "Lipschitz constant, l_inf, by intervals" in shown.out and "degree 4" in shown.out
    assert "Linear(" not in shown.out and "called in" not in shown.out
    card = cli("card", deep, "--dataset", "digits", "--images", 2, "--eps", 0.01)
    assert card.code == 0 and "| degree | 4 |" in card.out and "Lipschitz constant, l_inf, composed" in card.out
    facts = cli("card", deep, "--dataset", "digits", "--images", 2, "--eps", 0.01, "--json").json
    assert "graph" not in facts["network"] and sum(facts["certificates"][0][s] for s in ("verified", "falsified")) <= 2


def test_the_explorer_says_what_it_takes(deep, cli, tmp_path):
    done = cli("explore", deep, "--dataset", "digits", "--images", 1, "-o", tmp_path / "page.html")
    kind = type(pb.load(deep)).__name__
    assert done.code != 0 and done.err.count("\n") == 1 and not (tmp_path / "page.html").exists()
    assert f"a page computes chains of products (CCP, NCP, ConvCCP); this {kind} is none" in done.err


def test_reports_are_of_deep_runs_beside_chains(cli, tmp_path):
    for words in (("polynet", "--width", 2, "--blocks", "1"), ("pn-4",)):
        assert cli("train", "--dataset", "digits", "--epochs", 1, "--runs", tmp_path, "--model", *words).code == 0
    page = tmp_path / "report" / "page.html"
    page.parent.mkdir()
    done = cli("report", tmp_path, "-o", page, "--json")
    titles = [heading for table in done.json["sections"][0]["tables"] for _, heading in table["groups"]]
    assert done.code == 0 and page.is_file()
    assert titles == ["digits, PN-4, rank 16, 1 epochs", "digits, polynet, width 2, blocks [1], 1 epochs"]
