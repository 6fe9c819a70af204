"""Laws of a spec: one canonical form, one address, and every difference has its name."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polybound as pb
from helpers import specs as drawn
from helpers.errors import refuses
from helpers.profiles import examples
from polybound.errors import PolyboundError
from polybound.evaluation import Table, labels, read_table
from polybound.runs import DataSpec, ModelSpec, Spec, address_of
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
    """Apart from the seed, which a label does not tell."""
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
        {"data": {"name": "digits"}},
        {"data": {"name": "digits", "digest": "0", "colour": 1}},
        {"model": "pn-4"},
        {"method": {"name": "magic"}},
        {"method": {"name": "l2", "bound": 1}},
        {"method": None},
        {"adversary": {"start": 3}},
        {"optimiser": {"name": "adam"}},
        {"schedule": {"name": "steps", "epochs": 0}},
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
        lambda: Spec(DIGITS, seed=10**30),
        lambda: Spec(DIGITS, seed=-(2**62)),
    ):
        refuses("", make)
    with pytest.raises(PolyboundError, match="must be finite numbers"):
        _ = Spec(DIGITS, recipe=Recipe.from_options(method="projection", bound=float("inf"))).address
