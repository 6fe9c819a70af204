"""Laws of a spec: one canonical form, one address, and every difference has its name."""

import copy
import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers import specs as drawn
from helpers.errors import refuses
from helpers.profiles import examples
from polybound.data import Dataset, load
from polybound.defences import Defence, GuidedDenoiser, find_defence, register_defence
from polybound.errors import PolyboundError
from polybound.evaluation import Table, labels, read_table
from polybound.runs import DataSpec, ModelSpec, Run, Spec, address_of, evaluate_run, evaluate_runs, train_runs
from polybound.training import Adversary, Recipe

DIGITS = DataSpec("digits", "00ff")
SCORE = {
    **{"weights": "w", "dataset": "d", "digest": "d", "split": "test", "held_out": 0.0, "attack": "clean"},
    **{"protocol": "-", "attack_seed": 0, "defence": "", "counted": "-", "total": 2, "available": 2, "correct": 1},
    **{"per_class": ""},
}


def test_every_option_of_every_part_is_drawn():
    for kind, registry in drawn.REGISTRIES.items():
        assert set(registry.names()) >= set(drawn.OPTIONS[kind])
        for name, options in drawn.OPTIONS[kind].items():
            assert set(registry.find(name).options()) == set(options)
    assert set(Adversary("fgsm-0.1").as_dict()) == set(drawn.PARTS["adversary"])
    assert set(Spec(DIGITS).as_dict()["data"]) == set(drawn.PARTS["data"])
    assert set(Spec(DIGITS).as_dict()["model"]) == set(drawn.PARTS["model"])
    parts = {"data", "model", "method", "adversary", "optimiser", "schedule", "seed"}
    assert set(Spec(DIGITS).as_dict()) == parts  # which has the address of the first runs: no loss is named in it
    changed = Recipe.from_options(label_smoothing=0.1, augment="flip", clip=1, precision="bfloat16")
    assert set(Spec(DIGITS, recipe=changed).as_dict()) == {*parts, "loss", *drawn.EXTRAS}


@given(drawn.specs)
def test_what_was_written_is_read_back(spec):
    again = Spec.from_dict(json.loads(json.dumps(spec.as_dict())))
    assert again == spec and again.address == spec.address and again.as_dict() == spec.as_dict()
    assert hash(again) == hash(spec) and again.recipe.phases() == spec.recipe.phases()
    assert not spec.difference(again) and again.label == spec.label and again.folder_name == spec.folder_name
    assert spec.folder_name.endswith(f"-{spec.address}") and "/" not in spec.folder_name
    backwards = dict(reversed(spec.as_dict().items()))
    assert address_of(backwards) == spec.address and Spec.from_dict(backwards) == spec


@pytest.mark.parametrize("field", drawn.FIELDS, ids=" ".join)
@settings(max_examples=examples(30))
@given(st.data())
def test_two_specs_that_differ_in_one_field(field, data):
    one, other = data.draw(drawn.pairs_in(field))
    column = drawn.column_of(field)
    rows = [{**spec.columns(), **SCORE} for spec in (one, other)]
    assert read_table(Table(rows).to_csv()).rows == rows
    if one == other:
        assert one.address == other.address and one.folder_name == other.folder_name and not one.difference(other)
        return
    assert one.address != other.address and one.folder_name != other.folder_name
    found = one.difference(other)
    if column == "adversary" and None in (one.recipe.adversary, other.recipe.adversary):
        assert set(found) == {"adversary", "adversary.protocol", "adversary.start"}
    elif column.startswith("loss."):
        assert set(found) <= {"loss", column} and column in found  # the paper's loss is not named
    elif column == "schedule.epochs":
        starts = {"method.start", "adversary.start"}  # which may be shares of the epochs
        assert set(found) - starts == {column}
    else:
        # A rank that is not given is the model's own.
        assert set(found) - {"model.rank"} == {column} - {"model.rank"} and column in found
    assert found[column] == (one.columns().get(column), other.columns().get(column))
    assert {name: values[::-1] for name, values in found.items()} == other.difference(one)
    first, second = labels([one.columns(), other.columns()])
    assert (first != second) == (column != "seed")
    first, second = labels([one.columns(), other.columns()], free=())
    assert first != second


