"""Attacks by name: "fgsm-0.1", "pgd-0.1-20-0.01", "apgdt-1", "pgd-0.5-40-0.05:norm=2:restarts=3"."""

from __future__ import annotations

from collections.abc import Iterable

from polybound.attacks.base import Attack
from polybound.attacks.blackbox import RandomSearch, Square
from polybound.attacks.gradient import APGD, APGDT, FGSM, PGD, TPGD
from polybound.attacks.libraries import AutoAttack, Foolbox
from polybound.errors import PolyboundError
from polybound.registry import Kinds

ATTACKS: Kinds[Attack] = Kinds("attack")
"""The classes of attacks by the first word of their names."""

register_attack = ATTACKS.register

for _made in (FGSM, PGD, TPGD, APGD, APGDT, RandomSearch, Square, AutoAttack, Foolbox):
    register_attack(_made)

PAPER_ATTACKS = ("fgsm-0.1", "fgsm-0.01", "pgd-0.1-20-0.01", "pgd-0.3-20-0.03", "apgdt-1", "tpgd-1")
"""The six attacks of the paper's tables."""


def parse_attack(name: str | Attack) -> Attack:
    """The attack of a name: its kind, its numbers, then any other setting as `:SETTING=VALUE`.

    >>> parse_attack("pgd-0.1-20-0.01")
    PGD(eps=0.1, norm='inf', steps=20, step_size=0.01, random_start=True, restarts=1, early_stop=False)
    >>> parse_attack("fgsm-8/255:norm=2").norm
    '2'
    """
    if isinstance(name, Attack):
        return name
    made, settings = ATTACKS.parse(name)
    if made is FGSM and "eps" not in settings:
        raise PolyboundError(f"attack {name!r} is not of the form {made.form()}")
    return made(**settings)


def parse_attacks(names: str | Attack | Iterable[str | Attack]) -> list[Attack]:
    """Several attacks, given as a list or as one comma-separated text; "paper" stands for the paper's six.

    >>> [attack.name for attack in parse_attacks("fgsm-0.1, tpgd-1")]
    ['fgsm-0.1', 'tpgd-1']
    """
    if isinstance(names, str):
        names = [name for name in names.replace(" ", "").split(",") if name]
    elif isinstance(names, Attack):
        names = [names]
    found: list[Attack] = []
    for name in names:
        found += [parse_attack(one) for one in PAPER_ATTACKS] if name == "paper" else [parse_attack(name)]
    if len({attack.name for attack in found}) < len(found):
        raise PolyboundError("an attack is given twice")
    return found
