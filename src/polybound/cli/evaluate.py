"""`polybound evaluate`: run folders and model files under attack."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import typer

from polybound.cli.certify import show_intervals
from polybound.cli.commands import progress_bar
from polybound.cli.tables import labelled, mean_rows, note, print_wrapped, show_means, show_scores
from polybound.errors import PolyboundError, check_choice, writable_file
from polybound.evaluation import Evaluation, Examples, Table
from polybound.report import check_figure_file
from polybound.runs import evaluate_runs

__all__ = ["run_evaluation"]

PICTURED = 8
"""Images in a picture."""


def run_evaluation(
    paths: list[Path],
    attacks: str,
    options: dict[str, Any],
    *,
    count: str,
    shown: str,
    means: bool,
    per_class: bool,
    examples: Path | None,
    picture: Path | None,
) -> None:
    """Evaluate the networks, show their scores, and save adversarial examples or a picture of some if asked.

    `shown` is "table", "json" or "csv".
    """
    check_choice("count", count, ("robust", "attacked"))
    check_choice("split", options["split"], ("test", "train", "validation"))
    for file in (examples, picture):
        if file is not None:
            writable_file(file)
    if picture is not None:
        check_figure_file(picture)
        if find_spec("matplotlib") is None:
            raise PolyboundError("--picture needs matplotlib: pip install 'polybound[plot]'")
    keep = options["limit"] or sys.maxsize if examples is not None else 40 * PICTURED if picture is not None else 0
    with progress_bar() as bar:
        task = bar.add_task("evaluating", total=None)
        result = evaluate_runs(
            paths,
            attacks,
            keep=keep,
            progress=lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
            **options,
        )
    _show(result, count, shown, means, per_class)
    if examples is not None and result.examples is not None:
        _save(examples, result.examples)
    if picture is not None:
        from polybound.report import draw_attacks

        draw_attacks(picture, result, PICTURED)
    for warning in result.warnings:
        note(f"warning: {warning}")
    for path, why in result.skipped.items():
        note(f"skipped {path}: {why}")
    if result.skipped:
        raise typer.Exit(1)


def _show(result: Evaluation, count: str, shown: str, means: bool, per_class: bool) -> None:
    scores = result.counted(count)
    if shown == "csv":
        print(scores.to_csv(), end="")
    elif shown == "json":
        rows = [_for_json(row, result.paths, per_class) | {"stored": result.is_stored(row)} for row in labelled(scores)]
        content = {"means": mean_rows(scores)} if means else {"scores": rows}
        skipped = [{"run": run, "why": why} for run, why in result.skipped.items()]
        proven = {"intervals": result.intervals} if result.intervals else {}
        print(json.dumps({**content, **proven, "notes": result.notes, "skipped": skipped}, indent=2))
    elif means:
        show_means(result, scores)
    else:
        show_scores(result, scores)
        if per_class:
            _show_classes(result, scores)
    if result.intervals and shown == "table":
        about = ["run", "norm", "eps"] if len(result.paths) > 1 else ["norm", "eps"]
        show_intervals("intervals that the outputs provably stay in", result.intervals, about)
    if count == "attacked" and shown == "table":
        print_wrapped("note: attacked images alone are counted: also those that are misclassified as they are")


def _for_json(row: Mapping[str, Any], paths: Mapping[str, str], per_class: bool) -> dict[str, Any]:
    """A row with its run's folder, and its counts of each class as a list or left out."""
    plain = {name: value for name, value in row.items() if name != "per_class"}
    plain |= {"address": row["run"], "run": paths.get(row["run"], row["run"])}
    pairs = [[int(n) for n in pair.split("/")] for pair in row["per_class"].split()]
    return plain | ({"per_class": pairs} if per_class else {})


def _show_classes(result: Evaluation, scores: Table) -> None:
    for row in labelled(scores):
        pairs = [pair.split("/") for pair in row["per_class"].split()]
        shares = [
            f"{name} {100 * int(a) / int(b):.1f}" if int(b) else f"{name} -"
            for name, (a, b) in zip(result.class_names, pairs, strict=False)
        ]
        print_wrapped(f"{row['label']}, {row['attack']} {row['protocol']}, by class: {', '.join(shares)}")


def _save(file: Path, kept: Examples) -> None:
    """An npz file: images, labels, and for each attack and protocol the adversarial examples of each run."""
    arrays: dict[str, Any] = {"x": kept.x.numpy(), "y": kept.y.numpy(), "runs": np.array(kept.names)}
    for (attack, protocol), images in kept.adversarial.items():
        arrays[f"{attack} {protocol}"] = images.numpy()
    with file.open("wb") as stream:
        np.savez_compressed(stream, **arrays)
