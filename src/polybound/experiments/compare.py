"""What was measured against what was published, and methods against each other."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import hypot, nan
from statistics import fmean, stdev

from polybound.experiments.experiment import experiment_names, find_experiment
from polybound.experiments.results import Average, Row, average, best, contenders
from polybound.models import paper_rank

__all__ = [
    "ATTACKS",
    "DATASETS",
    "EPOCHS",
    "Comparison",
    "Published",
    "Significance",
    "compare",
    "published",
    "significance",
]

DATASETS = {
    "fashion-mnist": "Fashion-MNIST",
    "emnist-letters": "E-MNIST",
    "emnist-byclass": "E-MNIST-BY",
    "kmnist": "K-MNIST",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "nsynth": "NSYNTH",
}
"""The paper's names of the data sets."""

_MODELS = {"pn-4": "PN-4", "pn-10": "PN-10", "pn-conv": "PN-Conv"}
ATTACKS = {
    "pgd-0.1-20-0.01": "pgd-(0.1, 20, 0.01)",
    "pgd-0.3-20-0.03": "pgd-(0.3, 20, 0.03)",
    "apgdt-1": "apgdt",
    "tpgd-1": "tpgd",
}
"""The paper's names of the attacks, where they are others."""

EPOCHS = 100
"""Epochs of the paper's schedule; a number from fewer is no reproduction."""


@dataclass(frozen=True)
class Published:
    """A value of the paper, in percent."""

    table: str
    dataset: str
    model: str
    method: str
    attack: str
    mean: float
    std: float


@cache
def published() -> tuple[Published, ...]:
    """All accuracies of the paper's tables.

    >>> len(published())
    402
    """
    text = (files("polybound.experiments") / "published.csv").read_text(encoding="utf-8")
    return tuple(
        Published(
            **{name: line[name] for name in ("table", "dataset", "model", "method", "attack")},
            mean=float(line["mean"]),
            std=float(line["std"]),
        )
        for line in csv.DictReader(io.StringIO(text))
    )


@dataclass(frozen=True)
class Comparison:
    """A published value next to ours.

    Attributes:
        paper: what was published.
        ours: mean and standard deviation over our seeds.
        protocol: of our value; "-" for clean accuracies.
        difference: ours less the paper's, in points.
        deviations: the same in standard deviations of both, `difference / sqrt(theirs^2 + ours^2)`, to tell what the
            seeds may explain from what they cannot; None where neither has any. The verdict does not hang on it.
        allowed: max(3 points, 2 published standard deviations).
        verdict: "within" or "off"; "reduced" if our schedule or data was cut short.
        bounds: among how many bounds ours is the best, as the paper's is; 1 for other methods.
        variant: what the paper leaves open: the penalty's weight, the adversary, or the bound of each matrix.
    """

    paper: Published
    ours: Average
    protocol: str
    difference: float
    deviations: float | None
    allowed: float
    verdict: str
    bounds: int
    variant: str


def compare(rows: Sequence[Row], protocol: str = "published", table: str | None = None) -> list[Comparison]:
    """Every published value for which there are runs, once for each variant of the method.

    As in the paper, the value of the projection is the best of all bounds, for each attack on its own.
    """
    rows = [row for row in rows if row.split == "test" and not row.validation]
    index: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        index.setdefault(_names(row), []).append(row)
    result = []
    for value in published():
        if table not in (None, value.table):
            continue
        wanted = "-" if value.attack == "clean" else protocol
        mine = [
            r for r in index.get((value.dataset, value.model, value.method, value.attack), []) if r.protocol == wanted
        ]
        if not mine:
            continue
        variants: dict[str, list[Row]] = {}
        for row in _of_one_kind(mine, _ranks().get(value.table) or paper_rank(mine[0].model)):
            variants.setdefault(row.variant, []).append(row)
        found = {name: top for name, members in variants.items() if (top := best(members)) is not None}
        if found and value.method == "layerwise-projection":
            # As with the bounds of one number, the best of all.
            top = max(contenders(found.values()), key=lambda one: one.mean)
            found = {name: one for name, one in found.items() if one is top}
        for variant, ours in found.items():
            members = variants[variant]
            difference = ours.mean - value.mean
            spread = hypot(value.std, ours.std)
            deviations = difference / spread if spread else None
            allowed = max(3.0, 2.0 * value.std)
            verdict = "within" if abs(difference) <= allowed else "off"
            if any(row.epochs < EPOCHS or row.samples for row in members):
                verdict = "reduced"
            bounds = len(contenders(average(members).values()))
            result.append(Comparison(value, ours, wanted, difference, deviations, allowed, verdict, bounds, variant))
    return result


def _names(row: Row) -> tuple[str, str, str, str]:
    """The paper's names for what a row is."""
    method = row.method
    if row.defence:
        method = f"{row.defence}-denoising"
    elif method == "none+at":
        method = "at"
    elif row.projection in ("searched", "layer-wise") and method == "projection":
        method = "layerwise-projection"
    elif row.projection not in ("", "single"):
        method = f"{row.projection}-projection"
    attack = ATTACKS.get(row.attack, row.attack)
    return DATASETS.get(row.dataset, row.dataset), _MODELS.get(row.model, row.model), method, attack


def _of_one_kind(rows: Sequence[Row], rank: int) -> list[Row]:
    """Rows of the longest schedule, the most data and images, and one rank: others are not to be averaged in.

    That rank is the given one if there is one, as figure 6 has others.
    """

    def kind(row: Row) -> tuple[int, float, int, bool, int]:
        return row.epochs, row.samples or float("inf"), row.total, row.rank == rank, row.rank

    chosen = max(map(kind, rows))
    return [row for row in rows if kind(row) == chosen]


@cache
def _ranks() -> dict[str, int]:
    """The hidden rank of the published tables whose named experiment has another than its models' own."""
    return {e.published: e.ranks[0] for e in map(find_experiment, experiment_names()) if e.published and e.ranks}


@dataclass(frozen=True)
class Significance:
    """A paired comparison of two methods over their common seeds."""

    difference: float
    seeds: int
    p: float


def significance(first: Iterable[Row], second: Iterable[Row]) -> Significance:
    """The mean difference of two methods' accuracies, paired by seed, with the p-value of a two-sided paired t-test.

    With fewer than two common seeds, or differences without any spread, there is no p-value: it is NaN.
    """
    ours, theirs = ({row.seed: row.accuracy for row in rows} for rows in (first, second))
    seeds = sorted(set(ours) & set(theirs))
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    if not differences:
        return Significance(nan, 0, nan)
    if len(differences) < 2 or stdev(differences) == 0.0:
        return Significance(fmean(differences), len(differences), nan)
    from scipy.stats import ttest_1samp

    return Significance(fmean(differences), len(differences), float(ttest_1samp(differences, 0.0).pvalue))
