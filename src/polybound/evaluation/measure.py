"""The one function that measures: whatever is asked of some networks and is not known yet."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from polybound.attacks import GROUP, Attack, Classifier, is_correct
from polybound.certificates import certify
from polybound.data import Dataset, Identity
from polybound.defences import Defence, Defended
from polybound.errors import ArgumentError, PolyboundError, check_int
from polybound.evaluation.score import CLEAN, Score, certified_name, per_class_text, read_radius
from polybound.models import PolynomialNetwork, polynomial, stack, weights_digest
from polybound.seeds import check_seed

__all__ = ["EvaluatedModel", "Measuring", "Progress", "Question", "digest_of_module", "measure", "stacks", "together"]

Progress = Callable[[int, int, str], None]
"""Called with the images done, all images, and what is being done; an image counts once for each attack on it."""

_MEMORY = 2**26
"""Bytes of adversarial examples that are held at a time."""


@dataclass(frozen=True)
class Question:
    """What to measure of a network: one accuracy.

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
        """What stands in the score's place for the attack."""
        if self.certify is not None:
            return certified_name(self.certify)
        return CLEAN if self.attack is None else self.attack.name

    @property
    def counted(self) -> tuple[str, ...]:
        """The ways in which its images are counted, a score for each."""
        if self.certify is not None:
            return ("verified",)
        return ("-",) if self.attack is None else ("robust", "attacked")


@dataclass(eq=False)
class EvaluatedModel:
    """A network to be measured.

    Attributes:
        model: the network; one that is no stack.
        weights: digest of its weights.
        scores: what is known of it already, on any data; new scores are added.
        keep: called with new scores as soon as there are some.
        defence: a denoiser in front of the network, wherever it is measured.
        train: images to train that denoiser on for this network, when it is needed; None if it is ready.
    """

    model: nn.Module
    weights: str
    scores: list[Score] = field(default_factory=list)
    keep: Callable[[Sequence[Score]], None] | None = None
    defence: Defence | None = None
    train: Dataset | None = None

    @cached_property
    def guard(self) -> Defence | None:
        """The denoiser, trained for this network if it needs training."""
        if self.defence is None or self.train is None:
            return self.defence
        train = self.train
        return deepcopy(self.defence).fit(self.model, train.x, train.y, domain=train.domain)

    @cached_property
    def defence_name(self) -> str:
        """What determines the denoiser, beside this network: its settings, and its weights if it was trained elsewhere.

        "guided:epochs=4" is trained here, from the network, its training images and the settings;
        "guided:epochs=4@1f0c2a94b7d35e68" is a `GuidedDenoiser` that the caller has trained on images of their own.
        """
        if self.defence is None:
            return ""
        trained_elsewhere = self.train is None and any(True for _ in self.defence.parameters())
        return self.defence.name + (f"@{digest_of_module(self.defence)[:16]}" if trained_elsewhere else "")

    def find(self, identity: tuple[object, ...]) -> Score | None:
        """The score of this identity, if it is known."""
        return next((score for score in self.scores if score.identity == identity), None)