@given(st.lists(drawn.specs, min_size=2, max_size=6))
def test_different_specs_have_different_labels(specs):
    rows = [spec.columns() for spec in specs]
    names = labels(rows)
    for i, one in enumerate(specs):
        for j, other in enumerate(specs):
            assert (names[i] == names[j]) == (set(one.difference(other)) <= {"seed"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"method": "l2", "weight": 1}, {"method": "l2", "weight": 1.0}),
        ({"method": "jacobian", "weight": 0}, {"method": "jacobian", "weight": -0.0}),
        ({"method": "projection", "bound": 2}, {"method": "projection", "bound": 2.0}),
        ({"method": "projection", "bound": {"C": 1, "V": 2}}, {"method": "projection", "bound": {"V": 2.0, "C": 1.0}}),
        ({"method": "certified", "eps": 1}, {"method": "certified", "eps": 1.0}),
        ({"learning_rate": 1}, {"learning_rate": 1.0}),
        ({"factor": 1}, {"factor": 1.0}),
        ({"milestones": [1, 2]}, {"milestones": (1, 2)}),
        ({"method": "projection", "epochs": 7}, {"method": "projection", "start": 3, "epochs": 7}),
        ({"method": "certified", "start": 0.29}, {"method": "certified", "start": 29}),
        ({"label_smoothing": 0}, {"loss": "cross-entropy"}),
        ({"schedule": "cosine", "epochs": 7}, {"schedule": {"name": "cosine", "epochs": 7}}),
        ({"adversary": "pgd-0.1-20-0.01"}, {"adversary": pb.PGD(0.1, 20, 0.01)}),
        ({"adversary": "fgsm-0.10"}, {"adversary": {"attack": "FGSM-0.1", "protocol": "sound", "start": 50}}),
    ],
    ids=str,
)
def test_equal_specs_have_equal_addresses(one, other):
    first, second = (Spec(DIGITS, recipe=Recipe.from_options(**options)) for options in (one, other))
    assert first == second and first.address == second.address and first.columns() == second.columns()
    assert first.folder_name == second.folder_name and first.label == second.label and hash(first) == hash(second)
    assert json.dumps(first.as_dict(), sort_keys=True) == json.dumps(second.as_dict(), sort_keys=True)


def test_the_data_and_the_model_have_one_form_too():
    assert Spec(DataSpec("d", "0", held_out=0)).address == Spec(DataSpec("d", "0", held_out=0.0)).address
    assert Spec(DIGITS, ModelSpec("pn-10")).address == Spec(DIGITS, ModelSpec("pn-10", 64)).address


@pytest.mark.parametrize(
    "change",
    [
        {"data": None},
        {"data": {"name": "digits", "digest": "0", "colour": 1}},
        {"model": "pn-4"},
        {"method": {"name": "magic"}},
        {"method": {"name": "l2", "bound": 1}},
        {"adversary": {"start": 3}},
        {"optimiser": {"name": "adam"}},
        {"seed": "1"},
        {"seed": True},
    ],
    ids=str,
)
def test_what_is_no_spec(change):
    content = Spec(DIGITS).as_dict()
    assert Spec.from_dict(content) == Spec(DIGITS)
    refuses("", Spec.from_dict, {**content, **change})
    for name in change:
        refuses("not a run's spec", Spec.from_dict, {key: value for key, value in content.items() if key != name})


def test_what_no_run_can_have():
    for make in (
        lambda: DataSpec("digits", "0", samples=-1),
        lambda: DataSpec("digits", "0", held_out=1.0),
        lambda: DataSpec("digits", "0", held_out=True),
        lambda: ModelSpec("pn-4", -1),
        lambda: Spec(DIGITS, seed=1.0),
        lambda: Spec(DIGITS, seed=2**63),  # which has the random numbers of 0
        lambda: Spec(DIGITS, seed=-(2**62)),
    ):
        refuses("", make)
    with pytest.raises(PolyboundError, match="must be finite numbers"):
        _ = Spec(DIGITS, recipe=Recipe.from_options(method="projection", bound=float("inf"))).address


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
