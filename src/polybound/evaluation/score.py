"""One measurement: how many images a network classifies right, under one attack."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from math import inf
from typing import Any, NamedTuple

from polybound.errors import ArgumentError, PolyboundError
from polybound.registry import setting_text

CLEAN = "clean"
"""The name of no attack."""

NODES = 256
"""Cells that branch and bound splits for an image, unless another budget is asked for."""


@dataclass(frozen=True)
class Score:
    """One measurement, in counts. A stored score is used again only where its identity is asked for.

    Attributes:
        weights: digest of the network's weights.
        dataset: name of the data set.
        digest: of the data set.
        split: which of its splits.
        held_out: share of train that was held out for validation, where the split depends on it.
        attack: name of the attack; "clean" without one; for what is proven "certified-EPS", with ":norm=2" of l_2
            balls, and the budget of its proofs, ":nodes=256" or ":seconds=1".
        protocol: "sound" or "published"; "-" without an attack.
        attack_seed: seed of the attack; 0 without one.
        defence: name of the denoiser in front of the network; empty without one.
        counted: "robust" (right as they are and attacked), "attacked" (right attacked, however they are: what many
            papers count), "verified" (proven), or "-" without an attack.
        total: images, from the first of the split on.
        available: images that the split has.
        correct: images that count as right.
        per_class: right images and all images of each class: "97/100 88/90".
    """

    weights: str
    dataset: str
    digest: str
    split: str
    held_out: float
    attack: str
    protocol: str
    attack_seed: int
    defence: str
    counted: str
    total: int
    available: int
    correct: int
    per_class: str = ""

    @property
    def identity(self) -> tuple[Any, ...]:
        """All fields but the counts. A data set is identified by its digest, not by its name."""
        plain = replace(self, correct=0, per_class="", dataset="")
        return tuple(asdict(plain).values())

    def check(self, run: str) -> str:
        """Digest of this score and its run, 16 hex digits: it shows whether a stored line was edited."""
        return short_digest(sha256(json.dumps([run, *asdict(self).values()]).encode()).hexdigest())

    @property
    def accuracy(self) -> float:
        """The share of images that count."""
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The accuracy's 95 % Wilson interval."""
        return wilson(self.correct, self.total)

    @property
    def classes(self) -> list[tuple[int, int]]:
        """(correct, total) of each class; empty if they were not counted."""
        pairs = (pair.split("/") for pair in self.per_class.split())
        return [(int(correct), int(total)) for correct, total in pairs]

    def as_dict(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all fields."""
        return tuple(cls.__dataclass_fields__)


def short_digest(digest: str) -> str:
    """The first 16 hexadecimal digits: what scores and specs have."""
    return digest[:16]


class Radius(NamedTuple):
    """What is to be certified: a ball, and how much work may go into each image.

    Attributes:
        eps: the radius.
        norm: "inf" or "2".
        nodes: cells that branch and bound splits at most; None for no such limit.
        seconds: of branch and bound; None for no such limit.
    """

    eps: float
    norm: str
    nodes: int | None
    seconds: float | None


def read_radius(radius: float | str) -> Radius:
    """The ball and the budget of a certified accuracy: a number is an l_inf radius, a text has settings as attacks do.

    Work is counted in cells by default, so that a score is the same on every machine.

    >>> read_radius(0.05), read_radius("0.5:norm=2:seconds=1")
    (Radius(eps=0.05, norm='inf', nodes=256, seconds=None), Radius(eps=0.5, norm='2', nodes=None, seconds=1.0))
    """
    number, *options = str(radius).split(":")
    given = dict(option.partition("=")[::2] for option in options)
    several = len(given) < len(options)
    try:
        eps, norm = float(number), given.pop("norm", "inf")
        seconds = float(given.pop("seconds")) if "seconds" in given else None
        nodes = int(given.pop("nodes")) if "nodes" in given else None if seconds is not None else NODES
        fits = 0 <= eps < inf and norm in ("inf", "2") and 0 <= (seconds or 0) < inf and (nodes or 0) >= 0
    except ValueError:
        fits = False
    if not fits or given or several:
        raise ArgumentError(
            "certify", f"takes a radius, 0.1, 0.5:norm=2, 0.1:nodes=1000 or 0.1:seconds=5, got {radius!r}"
        )
    return Radius(eps, norm, nodes, seconds)


def certified_name(radius: float | str) -> str:
    """The name that a certified accuracy has in the place of an attack; different balls or budgets, different names.

    >>> certified_name(0.05), certified_name("0.50:norm=2:seconds=1")
    ('certified-0.05:nodes=256', 'certified-0.5:norm=2:seconds=1')
    """
    eps, norm, nodes, seconds = read_radius(radius)
    parts = [f"certified-{setting_text(eps)}", *([] if norm == "inf" else [f"norm={norm}"])]
    parts += [] if nodes is None else [f"nodes={nodes}"]
    return ":".join([*parts, *([] if seconds is None else [f"seconds={setting_text(seconds)}"])])


def certified_radius_of(attack: str) -> Radius | None:
    """The ball and budget in the name of a certified accuracy; None for the name of an attack.

    >>> certified_radius_of("certified-0.05:nodes=256").eps, certified_radius_of("fgsm-0.1")
    (0.05, None)
    """
    kind, _, radius = attack.partition("-")
    try:
        return read_radius(radius) if kind == "certified" else None
    except PolyboundError:  # a registered attack may have such a name
        return None


def dated_name(attack: str) -> str:
    """The attack of a stored score, with a budget. Scores without one date from when it was one second for each image.

    >>> dated_name("certified-0.05"), dated_name("certified-0.05:nodes=256"), dated_name("fgsm-0.1")
    ('certified-0.05:seconds=1', 'certified-0.05:nodes=256', 'fgsm-0.1')
    """
    plain = certified_radius_of(attack) is not None and "nodes=" not in attack and "seconds=" not in attack
    return f"{attack}:seconds=1" if plain else attack


def paper_counts(attack: str, protocol: str) -> str:
    """How the paper counts the images of an attack, or how they are counted under the sound protocol.

    The paper counts images that are right attacked; only targeted APGD leaves alone what is misclassified already.

    >>> paper_counts("fgsm-0.1", "published"), paper_counts("apgdt-1", "published"), paper_counts("clean", "-")
    ('attacked', 'robust', '-')
    """
    if attack == CLEAN:
        return "-"
    if attack.startswith("certified-"):
        return "verified"
    from polybound.attacks import parse_attack

    return "attacked" if protocol == "published" and not parse_attack(attack).skips_misclassified else "robust"


@lru_cache(maxsize=65536)
def wilson(correct: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval: the shares p that the score test does not reject for `correct` of `total`:

        |correct / total - p| <= z sqrt(p (1 - p) / total)

    Unlike the usual one it stays within [0, 1] and keeps its confidence near the ends, as of robust accuracies.

    >>> [round(end, 4) for end in wilson(5, 10)]
    [0.2366, 0.7634]
    >>> wilson(0, 100)[0]
    0.0
    """
    from scipy.stats import binomtest

    if total < 1 or not 0 <= correct <= total:
        raise PolyboundError(f"need 0 <= correct <= total, total > 0, got {correct} of {total}")
    found = binomtest(correct, total).proportion_ci(0.95, "wilson")
    return float(found.low), float(found.high)
