"""Compare measured values with the published ones."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import hypot, inf

from polybound.evaluation import SEED_COLUMNS, Cell, Row, Table, column_label, labels, paper_counts, value_label
from polybound.experiments.experiment import experiment_names, find_experiment
from polybound.models import paper_rank
from polybound.runs import DataSpec, Spec
from polybound.training import projection_kind

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

TEST_IMAGES = {
    **dict.fromkeys(("fashion-mnist", "kmnist", "mnist", "cifar10"), 10000),
    **{"emnist-letters": 20800, "emnist-byclass": 116323, "nsynth": 4096},
}
"""How many test images the data sets have officially; where there are more or fewer, it is other data."""

MODELS = {"pn-4": "PN-4", "pn-10": "PN-10", "pn-conv": "PN-Conv", "ncp-4": "NCP-4"}
"""The paper's names of the models."""

ATTACKS = {
    "pgd-0.1-20-0.01": "pgd-(0.1, 20, 0.01)",
    "pgd-0.3-20-0.03": "pgd-(0.3, 20, 0.03)",
    "apgdt-1": "apgdt",
    "tpgd-1": "tpgd",
}
"""The paper's names of the attacks, where they are others."""

EPOCHS = 100
"""Epochs of the paper's schedule; a number from fewer is no reproduction."""

BOUND = "method.bound"


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

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Data set, model, method and attack; several tables may have a value for the same."""
        return self.dataset, self.model, self.method, self.attack


@cache
def published() -> tuple[Published, ...]:
    """All accuracies of the paper's tables.

    >>> len(published())
    402
    """
    text = (files("polybound.experiments") / "published.csv").read_text(encoding="utf-8")
    lines = csv.reader(io.StringIO(text))
    next(lines)  # the header: the fields of `Published`, and what is bold
    return tuple(
        Published(table, dataset, model, method, attack, float(mean), float(std))
        for table, dataset, model, method, attack, mean, std, _ in lines
    )


def published_value(dataset: str, model: str, method: str, attack: str) -> Published | None:
    """The paper's value by its own names of data set, model and method and by our name of the attack, if it has one.

    >>> published_value("Fashion-MNIST", "PN-4", "projection", "pgd-0.1-20-0.01").mean
    49.58

    Args:
        dataset: the paper's name.
        model: the paper's name.
        method: as `paper_method` gives it.
        attack: as `polybound evaluate` takes it.
    """
    wanted = dataset, model, method, ATTACKS.get(attack, attack)
    # A value that stands in several tables is the same in all.
    return next((value for value in published() if value.key == wanted), None)


@dataclass(frozen=True)
class Comparison:
    """A published value next to ours.

    Attributes:
        paper: what was published.
        ours: mean and standard deviation over our seeds, and what it is the best of.
        protocol: of our value; "-" for clean accuracies.
        difference: ours less the paper's, in points.
        deviations: the same in standard deviations of both, `difference / sqrt(theirs^2 + ours^2)`, to tell what the
            seeds may explain from what they cannot; None where neither has any. The verdict does not depend on it.
        allowed: max(3 points, 2 published standard deviations).
        verdict: "within" or "off"; "reduced" if our schedule, our data or our images were cut short, "other recipe" if
            our optimiser or schedule is not the paper's, "other data" if our test images are not all those of the
            official split.
        variant: what tells ours from others that stand for the same value: the penalty's weight, the adversary.
    """

    paper: Published
    ours: Cell
    protocol: str
    difference: float
    deviations: float | None
    allowed: float
    verdict: str
    variant: str

    @property
    def bounds(self) -> int:
        """Among how many bounds ours is the best, as the paper's is; 1 for other methods."""
        return 1 if self.ours.chosen is None else self.ours.chosen[2]


