"""Model cards: those of the bundled networks agree with what their files measure; cards of runs and files."""

import json
import re
from pathlib import Path

import pytest
import torch

import polybound as pb
from polybound.models import EXAMPLES, example_origin
from polybound.report import model_card
from polybound.runs import Spec

CARDS = Path(__file__).parents[2] / "docs" / "cards"


def made(name, data, **options):
    origin = example_origin(name)
    options = {"spec": Spec.from_dict(origin["spec"]), "again": origin} | options
    return model_card(pb.example(name), data, name=name, **options)


def section(text, title):
    return re.search(rf"^## {title}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL).group(1)


@pytest.mark.parametrize("name", ["digits", "digits-bound-1"])
def test_the_cards_of_the_bundled_networks_are_what_their_files_measure(name):
    assert made(name, pb.data.load_digits("test")).markdown() == (CARDS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["pn-4", "pn-4-bound-1"])
def test_the_quick_part_of_the_others(name):
    written = (CARDS / f"{name}.md").read_text(encoding="utf-8")
    here = not pb.data.missing("fashion-mnist")
    x, y = torch.zeros(1, 1, 28, 28), torch.zeros(1, dtype=torch.int64)
    blank = pb.data.Dataset("fashion-mnist", "test", x, y, tuple(map(str, range(10))))
    text = made(name, pb.data.load("fashion-mnist", "test") if here else blank, eps=()).markdown()
    for title in ("Network", "Recipe", "Bounds", *(["Data"] if here else [])):
        assert section(text, title) == section(written, title)
    # The clean accuracy is of all test images.
    assert not here or section(written, "Accuracy").startswith(section(text, "Accuracy").rstrip("\n"))


def test_attacks_and_certificates_are_of_the_same_radius():
    """A radius of more than six digits: the accuracy under attack is of the ball that the certificates are of."""
    radius = 8 / 255
    card = made("digits", pb.data.load_digits("test").subset(2), eps=(radius,), images=2)
    (certified,) = card.certificates
    attack = pb.attacks.parse_attack(card.accuracy[1]["attack"])
    assert attack.eps == certified["eps"] == radius and attack.step_size == radius / 8
    assert card.markdown().count(repr(radius)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pn-4", "pn-4-bound-1"])
def test_all_of_the_others(name):
    if pb.data.missing("fashion-mnist"):
        pytest.skip("no Fashion-MNIST")
    card = made(name, pb.data.load("fashion-mnist", "test"))
    assert card.markdown() == (CARDS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in EXAMPLES if not re.search("certified|polynet", name)])
def test_their_recipes_are_specs_of_the_data_and_model(name):
    spec = Spec.from_dict(example_origin(name)["spec"])
    assert spec.data.digest == pb.data.digest_of(spec.data.name)
    model, like = pb.example(name), pb.paper_model(spec.model.name, shape=pb.example(name).shape, rank=spec.model.rank)
    assert model.config() == like.config()
    bound = example_origin(name)["spec"]["method"].get("bound")
    assert (bound is None) == (not pb.Projection(model, bound=1.0).contains())
    text = (CARDS / f"{name}.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)pb\.train_runs", text, re.DOTALL).group(1)
    found = {}
    exec(code, found)
    assert found["spec"] == spec


def test_a_run_and_a_file(cli, tmp_path):
    cli("train", "--dataset", "digits", "--epochs", 1, "--runs", tmp_path / "runs", "-q")
    run = next(path.parent for path in (tmp_path / "runs").glob("*/spec.json"))
    options = ("--eps", 0.05, "-n", 5)
    card = cli("card", run, "--json", *options).json
    assert card["spec"]["data"]["name"] == "digits" and card["again"] is None
    assert [row["images"] for row in card["accuracy"]] == [360, 5] and card["certificates"][0]["eps"] == 0.05
    assert sum(card["certificates"][0][key] for key in ("verified", "falsified", "undecided")) == 5
    done = cli("card", run / "model.safetensors", "--dataset", "digits", *options, "-o", tmp_path / "card.md")
    text = (tmp_path / "card.md").read_text()
    assert done.out == f"wrote {tmp_path / 'card.md'}\n" and "Not known: this is a file" in text
    right = next(row for row in card["accuracy"] if row["attack"] == "clean")["right"]
    assert f"| clean | {100 * right / 360:.2f} % | {right} of 360 |" in text


def test_hostile_names_stay_text(tmp_path):
    name = "<script>alert(1)</script> | [x](javascript:1)\n# heading `code`"
    data = pb.data.load_digits("test")
    text = model_card(pb.example("digits"), data, name=name, eps=(0.05,), images=2).markdown()
    assert text.startswith("# \\<script\\>alert(1)\\</script\\> \\| \\[x\\](javascript:1) # heading \\`code\\`\n")
    assert "<script>" not in text and json.dumps(model_card(pb.example("digits"), data, name=name, eps=()).as_dict())