class Measuring:
    """A classifier, or a stack of them, on the first images of a data set; its clean predictions are made once.

    Args:
        model: the classifier.
        data: the images.
        total: how many of them.
        seed: of the attacks.
        batch_size: images at a time; by default as many as fit into some 64 MB.
        progress: called now and then.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        total: int,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        progress: Callable[[int, str], None] | None = None,
    ) -> None:
        check_seed(seed)
        self.model, self.data, self.total, self.seed, self.progress = model, data, total, seed, progress
        self.classifier = Classifier(model, data.shape)
        self.batch = _images_at_a_time(self.classifier, data, batch_size)
        self._clean: Tensor | None = None

    def clean(self) -> Tensor:
        """The predicted classes, (E, images); -1 where an output is not finite."""
        if self._clean is None:
            with self.classifier as classifier:
                parts = [
                    self._predictions(self.data.x[at].flatten(1).unsqueeze(0).to(classifier.device))
                    for at in self._batches()
                ]
            self._clean = torch.cat(parts, 1)
        return self._clean

    def attacked(self, attack: Attack, protocol: str, keep: list[Tensor] | None = None) -> Tensor:
        """The predicted classes of the attacked images; those are added to `keep`, if it is given."""
        parts = []
        with self.classifier as classifier:
            for at in self._batches():
                x, y = self.data.x[at], self.data.y[at]
                options = {"domain": self.data.domain, "protocol": protocol, "seed": self.seed, "start": at.start}
                found = attack(self.model, x, y, **options)
                flat = found.reshape(classifier.runs, len(x), prod(self.data.shape))
                parts.append(self._predictions(flat.to(classifier.device)))
                if keep is not None:
                    keep.append(found if classifier.stacked else found.unsqueeze(0))
                if self.progress is not None:
                    self.progress(len(x), f"{attack.name} {protocol}")
        return torch.cat(parts, 1)

    def _batches(self) -> Iterator[slice]:
        for start in range(0, self.total, self.batch):
            yield slice(start, min(start + self.batch, self.total))

    def _predictions(self, x: Tensor) -> Tensor:
        logits = self.classifier.logits(x)
        if logits.shape[1] != self.data.classes:
            raise PolyboundError(f"the model has {logits.shape[1]} classes, {self.data.name} has {self.data.classes}")
        found = logits.argmax(1)
        return torch.where(is_correct(logits, found), found, -1).cpu()


def measure(
    subjects: Sequence[EvaluatedModel],
    data: Dataset,
    questions: Sequence[Question],
    *,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> list[list[Score]]:
    """Answer all questions about all networks; what is known is not measured again.

    Networks of one architecture are attacked as one stack, those with the same weights once, and the clean images are
    classified once for all attacks.

    Args:
        subjects: the networks; all of one architecture.
        data: what to measure on.
        questions: what to measure.
        limit: the number of images, from the first on; all by default.
        seed: of the attacks.
        batch_size: images at a time; by default by memory.
        progress: called as `progress(done, total, what)`.

    Returns:
        for each network its scores, in the order of the questions.
    """
    total = count_images(data, limit)
    plan = _Plan(data, data.identity, total, seed, batch_size)
    lacking: dict[tuple[Question, ...], list[EvaluatedModel]] = {}
    for subject in subjects:
        missing = tuple(question for question in questions if not plan.known(subject, question))
        if missing:
            lacking.setdefault(missing, []).append(subject)
    parts = [(group, missing) for missing, members in lacking.items() for group in stacks(_distinct(members))]
    counter = _Counter(progress, sum(total * sum(q.attack is not None for q in missing) for _, missing in parts))
    for group, missing in parts:
        for found in plan.answers(group, missing, counter):
            _hand_out(found, lacking[missing])
    counter.finish()
    return [[plan.find(subject, q, way) for q in questions for way in q.counted] for subject in subjects]


class _Counter:
    """Adds up the images that were attacked, for `Progress`."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, max(total, 1), 0

    def __call__(self, images: int, what: str) -> None:
        self.done += images
        if self.progress is not None:
            self.progress(self.done, self.total, what)

    def finish(self) -> None:
        if self.progress is not None:
            self.progress(self.total, self.total, "done")


