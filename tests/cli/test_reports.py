"""Reports and tables: narrow terminals, legends, runs that are left out, files of scores; the explorer's page."""

import base64
import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import polybound as pb
from conftest import run_command
from helpers.errors import refuses
from polybound.evaluation import MixedError, Table
from polybound.experiments import experiment_scores, find_experiment, read_scores
from polybound.runs import DataSpec, Run, Spec, find_runs, is_run

SCORES = Path(__file__).parents[2] / "docs" / "results" / "scores.csv"
pytestmark = pytest.mark.usefixtures("no_pictures")


def trained(root, word):
    return [run.path for run in find_runs(root) if word in run.path.name]


EXPERIMENT = """
title = "mine"
datasets = ["digits"]
methods = ["none", "l2"]
attacks = ["fgsm-0.1"]
defences = ["gaussian"]
splits = ["test", "validation"]
validation = 0.2
seeds = 2
samples = 100
limit = 20
[recipe]
epochs = 2
[options.l2]
weight = [0.1, 1e30]
"""


@pytest.fixture(scope="module")
def experiment(cli, tmp_path_factory):
    """An experiment of which two runs diverge, and the folder of its runs."""
    folder = tmp_path_factory.mktemp("experiment")
    (folder / "mine.toml").write_text(EXPERIMENT)
    assert cli("sweep", folder / "mine.toml", "--runs", folder / "runs", "--workers", 1).code == 0
    return folder


def test_a_report_of_an_experiment_names_the_runs_that_it_leaves_out(cli, experiment, tmp_path):
    shutil.copytree(experiment, tmp_path, dirs_exist_ok=True)
    words = ("report", tmp_path / "mine.toml", "--runs", tmp_path / "runs", "-o", tmp_path / "page.html", "--json")
    diverged = {run.path.name for run in find_runs(tmp_path / "runs") if run.failure}
    assert len(diverged) == 2
    found = cli(*words)
    assert found.code == 1 and {entry["run"].rpartition("/")[2] for entry in found.json["skipped"]} == diverged
    assert sum("was skipped" in note for note in found.json["sections"][0]["notes"]) == 2
    first, second = trained(tmp_path / "runs", "none-s")
    (trained(tmp_path / "runs", "l2-0.1-s0")[0] / "scores.csv").write_text("nonsense")
    shutil.copy(second / "model.safetensors", first / "model.safetensors")
    found = cli(*words)
    reasons = {entry["run"].rpartition("/")[2]: entry["why"] for entry in found.json["skipped"]}
    assert found.code == 1 and len(reasons) == 4 and "another digest" in reasons[first.name]
    shown = experiment_scores(find_experiment(str(tmp_path / "mine.toml")), tmp_path / "runs")
    assert shown.where(method="none").values("seed") == [1] and shown.where(method="l2").values("seed") == [1]


def test_folders_of_long_names_in_any_script_can_be_made(tmp_path):
    for name in ("folder:" + "漢" * 300, "folder:" + "/.." * 99, "folder:" + "😀é" * 60, "folder:../../x"):
        run = Run.make(Spec(DataSpec(name, "00ff")), tmp_path)
        assert run.path.parent == tmp_path and is_run(run.path) and run.spec().data.name == name


SPEC = ("data", "model", "method", "seed", "epoch", "method.bound", "model.rank", "schedule.epochs", "run")


@pytest.fixture(scope="module")
def few_scores():
    """The header and some rows of projected networks, with a schedule that is not the default, of our own results."""
    with SCORES.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    place = {name: header.index(name) for name in header}
    wanted = {"method": "projection", "method.bound": "2.0", "schedule.epochs": "20"}
    chosen = [row for row in rows if all(row[place[name]] == value for name, value in wanted.items())]
    return header, chosen[:4]


def write_scores(file, header, rows):
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return file


@pytest.mark.parametrize("column", SPEC)
def test_a_file_of_scores_is_refused_if_a_column_of_the_run_is_gone_or_changed(refused, few_scores, tmp_path, column):
    header, rows = few_scores
    at = header.index(column)
    assert len(read_scores(write_scores(tmp_path / "whole.csv", header, rows))) == 4
    gone = write_scores(tmp_path / "gone.csv", header[:at] + header[at + 1 :], [r[:at] + r[at + 1 :] for r in rows])
    changed = write_scores(tmp_path / "changed.csv", header, [[*row[:at], "7", *row[at + 1 :]] for row in rows])
    # A rank that is gone is the model's own, and fits; an epoch is the score's, not the spec's.
    for file in {"epoch": (gone,), "model.rank": (changed,)}.get(column, (gone, changed)):
        assert len(refused("compare", file).splitlines()) == 1
        assert refused("report", "table-1", "--scores", file, "--runs", tmp_path, "-o", tmp_path / "page.html")


def test_scores_that_contradict_each_other_are_refused(experiment, tmp_path):
    named = find_experiment(str(experiment / "mine.toml"))
    table = experiment_scores(named, experiment / "runs")
    assert sorted(map(str, experiment_scores(named, tmp_path, table + table))) == sorted(map(str, table))
    other = Table({**row, "correct": (row["correct"] + 1) % (row["total"] + 1), "per_class": ""} for row in table)
    refuses("has two scores under", experiment_scores, named, tmp_path, table + other, error=MixedError)


def test_without_a_run_it_shows_the_bundled_digits(tmp_path):
    done = run_command("explore", "-n", "2", "--budget", "0", "-o", "e.html", cwd=tmp_path)
    assert done.code == 0 and done.out == "e.html: 0.1 MB, digits, digits-bound-1; test images: 2\n"
    page = (tmp_path / "e.html").read_text()
    assert "Content-Security-Policy" in page and "default-src 'none'" in page and "http://" not in page


def test_a_saved_classifier(tmp_path):
    random = np.random.default_rng(0)
    X = random.normal([50.0, 1.7, 3.0], [10.0, 0.1, 0.0], (60, 3))
    classifier = pb.PolynomialClassifier(epochs=2, rank=4, random_state=0).fit(
        X, np.where(X[:, 0] > 50, "old", "young")
    )
    classifier.save(tmp_path / "c.safetensors")
    done = run_command("explore", "c.safetensors", cwd=tmp_path)
    assert done.code == 0, done.err
    page = (tmp_path / "explorer.html").read_text()
    assert '"classes": ["old", "young"]' in page and '"name": "feature 3"' in page and '"width": 0.0' in page
    content = json.loads(re.search(r'id="content">(.*?)</script>', page).group(1))
    for step, own in zip(content["networks"][0]["A"], classifier.model_.factors().A, strict=True):
        kind, units = step["W"]["type"], len(own.constant)
        weights = np.frombuffer(base64.b64decode(step["W"]["data"]), f"<{kind}").reshape(units, 3)
        # The third feature never varied: its input is 0, and whatever the page's attacks do to it has no effect.
        assert np.array_equal(weights[:, :2], own.weight.detach().numpy()[:, :2]) and not weights[:, 2].any()
    both = run_command("explore", "c.safetensors", "digits", cwd=tmp_path)
    assert both.code == 2 and "both networks need the same test images" in both.err
