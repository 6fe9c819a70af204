"""Accuracy, clean and under attack, of any classifier or stack; signs of masked gradients; proven intervals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from polybound.attacks import PAPER_ATTACKS, PUBLISHED_NOTE, Attack, RandomSearch, Square, parse_attacks, protocols
from polybound.certificates import ENDS, PreparedNetwork, output_bounds
from polybound.data import Dataset
from polybound.defences import Defence, find_defence
from polybound.errors import ArgumentError, PolyboundError
from polybound.evaluation.measure import (
    EvaluatedModel,
    Measuring,
    Progress,
    Question,
    count_images,
    digest_of_module,
    measure,
    stacks,
    together,
)
from polybound.evaluation.score import CLEAN, Score, certified_name, certified_radius_of, read_radius, short_digest
from polybound.evaluation.table import Row, Table
from polybound.models import PolynomialNetwork, polynomial

__all__ = [
    "Evaluation",
    "Examples",
    "evaluate",
    "evaluate_models",
    "keep_examples",
    "masking_notes",
    "output_intervals",
    "questions_for",
    "reader_notes",
]


# Intervals that a network's outputs provably stay in, next to the certified accuracy of the same balls.


BUDGET = 1.0
"""Seconds for each image and radius that names none."""


def output_intervals(
    model: nn.Module, data: Dataset, radii: Sequence[float | str], images: int, run: str
) -> list[dict[str, Any]]:
    """A row for each of the first images, each radius and each output: see `polybound.output_bounds`.

    Args:
        model: the network, no stack.
        data: whose images.
        radii: of the balls; see `read_radius`.
        images: how many.
        run: what the rows call the network.

    Raises:
        PolyboundError: there is no radius, or the model is no polynomial network.
    """
    if not radii:
        raise ArgumentError("intervals", "needs the radius of the balls that it is about: certify=0.02")
    net, x, labels = PreparedNetwork(polynomial(model)), data.x[:images], data.y[:images].tolist()
    rows: list[dict[str, Any]] = []
    for radius in radii:
        eps, norm, _, seconds = read_radius(radius)
        found = output_bounds(net, x, eps, norm=norm, domain=data.domain, budget=BUDGET if seconds is None else seconds)
        about = {"run": run, "eps": eps, "norm": norm}
        rows += [about | {"label": labels[row["image"]]} | row for row in found.rows()]
    return rows


# Gradient masking: robust only against those who follow the gradient.


QUERIES = 300
TRIES = 20


def masking_notes(
    networks: Sequence[tuple[Sequence[str], nn.Module]],
    data: Dataset,
    attacks: Sequence[Attack],
    wanted: Sequence[str],
    count: int,
    seed: int = 0,
) -> list[str]:
    """One line for each run and ball in which black-box attacks break more images than gradient attacks do.

    A gradient attack sees all that a black-box attack sees, and more. If it is the weaker one all the same, gradients
    are zero, or point nowhere, and its robust accuracy says nothing. Compared are, for each ball and protocol, the
    images robust against its gradient attacks, and those robust against random corners and the square attack.

    Args:
        networks: what is attacked, classifiers or stacks of them, behind their denoisers; each with its runs' names.
        data: the images.
        attacks: the attacks to judge.
        wanted: the protocols to judge them under.
        count: on how many of the first images to look.
        seed: of all attacks.
    """
    judged = [attack for attack in attacks if attack.uses_gradients and not attack.only_sound]
    balls: dict[tuple[float, str, str], list[Attack]] = {}
    for attack in judged:
        for protocol in wanted:
            balls.setdefault((attack.eps, attack.norm, protocol), []).append(attack)
    notes = []
    for names, model in networks:
        measuring = Measuring(model, data, count, seed=seed)
        for (eps, norm, protocol), mine in balls.items():
            seeing = _robust(measuring, mine, protocol)
            blind = _robust(measuring, _blackbox(eps, norm), protocol)
            for run, name in enumerate(names):
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


def _blackbox(eps: float, norm: str) -> list[Attack]:
    attacks: list[Attack] = [RandomSearch(eps, TRIES, norm=norm)]
    return [*attacks, Square(eps, QUERIES)] if norm == "inf" else attacks


def _robust(measuring: Measuring, attacks: Sequence[Attack], protocol: str) -> Tensor:
    """Which of the images are right as they are and under all attacks, (runs, n)."""
    y = measuring.data.y[: measuring.total]
    return torch.stack([measuring.clean() == y, *(measuring.attacked(a, protocol) == y for a in attacks)]).all(0)


Attacks = str | Attack | Iterable[str | Attack]


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
    adversarial: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    predictions: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    @classmethod
    def joined(cls, parts: Sequence[Examples], names: Sequence[str]) -> Examples:
        """The examples of the same images from several networks or stacks, as those of one stack."""
        first = parts[0]
        adversarial = {key: torch.cat([part.adversarial[key] for part in parts]) for key in first.adversarial}
        predictions = {key: torch.cat([part.predictions[key] for part in parts]) for key in first.predictions}
        return cls(first.x, first.y, torch.cat([part.clean for part in parts]), adversarial, predictions, tuple(names))


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
        intervals: of outputs, if they were asked for, a row each; see `output_intervals`.
        stored: the scores that were known before and not measured now, each with its run.
    """

    scores: Table
    notes: list[str] = field(default_factory=list)
    class_names: tuple[str, ...] = ()
    examples: Examples | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    intervals: list[dict[str, Any]] = field(default_factory=list)
    stored: frozenset[tuple[str, Score]] = frozenset()

    def is_stored(self, row: Row) -> bool:
        """Whether the score of a row was known before, and not measured now."""
        return (row["run"], score_of(row)) in self.stored

    def __repr__(self) -> str:
        """How much there is; `print` shows it all."""
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

    def to_json(self) -> str:
        """Scores, notes and what was skipped."""
        skipped = [{"run": run, "why": why} for run, why in self.skipped.items()]
        content: dict[str, Any] = {"scores": list(map(row_facts, self.scores)), "notes": self.notes, "skipped": skipped}
        return json.dumps(content | ({"intervals": self.intervals} if self.intervals else {}), indent=2)

    def __str__(self) -> str:
        """A table to read, also as Markdown: one line a score."""
        head = ["run", "attack", "protocol", "accuracy", "95 % interval", "correct"]
        cells = [_cells(row) for row in self.counted("robust")]
        if len(self.scores.values("run")) < 2:
            head, cells = head[1:], [row[1:] for row in cells]
        lines = [*_aligned([head, *cells]), *(f"note: {note}" for note in self.notes)]
        if self.intervals:
            lines += ["", *_aligned([["ball", "image", "label", "output", *ENDS], *map(_interval, self.intervals)])]
        return "\n".join(lines)


