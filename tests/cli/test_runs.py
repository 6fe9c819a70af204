"""`polybound runs`: list, show and clean, for people who have hundreds."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import polybound as pb
from polybound.runs import Checkpoint, DataSpec, Run, Spec, evaluate_run, train_runs
from polybound.runs.folder import path_for


def leave_checkpoint(root, spec):
    """What a killed process leaves of a run in training."""
    file = path_for(root, [spec])
    options = {"leader": [0], "parted": False, "histories": [[]], "sums": None, "peaks": {}}
    Checkpoint(specs=[spec], epoch=1, step=0, tensors={"w": torch.zeros(1)}, **options).write(file)
    return file


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A folder with a run in each state, checkpoints, and what killed processes leave behind."""
    root = tmp_path_factory.mktemp("original") / "runs"
    spec = Spec(DataSpec.of("digits", samples=200), recipe=pb.Recipe.from_options(epochs=2, learning_rate=0.02))
    (finished,) = train_runs([spec], root)
    evaluate_run(finished.path, "fgsm-0.1", limit=50)
    train_runs([replace(spec, recipe=pb.Recipe.from_options(epochs=2, learning_rate=1e9))], root)
    (damaged,) = train_runs([replace(spec, seed=1)], root)
    content = json.loads((damaged.path / "spec.json").read_text())
    content["spec"]["seed"] = 7
    (damaged.path / "spec.json").write_text(json.dumps(content))
    unfinished = replace(spec, seed=2)
    Run.make(unfinished, root)
    leave_checkpoint(root, unfinished)
    leave_checkpoint(root, spec)
    (finished.path / ".scores.csv.ab12cd_9").write_text("run,see")
    (finished.path / ".notes").write_text("mine")
    (root / "notes.txt").write_text("mine")
    return root


@pytest.fixture
def root(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "runs"))


def by_state(cli, root):
    return {one["state"]: one for one in cli("runs", "list", root, "--json").json}


def files(root):
    return sorted(path.relative_to(root) for path in root.rglob("*"))


def test_list(cli, root):
    found = by_state(cli, root)
    assert set(found) == {"finished", "failed", "unfinished", "damaged"}
    assert all(Path(one["path"]).parent == root and one["size"] > 0 for one in found.values())
    spec = Run(Path(found["finished"]["path"])).spec()
    assert found["finished"]["label"] == spec.label and found["finished"]["why"] == ""
    assert (found["finished"]["scores"], found["unfinished"]["scores"]) == (3, 0)  # clean, robust and attacked
    assert "not finite" in found["failed"]["why"] or "nan" in found["failed"]["why"]
    assert "spec.json" in found["damaged"]["why"] and "not trained to the end" in found["unfinished"]["why"]
    shown = cli("runs", "list", root)
    assert shown.code == 0 and all(Path(one["path"]).name in shown.out for one in found.values())
    assert all(f"1 {state}" in shown.out for state in found)
    assert cli("runs", "list", cwd=root.parent).out == shown.out  # "runs" is where they are by default


def columns_of(line):
    return [cell.strip() for cell in line.strip("┃│").replace("┃", "│").split("│")]


def test_show_has_the_columns_in_which_scores_differ(cli, root):
    run = Path(by_state(cli, root)["finished"]["path"])
    evaluate_run(run, "fgsm-0.1", limit=50, defence="median")
    evaluate_run(run, "fgsm-0.1", limit=50, seed=3)
    lines = [line for line in cli("runs", "show", run).out.splitlines() if line[:1] in ("┃", "│")]
    header, rows = columns_of(lines[0]), [columns_of(line) for line in lines[1:]]
    assert header == ["attack", "protocol", "counted", "attack seed", "defence", "accuracy", "images"]
    assert sorted(row[4] for row in rows if row[0] == "clean") == ["median", "none"] and len(rows) == 8
    assert {row[6] for row in rows} == {"50 of 360"}
    told = [tuple(row[:5]) for row in rows]
    assert len(set(told)) == len(told)


def test_list_of_nothing(cli, refused, tmp_path):
    assert cli("runs", "list", tmp_path).out.splitlines()[-1] == "no runs"
    assert cli("runs", "list", tmp_path, "--json").json == []
    for command in ("list", "clean"):
        assert f"{tmp_path / 'none'}: no such folder" in refused("runs", command, tmp_path / "none")


def test_show(cli, refused, root, tmp_path):
    found = by_state(cli, root)
    finished = Run(Path(found["finished"]["path"]))
    facts = cli("runs", "show", finished.path, "--json").json
    spec = finished.spec()
    assert {name: facts[name] for name in spec.columns()} == spec.columns()
    assert (facts["address"], facts["finished"], facts["epochs done"]) == (spec.address, True, 2)
    assert facts["last loss"] == [line["loss"] for line in finished.history() if "loss" in line][-1]
    counts = [(s["attack"], s["counted"], s["correct"], s["total"]) for s in facts["scores"]]
    assert counts == [(s.attack, s.counted, s.correct, s.total) for s in finished.scores()] and len(counts) == 3
    shown = cli("runs", "show", finished.path).out
    assert spec.address in shown and "schedule.epochs" in shown
    for score in finished.scores():
        assert f"{100 * score.accuracy:.2f} %" in shown
    failed = cli("runs", "show", found["failed"]["path"], "--json").json
    assert failed["failure"] == found["failed"]["why"] and failed["scores"] == []
    begun = cli("runs", "show", found["unfinished"]["path"], "--json").json
    assert not begun["finished"] and begun["epochs done"] == 0 and "last loss" not in begun
    assert "changed after the run was made" in refused("runs", "show", found["damaged"]["path"])
    assert "no run folder" in refused("runs", "show", tmp_path)


@pytest.mark.parametrize(("answer", "removed"), [("y\n", True), ("n\n", False), ("\n", False), ("", False)])
def test_clean_asks(cli, root, monkeypatch, answer, removed):
    before = files(root)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    shown = cli("runs", "clean", root, "--failed")
    assert "remove these 3?" in shown.out + shown.err
    assert (files(root) != before) == removed and ("removed 3" in shown.out) == removed
    assert shown.code == (0 if answer else 1)  # nobody answered
    if removed:
        assert cli("runs", "clean", root, "--failed").out == "nothing to remove\n"
