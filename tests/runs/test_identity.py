"""An address determines the weights, whatever data are handed over; a score says which network, images and denoiser it is of."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from helpers.profiles import examples
from polybound.data import Dataset, load
from polybound.defences import Defence, GuidedDenoiser, find_defence, register_defence
from polybound.errors import PolyboundError
from polybound.runs import DataSpec, ModelSpec, Run, Spec, evaluate_run, evaluate_runs, train_runs

RECIPE = pb.Recipe.from_options(method="projection", bound=0.5, start=0, epochs=1, learning_rate=0.1, batch_size=64)
SMALL = ModelSpec("pn-4", rank=2)


def spec_of(samples=0, held_out=0.0, recipe=RECIPE, seed=0):
    return Spec(DataSpec.of("digits", samples=samples, held_out=held_out), SMALL, recipe, seed)


def digits(split="train", share=0.0, seed=0, *subsets):
    data = load("digits", split, validation=share, seed=seed)
    for size in subsets:
        data = data.subset(size)
    return data


WHOLE = "train of 18c6a77d8ac37462"


@pytest.mark.parametrize(
    ("asked", "handed", "these", "wanted"),
    [
        ((0, 0.2), {"data": ("train", 0.2, 5)}, f"{WHOLE}, 0.2 held out by seed 5", f"{WHOLE}, 0.2 held out by seed 0"),
        ((0, 0.2), {"validation": ("validation", 0.2, 5)}, "validation of", "validation of"),
        ((0, 0.0), {"data": ("train", 0.0, 0, 100)}, f"{WHOLE}, a subset of 100", WHOLE),
        ((50, 0.0), {"data": ("train", 0.0, 0, 100)}, f"{WHOLE}, a subset of 100", WHOLE),
        ((50, 0.0), {"data": ("train", 0.0, 0, 100, 50)}, f"{WHOLE}, a subset of 100", WHOLE),
        ((0, 0.0), {"validation": ("test",)}, "test of", "validation of"),
        ((0, 0.2), {"validation": ("validation", 0.1)}, "validation of", "validation of"),
        ((0, 0.2), {"validation": ("validation", 0.2, 0, 9)}, "validation of", "validation of"),
    ],
)
def test_other_data_are_refused_before_anything_is_trained_or_written(tmp_path, asked, handed, these, wanted):
    """Carved by another seed, a subset where all are meant, or another split in the place of the validation split."""
    with pytest.raises(PolyboundError, match="digits is not the data of this run: these are") as caught:
        train_runs([spec_of(*asked)], tmp_path, **{name: digits(*which) for name, which in handed.items()})
    assert not list(tmp_path.iterdir()) and "\n" not in str(caught.value)
    assert f"these are {these}" in str(caught.value) and f"and it has {wanted}" in str(caught.value)


def test_arrays_of_ones_own_are_content_of_their_own(tmp_path):
    train = load("digits").subset(64)
    mine = Dataset("mine", "train", train.x, train.y, train.class_names)
    refuses("digits is not the data of this run", train_runs, [spec_of(samples=64)], tmp_path, data=mine)
    spec = Spec(DataSpec("mine", mine.digest), SMALL, RECIPE)
    (run,) = train_runs([spec], tmp_path / "mine", data=mine)
    (same,) = train_runs([spec_of(samples=64)], tmp_path / "same", data=train)
    assert run.finished() and run.digest() == same.digest()
    refuses("mine is not the data of this run", train_runs, [spec], tmp_path / "other", data=mine.subset(10))
    mine.x.numpy()[0] = 0.0
    refuses("mine is not the data of this run", train_runs, [spec], tmp_path / "other", data=mine)


loaded = cache(digits)


@st.composite
def handed_over(draw):
    """Training data, as a user may come to have them."""
    share = draw(st.sampled_from([0.0, 0.0, 0.25, 0.5]))
    data = loaded(draw(st.sampled_from(["train", "train", "train", "test"])), share, draw(st.sampled_from([0, 0, 5])))
    for size in draw(st.lists(st.sampled_from([64, 70, 1437, 2000]), max_size=2)):
        data = data.subset(size)
    change = draw(st.sampled_from(["none", "none", "none", "name", "split", "rows", "order", "written", "copied"]))
    if change == "name":
        return replace(data, name="mine", note="mine")
    if change == "split":
        return replace(data, split="train")
    if change == "rows":
        return replace(data, x=data.x[:64], y=data.y[:64])
    if change == "order":
        return replace(data, x=data.x.flip(0), y=data.y.flip(0))
    if change == "written":
        data = copy.deepcopy(data)
        data.x.numpy()[3] *= -1
    if change == "copied":
        return Dataset(data.name, data.split, data.x.clone(), data.y.clone(), data.class_names, data.domain)
    return data


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What is trained for an address by itself, from data that are loaded by its name; each once."""
    root = tmp_path_factory.mktemp("alone")
    return lambda spec: train_runs([spec], root)[0].digest()


