"""`polybound evaluate`: what it prints, keeps and refuses. Moved as it was out of test_evaluation.py."""

import json

import numpy as np
import pytest

import polybound as pb
from polybound.runs import DataSpec, Spec, train_together


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    recipe = pb.Recipe.of(epochs=2, learning_rate=0.02)
    spec = Spec(DataSpec.of("digits", held_out=0.2), recipe=recipe)
    return [run.path for run in train_together([spec], tmp_path_factory.mktemp("runs"))]


def copied(run, folder):
    folder.mkdir()
    for name in ("spec.json", "history.jsonl", "model.safetensors"):
        (folder / name).write_bytes((run / name).read_bytes())
    return folder


def test_command_line(runs, tmp_path):
    from test_cli import polybound

    folder = copied(runs[0], tmp_path / runs[0].name)
    attack = ("evaluate", folder, "--attacks", "fgsm-0.1,pgd-0.2-3-0.1", "--protocol", "both", "--limit", 80)
    result = polybound(*attack, "--picture", tmp_path / "p.png", "--save-examples", tmp_path / "e.npz", "--check", 20)
    assert result.returncode == 0, result.stderr
    assert "fgsm-0.1" in result.stdout and "published" in result.stdout and "gradient masking" in result.stdout
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    saved = np.load(tmp_path / "e.npz")
    assert saved["x"].shape == (80, 1, 8, 8) and saved["fgsm-0.1 sound"].shape == (1, 80, 1, 8, 8)
    assert set(saved) == {"x", "y", "runs"} | {
        f"{name} {protocol}" for name in ("fgsm-0.1", "pgd-0.2-3-0.1") for protocol in ("sound", "published")
    }


def command(monkeypatch, capsys, *words):
    """The command line in this process; its output, its errors, its exit code."""
    from polybound.cli import main

    monkeypatch.setattr("sys.argv", ["polybound", "evaluate", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    return *capsys.readouterr(), stop.value.code or 0


def test_what_the_command_prints(runs, tmp_path, monkeypatch, capsys):
    folder = copied(runs[0], tmp_path / runs[0].name)
    words = (folder, "--attacks", "fgsm-0.1", "--protocol", "both", "--limit", 80)
    output, _, code = command(monkeypatch, capsys, *words, "--json")
    assert code == 0 and len(json.loads(output)["scores"]) == 3 and (folder / "scores.csv").exists()
    label = folder.name.rsplit("-s", 1)[0]
    assert f"| {label} " in command(monkeypatch, capsys, *words, "--means")[0]
    assert "attacked images alone" in command(monkeypatch, capsys, *words, "--count", "attacked")[0]
    output, _, code = command(monkeypatch, capsys, *words, "--defence", "gaussian", "--per-class")
    assert code == 0 and "class" in output
    for options, message in [
        (("--attacks", "nonsense"), "unknown attack 'nonsense'"),
        (("--attacks", "fgsm--1"), "not of the form fgsm-EPS"),
        (("--count", "all"), "count must be"),
        (("--protocol", "honest"), "protocol must be"),
        (("--defence", "prayer"), "unknown defence"),
        (("--picture", tmp_path / "nowhere" / "p.png"), "no such folder"),
        (("--split", "train set"), "split"),
    ]:
        output, errors, code = command(monkeypatch, capsys, folder, *options)
        assert code == 2 and output == "" and errors.count("\n") == 1 and message in errors
    assert "no model to evaluate" in command(monkeypatch, capsys, tmp_path)[1]
    monkeypatch.setattr("polybound.cli.evaluate.find_spec", lambda _: None)
    assert "needs matplotlib" in command(monkeypatch, capsys, folder, "--picture", tmp_path / "p.png")[1]
