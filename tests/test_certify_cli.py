"""`polybound certify` as its users see it."""

import json

import pytest

import polybound as pb
from test_cli import polybound, refused


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    train = pb.data.load_digits("train")
    model = pb.paper_model("pn-4", shape=train.shape, seed=0)
    pb.fit(model, train, epochs=5, start=0, learning_rate=0.02, milestones=())
    path = tmp_path_factory.mktemp("models") / "digits.safetensors"
    model.save(path)
    return path


def test_certify_save_and_check(trained, tmp_path):
    proofs = tmp_path / "proofs.json"
    found = polybound(
        "certify", trained, "--dataset", "digits", "--eps", 0.05, "--images", 12, "--save", proofs, "--json"
    )
    assert found.returncode == 0, found.stderr
    row = json.loads(found.stdout)["rows"][0]
    assert row["images"] == 12 and row["verified"] + row["falsified"] + row["undecided"] == 12 and row["verified"] > 0
    assert row["certified accuracy"] <= row["attacked accuracy"] <= row["clean accuracy"]
    checked = polybound("certify", trained, "--check", proofs)
    assert checked.returncode == 0, checked.stderr
    assert f"confirmed {row['verified']} verified and {row['falsified']} falsified" in " ".join(checked.stdout.split())
    content = json.loads(proofs.read_text())
    content["images"][0]["eps"] = 0.5
    proofs.write_text(json.dumps(content))
    assert "changed after it was written" in refused("certify", trained, "--check", proofs)


def test_table_and_run_folder(trained, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "model.safetensors").write_bytes(trained.read_bytes())
    (run / "config.json").write_text(json.dumps({"dataset": "digits"}))
    found = polybound("certify", run, "--eps", 0.02, "--eps", 0.1, "--images", 5, "--method", "first")
    assert found.returncode == 0, found.stderr
    assert all(word in found.stdout for word in ("certified", "attacked", "undecided", "0.02", "0.1"))


def test_what_is_refused(trained, tmp_path):
    assert "--eps" in refused("certify", trained, "--dataset", "digits")
    assert "--dataset" in refused("certify", trained, "--eps", 0.1)
    assert "method" in refused("certify", trained, "--dataset", "digits", "--eps", 0.1, "--method", "magic")
    assert "one --eps" in refused(
        "certify", trained, "--dataset", "digits", "--eps", 0.1, "--eps", 0.2, "--save", tmp_path / "x.json"
    )
    assert "no such file" in refused("certify", tmp_path / "none.safetensors", "--dataset", "digits", "--eps", 0.1)