def score_of(row: Row) -> Score:
    """The score that a row of a table holds."""
    return Score(**{name: row[name] for name in Score.names()})


def row_facts(row: Row) -> dict[str, Any]:
    """A row with what follows from its counts: the accuracy and its interval."""
    score = score_of(row)
    low, high = score.interval
    return {**row, "accuracy": score.accuracy, "low": low, "high": high}


def evaluate(
    model: nn.Module,
    data: Dataset,
    attacks: Attacks = PAPER_ATTACKS,
    *,
    protocol: str = "sound",
    limit: int | None = None,
    seed: int = 0,
    defence: str | Defence | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
    keep: int = 0,
    check: int = 0,
    certify: Sequence[float | str] = (),
    intervals: int = 0,
    names: Sequence[str] | None = None,
) -> Evaluation:
    """Measure a classifier's accuracy on a data set, clean and under attack.

    An image counts as robust if it is classified right as it is *and* attacked. Results depend on the seed alone,
    neither on the batch size nor on what else is in the stack.

    Args:
        model: any classifier; all runs of a stack are attacked together.
        data: what to measure on.
        attacks: names ("pgd-0.1-20-0.01") or attacks; the paper's six by default.
        protocol: what attacks clip to: "sound", the data's domain; "published", [0, 1] as in the paper; or "both".
        limit: the number of images, from the first on; all by default.
        seed: of the attacks.
        defence: a denoiser in front of the model, "gaussian", "median" or a `Defence`. Attacks see it.
        batch_size: images at a time; by default as many as fit into some 64 MB.
        progress: called as `progress(done, total, what)`.
        keep: how many of the first images and their adversarial examples to return.
        check: on how many of the first images to look for gradient masking: whether black-box attacks within the same
            ball break more of them than gradient attacks.
        certify: radii of balls for which to give the certified accuracy as well, as attack "certified-EPS": numbers of
            l_inf balls, texts like "0.5:norm=2" of l_2 balls. Proofs of an image may take 256 cells of branch and
            bound, the same on every machine; "0.1:nodes=1000" and "0.1:seconds=5" say otherwise.
        intervals: for how many of the first images to give the intervals that each output provably stays in, over the
            same balls.
        names: of the runs.

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
    subjects, labels = _subjects(model, names)
    guard = None if defence is None else find_defence(defence, data.shape)
    for one in subjects:
        one.defence = guard
    options: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "progress": progress, "keep": keep}
    options |= {"check": check, "certify": certify, "intervals": intervals, "limit": limit}
    about = [{"run": name} for name in labels]
    return evaluate_models(subjects, about, labels, data, attacks, protocol, **options)


def evaluate_models(
    subjects: Sequence[EvaluatedModel],
    about: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    data: Dataset,
    attacks: Attacks,
    protocol: str,
    *,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
    keep: int = 0,
    check: int = 0,
    certify: Sequence[float | str] = (),
    intervals: int = 0,
) -> Evaluation:
    """Measure networks of one architecture, each behind its denoiser. All other options are those of `evaluate`.

    `about` says what stands in each network's rows besides its scores, `names` what notes call it.
    """
    chosen, wanted = parse_attacks(attacks), protocols(protocol)
    if (certify or intervals) and any(one.defence is not None for one in subjects):
        raise PolyboundError("a network behind a denoiser has no certificates")
    images = count_images(data, limit)
    stored = frozenset((mine["run"], score) for mine, one in zip(about, subjects, strict=True) for score in one.scores)
    options: dict[str, Any] = {"limit": limit, "seed": seed, "batch_size": batch_size, "progress": progress}
    found = measure(subjects, data, questions_for(chosen, wanted, certify), **options)
    rows = [{**mine, **score.as_dict()} for mine, scores in zip(about, found, strict=True) for score in scores]
    notes = reader_notes(chosen, wanted, data)
    name_of = dict(zip(map(id, subjects), names, strict=True))
    networks = [
        ([name_of[id(one)] for one in group], together(group)) for group in (stacks(subjects) if check or keep else ())
    ]
    if check:
        notes += masking_notes(networks, data, chosen, wanted, count_images(data, check), seed)
    kept = [keep_examples(model, data, chosen, wanted, min(keep, images), seed) for _, model in networks if keep]
    first, proven = min(intervals, images), []
    for mine, one in zip(about, subjects, strict=True) if first else ():
        proven += output_intervals(one.model, data, certify, first, str(mine["run"]))
    examples = Examples.joined(kept, [name for group, _ in networks for name in group]) if kept else None
    return Evaluation(Table(rows), notes, data.class_names, examples, intervals=proven, stored=stored)


def _subjects(model: nn.Module, names: Sequence[str] | None) -> tuple[list[EvaluatedModel], list[str]]:
    runs = getattr(model, "runs", None)
    stacked = isinstance(runs, int) and not isinstance(runs, bool)
    members: list[nn.Module] = [model]
    if stacked:
        single = model.run if isinstance(model, PolynomialNetwork) else lambda e: _RunOf(model, e)
        members = [single(e) for e in range(runs or 0)]
    labels = list(names or ([f"run {e}" for e in range(len(members))] if stacked else ["model"]))
    if len(labels) != len(members):
        raise PolyboundError(f"{len(labels)} names for {len(members)} runs")
    return [EvaluatedModel(member, short_digest(digest_of_module(member))) for member in members], labels


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


def questions_for(
    attacks: Sequence[Attack], wanted: Sequence[str], certify: Sequence[float | str] = ()
) -> list[Question]:
    """What an evaluation asks: clean, every attack under every protocol that it knows, and certificates."""
    asked = [
        Question(attack, name) for attack in attacks for name in wanted if name == "sound" or not attack.only_sound
    ]
    return [Question(), *asked, *(Question(protocol="sound", certify=eps) for eps in certify)]


def reader_notes(attacks: Sequence[Attack], wanted: Sequence[str], data: Dataset) -> list[str]:
    """What a reader of the scores must know, whatever they are."""
    notes = [data.note] if data.note else []
    for attack in attacks:
        if attack.only_sound and "published" in wanted:
            notes.append(f"{attack.name}: knows the sound protocol only")
        notes += attack.caveats(data.classes)
    if "published" in wanted and any(not attack.only_sound for attack in attacks):
        notes.append(PUBLISHED_NOTE)
    return notes


def keep_examples(
    model: nn.Module, data: Dataset, attacks: Sequence[Attack], wanted: Sequence[str], count: int, seed: int = 0
) -> Examples:
    """The first images as they are and attacked, with what a classifier, or each run of a stack, says to them."""
    measuring = Measuring(model, data, count, seed=seed)
    found = Examples(data.x[:count], data.y[:count], measuring.clean())
    for question in questions_for(attacks, wanted)[1:]:
        if question.attack is not None:
            images: list[Tensor] = []
            key = question.name, question.protocol
            found.predictions[key] = measuring.attacked(question.attack, question.protocol, images)
            found.adversarial[key] = torch.cat(images, 1)
    return found


def _cells(row: Row) -> list[str]:
    score = score_of(row)
    low, high = score.interval
    shown = f"{100 * score.accuracy:.2f} %", f"{100 * low:.2f} to {100 * high:.2f}", f"{score.correct}/{score.total}"
    return [str(row["run"]), score.attack, score.protocol, *shown]


def _interval(row: Row) -> list[str]:
    ends = ("none" if row[name] is None else f"{row[name]:.4f}" for name in ENDS)
    ball = f"{row['run']}: l_{row['norm']}, {row['eps']:g}"
    return [ball, *(str(row[name]) for name in ("image", "label", "output")), *ends]


def _aligned(cells: list[list[str]]) -> list[str]:
    """Cells as the lines of a Markdown table, numbers to the right."""
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(cells[0]))]

    def line(row: list[str]) -> str:
        texts = [text.ljust(widths[0]) if i == 0 else text.rjust(widths[i]) for i, text in enumerate(row)]
        return f"| {' | '.join(texts)} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [line(cells[0]), line(rule), *map(line, cells[1:])]
