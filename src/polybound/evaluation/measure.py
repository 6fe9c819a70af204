"""Measure accuracies: what is asked about some networks and is not known yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from polybound.attacks import GROUP, PAPER_ATTACKS, Attack, Classifier, is_correct, parse_attacks, protocols
from polybound.certificates import certify
from polybound.data import Dataset
from polybound.defences import Defence, Defended
from polybound.errors import PolyboundError, check_int
from polybound.evaluation.score import CLEAN, Score, certified_name, read_radius
from polybound.models import PolynomialNetwork, polynomial, stack, weights_digest
from polybound.seeds import check_seed

Progress = Callable[[int, int, str], None]
"""Called with the images done, all images, and what is being done; an image counts once for each attack on it."""

_MEMORY = 2**26
"""Bytes of adversarial examples that are held at a time."""


@dataclass(frozen=True)
class Metric:
    """One accuracy of a network: clean, under an attack, or certified.

    Attributes:
        attack: an attack; None for the clean images.
        protocol: that the attack clips by; "-" without one.
        certify: radius to prove robustness for, in the place of an attack; see `read_radius`.
    """

    attack: Attack | None = None
    protocol: str = "-"
    certify: float | str | None = None

    @property
    def name(self) -> str:
        """The name of the attack, as scores have it."""
        if self.certify is not None:
            return certified_name(self.certify)
        return CLEAN if self.attack is None else self.attack.name

    @property
    def counted(self) -> tuple[str, ...]:
        """The ways in which images are counted; there is a score for each."""
        if self.certify is not None:
            return ("verified",)
        return ("-",) if self.attack is None else ("robust", "attacked")


@dataclass(frozen=True)
class EvaluationSpec:
    """What to measure.

    Attributes:
        attacks: names ("pgd-0.1-20-0.01") or attacks; the paper's six by default.
        protocol: what attacks clip to: "sound", the data's domain; "published", [0, 1] as in the paper; or "both".
        certify: radii of balls for which to give the certified accuracy as well, as attack "certified-EPS": numbers of
            l_inf balls, texts like "0.5:norm=2" of l_2 balls. Proofs of an image may take 256 cells of branch and
            bound, the same on every machine; "0.1:nodes=1000" and "0.1:seconds=5" say otherwise.
        limit: the number of images, from the first on; all by default.
        seed: of the attacks.
        defence: a denoiser in front of the network, "gaussian", "median:size=5" or a `Defence`. Attacks see it.
        batch_size: images at a time; by default as many as fit into some 64 MB.
        keep: how many of the first images and their adversarial examples to return.
        check: on how many of the first images to look for gradient masking: whether black-box attacks within the same
            ball break more of them than gradient attacks.
    """

    attacks: str | Attack | Iterable[str | Attack] = PAPER_ATTACKS
    protocol: str = "sound"
    certify: Sequence[float | str] = ()
    limit: int | None = None
    seed: int = 0
    defence: str | Defence | None = None
    batch_size: int | None = None
    keep: int = 0
    check: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.attacks, str | Attack):
            object.__setattr__(self, "attacks", tuple(self.attacks))
        object.__setattr__(self, "certify", tuple(self.certify))
        check_seed(self.seed)
        for name, least in {"limit": 1, "batch_size": 1, "keep": 0, "check": 0}.items():
            if (value := getattr(self, name)) is not None:
                check_int(name, value, least)

    @classmethod
    def of(cls, attacks: Any, options: Mapping[str, Any]) -> EvaluationSpec:
        """The spec of some attacks and further options; a spec stands for itself, but for the options."""
        return replace(attacks, **options) if isinstance(attacks, EvaluationSpec) else cls(attacks, **options)

    def metrics(self) -> list[Metric]:
        """Clean, every attack under every protocol that it knows, and certificates."""
        attacked = [
            Metric(attack, protocol)
            for attack in parse_attacks(self.attacks)
            for protocol in protocols(self.protocol)
            if protocol == "sound" or not attack.only_sound
        ]
        return [Metric(), *attacked, *(Metric(protocol="sound", certify=radius) for radius in self.certify)]


@dataclass(eq=False, kw_only=True)
class EvaluatedModel:
    """A network to be measured.

    Attributes:
        model: the network; one that is no stack.
        weights: digest of its weights.
        name: what notes and examples call it.
        about: what its rows of a table have besides the scores; "run" at least.
        scores: what is known of it already, on any data; new scores are added.
        defence: a denoiser in front of the network, wherever it is measured.
        train: images to train that denoiser on for this network, when it is needed; None if it is ready.
    """

    model: nn.Module
    weights: str
    name: str = "model"
    about: Mapping[str, Any] = field(default_factory=dict)
    scores: list[Score] = field(default_factory=list)
    defence: Defence | None = None
    train: Dataset | None = None

    def add(self, scores: Sequence[Score]) -> None:
        """Add new scores; called as soon as there are some."""
        self.scores += scores

    @cached_property
    def trained_defence(self) -> Defence | None:
        """The denoiser, trained for this network if it needs training."""
        if self.defence is None or self.train is None:
            return self.defence
        train = self.train
        return deepcopy(self.defence).fit(self.model, train.x, train.y, domain=train.domain)

    @cached_property
    def defence_name(self) -> str:
        """The settings of the denoiser, with a digest of its weights if it was trained elsewhere.

        "guided:epochs=4" is trained here, from the network, its training images and the settings;
        "guided:epochs=4@1f0c2a94b7d35e68" is a `GuidedDenoiser` that the caller has trained on images of their own.
        """
        if self.defence is None:
            return ""
        trained_elsewhere = self.train is None and any(True for _ in self.defence.parameters())
        return self.defence.name + (f"@{weights_digest(self.defence)[:16]}" if trained_elsewhere else "")


class Predictions:
    """The classes that a stack predicts for the first images of a data set, clean and attacked; each computed once.

    Args:
        models: networks of one architecture, behind the denoiser of the first.
        data: the images.
        spec: with the seed of the attacks and the batch size.
    """

    def __init__(self, models: Sequence[EvaluatedModel], data: Dataset, spec: EvaluationSpec) -> None:
        self.names, self.data, self.spec = [one.name for one in models], data, spec
        network = models[0].model if len(models) == 1 else stack([one.model for one in models])  # type: ignore[misc]
        guard = models[0].trained_defence
        self.network = network if guard is None else Defended(network, guard)
        self.classifier = Classifier(self.network, data.shape)
        # A multiple of the group of images that shares its random numbers.
        image = self.classifier.runs * prod(data.shape) * data.x.element_size()
        self.batch = max(1, (spec.batch_size or _MEMORY // image) // GROUP) * GROUP
        self.examples: dict[tuple[str, str], Tensor] = {}
        """The first `spec.keep` attacked images, (E, keep, ...), by attack and protocol."""
        self._known: dict[tuple[str, str], Tensor] = {}

    def of(self, metric: Metric, count: int, progress: Callable[[int, str], None] | None = None) -> Tensor:
        """The predicted classes of the first `count` images, (E, count); -1 where an output is not finite."""
        key, shape = (metric.name, metric.protocol), self.data.shape
        if key not in self._known or self._known[key].shape[1] < count:
            found, examples = [], []
            with self.classifier as classifier:
                for start in range(0, count, self.batch):
                    at = slice(start, min(start + self.batch, count))
                    x = images = self.data.x[at]
                    if metric.attack is not None:
                        options: dict[str, Any] = {"domain": self.data.domain, "protocol": metric.protocol}
                        options |= {"seed": self.spec.seed, "start": start}
                        images = metric.attack(self.network, x, self.data.y[at], **options)
                        if start < self.spec.keep:
                            examples.append(images if classifier.stacked else images.unsqueeze(0))
                    logits = classifier.logits(images.reshape(-1, len(x), prod(shape)).to(classifier.device))
                    if logits.shape[1] != self.data.classes:
                        raise PolyboundError(
                            f"the model has {logits.shape[1]} classes, {self.data.name} has {self.data.classes}"
                        )
                    best = logits.argmax(1)
                    found.append(torch.where(is_correct(logits, best), best, -1).cpu())
                    if progress is not None and metric.attack is not None:
                        progress(len(x), f"{metric.name} {metric.protocol}")
            self._known[key] = torch.cat(found, 1)
            if examples:
                self.examples[key] = torch.cat(examples, 1)[:, : self.spec.keep]
        return self._known[key][:, :count]


def measure(
    models: Sequence[EvaluatedModel],
    data: Dataset,
    spec: EvaluationSpec,
    predictions: Callable[[Sequence[EvaluatedModel]], Predictions],
    progress: Progress | None = None,
) -> list[list[Score]]:
    """Measure the accuracies of networks of one architecture; what is known is not measured again.

    The networks are attacked as one stack, those with the same weights once.

    Args:
        models: the networks.
        data: the images.
        spec: what to measure.
        predictions: makes a stack of networks.
        progress: called as `progress(done, total, what)`.

    Returns:
        for each network its scores, in the order of `spec.metrics()`.
    """
    total, identity = count_images(data, spec.limit), data.identity
    y = data.y[:total]
    of_each_class = torch.bincount(y, minlength=data.classes).tolist()

    def score(model: EvaluatedModel, metric: Metric, counted: str, hits: Tensor | None = None) -> Score:
        """The score for the images of `hits`; without them, one with the identity that it would have."""
        correct = [0] if hits is None else torch.bincount(y[hits], minlength=data.classes).tolist()
        pairs = [] if hits is None else zip(correct, of_each_class, strict=True)
        return Score(
            weights=model.weights,
            dataset=data.name,
            digest=identity.digest,
            split=identity.split,
            held_out=identity.held_out,
            attack=metric.name,
            protocol=metric.protocol,
            attack_seed=0 if metric.attack is None else spec.seed,
            defence=model.defence_name,
            counted=counted,
            total=total,
            available=len(data),
            correct=sum(correct),
            per_class=" ".join(f"{right}/{all_}" for right, all_ in pairs),
        )

    def stored(model: EvaluatedModel) -> dict[Metric, list[Score]]:
        """By metric the scores of a network, where all of them are known."""
        known = {score.identity: score for score in reversed(model.scores)}
        found = {one: [known.get(score(model, one, way).identity) for way in one.counted] for one in metrics}
        return {metric: scores for metric, scores in found.items() if None not in scores}  # type: ignore[misc]

    metrics = spec.metrics()
    lacking: dict[tuple[Metric, ...], list[EvaluatedModel]] = {}
    for model in models:
        known = stored(model)
        if missing := tuple(metric for metric in metrics if metric not in known):
            lacking.setdefault(missing, []).append(model)
    # Large bounds never bind, and their runs have the same weights to the bit: one of them stands for all.
    work = [
        (group, missing)
        for missing, members in lacking.items()
        for group in stacks(list({model.weights: model for model in reversed(members)}.values())[::-1])
    ]
    images, done = sum(total * sum(one.attack is not None for one in missing) for _, missing in work), 0

    def hand_out(scores: list[Score], models: Sequence[EvaluatedModel]) -> None:
        """Give scores to all networks that have the weights they are about."""
        for model in models:
            if mine := [score for score in scores if score.weights == model.weights]:
                model.add(mine)

    def advance(count: int, what: str) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, max(images, 1), what)

    for group, missing in work:
        stacked = predictions(group)
        clean = stacked.of(Metric(), total) == y
        for metric in missing:
            if metric.certify is not None:
                ball = read_radius(metric.certify)
                options: dict[str, Any] = {"norm": ball.norm, "nodes": ball.nodes, "budget": ball.seconds}
                for model in group:  # one by one, so that each is kept as soon as it is done
                    network = polynomial(model.model, data.shape)
                    status = certify(network, data.x[:total], y, ball.eps, domain=data.domain, **options).status
                    # What is undecided when the budget is used up does not count as certified.
                    hits = torch.tensor([word == "verified" for word in status])
                    hand_out([score(model, metric, "verified", hits)], lacking[missing])
                continue
            hits_by_way = {"-": clean}
            if metric.attack is not None:
                attacked = stacked.of(metric, total, advance) == y
                hits_by_way = {"robust": clean & attacked, "attacked": attacked}
            scores = [score(m, metric, way, hits_by_way[way][e]) for e, m in enumerate(group) for way in metric.counted]
            hand_out(scores, lacking[missing])
    if progress is not None:
        progress(max(images, 1), max(images, 1), "done")
    return [[one for metric in metrics for one in known[metric]] for known in map(stored, models)]


def stacks(models: Sequence[EvaluatedModel]) -> list[list[EvaluatedModel]]:
    """Group networks that can be attacked as one: all that have stacks, unless each has a denoiser of its own."""
    first = models[0].defence
    shared = all(one.defence is first and one.train is None for one in models)
    if shared and all(isinstance(one.model, PolynomialNetwork) and one.model.has_stacks for one in models):
        return [list(models)]
    return [[one] for one in models]


def count_images(data: Dataset, limit: int | None) -> int:
    """The number of images that a limit leaves, after a check of the labels."""
    if len(data) == 0:
        raise PolyboundError(f"the {data.split} split of {data.name} is empty")
    if int(data.y.min()) < 0 or int(data.y.max()) >= data.classes:
        raise PolyboundError(
            f"{data.name} has labels from {data.y.min()} to {data.y.max()}, but {data.classes} classes"
        )
    return len(data) if limit is None else min(limit, len(data))
