"""`polybound experiments`, `sweep`, `reproduce`, `report` and `compare` as people call them."""

import json

import pytest

from polybound.experiments.results import write_csv
from test_cli import polybound, refused
from test_experiments import rows_like_the_paper

RECIPE = """
title = "Mine"
datasets = ["digits"]
methods = ["none", "projection"]
bounds = [1.0, 0.5]
attacks = ["fgsm-0.1"]
seeds = 1
limit = 50
"""


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(RECIPE)
    return file


def test_experiments_are_listed():
    names = [entry["name"] for entry in json.loads(polybound("experiments", "--json").stdout)]
    assert names[0] == "table-1" and "honest-table" in names
    assert "The hidden rank" in polybound("experiments").stdout


def test_reproduce_and_report(recipe, tmp_path):
    options = ("--runs", tmp_path / "runs", "--budget", "0.02", "-o", tmp_path / "out.html")
    plan = json.loads(polybound("sweep", recipe, *options[:4], "--dry-run", "--json").stdout)
    assert plan["runs"] == 3 and plan["done"] == 0 and plan["seconds"] > 0
    shown = polybound("reproduce", recipe, *options, "--workers", 1).stdout
    assert "2 of 100 epochs" in shown and "FGSM-0.1 | sound protocol" in shown
    assert (tmp_path / "out.html").stat().st_size > 5000
    assert (tmp_path / "out" / "mine.tex").exists() and (tmp_path / "out" / "mine-scores.csv").exists()
    before = (tmp_path / "out" / "mine.md").read_text()
    polybound("report", recipe, *options)
    assert (tmp_path / "out" / "mine.md").read_text() == before
    elsewhere = ("--runs", tmp_path / "elsewhere", "--budget", "0.02", "-o", tmp_path / "again.html")
    polybound("report", recipe, *elsewhere, "--scores", tmp_path / "out" / "mine-scores.csv")
    assert (tmp_path / "again" / "mine.md").read_text() == before
    assert "no such file" in refused("report", recipe, *elsewhere, "--scores", tmp_path / "no.csv")
    assert "not a file of scores" in refused("report", recipe, *elsewhere, "--scores", tmp_path / "out" / "mine.csv")
    folders = sorted((tmp_path / "runs").glob("digits-*"))
    shown = polybound("report", *folders, "-o", tmp_path / "runs.html").stdout
    assert "DIGITS" in shown.upper() and "Lipschitz, row-wise" in shown and "projection | 0.5 | 1 |" in shown
    assert "not trained yet" in refused("report", tmp_path, "-o", tmp_path / "runs.html")
    assert json.loads(polybound("sweep", recipe, *options[:4], "--dry-run", "--json").stdout)["done"] == plan["jobs"]


def test_compare_has_an_exit_code(tmp_path):
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text(write_csv(rows_like_the_paper()))
    bad.write_text(write_csv(rows_like_the_paper(4.0)))
    assert "within" in (compared := polybound("compare", good)).stdout and compared.returncode == 0
    result = polybound("compare", bad, "--json")
    assert result.returncode == 1
    assert "off" in {entry["verdict"] for entry in json.loads(result.stdout)}
    bad.write_text(write_csv(rows_like_the_paper(3.1, spread=4.0)))
    shown = polybound("compare", bad).stdout
    assert "others within 2 standard deviations of both" in shown and "in std" in shown


def test_bad_input_is_refused_in_one_line(recipe, tmp_path):
    runs = ("--runs", tmp_path / "runs")
    assert "no experiment is called 'table-99'" in refused("sweep", "table-99", *runs)
    assert "budget" in refused("sweep", recipe, "--budget", "2", *runs)
    assert "no data set is called" in refused("sweep", recipe, "--dataset", "nothing", *runs)
    assert "engine must be one of" in refused("sweep", recipe, "--engine", "slurm", *runs)
    assert "no such folder" in refused("reproduce", recipe, "-o", tmp_path / "nowhere" / "out.html", *runs)
    assert "no such file" in refused("compare", tmp_path / "nowhere")
    (tmp_path / "other.csv").write_text("dataset,model\nmnist,pn-4\n")
    assert "no column" in refused("compare", tmp_path / "other.csv")
    (tmp_path / "empty").mkdir()
    assert "no run that the paper has a value for" in refused("compare", tmp_path / "empty")
    broken = tmp_path / "broken.toml"
    broken.write_text("title = ")
    assert "not an experiment" in refused("sweep", broken, *runs)