@dataclass(frozen=True, eq=False)
class _Plan:
    """On which images, with which seed."""

    data: Dataset
    identity: Identity
    total: int
    seed: int
    batch_size: int | None

    def score(
        self, subject: EvaluatedModel, question: Question, counted: str, correct: int = 0, per_class: str = ""
    ) -> Score:
        data, identity = self.data, self.identity
        return Score(
            weights=subject.weights,
            dataset=data.name,
            digest=identity.digest,
            split=identity.split,
            held_out=identity.held_out,
            attack=question.name,
            protocol=question.protocol,
            attack_seed=0 if question.attack is None else self.seed,
            defence=subject.defence_name,
            counted=counted,
            total=self.total,
            available=len(data),
            correct=correct,
            per_class=per_class,
        )

    def known(self, subject: EvaluatedModel, question: Question) -> bool:
        ways = (self.score(subject, question, counted).identity for counted in question.counted)
        return all(subject.find(identity) is not None for identity in ways)

    def find(self, subject: EvaluatedModel, question: Question, counted: str) -> Score:
        found = subject.find(self.score(subject, question, counted).identity)
        if found is None:
            raise AssertionError(f"{question.name} was not measured")
        return found

    def answers(
        self,
        group: Sequence[EvaluatedModel],
        questions: Sequence[Question],
        counter: _Counter,
    ) -> Iterator[list[Score]]:
        """The scores of the group, one question after another, as soon as they are there."""
        model = together(group)
        options = {"seed": self.seed, "batch_size": self.batch_size, "progress": counter}
        measuring = Measuring(model, self.data, self.total, **options)  # type: ignore[arg-type]
        y = self.data.y[: self.total]
        clean = measuring.clean() == y
        for question in questions:
            if question.certify is not None:
                for subject in group:  # one by one, so that each is kept as soon as it is done
                    yield [self._verified(subject, question, question.certify)]
                continue
            hits = {"-": clean}
            if question.attack is not None:
                after = measuring.attacked(question.attack, question.protocol) == y
                hits = {"robust": clean & after, "attacked": after}
            yield [
                self._counted(subject, question, way, hits[way][e])
                for e, subject in enumerate(group)
                for way in question.counted
            ]

    def _counted(self, subject: EvaluatedModel, question: Question, way: str, hits: Tensor) -> Score:
        y = self.data.y[: self.total]
        counts = torch.bincount(y[hits], minlength=self.data.classes)
        totals = torch.bincount(y, minlength=self.data.classes)
        classes = per_class_text(counts.tolist(), totals.tolist())
        return self.score(subject, question, way, int(counts.sum()), classes)

    def _verified(self, subject: EvaluatedModel, question: Question, radius: float | str) -> Score:
        model = polynomial(subject.model)
        if subject.defence is not None:
            raise PolyboundError("a network behind a denoiser has no certificates")
        x, y = self.data.x[: self.total], self.data.y[: self.total]
        eps, norm, nodes, seconds = read_radius(radius)
        # What is undecided when the budget is used up does not count as certified.
        options: dict[str, Any] = {"norm": norm, "domain": self.data.domain, "nodes": nodes, "budget": seconds}
        found = certify(model, x, y, eps, **options).status
        return self._counted(subject, question, "verified", torch.tensor([word == "verified" for word in found]))


def _hand_out(scores: list[Score], subjects: Sequence[EvaluatedModel]) -> None:
    """Give scores to all networks that have the weights they are about."""
    for subject in subjects:
        if mine := [score for score in scores if score.weights == subject.weights]:
            subject.scores += mine
            if subject.keep is not None:
                subject.keep(mine)


def _distinct(subjects: Sequence[EvaluatedModel]) -> list[EvaluatedModel]:
    """One of each: large bounds never bind, and their runs have the same weights to the bit."""
    return list({subject.weights: subject for subject in reversed(subjects)}.values())[::-1]


def stacks(subjects: Sequence[EvaluatedModel]) -> list[list[EvaluatedModel]]:
    """What can be attacked together: everything, unless each network has a denoiser of its own."""
    first = subjects[0].defence
    together = all(one.defence is first and one.train is None for one in subjects)
    if together and all(isinstance(subject.model, PolynomialNetwork) for subject in subjects):
        return [list(subjects)]
    return [[subject] for subject in subjects]


def together(group: Sequence[EvaluatedModel]) -> nn.Module:
    """The networks of a group behind their denoiser, as one classifier."""
    model = group[0].model if len(group) == 1 else stack([subject.model for subject in group])  # type: ignore[misc]
    guard = group[0].guard
    return model if guard is None else Defended(model, guard)


def digest_of_module(model: nn.Module) -> str:
    """The SHA-256 of any classifier's weights."""
    if isinstance(model, PolynomialNetwork):
        return weights_digest(model)
    digest = hashlib.sha256(repr(model).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def count_images(data: Dataset, limit: int | None) -> int:
    """How many images a limit leaves, after a look at the labels."""
    if limit is not None:
        check_int("limit", limit)
    if len(data) == 0:
        raise PolyboundError(f"the {data.split} split of {data.name} is empty")
    if int(data.y.min()) < 0 or int(data.y.max()) >= data.classes:
        raise PolyboundError(
            f"{data.name} has labels from {data.y.min()} to {data.y.max()}, but {data.classes} classes"
        )
    return len(data) if limit is None else min(limit, len(data))


def _images_at_a_time(classifier: Classifier, data: Dataset, batch_size: int | None) -> int:
    """A multiple of the group that shares its random numbers."""
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise ArgumentError("batch_size", f"must be a whole number of at least 1, got {batch_size!r}")
    wanted = batch_size or _MEMORY // (classifier.runs * prod(data.shape) * data.x.element_size())
    return max(1, wanted // GROUP) * GROUP