@settings(max_examples=examples(50))
@given(st.data())
def test_an_address_determines_the_weights_whatever_data_are_handed_over(tmp_path_factory, alone, data):
    draw, root = data.draw, tmp_path_factory.mktemp("runs")
    share = draw(st.sampled_from([0.0, 0.0, 0.25, 0.5]))
    about = DataSpec.of("digits", samples=draw(st.sampled_from([64, 64, 70])), held_out=share)
    pairs = st.tuples(st.integers(0, 1), st.sampled_from([0.3, 2.0]))
    chosen = draw(st.lists(pairs, min_size=1, max_size=3, unique=True))
    specs = [Spec(about, SMALL, RECIPE.replace({"bound": bound}), seed) for seed, bound in chosen]
    try:
        runs = train_runs(specs, root, data=draw(handed_over()))
    except PolyboundError as error:
        event(str(error)[:30])
        runs = []
    assert [run.digest() for run in runs] == [alone(spec) for spec in specs[: len(runs)]]
    assert runs or not list(root.iterdir())


@cache
def denoiser(kind, seed, images):
    """A defence, trained on some of the images if it has to be."""
    data, model = load("digits"), pb.paper_model("pn-4", shape=(1, 8, 8), seed=0)
    if kind != "guided":
        return find_defence(kind, data.shape)
    part = slice(images, images + 32)
    made = GuidedDenoiser(data.shape, width=2, seed=seed, epochs=1, batch_size=16)
    return made.fit(model, data.x[part], data.y[part], domain=data.domain)


DENOISERS = st.builds(
    denoiser,
    st.sampled_from(["guided", "guided", "gaussian", "gaussian:size=5", "gaussian:size=5:sigma=1", "median"]),
    st.integers(0, 1),
    st.sampled_from([0, 32]),
)


@given(st.lists(DENOISERS, min_size=2, max_size=5))
def test_the_name_of_a_defence_in_a_score_determines_what_it_does(defences):
    test, model = load("digits", "test"), pb.paper_model("pn-4", shape=(1, 8, 8), seed=0)
    known = {}
    for defence in defences:
        (score,) = pb.evaluate(model, test, [], limit=8, defence=defence).counted("robust")
        seen = defence(test.x[:8]).detach()
        assert torch.equal(known.setdefault(score["defence"], seen), seen)


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
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


def test_gradient_masking_is_looked_for_behind_the_denoiser(two_runs, steps):
    asked = {"limit": 32, "check": 32}
    bare = evaluate_run(two_runs[0], ["pgd-0.3-5-0.1"], **asked)
    defended = evaluate_run(two_runs[0], ["pgd-0.3-5-0.1"], defence=steps, **asked)
    assert any("no sign of gradient masking" in note for note in bare.notes)
    assert any("gradient masking?" in note for note in defended.notes)
    assert not any("no sign" in note for note in defended.notes)
    assert [row["defence"] for row in defended.scores] == ["steps"] * 3


def test_a_denoiser_that_is_trained_is_trained_once_for_scores_notes_and_examples(two_runs, monkeypatch):
    fitted = []
    monkeypatch.setattr(GuidedDenoiser, "fit", lambda self, model, *data, **about: fitted.append(model) or self.eval())
    asked = {"limit": 16, "check": 16, "keep": 8, "defence": "guided:width=2"}
    result = evaluate_runs(two_runs, ["fgsm-0.1"], **asked)
    assert len(fitted) == 2
    assert result.examples.names == tuple(path.name for path in two_runs)
    assert result.examples.adversarial["fgsm-0.1", "sound"].shape == (2, 8, 1, 8, 8)


def test_the_options_of_a_trained_denoiser_are_its_identity(two_runs):
    names = ["guided:width=2:epochs=1", "guided:epochs=1:width=2", "guided:width=2:epochs=1:seed=1"]
    found = [evaluate_run(two_runs[0], [], limit=16, defence=name).scores.rows[0]["defence"] for name in names]
    assert found == ["guided:width=2:epochs=1"] * 2 + ["guided:width=2:seed=1:epochs=1"]
    kept = [row["defence"] for row in Run(two_runs[0]).table()]
    assert [kept.count(name) for name in dict.fromkeys(found)] == [1, 1]


def test_a_run_is_measured_on_its_own_data(two_runs, refused, cli):
    error = refused("evaluate", two_runs[0], "--dataset", "fashion-mnist", "--attacks", "", "--limit", 4)
    assert error.count("\n") == 1 and "is a run on digits" in error and "model.safetensors" in error
    assert cli("evaluate", two_runs[0], "--dataset", "digits", "--attacks", "", "--limit", 4).code == 0
    model = two_runs[0] / "model.safetensors"
    assert cli("evaluate", model, "--dataset", "digits", "--attacks", "", "--limit", 4).code == 0
    assert "--json and --csv" in refused("evaluate", two_runs[0], "--attacks", "", "--limit", 4, "--json", "--csv")