def compare(table: Table, protocol: str = "published") -> list[Comparison]:
    """Every published value for which there are runs, once for each variant of the method, under a protocol.

    As in the paper, the value of the projection is the best of all bounds, for each attack on its own, and of several
    epochs after which a run was measured the best counts.
    """
    index: dict[tuple[str, ...], list[Row]] = {}
    for row in table:
        honest = row["split"] == "test" and not row.get("data.held_out") and row["attack_seed"] == 0
        if honest and row["counted"] == paper_counts(row["attack"], row["protocol"]) and "method" in row:
            dataset, model = DATASETS.get(row["dataset"], ""), MODELS.get(row["model"], "")  # others may bear the names
            attack = str(ATTACKS.get(row["attack"], row["attack"]))
            index.setdefault((dataset, model, paper_method(row), attack, row["protocol"]), []).append(row)
    # The hidden rank of the published tables whose named experiment has another than its models' own.
    named = map(find_experiment, experiment_names())
    ranks = {one.published: one.ranks[0] for one in named if one.published and one.ranks}
    result = []
    for value in published():
        wanted = "-" if value.attack == "clean" else protocol
        mine = index.get((value.dataset, value.model, value.method, value.attack, wanted), [])
        if mine:
            rank = ranks.get(value.table) or paper_rank(mine[0]["model"])
            # Of the longest schedule, the most data and images, and one rank: others are no reproduction. Of several
            # ranks, which figure 6 has, that of the table is taken if there is one.
            kinds = [
                (row["schedule.epochs"], row["data.samples"] or inf, row["total"], own == rank, own)
                for row in mine
                for own in [row["model.rank"]]
            ]
            longest = max(kinds)
            rows = Table(row for row, kind in zip(mine, kinds, strict=True) if kind == longest)
            variants = rows.configurations(BOUND, "epoch")
            free = (*SEED_COLUMNS, BOUND, "epoch")
            names = labels([part.rows[0] for part in variants], free, method=False)
            for name, part in zip(names, variants, strict=True):
                if (ours := part.best_epoch().best(BOUND)) is not None:
                    result.append(judge(value, ours, part, wanted, name))
    return result


def judge(value: Published, ours: Cell, rows: Table, protocol: str, variant: str = "") -> Comparison:
    """A published value against a number of ours, by a protocol.

    The rows that it was made of, or chosen from, say whether the schedule is the paper's; the `variant` tells it from
    others that stand for the same value.
    """
    difference, spread = ours.mean - value.mean, hypot(value.std, ours.std)
    allowed = max(3.0, 2.0 * value.std)
    verdict = "within" if abs(difference) <= allowed else "off"
    # In what the run's optimiser, schedule and loss differ from the paper's, apart from the number of epochs.
    row, papers = rows.rows[0], Spec(DataSpec("", "")).columns()
    names = [name for name in {**papers, **row} if name.partition(".")[0] in ("optimiser", "schedule", "loss")]
    if row["schedule.epochs"] != papers["schedule.epochs"]:  # milestones follow the number of epochs
        names = [name for name in names if name not in ("schedule.epochs", "schedule.milestones")]
    different = [name for name in names if row.get(name) != papers.get(name)]
    other = [f"{column_label(name)} {value_label(row.get(name))}" for name in different]
    if other:
        verdict = "other recipe"
    if any(row["schedule.epochs"] < EPOCHS or row["data.samples"] or row["total"] < row["available"] for row in rows):
        verdict = "reduced"
    if any(row["available"] != TEST_IMAGES.get(row["dataset"]) for row in rows):
        verdict = "other data"  # as where a part of NSynth stands for all of it
    deviations = difference / spread if spread else None
    words = ", ".join(dict.fromkeys(filter(None, [*variant.split(", "), *other])))
    return Comparison(value, ours, protocol, difference, deviations, allowed, verdict, words)


def row_kind(row: Row) -> str:
    """The kind of projection of a row's run: "single", "layer-wise", "spectral" or "product"; "" for none."""
    if row.get("method") != "projection":
        return ""
    return projection_kind(row[BOUND], row["method.norm"], row["method.on"])


def paper_method(row: Row) -> str:
    """The paper's name for how a row's network was trained or defended."""
    if row["defence"]:
        return f"{row['defence']}-denoising"
    method = str(row["method"])
    if "adversary" in row:
        return "at" if method == "none" else f"{method}+at"
    kind = row_kind(row)
    return method if kind in ("", "single") else f"{kind.replace('-', '')}-projection"
