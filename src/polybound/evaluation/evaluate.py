"""Accuracy, clean and under attack, of any classifier or stack of classifiers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod

import torch
from torch import Tensor, nn

from polybound.attacks import PAPER_ATTACKS, PUBLISHED_NOTE, Attack, parse_attacks, protocols
from polybound.attacks.classifier import Classifier, right
from polybound.attacks.random_numbers import GROUP
from polybound.data import Dataset
from polybound.defences import Defence, Defended, find_defence
from polybound.errors import PolyboundError
from polybound.evaluation.certified import certified_scores
from polybound.evaluation.masking import masking_notes
from polybound.evaluation.score import Evaluation, Examples, Score

__all__ = ["Progress", "evaluate", "reader_notes"]

Progress = Callable[[int, int, str], None]
"""Called with the images done, all images, and what is being done; an image counts once for each attack on it."""

_MEMORY = 2**26
"""Bytes of adversarial examples that are held at a time."""


def evaluate(
    model: nn.Module,
    data: Dataset,
    attacks: str | Attack | Iterable[str | Attack] = PAPER_ATTACKS,
    *,
    protocol: str = "sound",
    limit: int | None = None,
    seed: int = 0,
    per_class: bool = False,
    defence: str | Defence | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
    keep: int = 0,
    check: int = 0,
    certify: Sequence[float] = (),
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
        per_class: whether to count each class for itself too.
        defence: a denoiser in front of the model, "gaussian", "median" or a `Defence`. Attacks see it.
        batch_size: images at a time; by default as many as fit into some 64 MB.
        progress: called as `progress(done, total, what)`.
        keep: how many of the first images and their adversarial examples to return.
        check: on how many of the first images to look for gradient masking: whether black-box attacks within the same
            ball break more of them than gradient attacks.
        certify: radii of l_inf balls for which to give the certified accuracy as well, as attack "certified-EPS".
        names: of the runs.

    Example:
        >>> import polybound as pb
        >>> test = pb.data.load_digits("test")
        >>> model = pb.paper_model("pn-4", shape=test.shape, seed=0)
        >>> pb.fit(model, pb.data.load_digits("train"), epochs=5, learning_rate=0.02)
        >>> result = pb.evaluate(model, test, ["fgsm-0.1", "pgd-0.1-20-0.01"])
        >>> [(row.attack, row.protocol) for row in result.rows]
        [('clean', '-'), ('fgsm-0.1', 'sound'), ('pgd-0.1-20-0.01', 'sound')]
        >>> result.find("clean").accuracy > result.find("fgsm-0.1").accuracy
        True
    """
    chosen, wanted = parse_attacks(attacks), protocols(protocol)
    plan = [(attack, name) for attack in chosen for name in wanted if not (attack.only_sound and name != "sound")]
    notes = reader_notes(chosen, wanted, data)
    if defence is not None:
        model = Defended(model, find_defence(defence, data.shape))
    total = _count(data, limit)
    with Classifier(model, data.shape) as victim:
        labels = _names(names, victim)
        rows, examples, robust = _measure(victim, data, plan, total, seed, batch_size, progress, keep, check)
    scores = [
        Score.of(labels[run], column, seed, counts[run], attacked[run], totals)
        for run in range(victim.runs)
        for column, counts, attacked, totals in rows
    ]
    for eps in certify:
        scores += certified_scores(model, data, eps, total=total, names=labels, seed=seed)
    if check:
        notes += masking_notes(model, data, robust, labels, seed)
    scores = scores if per_class else [replace(score, per_class=None) for score in scores]
    return Evaluation(scores, data.name, data.split, notes, data.class_names, examples)


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


_Counts = list[tuple[tuple[str, str], Tensor, Tensor, Tensor]]
_Robust = dict[tuple[Attack, str], Tensor]


