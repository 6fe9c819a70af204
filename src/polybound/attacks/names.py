"""Attacks by name: "fgsm-0.1", "pgd-0.1-20-0.01", "apgdt-1", "pgd-0.5-40-0.05:norm=2:restarts=3"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from polybound.attacks.base import Attack
from polybound.attacks.blackbox import RandomSearch, Square
from polybound.attacks.gradient import APGD, APGDT, FGSM, PGD, TPGD
from polybound.attacks.libraries import AutoAttack, Foolbox
from polybound.errors import PolyboundError
from polybound.registry import read_setting

__all__ = ["PAPER_ATTACKS", "attack_names", "parse_attack", "parse_attacks", "register_attack"]


KINDS: dict[str, type[Attack]] = {}
"""The classes of attacks that names can speak of."""

PAPER_ATTACKS = ("fgsm-0.1", "fgsm-0.01", "pgd-0.1-20-0.01", "pgd-0.3-20-0.03", "apgdt-1", "tpgd-1")
"""The six attacks of the paper's tables."""

A = TypeVar("A", bound=Attack)

_NUMBER = r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?(?:/\d+)?"


def register_attack(made: type[A]) -> type[A]:
    """Make a class of attacks known by its name, to `parse_attack` and so to the command line; usable as a decorator.

    Raises:
        PolyboundError: its `kind` is no plain word or is taken, or a name could not tell all its settings.
    """
    kind = getattr(made, "kind", None)
    if not isinstance(kind, str) or not re.fullmatch("[a-z][a-z0-9_]*", kind):
        raise PolyboundError(f"the kind of an attack is a word of lower-case letters and digits, not {kind!r}")
    if kind in KINDS:
        raise PolyboundError(f"there is an attack called {kind!r} already: {KINDS[kind].__name__}")
    settings = {field.name: field.default for field in fields(made)}
    if unknown := [name for name in made.numbers if name not in settings]:
        raise PolyboundError(f"attack {kind!r} has no setting {unknown[0]!r} to give as a number")
    if untold := [name for name, value in settings.items() if value is MISSING and name not in made.numbers]:
        raise PolyboundError(f"attack {kind!r}: the setting {untold[0]!r} needs a default, or a place in `numbers`")
    KINDS[kind] = made
    return made


for _made in (FGSM, PGD, TPGD, APGD, APGDT, RandomSearch, Square, AutoAttack, Foolbox):
    register_attack(_made)


def attack_names() -> list[str]:
    """The form of each attack's name.

    >>> attack_names()[:2]
    ['fgsm-EPS', 'pgd-EPS-STEPS-STEP_SIZE']
    """
    return ["-".join([kind, *(number.upper() for number in made.numbers)]) for kind, made in KINDS.items()]


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


def parse_attack(name: str | Attack) -> Attack:
    """The attack of a name: its kind, its numbers, then any other option as `:OPTION=VALUE`.

    >>> parse_attack("pgd-0.1-20-0.01")
    PGD(eps=0.1, norm='inf', steps=20, step_size=0.01, random_start=True, restarts=1, early_stop=False)
    >>> parse_attack("fgsm-8/255:norm=2").norm
    '2'
    """
    if isinstance(name, Attack):
        return name
    head, *options = str(name).strip().lower().split(":")
    kind, _, rest = head.partition("-")
    if kind not in KINDS:
        raise PolyboundError(f"unknown attack {name!r}; there are {', '.join(attack_names())}")
    made = KINDS[kind]
    form = "-".join([kind, *(number.upper() for number in made.numbers)])
    values = re.findall(_NUMBER, rest)
    if "-".join(values) != rest or len(values) > len(made.numbers):
        raise PolyboundError(f"attack {name!r} is not of the form {form}")
    given: dict[str, str] = dict(zip(made.numbers, values, strict=False))
    if not given and made is FGSM:
        raise PolyboundError(f"attack {name!r} is not of the form {form}")
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or key not in {field.name for field in fields(made)}:
            known = ", ".join(field.name for field in fields(made) if field.name not in made.numbers)
            raise PolyboundError(f"attack {name!r}: {kind} has no option {key!r}; it has {known}")
        given[key] = value
    return made(**{key: _value(made, key, value, str(name)) for key, value in given.items()})


def _value(made: type[Attack], key: str, text: str, name: str) -> Any:
    """An option's text as the type of its default."""
    default = next(field.default for field in fields(made) if field.name == key)
    try:
        return read_setting(text, float if default is None or default is MISSING else type(default))
    except ValueError:
        raise PolyboundError(f"attack {name!r}: {key} cannot be {text!r}") from None
