"""Wilson's interval: how well a share of so many samples is known."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

from polybound.errors import PolyboundError

__all__ = ["wilson"]


def wilson(correct: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of the shares p that `correct` of `total` does not reject, by the score test::

        |correct / total - p| <= z sqrt(p (1 - p) / total)

    Unlike the usual one it stays within [0, 1] and keeps its confidence near the ends, where robust accuracies live.

    >>> [round(end, 4) for end in wilson(5, 10)]
    [0.2366, 0.7634]
    >>> wilson(0, 100)[0]
    0.0
    """
    if total < 1 or not 0 <= correct <= total:
        raise PolyboundError(f"no share can be made of {correct} of {total}")
    if not 0 < confidence < 1:
        raise PolyboundError(f"confidence must lie between 0 and 1, got {confidence!r}")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = correct / total
    scale = 1 + z * z / total
    centre = (share + z * z / (2 * total)) / scale
    reach = z / scale * sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    # The ends are exact where the formula gives them up to rounding.
    low = 0.0 if correct == 0 else max(0.0, centre - reach)
    high = 1.0 if correct == total else min(1.0, centre + reach)
    return low, high
