"""Checks of the attacks' settings."""

from __future__ import annotations

import math

from polybound.errors import PolyboundError

__all__ = ["check_choice", "check_flag", "check_positive", "check_whole"]


def check_whole(name: str, value: object, least: int = 1) -> None:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PolyboundError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_positive(name: str, value: object) -> None:
    """A finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise PolyboundError(f"{name} must be a finite number of at least 0, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise PolyboundError(f"{name} must be True or False, got {value!r}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in choices:
        raise PolyboundError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
