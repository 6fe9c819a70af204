"""What a sceptical reader tried: networks without a name, unusual measurements, options of the wrong kind."""

import shutil

import pytest

from polybound.runs import find_runs


@pytest.fixture(scope="module")
def root(cli, tmp_path_factory):
    """Two runs and an adversarially trained one."""
    root = tmp_path_factory.mktemp("review") / "runs"
    words = ("train", "--dataset", "digits", "--epochs", 3, "--samples", 200, "--learning-rate", 0.02, "--runs", root)
    assert cli(*words, "--seed", 0, "--seed", 1).code == 0
    assert cli(*words, "--adversary", "fgsm-0.1", "--start-epoch", 1).code == 0
    return root


def trained(root, word):
    return [run.path for run in find_runs(root) if word in run.path.name]


def test_networks_that_are_no_runs_are_called_by_their_files(cli, root, tmp_path):
    """Next to a run as well: each has its own line, in every form of output."""
    files = [tmp_path / f"{name}.safetensors" for name in "ab"]
    runs = trained(root, "none-s")
    for file, run in zip(files, runs, strict=True):
        shutil.copy(run / "model.safetensors", file)
    words = ("evaluate", *files, runs[0], "--dataset", "digits", "--attacks", "fgsm-0.1")
    scores = cli(*words, "--json").json["scores"]
    clean = {score["label"]: 100 * score["accuracy"] for score in scores if score["attack"] == "clean"}
    assert set(clean) == {*map(str, files), "none"} and clean[str(files[0])] != clean[str(files[1])]
    means = cli(*words, "--json", "--means").json["means"]
    assert {row["label"]: row["mean"] for row in means if row["attack"] == "clean"} == pytest.approx(clean)
    for more in ((), ("--means",)):
        out = cli(*words, *more).out
        assert all(f"{value:.2f}" in out and name in out for name, value in clean.items())


def test_a_report_says_what_is_unusual_of_all_numbers(cli, root, tmp_path):
    """The split, the defence, the attack's seed and the adversary, although no other number differs in them."""
    (run,) = trained(root, "fgsm")
    shutil.copytree(run, tmp_path / "runs" / run.name)
    (tmp_path / "runs" / run.name / "scores.csv").unlink()
    words = ("--defence", "gaussian", "--split", "train", "--seed", 7, "--attacks", "fgsm-0.2")
    assert cli("evaluate", tmp_path / "runs", *words).code == 0
    report = cli("report", tmp_path / "runs", "-o", tmp_path / "page.html", "--json").json
    table = report["sections"][0]["tables"][0]
    assert table["groups"][0][1].endswith("200 training samples, train split, gaussian denoising")
    assert table["header"][3:] == ["clean", "FGSM-0.2, sound, attack seed 7"]
    assert table["rows"][0][0] == "none, adversary fgsm-0.1"
