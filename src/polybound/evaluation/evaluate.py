"""Accuracy, clean and under attack, of any classifier or stack; signs of masked gradients."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Self

import torch
from torch import Tensor, nn

from polybound.attacks import PAPER_ATTACKS, PUBLISHED_NOTE, Attack, RandomSearch, Square, parse_attacks, protocols
from polybound.data import Dataset
from polybound.defences import find_defence
from polybound.errors import ArgumentError, PolyboundError
from polybound.evaluation.measure import (
    EvaluatedModel,
    EvaluationSpec,
    Metric,
    Predictions,
    Progress,
    count_images,
    measure,
    stacks,
)
from polybound.evaluation.score import CLEAN, Score, certified_name, certified_radius_of, short_digest
from polybound.evaluation.table import Row, Table, score_of
from polybound.models import PolynomialNetwork, weights_digest


def evaluate(
    model: nn.Module,
    data: Dataset,
    attacks: Any = PAPER_ATTACKS,
    *,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Evaluation:
    """Measure a classifier's accuracy on a data set, clean and under attack.

    An image counts as robust if it is classified right as it is *and* attacked. Results depend on the seed alone,
    neither on the batch size nor on what else is in the stack.

    Args:
        model: any classifier; all runs of a stack are attacked together.
        data: what to measure on.
        attacks: names ("pgd-0.1-20-0.01") or attacks, the paper's six by default; or a whole `EvaluationSpec`.
        names: of the runs.
        progress: called as `progress(done, total, what)`.
        **options: the other fields of `EvaluationSpec`: protocol, certify, limit, seed, defence, batch_size, keep,
            check.

    Example:
        >>> import polybound as pb
        >>> test = pb.data.load_digits("test")
        >>> model = pb.paper_model("pn-4", shape=test.shape, seed=0)
        >>> history = pb.fit(model, pb.data.load_digits("train"), epochs=5, learning_rate=0.02)
        >>> result = pb.evaluate(model, test, ["fgsm-0.1", "pgd-0.1-20-0.01"])
        >>> [(row["attack"], row["protocol"]) for row in result.counted("robust")]
        [('clean', '-'), ('fgsm-0.1', 'sound'), ('pgd-0.1-20-0.01', 'sound')]
        >>> result.find("clean").accuracy > result.find("fgsm-0.1").accuracy
        True
    """
    spec = EvaluationSpec.of(attacks, options)
    runs = getattr(model, "runs", None)
    stacked = isinstance(runs, int) and not isinstance(runs, bool)
    members: list[nn.Module] = [model]
    if stacked:
        single = model.run if isinstance(model, PolynomialNetwork) else lambda e: _RunOf(model, e)
        members = [single(e) for e in range(runs or 0)]
    labels = list(names or ([f"run {e}" for e in range(len(members))] if stacked else ["model"]))
    if len(labels) != len(members):
        raise PolyboundError(f"{len(labels)} names for {len(members)} runs")
    defence = None if spec.defence is None else find_defence(spec.defence, data.shape)
    models = [
        EvaluatedModel(
            model=member,
            weights=short_digest(weights_digest(member)),
            name=label,
            about={"run": label},
            defence=defence,
        )
        for member, label in zip(members, labels, strict=True)
    ]
    return evaluate_models([(one, data) for one in models], spec, progress)


class _RunOf(nn.Module):
    """One run of a stack that is no polynomial network."""

    def __init__(self, model: nn.Module, run: int) -> None:
        super().__init__()
        self.model, self.index = model, run

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)[self.index]
        return logits

    def extra_repr(self) -> str:
        return f"run {self.index}"


def evaluate_models(
    models: Sequence[tuple[EvaluatedModel, Dataset]], spec: EvaluationSpec, progress: Progress | None = None
) -> Evaluation:
    """Measure networks, each behind its denoiser; those of one architecture and one data set are attacked as a stack.

    Args:
        models: networks with the images to measure them on.
        spec: what to measure; the denoisers are those of the networks.
        progress: called as `progress(done, total, what)`.
    """
    attacks, wanted = parse_attacks(spec.attacks), protocols(spec.protocol)
    if spec.certify and any(one.defence is not None for one, _ in models):
        raise PolyboundError("a network behind a denoiser has no certificates")
    groups: dict[tuple[int, str], tuple[list[EvaluatedModel], Dataset]] = {}
    for one, data in models:
        network = one.model if isinstance(one.model, PolynomialNetwork) else None
        architecture = "" if network is None else json.dumps([type(network).__name__, network.config()])
        groups.setdefault((id(data), architecture), ([], data))[0].append(one)
    if spec.keep and len(groups) > 1:
        raise PolyboundError("adversarial examples can be kept for runs of one architecture and data set only")
    stored = frozenset((one.about["run"], score) for one, _ in models for score in one.scores)
    scores: dict[int, list[Score]] = {}
    notes: list[str] = []
    examples = None
    data_of = {id(one): data for one, data in models}
    made: dict[tuple[int, ...], Predictions] = {}

    def predictions(stack: Sequence[EvaluatedModel]) -> Predictions:
        """The predictions of a stack: the same for scores, notes and examples."""
        key = tuple(map(id, stack))
        if key not in made:
            made[key] = Predictions(stack, data_of[key[0]], spec)
        return made[key]

    for group, data in groups.values():
        found = measure(group, data, spec, predictions, progress)
        scores |= {id(one): mine for one, mine in zip(group, found, strict=True)}
        notes += [data.note] if data.note else []
        for attack in attacks:
            if attack.only_sound and "published" in wanted:
                notes.append(f"{attack.name}: knows the sound protocol only")
            notes += attack.caveats(data.classes)
        if "published" in wanted and any(not attack.only_sound for attack in attacks):
            notes.append(PUBLISHED_NOTE)
        whole = list(map(predictions, stacks(group))) if spec.check or spec.keep else []
        if spec.check:
            notes += _masking_notes(whole, attacks, wanted, count_images(data, spec.check))
        if spec.keep:
            examples = Examples.of(whole, spec.metrics(), min(spec.keep, count_images(data, spec.limit)))
        made.clear()
    rows = [{**one.about, **score.as_dict()} for one, _ in models for score in scores[id(one)]]
    names = models[0][1].class_names if models else ()
    return Evaluation(Table(rows), list(dict.fromkeys(notes)), names, examples, stored=stored)


# Gradient masking: robust only against those who follow the gradient.


QUERIES = 300
TRIES = 20


def _masking_notes(
    stacks: Sequence[Predictions], attacks: Sequence[Attack], wanted: Sequence[str], count: int
) -> list[str]:
    """One line for each run and ball in which black-box attacks break more images than gradient attacks do.

    A gradient attack sees all that a black-box attack sees, and more. If it is the weaker one all the same, gradients
    are zero, or point nowhere, and its robust accuracy says nothing. Compared are, for each ball and protocol, the
    images robust against its gradient attacks, and those robust against random corners and the square attack.

    Args:
        stacks: what is attacked.
        attacks: the attacks to judge.
        wanted: the protocols to judge them under.
        count: on how many of the first images to look.
    """
    balls: dict[tuple[float, str, str], list[Attack]] = {}
    for attack in attacks:
        for protocol in wanted if attack.uses_gradients and not attack.only_sound else ():
            balls.setdefault((attack.eps, attack.norm, protocol), []).append(attack)

    def robust(stack: Predictions, attacks: Sequence[Attack], protocol: str) -> Tensor:
        """Which of the images are right as they are and under all attacks, (runs, n)."""
        metrics = [Metric(), *(Metric(attack, protocol) for attack in attacks)]
        return torch.stack([stack.of(metric, count) == stack.data.y[:count] for metric in metrics]).all(0)

    notes = []
    for stack in stacks:
        for (eps, norm, protocol), mine in balls.items():
            blackbox = [RandomSearch(eps, TRIES, norm=norm), *([Square(eps, QUERIES)] if norm == "inf" else [])]
            seeing, blind = robust(stack, mine, protocol), robust(stack, blackbox, protocol)
            for run, name in enumerate(stack.names):
                missed = int((seeing[run] & ~blind[run]).sum())
                missing = int((blind[run] & ~seeing[run]).sum())
                # McNemar's test: by chance alone the two differ by the root of their sum.
                if missed - missing > 2 * sqrt(missed + missing):
                    kinds = ", ".join(attack.name for attack in mine)
                    notes.append(
                        f"{name}: gradient masking? Within eps {eps:.4g} ({norm}, {protocol}) black-box attacks leave "
                        f"{int(blind[run].sum())} of {count} images robust, {kinds} {int(seeing[run].sum())}"
                    )
    if balls and not notes:
        notes.append(
            f"no sign of gradient masking: on the first {count} images no black-box attack ({TRIES} random points, "
            f"{QUERIES} queries of the square attack) is stronger than the gradient attacks in its ball"
        )
    return notes


@dataclass(frozen=True, eq=False, repr=False)
class Examples:
    """The first images, as they are and attacked.

    Attributes:
        x: images, (n, ...).
        y: labels, (n,).
        clean: predictions for them, (runs, n).
        adversarial: attacked images, (runs, n, ...), by attack and protocol.
        predictions: predictions for those, (runs, n).
        names: of the runs.
    """

    x: Tensor
    y: Tensor
    clean: Tensor
    adversarial: Mapping[tuple[str, str], Tensor]
    predictions: Mapping[tuple[str, str], Tensor]
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, stacks: Sequence[Predictions], metrics: Sequence[Metric], count: int) -> Self:
        """The first images of some stacks, as all their runs see them."""
        found = {
            (one.name, one.protocol): torch.cat([stack.of(one, count) for stack in stacks])
            for one in metrics
            if one.certify is None
        }
        clean = found.pop((CLEAN, "-"))
        adversarial = {key: torch.cat([stack.examples[key][:, :count] for stack in stacks]) for key in found}
        data, names = stacks[0].data, [name for stack in stacks for name in stack.names]
        return cls(data.x[:count], data.y[:count], clean, adversarial, found, tuple(names))


@dataclass(frozen=True, repr=False)
class Evaluation:
    """All scores of an evaluation.

    Attributes:
        scores: the flat table of them; "run" says whose each is.
        notes: what a reader of the scores must know.
        class_names: names of the classes.
        examples: images, if some were to be kept.
        skipped: what could not be evaluated, with the reason.
        paths: where each run lies, by its address.
        warnings: what went wrong without spoiling a score.
        stored: the scores that were known before and not measured now, each with its run.
    """

    scores: Table
    notes: list[str] = field(default_factory=list)
    class_names: tuple[str, ...] = ()
    examples: Examples | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    stored: frozenset[tuple[str, Score]] = frozenset()

    def is_stored(self, row: Row) -> bool:
        """Whether the score of a row was known before, and not measured now."""
        return (row["run"], score_of(row)) in self.stored

    def __repr__(self) -> str:
        """The numbers of scores and runs; `print` shows the scores."""
        runs = len(self.scores.values("run"))
        return f"Evaluation({len(self.scores)} scores of {runs} run{'s'[: runs != 1]}; print it to see them)"

    def find(self, attack: str, protocol: str = "sound", run: str | None = None, counted: str = "robust") -> Score:
        """The score of an attack; of the first run, if none is named. A certified one may leave its budget out."""
        if certified_radius_of(attack) is not None:
            attack = certified_name(attack.partition("-")[2])
        for row in self.scores:
            plain = attack == CLEAN or row["counted"] == "verified"
            fits = plain or (row["protocol"] == protocol and row["counted"] == counted)
            if row["attack"] == attack and fits and run in (None, row["run"]):
                return score_of(row)
        raise KeyError(f"no score for {attack} under {protocol}")

    def counted(self, way: str) -> Table:
        """The scores that are counted one way, "robust" or "attacked"; what is clean or proven comes with both."""
        if way not in ("robust", "attacked"):
            raise ArgumentError("count", f"must be robust or attacked, got {way!r}")
        return self.scores.only(lambda row: row["counted"] in (way, "-", "verified"))

    def __str__(self) -> str:
        """A table to read, also as Markdown: one line a score."""
        cells = [["run", "attack", "protocol", "accuracy", "95 % interval", "correct"]]
        for row in map(row_facts, self.counted("robust")):
            low, high = f"{100 * row['low']:.2f}", f"{100 * row['high']:.2f}"
            accuracy, counts = f"{100 * row['accuracy']:.2f} %", f"{row['correct']}/{row['total']}"
            cells.append([str(row["run"]), row["attack"], row["protocol"], accuracy, f"{low} to {high}", counts])
        if len(self.scores.values("run")) < 2:
            cells = [row[1:] for row in cells]
        widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(cells[0]))]
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        lines = []
        for first, *others in [cells[0], rule, *cells[1:]]:
            texts = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
            lines.append(f"| {' | '.join(texts)} |")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def row_facts(row: Row) -> dict[str, Any]:
    """A row with what follows from its counts: the accuracy and its interval."""
    score = score_of(row)
    low, high = score.interval
    return {**row, "accuracy": score.accuracy, "low": low, "high": high}
