"""Names of attacks: read, written, refused; labels; attacks of one's own."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

import polybound as pb
from helpers.errors import refuses
from polybound.attacks import PAPER_ATTACKS, AutoAttack, RandomSearch, Square, names, parse_attacks, register_attack
from polybound.attacks.names import ATTACKS


def test_the_papers_names():
    expected = [pb.FGSM(0.1), pb.FGSM(0.01), pb.PGD(0.1, 20, 0.01), pb.PGD(0.3, 20, 0.03)]
    expected += [pb.APGDT(8 / 255, 1), pb.TPGD(8 / 255, 1, 2 / 255)]
    assert parse_attacks(PAPER_ATTACKS) == parse_attacks("paper") == expected
    assert [attack.name for attack in expected] == list(PAPER_ATTACKS)


def test_fractions_defaults_attacks_themselves_and_no_attack_twice():
    assert pb.parse_attack("fgsm-8/255") == pb.FGSM(8 / 255)
    assert pb.parse_attack("autoattack") == AutoAttack(8 / 255)
    assert pb.parse_attack("pgd-0.1") == pb.PGD(0.1)
    assert pb.parse_attack(pb.FGSM(0.1)) == pb.FGSM(0.1)
    assert parse_attacks("fgsm-0.1, pgd-0.2-5-0.1") == [pb.FGSM(0.1), pb.PGD(0.2, 5, 0.1)]
    assert parse_attacks([]) == []
    refuses("twice", parse_attacks, "fgsm-0.1,fgsm-0.10")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deepfool", "unknown attack 'deepfool'; there are fgsm-EPS"),
        ("fgsm-", "not of the form"),
        ("pgd-0.1-2.5-0.1", "steps cannot be '2.5'"),
        ("fgsm-1/0", "eps cannot be"),
        ("fgsm-0.1:colour=red", "has no option 'colour'; it has norm"),
        ("pgd-0.1-2-0.1:random_start=maybe", "cannot be 'maybe'"),
    ],
)
def test_bad_names(name, message):
    refuses(message, pb.parse_attack, name)


sizes = st.floats(0.0, 1e300) | st.sampled_from([0, 1, -0.0, 8 / 255, 0.1, 1e-5, 20.0, 5e-324])
counts = st.integers(1, 10**6)
norms = st.sampled_from(["inf", "2"])
attacks = st.one_of(
    st.builds(pb.FGSM, sizes, norm=norms),
    st.builds(
        pb.PGD, sizes, counts, sizes, random_start=st.booleans(), restarts=counts, early_stop=st.booleans(), norm=norms
    ),
    st.builds(pb.PGD, sizes, counts),
    st.builds(pb.TPGD, sizes, counts, sizes, norm=norms),
    st.builds(pb.APGD, sizes, counts, loss=st.sampled_from(["ce", "dlr"]), restarts=counts, norm=norms),
    st.builds(pb.APGDT, sizes, counts, restarts=counts, targets=counts, norm=norms),
    st.builds(RandomSearch, sizes, counts, norm=norms),
    st.builds(Square, sizes, counts),
    st.builds(AutoAttack, sizes, version=st.sampled_from(["standard", "plus", "rand", "apgd"]), norm=norms),
    st.builds(
        pb.attacks.Foolbox,
        sizes,
        attack=st.sampled_from(["pgd", "fgsm", "basic", "deepfool"]),
        steps=counts,
        step_size=sizes,
        norm=norms,
    ),
)


@given(attacks, attacks)
def test_a_name_is_canonical(attack, other):
    assert pb.parse_attack(attack.name) == attack
    assert pb.parse_attack(attack.name).name == attack.name
    assert parse_attacks(attack.name) == [attack]
    assert (attack == other) == (attack.name == other.name)


def test_labels_are_the_papers_where_it_has_one():
    labels = ["FGSM-0.1", "FGSM-0.01", "PGD-(0.1, 20, 0.01)", "PGD-(0.3, 20, 0.03)", "APGDT", "TPGD"]
    assert [attack.label for attack in parse_attacks("paper")] == labels
    assert pb.PGD(1e-5, 3, 1e-6, restarts=5).label == "PGD-(1e-05, 3, 1e-06), restarts=5"
    assert pb.FGSM(0.5, norm="2").label == "FGSM-0.5, norm=2"
    # What is not the paper's attack is not called by its name alone.
    assert (
        pb.parse_attack("apgdt-20").label == "apgdt-20" and pb.parse_attack("tpgd-1:eps=0.3").label == "tpgd-1:eps=0.3"
    )
    assert Square(0.1).label == Square(0.1).name


def test_which_attacks_count_only_what_was_right_before():
    skipping = {kind for kind, made in names.ATTACKS.entries.items() if made.skips_misclassified}
    assert skipping == {"apgd", "apgdt"}


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"kind": "pgd"}, "there is an attack called 'pgd' already"),
        ({"kind": "two-words"}, "a word of lower-case letters"),
        ({"kind": "Loud"}, "a word of lower-case letters"),
        ({}, "a word of lower-case letters"),
        ({"kind": "own", "numbers": ("eps", "steps")}, "no setting 'steps'"),
    ],
)
def test_attacks_that_are_not_registered(variables, message):
    made = dataclass(frozen=True)(type("Own", (pb.Attack,), variables))
    refuses(message, register_attack, made)
    assert "own" not in ATTACKS.names()


@pytest.mark.usefixtures("registries")
def test_a_setting_that_a_name_could_not_tell():
    @dataclass(frozen=True)
    class Own(pb.Attack):
        kind = "own"
        tries: int = field(kw_only=True)

        def perturb(self, model, ball, labels, random):
            return ball.x

    refuses("'tries' needs a default", register_attack, Own)
    Own.numbers = ("eps", "tries")
    assert pb.parse_attack(register_attack(Own)(0.1, tries=3).name) == Own(0.1, tries=3)
