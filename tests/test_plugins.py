"""Modules of others: imported by the command line and by workers, once, with a clear error if they cannot be."""

import importlib.metadata
import sys
from importlib.metadata import EntryPoint

import pytest
import torch

import polybound as pb
from helpers.errors import refuses
from polybound.data import load, names
from polybound.experiments import Experiment, read_runs, sweep
from polybound.registry import load_plugins
from polybound.runs import Checkpoint, clean_runs, folder, list_runs
from polybound.runs.folder import path_for
from polybound.training import METHODS

METHOD = """
from dataclasses import dataclass
import polybound as pb

@pb.training.register_method
@dataclass(frozen=True)
class Flat(pb.training.Method):
    name = "flat"
    weight: float = 0.1

    def loss(self, logits, inputs, labels, random):
        losses = pb.training.cross_entropies(logits, labels)
        return losses, losses + self.weight * logits.square().sum((-2, -1))
"""

OTHERS = """
from dataclasses import dataclass
import polybound as pb

@pb.attacks.register_attack
@dataclass(frozen=True)
class Lighter(pb.attacks.Attack):
    kind = "lighter"
    uses_gradients = False

    def perturb(self, model, ball, labels, random):
        return ball.project_(ball.x + self.eps)

@pb.data.register
def upside_down(split):
    data = pb.data.load_digits(split)
    return pb.data.Dataset("upside_down", split, data.x.flip(-2), data.y, data.class_names)
"""


@pytest.fixture
def module(tmp_path, monkeypatch, registries):
    """Writes modules that can be imported; what they register is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        made.append(name)
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture
def entries(monkeypatch):
    """The entry points of installed packages: none but those that a test adds."""
    found = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found if group == "polybound" else [])
    return found


@pytest.mark.usefixtures("entries")
def test_modules_of_the_environment_variable(module, monkeypatch):
    first = module("plugin_of_a_test", METHOD + OTHERS)
    second = module("plugin_that_counts", "import builtins\nbuiltins.counted = getattr(builtins, 'counted', 0) + 1\n")
    monkeypatch.setenv("POLYBOUND_PLUGINS", f" {first}, {second},")
    load_plugins()
    assert "flat" in METHODS.names() and names()[-1] == "upside_down" and load("upside_down", "test").shape == (1, 8, 8)
    load_plugins()
    import builtins

    assert builtins.counted == 1
    del builtins.counted


def test_modules_of_entry_points(module, entries, monkeypatch):
    monkeypatch.delenv("POLYBOUND_PLUGINS", raising=False)
    entries += [EntryPoint("mine", module("plugin_by_entry_point", METHOD) + ":Flat", "polybound")]
    load_plugins()
    assert "flat" in METHODS.names()


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "ModuleNotFoundError: No module named 'plugin_with_a_fault'"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("from polybound.training import METHODS, Method\nclass P(Method):\n    name = 'l2'\nMETHODS.register(P)",
         "PolyboundError: there is a method called 'l2' already"),
    ],
)  # fmt: skip
def test_one_that_cannot_be_imported_is_named(refused, module, monkeypatch, text, reason):
    if text is not None:
        module("plugin_with_a_fault", text)
    monkeypatch.setenv("POLYBOUND_PLUGINS", "plugin_with_a_fault")
    message = f"the plugin plugin_with_a_fault cannot be imported ({reason})"
    for _ in range(2):
        assert refuses("", load_plugins) == message
    assert refused("data", "list") == f"polybound: error: {message}\n"


@pytest.mark.parametrize("words", [[], ["--help"], ["train", "-h"], ["--version"]])
def test_help_needs_no_plugins(cli, words):
    done = cli(*words, env={"POLYBOUND_PLUGINS": "no_such_module"})
    assert done.code in (0, 2) and "plugin" not in done.err


@pytest.mark.usefixtures("entries")
def test_the_command_line_knows_them(cli, module, monkeypatch, tmp_path):
    monkeypatch.setenv("POLYBOUND_PLUGINS", module("plugin_for_the_shell", METHOD + OTHERS))
    words = ("--dataset", "upside_down", "--method", "flat", "--weight", 0.2, "--epochs", 1, "--samples", 100)
    (made,) = cli("train", *words, "--runs", tmp_path / "runs", "--json").json["runs"]
    assert made["data"] == "upside_down" and made["method"] == "flat" and made["method.weight"] == 0.2
    scores = cli("evaluate", made["run"], "--attacks", "lighter-0.1", "--limit", 20, "--json").json["scores"]
    assert [row["attack"] for row in scores] == ["clean", "lighter-0.1"]
    spec = pb.Spec(pb.DataSpec.of("upside_down"), recipe=pb.Recipe.from_options(method="flat"))
    checkpoint = path_for(tmp_path / "runs", [spec])
    Checkpoint([spec], [0], True, [[]], epoch=1, tensors={"w": torch.zeros(1)}).write(checkpoint)
    # Without its plugin a run is unknown, not damaged: `runs clean --damaged` must leave it alone.
    monkeypatch.setattr(METHODS, "entries", {name: part for name, part in METHODS.entries.items() if name != "flat"})
    folder._known.clear()
    (summary,) = list_runs(tmp_path / "runs")
    assert summary.state == "unknown" and "method must be one of" in summary.why and "'flat'" in summary.why
    assert not clean_runs(tmp_path / "runs", ["damaged", "failed", "unfinished"]) and checkpoint.exists()


@pytest.mark.usefixtures("entries")
def test_workers_know_them(module, monkeypatch, tmp_path):
    # A worker that is sent an object of a class imports its module; the others are names to it, and need the plugin.
    found = module("plugin_with_a_method", METHOD), module("plugin_with_others", OTHERS)
    monkeypatch.setenv("POLYBOUND_PLUGINS", ",".join(found))
    load_plugins()
    data, parts = ("digits", "upside_down"), {"methods": ("flat",), "attacks": ("lighter-0.1",)}
    few = {"recipe": {"epochs": 1}, "seeds": 1, "limit": 20, "samples": 100}
    experiment = Experiment("mine", "mine", datasets=data, **parts, **few)
    sweep([experiment], tmp_path / "runs", workers=2)
    table, skipped = read_runs(tmp_path / "runs")
    assert not skipped and table.values("data") == ["digits", "upside_down"]
    assert table.values("method") == ["flat"] and table.values("attack") == ["clean", "lighter-0.1"]


def test_a_worker_says_what_it_cannot_import():
    from polybound.experiments.sweep import _attempt

    assert "the plugin no_such_module cannot be imported" in _attempt(None, None, None, "no_such_module")
