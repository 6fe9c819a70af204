"""`polybound experiments`, `sweep`, `reproduce`, `report` and `compare` as people call them."""

import csv
import io

import pytest

from helpers.reports import rows_like_the_paper
from polybound.evaluation import Table

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


def test_experiments_are_listed(cli):
    names = [entry["name"] for entry in cli("experiments", "--json").json]
    assert names[0] == "table-1" and "honest-table" in names
    assert "The hidden rank" in cli("experiments").out


def test_reproduce_and_report(cli, refused, recipe, tmp_path):
    known = (recipe, "--runs", tmp_path / "runs", "--budget", "0.02")
    output = ("-o", tmp_path / "out.html")
    plan = cli("sweep", *known, "--dry-run", "--json").json
    assert plan["runs"] == 3 and plan["done"] == 0
    shown = " ".join(cli("reproduce", *known, *output, "--workers", 1).out.split())
    assert "2 of 100 epochs" in shown and "FGSM-0.1 │ sound protocol" in shown
    assert (tmp_path / "out.html").stat().st_size > 5000
    assert (tmp_path / "out" / "mine.tex").exists() and (tmp_path / "out" / "mine-scores.csv").exists()
    before = (tmp_path / "out" / "mine.md").read_text()
    assert "| FGSM-0.1 | sound protocol |" in before
    cli("report", *known, *output)
    assert (tmp_path / "out" / "mine.md").read_text() == before
    elsewhere = (recipe, "--runs", tmp_path / "elsewhere", "--budget", "0.02", "-o", tmp_path / "again.html")
    cli("report", *elsewhere, "--scores", tmp_path / "out" / "mine-scores.csv")
    assert (tmp_path / "again" / "mine.md").read_text() == before
    assert "no such file" in refused("report", *elsewhere, "--scores", tmp_path / "no.csv")
    assert "not a file of scores" in refused("report", *elsewhere, "--scores", tmp_path / "out" / "mine.csv")
    assert cli("sweep", *known, "--dry-run", "--json").json["done"] == plan["jobs"]
    rows = cli("sweep", *known, "--workers", 1, "--json").json
    wanted = {("clean", "-"), ("fgsm-0.1", "published"), ("fgsm-0.1", "sound")}
    assert {(row["attack"], row["protocol"]) for row in rows} == wanted and {row["total"] for row in rows} == {50}
    # The same runs by their folders.
    folders = sorted((tmp_path / "runs").glob("digits-*"))
    assert len(folders) == 3
    output = ("-o", tmp_path / "runs.html")
    made = cli("report", *folders, *output, "--json").json
    (section,) = made["sections"]
    figures = {figure["title"]: figure["panels"] for figure in section["figures"]}
    titles = ["Accuracy over the bounds", "Clean accuracy against accuracy under attack", "The loss during training"]
    assert list(figures) == titles
    (bounds,), _, (training,) = figures.values()
    assert [line["x"] for line in bounds["lines"]] == [[0.5, 1.0]] * 3  # clean, and under both protocols
    assert [line["label"] for line in training["lines"]] == ["none", "projection, bound 0.5", "projection, bound 1"]
    (scores,) = [table for table in section["tables"] if table["title"] == "Accuracy in %"]
    measured = [row for row in scores["rows"] if row[2].startswith("50")]
    assert [row[1] for row in measured] == ["1"] * 3 and len({row[0] for row in measured}) == 3
    assert "3 runs of 3 configurations" in made["found"]["verdict"]
    assert "Which is the most accurate?" in [row[0] for row in made["found"]["compared"]["rows"]]
    folder = tmp_path / "runs-report"
    data = [file for file in folder.glob("runs-*.csv") if file.with_suffix(".svg").is_file()]
    assert len(data) == 3 and (folder / "found.md").is_file()
    assert "no run folder" in refused("report", tmp_path, *output)
    assert "experiments or of runs" in refused("report", "table-1", folders[0], *output)


def test_compare_has_an_exit_code(cli, tmp_path):
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text(Table(rows_like_the_paper()).to_csv())
    bad.write_text(Table(rows_like_the_paper(4.0)).to_csv())
    compared = cli("compare", good)
    assert "within" in compared.out and compared.code == 0
    result = cli("compare", bad, "--json")
    assert result.code == 1
    assert "off" in {entry["verdict"] for entry in result.json}
    lines = list(csv.DictReader(io.StringIO(cli("compare", bad, "--csv").out)))
    assert [line["verdict"] for line in lines] == [entry["verdict"] for entry in result.json]
    bad.write_text(Table(rows_like_the_paper(3.1, spread=4.0)).to_csv())
    shown = cli("compare", bad).out
    assert "others within 2 standard deviations of both" in shown and "in std" in shown


@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",)])
def test_compare_has_one_exit_code_if_there_is_nothing_to_judge(cli, refused, tmp_path, form):
    (tmp_path / "empty").mkdir()
    assert "no run that the paper has a value for" in refused("compare", tmp_path / "empty", *form)
    (tmp_path / "reduced.csv").write_text(Table(rows_like_the_paper(epochs=10)).to_csv())
    reduced = cli("compare", tmp_path / "reduced.csv", *form)
    assert reduced.code == 2 and "reduced" in reduced.out
    assert reduced.err.count("\n") == 1 and "no value to judge" in reduced.err
    assert "--json and --csv" in refused("compare", tmp_path / "reduced.csv", "--json", "--csv")
