"""`polybound evaluate`: what it prints, keeps and refuses."""

import csv
import io
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from polybound.runs import Run

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
