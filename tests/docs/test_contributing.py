"""The examples of CONTRIBUTING.md run as they stand, from outside the package, and are then known everywhere."""

import re
import tomllib
from pathlib import Path

import pytest
import torch

import polybound as pb
from polybound.defences import find_defence
from polybound.experiments import Experiment, experiment_names, find_experiment
from polybound.models import model_names
from polybound.registry import GROUP

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##)", TEXT, re.MULTILINE | re.DOTALL))


pytestmark = pytest.mark.usefixtures("registries", "no_pictures")


def run(section, file="mine.py"):
    """Execute the one Python block of a section in a namespace of its own."""
    (block,) = re.findall(r"```python\n(.*?)```", SECTIONS[section], re.DOTALL)
    names = {"__name__": f"example {section}", "__file__": str(file)}
    exec(compile(block, f"CONTRIBUTING.md, {section}", "exec"), names)
    return names


PARTS = {
    "A method": "--method large-logits --weight 0.5",
    "An optimiser": "--optimiser lion --set beta=0.8",
    "A schedule": "--schedule warm",
    "An attack": "--adversary brightest-0.1 --start-epoch 0",
    "A data set": "--dataset two_moons",
    "A model": "--model ncp-3",
}


def test_every_section_says_what_it_touches():
    assert list(SECTIONS) == [*PARTS, "An algebra", "An experiment", "A defence"]
    for text in SECTIONS.values():
        assert "Files touched in the package: 0." in " ".join(text.split())


@pytest.mark.parametrize("section", PARTS)
def test_a_part_is_trained_with(cli, tmp_path, section):
    names = run(section)
    data = () if section == "A data set" else ("--dataset", "digits", "--samples", 100)
    done = cli("train", *data, *PARTS[section].split(), "--epochs", 1, "--runs", tmp_path)
    assert done.code == 0, done.err
    (folder,) = tmp_path.glob("[!.]*")
    spec = pb.Run(folder).spec()
    if section == "A method":
        assert spec.recipe.method == names["LargeLogits"](0.5)
        mine = Experiment("mine", "mine", datasets=("digits",), methods=("large-logits",), seeds=1)
        assert [spec.recipe.method.name for spec in mine.specs(lambda name: "00")] == ["large-logits"]
    elif section == "An optimiser":
        assert spec.recipe.optimiser == names["Lion"](beta=0.8)
        assert names["history"]["loss"][1] < names["history"]["loss"][0]
    elif section == "A schedule":
        rates = [names["recipe"].rate(epoch) for epoch in (0, 1, 3, 9)]
        assert rates == pytest.approx([0.00025, 0.0005, 0.001, 0.001]) and spec.recipe.schedule.rises == 5
    elif section == "An attack":
        assert names["attack"] == names["Brightest"](0.1) and pb.parse_attack("brightest-0.2").eps == 0.2
        assert "brightest-0.1" in cli("evaluate", folder, "--attacks", "brightest-0.1", "--limit", 10).out
    elif section == "A data set":
        test = names["test"]
        assert test.shape == (2,) and float(test.x.abs().max()) <= 1 and len(test.digest) == 16
        assert "two_moons" in cli("data", "list", "--json").out and pb.data.names()[-1] == "two_moons"
    else:
        model = names["model"]
        assert (model.degree, model.rank, pb.paper_model("ncp-3").classes) == (3, 8, 10) and "ncp-3" in model_names()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = torch.nn.Linear(4, 8), torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.c(self.a(x) * self.b(x))


def test_an_algebra():
    counted = run("An algebra")["Multiplications"]()
    pb.polynomial(Net(), (4,)).graph().evaluate(counted, 4)
    assert counted.count == 4 * 8 + 4 * 8 + 8 + 8 * 3


def test_an_experiment(cli, tmp_path):
    (toml,) = re.findall(r"```toml\n(.*?)```", SECTIONS["An experiment"], re.DOTALL)
    (tmp_path / "digits-bounds.toml").write_text(toml)
    found = run("An experiment", tmp_path / "mine.py")["experiment"]
    assert found == find_experiment("digits-bounds") and experiment_names()[-1] == "digits-bounds"
    assert find_experiment(str(tmp_path / "digits-bounds.toml")).datasets == ("digits",)
    assert found.title in cli("experiments").out
    runs = ("--runs", tmp_path / "runs")
    assert "4 jobs with 10 runs" in cli("sweep", "digits-bounds", "--dry-run", *runs).out
    few = ("--seeds", 1, "--limit", 20, "--samples", 100, "--workers", 1, "--json")
    made = cli("reproduce", "digits-bounds", "-o", tmp_path / "made.html", *runs, *few).json
    header = made["sections"][0]["tables"][0]["header"]
    assert header[2:] == ["no projection", "projection", "L2, weight 0.001", "L2, weight 0.01"]


def test_a_defence(cli, tmp_path):
    run("A defence")
    pb.example("digits").save(tmp_path / "m.safetensors")
    assert find_defence("coarse:levels=4", (1, 8, 8)).name == "coarse:levels=4"
    words = ("--dataset", "digits", "--attacks", "fgsm-0.1", "--limit", 10, "--defence", "coarse:levels=4", "--csv")
    assert "coarse:levels=4" in cli("evaluate", tmp_path / "m.safetensors", *words).out


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
