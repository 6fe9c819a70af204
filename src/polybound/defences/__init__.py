"""Defences: denoisers in front of any classifier.

`Defence` is the base to extend; `register_defence` makes a class known by its name.
"""

from polybound.defences.base import Defence, Defended
from polybound.defences.denoisers import (
    GaussianDenoiser,
    GuidedDenoiser,
    MedianDenoiser,
    canonical_defence,
    defence_names,
    find_defence,
    parse_defence,
    register_defence,
)

__all__ = [
    "Defence",
    "Defended",
    "GaussianDenoiser",
    "GuidedDenoiser",
    "MedianDenoiser",
    "canonical_defence",
    "defence_names",
    "find_defence",
    "parse_defence",
    "register_defence",
]
