"""Every number that a command prints belongs to its network, its data and its images."""

import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture(scope="module")
def train(cli):
    """Train tiny runs below a folder; their folders."""

    def run(folder, *options, dataset="digits", samples=300, epochs=4):
        known = ("--dataset", dataset, "--model", "pn-4", "--epochs", epochs, "--samples", samples, "--runs", folder)
        result = cli("train", *known, "--learning-rate", 0.02, *options, "--json")
        assert result.code == 0, result.err
        return [Path(entry["run"]) for entry in result.json["runs"]]

    return run


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    """Two seeds without a bound, one with: nothing is measured yet but the clean accuracy after training."""
    folder = tmp_path_factory.mktemp("trained") / "runs"
    return [
        *train(folder, "--seed", 0, "--seed", 1),
        *train(folder, "--method", "projection", "--bound", 1, "--start-epoch", 2),
    ]


@pytest.fixture
def runs(trained, tmp_path):
    """The same runs in a folder of this test."""
    return [Path(shutil.copytree(run, tmp_path / "runs" / run.name)) for run in trained]


def accuracies(cli, folder, *runs, code=0):
    """All clean accuracies that a report of runs shows, in percent."""
    result = cli("report", *runs, "-o", folder / "page.html", "--json")
    assert result.code == code, result.err
    found = []
    for section in result.json["sections"]:
        (table,) = [table for table in section["tables"] if table["title"] == "Accuracy in %"]
        columns = [i for i, name in enumerate(table["header"]) if "clean" in name.lower()]
        found += [float(row[i].split()[0]) for row in table["rows"] for i in columns if row[i]]
    return found


def skipped(result):
    """The names of the runs that a command skipped, with the reasons."""
    return {Path(entry["run"]).name: entry["why"] for entry in result.json["skipped"]}


def test_bad_runs_are_skipped_and_named_and_the_others_shown(cli, runs, tmp_path):
    """`evaluation/test_evaluation.py` and `runs/test_runs.py` have all that can be wrong with a run."""
    good, swapped, bounded = runs
    (before,) = [s for s in cli("evaluate", good, "--attacks", "", "--json").json["scores"] if s["attack"] == "clean"]
    assert before["accuracy"] == pytest.approx(before["correct"] / before["total"])
    shutil.copy(bounded / "model.safetensors", swapped)
    other = tmp_path / "other"
    other.mkdir()
    reasons = {swapped: "another digest", other: "no run folder"}
    result = cli("evaluate", swapped, good, other, "--attacks", "fgsm-0.1", "--json")
    assert result.code == 1, result.err
    assert {Path(score["run"]).name for score in result.json["scores"]} == {good.name}
    assert set(skipped(result)) == {run.name for run in reasons}
    for run, reason in reasons.items():
        assert reason in skipped(result)[run.name]
    shown = cli("report", swapped, good, other, "-o", tmp_path / "page.html")
    assert shown.code == 1 and all(run.name in shown.out + shown.err for run in reasons)
    (first,) = accuracies(cli, tmp_path, swapped, good, code=1)
    assert 100 * before["accuracy"] == pytest.approx(first, abs=0.006)
    for command in ("evaluate", "report"):
        assert cli(command, *reasons, cwd=tmp_path).code == 2
    refused = cli("certify", swapped, "--eps", 0.01, "--images", 1)
    assert refused.code == 2 and swapped.name in refused.err and "another digest" in refused.err


def test_a_report_is_never_written_into_a_folder_of_runs(cli, runs, tmp_path):
    before = set((tmp_path / "runs").rglob("*"))
    shown = cli("report", *(run.relative_to(tmp_path) for run in runs), "-o", "runs.html", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert set((tmp_path / "runs").rglob("*")) == before
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir() and path.name != "runs"]
    assert (tmp_path / "runs.html").exists() and list(folder.iterdir()) and folder.name in shown.out + shown.err


def test_a_dry_run_touches_nothing(cli, tmp_path, monkeypatch):
    def connect(*_):
        raise AssertionError("somebody was asked for something")

    monkeypatch.setattr("socket.socket.connect", connect)
    names = ("--dataset", "emnist-letters", "--dataset", "digits", "--model", "pn-4", "--dry-run")
    env = {name: tmp_path / name for name in ("POLYBOUND_DATA", "HOME", "XDG_CACHE_HOME")}
    for form in ((), ("--json",)):
        found = cli("sweep", "table-1", *names, "--runs", tmp_path / "runs", *form, cwd=tmp_path, env=env)
        assert found.code == 0 and "emnist-letters" in found.out + found.err, found.err
        assert not set(tmp_path.rglob("*"))
    assert found.json["missing"] == ["emnist-letters"]


def test_a_place_for_the_proofs_is_looked_for_before_the_work(cli, runs, tmp_path, monkeypatch):
    words = ("certify", runs[0], "--eps", 0.01, "--images", 2, "--save")
    assert cli(*words, tmp_path / "p.json").code == 0 and (tmp_path / "p.json").exists()
    monkeypatch.setattr("polybound.cli.certify.certify", lambda *_, **__: pytest.fail("it began"))
    refused = cli(*words, tmp_path / "nofolder" / "p.json")
    assert refused.code == 2 and refused.err.count("\n") == 1 and "nofolder" in refused.err
