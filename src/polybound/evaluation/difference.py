"""How much more accurate one network is than another, with an interval."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot
from statistics import fmean, stdev

from polybound.evaluation.score import wilson
from polybound.evaluation.table import Table


@dataclass(frozen=True)
class Difference:
    """The difference of two accuracies on the same images, in points.

    Attributes:
        points: the mean over the seeds that both have, the first accuracy less the second.
        low: lower end of the 95 % interval.
        high: upper end.
        seeds: the seeds that both have.
        total: images that each accuracy was measured on.
        available: images of the split.
    """

    points: float
    low: float
    high: float
    seeds: tuple[int, ...]
    total: int
    available: int

    def __str__(self) -> str:
        return f"{self.points:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


def difference(first: Table, second: Table) -> Difference | None:
    """The difference of two accuracies; None if they share no seed, or were measured on different images.

    With several seeds, the interval is Student's for differences that are paired by seed. One seed, or differences
    that are all equal, say nothing about another training. Then it is Newcombe's interval, made of the Wilson intervals
    of both accuracies as if their images were independent; it is wide.

    Args:
        first: scores that differ in the seed alone.
        second: the same of the other.

    Raises:
        MixedError: the rows of one of them differ in more than the seed.
    """
    cells = first.cell(), second.cell()
    images = [{tuple(row[name] for name in _IMAGES) for row in table} for table in (first, second)]
    ours, theirs = ({row["seed"]: row["correct"] for row in table} for table in (first, second))
    seeds = tuple(sorted(set(ours) & set(theirs)))
    if cells[0] is None or cells[1] is None or not seeds or images[0] != images[1]:
        return None
    total = cells[0].total
    points = [100.0 * (ours[seed] - theirs[seed]) / total for seed in seeds]
    mean = fmean(points)
    if len(points) > 1 and stdev(points) > 0.0:
        from scipy.stats import ttest_1samp

        low, high = ttest_1samp(points, 0.0).confidence_interval(0.95)
    else:
        # Newcombe (1998), method 10.
        first_mean, second_mean = (fmean(counts[seed] for seed in seeds) for counts in (ours, theirs))
        (l1, u1), (l2, u2) = (wilson(round(correct), total) for correct in (first_mean, second_mean))
        p1, p2 = first_mean / total, second_mean / total
        low = 100.0 * (p1 - p2 - hypot(p1 - l1, u2 - p2))
        high = 100.0 * (p1 - p2 + hypot(u1 - p1, p2 - l2))
    return Difference(mean, float(low), float(high), seeds, total, cells[0].available)


_IMAGES = ("digest", "split", "held_out", "total")
"""The columns that say which images a score is of."""
