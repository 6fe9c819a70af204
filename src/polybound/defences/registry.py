"""Defences by name: "gaussian", "median:size=5", "guided"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from inspect import Parameter, signature
from typing import TypeVar

from polybound.attacks import read_setting
from polybound.defences.base import Defence, check_image_shape
from polybound.defences.denoisers import GaussianDenoiser, MedianDenoiser
from polybound.defences.guided import GuidedDenoiser
from polybound.errors import PolyboundError

__all__ = ["canonical_defence", "defence_names", "find_defence", "parse_defence", "register_defence"]

KINDS: dict[str, type[Defence]] = {}
"""The classes of defences that names can speak of."""

D = TypeVar("D", bound=Defence)

_ANY_IMAGE = (1, 28, 28)
"""The shape of some image, for what does not depend on it."""


def register_defence(made: type[D]) -> type[D]:
    """Make a class of defences known by its name; usable as a decorator.

    Raises:
        PolyboundError: its `kind` is no plain word or is taken, or a setting has no default.
    """
    kind = getattr(made, "kind", None)
    if not isinstance(kind, str) or not re.fullmatch("[a-z][a-z0-9_]*", kind):
        raise PolyboundError(f"the kind of a defence is a word of lower-case letters and digits, not {kind!r}")
    if kind in KINDS:
        raise PolyboundError(f"there is a defence called {kind!r} already: {KINDS[kind].__name__}")
    if untold := [name for name, default in made.settings().items() if default is Parameter.empty]:
        raise PolyboundError(f"defence {kind!r}: the setting {untold[0]!r} needs a default")
    KINDS[kind] = made
    return made


for _made in (GaussianDenoiser, MedianDenoiser, GuidedDenoiser):
    register_defence(_made)


def defence_names() -> list[str]:
    """The kinds of defences that there are.

    >>> defence_names()[:3]
    ['gaussian', 'median', 'guided']
    """
    return list(KINDS)


def parse_defence(name: str, shape: Sequence[int]) -> Defence:
    """The defence of a name, for images of a shape; one that needs training is not trained yet.

    >>> parse_defence("gaussian:size=5:sigma=2", (1, 28, 28)).name
    'gaussian:size=5:sigma=2'
    """
    kind, *options = str(name).strip().lower().split(":")
    if kind not in KINDS:
        raise PolyboundError(f"unknown defence {name!r}; there are {', '.join(KINDS)}")
    made: type[Defence] = KINDS[kind]
    settings, given = made.settings(), {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or key not in settings:
            raise PolyboundError(f"defence {name!r}: {kind} has no setting {key!r}; it has {', '.join(settings)}")
        try:
            given[key] = read_setting(text, type(settings[key]))
        except ValueError:
            raise PolyboundError(f"defence {name!r}: {key} cannot be {text!r}") from None
    if "shape" in signature(made).parameters:
        given["shape"] = check_image_shape(shape)
    return made(**given)


def canonical_defence(name: str) -> str:
    """The one name of a defence, without settings that are the default.

    >>> canonical_defence("gaussian:sigma=2.0:size=3")
    'gaussian:sigma=2'
    """
    return parse_defence(name, _ANY_IMAGE).name


def find_defence(defence: str | Defence, shape: Sequence[int]) -> Defence:
    """The defence of a name, ready for images of a shape; a defence itself is taken as it is.

    Raises:
        PolyboundError: there is none of that name, the inputs are no images, or it has to be trained first.
    """
    check_image_shape(shape)
    if isinstance(defence, Defence):
        return defence
    found = parse_defence(defence, shape)
    if found.needs_training:
        made = type(found).__name__
        raise PolyboundError(
            f"{found.kind} denoising is trained for a model: {made}(shape).fit(model, x, y, domain=...)"
        )
    return found
