"""Evaluation of run folders: which network, on which images, behind which denoiser."""

import pytest

import polybound as pb
from polybound.defences import Defence, GuidedDenoiser, register_defence
from polybound.runs import DataSpec, ModelSpec, Run, Spec, evaluate_run, evaluate_runs, train_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of a small network."""
    recipe = pb.Recipe.from_options(epochs=10, optimiser="adamw", learning_rate=0.01)
    specs = [Spec(DataSpec.of("digits", samples=256), ModelSpec("pn-4", 8), recipe, seed) for seed in (0, 1)]
    return [run.path for run in train_runs(specs, tmp_path_factory.mktemp("runs"))]


@pytest.fixture
def steps(registries):
    """A denoiser without a gradient: a network behind it masks its gradients, however it does without it."""

    @register_defence
    class Steps(Defence):
        kind = "steps"

        def forward(self, images):
            return (4 * images).round() / 4

    return "steps"


def test_gradient_masking_is_looked_for_behind_the_denoiser(runs, steps):
    asked = {"limit": 32, "check": 32}
    bare = evaluate_run(runs[0], ["pgd-0.3-5-0.1"], **asked)
    defended = evaluate_run(runs[0], ["pgd-0.3-5-0.1"], defence=steps, **asked)
    assert any("no sign of gradient masking" in note for note in bare.notes)
    assert any("gradient masking?" in note for note in defended.notes)
    assert not any("no sign" in note for note in defended.notes)
    assert [row["defence"] for row in defended.scores] == ["steps"] * 3


def test_a_denoiser_that_is_trained_is_trained_once_for_scores_notes_and_examples(runs, monkeypatch):
    fitted = []
    monkeypatch.setattr(GuidedDenoiser, "fit", lambda self, model, *data, **about: fitted.append(model) or self.eval())
    asked = {"limit": 16, "check": 16, "keep": 8, "defence": "guided:width=2"}
    result = evaluate_runs(runs, ["fgsm-0.1"], **asked)
    assert len(fitted) == 2
    assert result.examples.names == tuple(path.name for path in runs)
    assert result.examples.adversarial["fgsm-0.1", "sound"].shape == (2, 8, 1, 8, 8)


def test_the_options_of_a_trained_denoiser_are_its_identity(runs):
    names = ["guided:width=2:epochs=1", "guided:epochs=1:width=2", "guided:width=2:epochs=1:seed=1"]
    found = [evaluate_run(runs[0], [], limit=16, defence=name).scores.rows[0]["defence"] for name in names]
    assert found == ["guided:width=2:epochs=1"] * 2 + ["guided:width=2:seed=1:epochs=1"]
    kept = [row["defence"] for row in Run(runs[0]).table()]
    assert [kept.count(name) for name in dict.fromkeys(found)] == [1, 1]


def test_a_run_is_measured_on_its_own_data(runs, refused, cli):
    error = refused("evaluate", runs[0], "--dataset", "fashion-mnist", "--attacks", "", "--limit", 4)
    assert error.count("\n") == 1 and "is a run on digits" in error and "model.safetensors" in error
    assert cli("evaluate", runs[0], "--dataset", "digits", "--attacks", "", "--limit", 4).code == 0
    model = runs[0] / "model.safetensors"
    assert cli("evaluate", model, "--dataset", "digits", "--attacks", "", "--limit", 4).code == 0
    assert "--json and --csv" in refused("evaluate", runs[0], "--attacks", "", "--limit", 4, "--json", "--csv")
