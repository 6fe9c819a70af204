"""`polybound certify` as its users see it."""

import json

import pytest

import polybound as pb
from helpers.tampering import forge


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
