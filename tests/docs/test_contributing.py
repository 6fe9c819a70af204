"""The examples of CONTRIBUTING.md run as they stand, from outside the package, and are then known everywhere."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import polybound as pb
from polybound.attacks import names as attacks
from polybound.cli.app import app
from polybound.data import catalogue
from polybound.defences import denoisers as defences
from polybound.defences import find_defence
from polybound.experiments import Experiment, experiment, experiment_names, find_experiment
from polybound.models import model_names, zoo
from polybound.registry import GROUP
from polybound.training import METHODS, OPTIMISERS, SCHEDULES

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##)", TEXT, re.MULTILINE | re.DOTALL))


@pytest.fixture(autouse=True)
def _registries(monkeypatch):
    """What is registered here is forgotten afterwards."""
    for registry in (METHODS, OPTIMISERS, SCHEDULES):
        monkeypatch.setattr(registry, "_components", dict(registry._components))
    for module, name in (
        (attacks, "KINDS"),
        (defences, "KINDS"),
        (catalogue, "SOURCES"),
        (zoo, "_MODELS"),
        (experiment, "_OWN"),
    ):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))


def run(section, file="mine.py"):
    """Execute the one Python block of a section in a namespace of its own."""
    (block,) = re.findall(r"```python\n(.*?)```", SECTIONS[section], re.DOTALL)
    names = {"__name__": f"example {section}", "__file__": str(file)}
    exec(compile(block, f"CONTRIBUTING.md, {section}", "exec"), names)
    return names


def shell(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.fixture
def trained(tmp_path):
    """A run folder."""
    shell("train", "--dataset", "digits", "--epochs", 1, "--runs", tmp_path / "runs")
    (found,) = (tmp_path / "runs").glob("digits-*")
    return found


def test_every_section_says_what_it_touches():
    parts = [
        "A method",
        "An optimiser",
        "A schedule",
        "An attack",
        "A data set",
        "A model",
        "An experiment",
        "A defence",
    ]
    assert list(SECTIONS) == parts
    for text in SECTIONS.values():
        assert "Files touched in the package: 0." in " ".join(text.split())


def test_a_method(tmp_path):
    names = run("A method")
    assert len(names["history"]) == 2 and "large-logits" in METHODS.names()
    shell(
        "train", "--dataset", "digits", "--method", "large-logits", "--weight", 0.5, "--epochs", 1, "--runs", tmp_path
    )
    (folder,) = tmp_path.glob("digits-*")
    assert pb.Run(folder).spec().recipe.method == names["LargeLogits"](0.5)
    specs = Experiment("mine", "mine", datasets=("digits",), methods=("large-logits",), seeds=1).specs(
        lambda name: "00"
    )
    assert [spec.recipe.method.name for spec in specs] == ["large-logits"]


def test_an_optimiser(tmp_path):
    names = run("An optimiser")
    assert len(names["history"]) == 2 and names["history"]["loss"][1] < names["history"]["loss"][0]
    words = ("--optimiser", "lion", "--set", "beta=0.8", "--epochs", 1, "--runs", tmp_path)
    shell("train", "--dataset", "digits", *words)
    (folder,) = tmp_path.glob("digits-*")
    assert pb.Run(folder).spec().recipe.optimiser == names["Lion"](beta=0.8)


def test_a_schedule(tmp_path):
    recipe = run("A schedule")["recipe"]
    assert [recipe.rate(epoch) for epoch in (0, 1, 3, 9)] == pytest.approx([0.00025, 0.0005, 0.001, 0.001])
    shell("train", "--dataset", "digits", "--schedule", "warm", "--epochs", 1, "--runs", tmp_path)
    (folder,) = tmp_path.glob("digits-*")
    assert pb.Run(folder).spec().recipe.schedule.rises == 5


def test_an_attack(trained):
    names = run("An attack")
    assert names["attack"] == names["Brightest"](0.1) and pb.parse_attack("brightest-0.2").eps == 0.2
    assert "brightest-0.1" in shell("evaluate", trained, "--attacks", "brightest-0.1", "--limit", 10)
    options = ("--adversary", "brightest-0.1", "--start-epoch", 0, "--epochs", 1, "--runs", trained.parent)
    shell("train", "--dataset", "digits", *options)


def test_a_data_set(tmp_path):
    test = run("A data set")["test"]
    assert test.shape == (2,) and float(test.x.abs().max()) <= 1 and len(test.digest) == 16
    assert "two_moons" in shell("data", "list", "--json") and pb.data.names()[-1] == "two_moons"
    shell("train", "--dataset", "two_moons", "--epochs", 1, "--runs", tmp_path)


def test_a_model(tmp_path):
    model = run("A model")["model"]
    assert (model.degree, model.rank, pb.paper_model("ncp-3").classes) == (3, 8, 10) and "ncp-3" in model_names()
    shell("train", "--dataset", "digits", "--model", "ncp-3", "--epochs", 1, "--runs", tmp_path)


def test_an_experiment(tmp_path):
    (toml,) = re.findall(r"```toml\n(.*?)```", SECTIONS["An experiment"], re.DOTALL)
    (tmp_path / "digits-bounds.toml").write_text(toml)
    found = run("An experiment", tmp_path / "mine.py")["experiment"]
    assert found == find_experiment("digits-bounds") and experiment_names()[-1] == "digits-bounds"
    assert found.title in shell("experiments")
    assert "4 jobs with 10 runs" in shell("sweep", "digits-bounds", "--dry-run", "--runs", tmp_path / "runs")
    assert find_experiment(str(tmp_path / "digits-bounds.toml")).datasets == ("digits",)
    options = ("--runs", tmp_path / "runs", "--seeds", 1, "--limit", 20, "--workers", 1, "--json")
    made = json.loads(shell("reproduce", "digits-bounds", "-o", tmp_path / "made.html", *options))
    header = made["sections"][0]["tables"][0]["header"]
    assert header[2:] == ["no projection", "projection", "L2, weight 0.001", "L2, weight 0.01"]


def test_a_defence(trained):
    run("A defence")
    assert find_defence("coarse:levels=4", (1, 8, 8)).name == "coarse:levels=4"
    options = ("--attacks", "fgsm-0.1", "--limit", 10, "--csv")
    assert "coarse:levels=4" in shell("evaluate", trained, "--defence", "coarse:levels=4", *options)


def test_the_entry_point_is_of_the_group_that_is_looked_for():
    shown = next(block for block in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL) if "entry-points" in block)
    assert list(tomllib.loads(shown)["project"]["entry-points"]) == [GROUP]


def test_the_table_of_rooms_is_whole():
    named = re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)
    package = Path(pb.__file__).parent
    assert sorted(named) == sorted(path.parent.name for path in package.glob("*/__init__.py"))


def test_the_way_of_the_data_names_files_that_are_there():
    text = TEXT[: TEXT.index("## Check a change")]
    pictures = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert [len(re.findall(r"[\w/]+\.py", picture)) > 10 for picture in pictures] == [True, True]
    for file in re.findall(r"[\w/]+\.py", text):
        assert (Path(pb.__file__).parent / file).is_file(), file