def _measure(
    victim: Classifier,
    data: Dataset,
    plan: Sequence[tuple[Attack, str]],
    total: int,
    seed: int,
    batch_size: int | None,
    progress: Progress | None,
    keep: int,
    check: int,
) -> tuple[_Counts, Examples | None, _Robust]:
    """Counts of each class, (runs, classes), for the clean images and each attack; examples; robust first images."""
    columns = [("clean", "-"), *((attack.name, name) for attack, name in plan)]
    counts = torch.zeros(len(columns), 2, victim.runs, data.classes, dtype=torch.int64)
    totals = torch.zeros(data.classes, dtype=torch.int64)
    kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in columns]
    robust: dict[tuple[Attack, str], list[Tensor]] = {pair: [] for pair in plan}
    rows = _rows(victim, data, batch_size)
    done = 0

    def add(column: int, clean: Tensor, attacked: Tensor, y: Tensor) -> Tensor:
        robust = clean & attacked
        counts[column].index_add_(2, y, torch.stack([robust, attacked]).to(torch.int64))
        return robust

    for start in range(0, total, rows):
        stop = min(start + rows, total)
        x, y = data.x[start:stop], data.y[start:stop]
        logits = victim.logits(x.flatten(1).unsqueeze(0).to(victim.device)).cpu()
        if logits.shape[1] != data.classes:
            raise PolyboundError(f"the model has {logits.shape[1]} classes, {data.name} has {data.classes}")
        clean = right(logits, y)
        totals += torch.bincount(y, minlength=data.classes)
        add(0, clean, clean, y)
        here = max(0, min(keep, stop) - start)
        kept[0].append((x[:here], logits.argmax(1)[:, :here]))
        for column, (attack, name) in enumerate(plan, 1):
            if progress is not None:
                progress(done, total * len(plan), f"{attack.name} {name}")
            found = attack(victim.model, x, y, domain=data.domain, protocol=name, seed=seed, start=start)
            attacked = victim.logits(_flat(found, data, victim)).cpu()
            hits = add(column, clean, right(attacked, y), y)
            robust[attack, name].append(hits[:, : max(0, check - start)])
            stacked = found if victim.stacked else found.unsqueeze(0)
            kept[column].append((stacked[:, :here].clone(), attacked.argmax(1)[:, :here]))
            done += stop - start
    if progress is not None:
        progress(done, max(done, 1), "done")
    result = [(column, counts[i, 0], counts[i, 1], totals) for i, column in enumerate(columns)]
    examples = _examples(data, columns, kept, keep) if keep else None
    return result, examples, {pair: torch.cat(parts, 1) for pair, parts in robust.items()}


def _flat(found: Tensor, data: Dataset, victim: Classifier) -> Tensor:
    lead = found.shape[: found.ndim - len(data.shape)]
    return found.reshape(victim.runs, lead[-1], prod(data.shape)).to(victim.device)


def _examples(
    data: Dataset, columns: list[tuple[str, str]], kept: list[list[tuple[Tensor, Tensor]]], keep: int
) -> Examples:
    images = [torch.cat([x for x, _ in parts], 0 if i == 0 else 1) for i, parts in enumerate(kept)]
    predictions = [torch.cat([p for _, p in parts], 1) for parts in kept]
    return Examples(
        images[0],
        data.y[: min(keep, len(data))][: len(images[0])],
        predictions[0],
        dict(zip(columns[1:], images[1:], strict=True)),
        dict(zip(columns[1:], predictions[1:], strict=True)),
    )


def _count(data: Dataset, limit: int | None) -> int:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise PolyboundError(f"limit must be a whole number of at least 1, got {limit!r}")
    if len(data) == 0:
        raise PolyboundError(f"the {data.split} split of {data.name} is empty")
    if int(data.y.min()) < 0 or int(data.y.max()) >= data.classes:
        raise PolyboundError(
            f"{data.name} has labels from {data.y.min()} to {data.y.max()}, but {data.classes} classes"
        )
    return len(data) if limit is None else min(limit, len(data))


def _rows(victim: Classifier, data: Dataset, batch_size: int | None) -> int:
    """Images at a time: a multiple of the group that shares its random numbers."""
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise PolyboundError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    wanted = batch_size or _MEMORY // (victim.runs * prod(data.shape) * data.x.element_size())
    return max(1, wanted // GROUP) * GROUP


def _names(names: Sequence[str] | None, victim: Classifier) -> list[str]:
    if names is None:
        return [f"run {run}" for run in range(victim.runs)] if victim.stacked else ["model"]
    if len(names) != victim.runs:
        raise PolyboundError(f"{len(names)} names for {victim.runs} runs")
    return list(names)
