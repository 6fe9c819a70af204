"""Names of attacks: read, written, refused."""

import pytest

from polybound.attacks import APGDT, FGSM, PAPER_ATTACKS, PGD, TPGD, AutoAttack, parse_attack, parse_attacks
from polybound.errors import PolyboundError


def test_the_papers_names():
    expected = [
        FGSM(0.1),
        FGSM(0.01),
        PGD(0.1, 20, 0.01),
        PGD(0.3, 20, 0.03),
        APGDT(8 / 255, 1),
        TPGD(8 / 255, 1, 2 / 255),
    ]
    assert parse_attacks(PAPER_ATTACKS) == parse_attacks("paper") == expected
    assert [attack.name for attack in expected] == list(PAPER_ATTACKS)


@pytest.mark.parametrize(
    "name",
    [
        "fgsm-0.1:norm=2",
        "pgd-0.1-20-0.01:random_start=false:restarts=5",
        "pgd-1e-05-3-1e-06",
        "apgd-0.1-50:loss=dlr",
        "apgdt-20:eps=0.1:targets=3",
        "square-0.1-200",
        "random-0.3-20:norm=2",
        "autoattack-0.1:version=apgd",
        "foolbox-0.1:attack=deepfool",
    ],
)
def test_names_are_read_back(name):
    assert parse_attack(name).name == name
    assert parse_attack(parse_attack(name).name) == parse_attack(name)


def test_fractions_defaults_and_attacks_themselves():
    assert parse_attack("fgsm-8/255") == FGSM(8 / 255)
    assert parse_attack("autoattack") == AutoAttack(8 / 255)
    assert parse_attack("pgd-0.1") == PGD(0.1)
    assert parse_attack(FGSM(0.1)) == FGSM(0.1)
    assert parse_attacks("fgsm-0.1, pgd-0.2-5-0.1") == [FGSM(0.1), PGD(0.2, 5, 0.1)]
    assert parse_attacks([]) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deepfool", "unknown attack 'deepfool'; there are fgsm-EPS"),
        ("", "unknown attack"),
        ("fgsm", "not of the form fgsm-EPS"),
        ("fgsm-", "not of the form"),
        ("fgsm-a", "not of the form"),
        ("fgsm--0.1", "not of the form"),
        ("fgsm-0.1-2", "not of the form"),
        ("pgd-0.1-2.5-0.1", "steps cannot be '2.5'"),
        ("fgsm-1/0", "eps cannot be"),
        ("fgsm-0.1:colour=red", "has no option 'colour'; it has norm"),
        ("fgsm-0.1:norm", "has no option"),
        ("fgsm-0.1:norm=3", "norm must be"),
        ("pgd-0.1-0-0.1", "steps must be"),
        ("pgd-0.1-2-0.1:random_start=maybe", "cannot be 'maybe'"),
    ],
)
def test_bad_names(name, message):
    with pytest.raises(PolyboundError, match=message):
        parse_attack(name)


def test_no_attack_twice():
    with pytest.raises(PolyboundError, match="twice"):
        parse_attacks("fgsm-0.1,fgsm-0.10")
