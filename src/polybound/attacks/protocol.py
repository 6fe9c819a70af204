"""What an attack clips its images to and which gradients it follows: the honest choice, and the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from polybound.errors import PolyboundError

__all__ = ["PROTOCOLS", "PUBLISHED_NOTE", "Protocol", "check_domain", "check_protocol", "clip_range", "protocols"]

Protocol = Literal["sound", "published"]

PROTOCOLS: tuple[Protocol, ...] = ("sound", "published")

PUBLISHED_NOTE = (
    "protocol published: images are clipped to [0, 1] whatever their domain is, as in the paper's experiments; in data "
    "from -1 to 1 that moves every pixel below 0 by up to 1, beyond eps; and gradients are used as rounding leaves "
    "them, which for a network that is sure of itself is next to nothing"
)
"""The line that goes with every number of the published protocol."""


def protocols(choice: str) -> tuple[Protocol, ...]:
    """The protocols that "sound", "published" or "both" stand for.

    >>> protocols("both")
    ('sound', 'published')
    """
    if choice == "both":
        return PROTOCOLS
    if choice not in PROTOCOLS:
        raise PolyboundError(f"protocol must be sound, published or both, got {choice!r}")
    return (choice,)


def check_protocol(name: str) -> Protocol:
    """The protocol of that name."""
    if name not in PROTOCOLS:
        raise PolyboundError(f"protocol must be sound or published, got {name!r}")
    return name


def clip_range(protocol: str, domain: Sequence[float]) -> tuple[float, float]:
    """What images are clipped to: the domain of the data, or [0, 1] under the published protocol.

    >>> clip_range("sound", (-1, 1)), clip_range("published", (-1, 1))
    ((-1.0, 1.0), (0.0, 1.0))
    """
    domain = check_domain(domain)
    return (0.0, 1.0) if check_protocol(protocol) == "published" else domain


def check_domain(domain: Sequence[float]) -> tuple[float, float]:
    """The domain as two numbers, the smaller first."""
    try:
        lower, upper = (float(value) for value in domain)
    except (TypeError, ValueError):
        raise PolyboundError(f"a domain is the smallest and the largest value of an input, got {domain!r}") from None
    if not lower < upper:
        raise PolyboundError(f"a domain is the smallest and the largest value of an input, got {domain!r}")
    return lower, upper
