"""`polybound evaluate`: run folders and model files under attack."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

import polybound as pb
from polybound.cli.commands import app, command, note, progress
from polybound.cli.options import NETWORKS, AsJson, DataDir, argument, option
from polybound.cli.tables import labelled, mean_rows, print_wrapped, show_means, show_scores
from polybound.errors import PolyboundError, check_choice, require, writable_file

PICTURED = 8
"""Images in a picture."""


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of `polybound evaluate` that say what to measure: keywords of `evaluate_runs`."""

    protocol: str = option(
        "What attacks clip to: sound (the data's domain), published ([0, 1]) or both.", default="sound"
    )
    limit: int | None = option("Images, from the first on; all by default.", min=1)
    split: str = option("test, train or validation.", default="test")
    dataset: str | None = option("The data set, for models that are no runs.")
    seed: int = option("Seed of the attacks.", default=0, min=0)
    defence: str | None = option("A denoiser in front: gaussian, median:size=5, guided.")
    check: int = option("Number of images on which to look for gradient masking.", default=0, min=0)
    certify: list[str] | None = option(
        "Certified accuracy at 0.02, 0.5:norm=2, 0.1:nodes=1000; repeatable.", metavar="<radius>"
    )
    batch_size: int | None = option("Batch size (default: fits memory).", min=1)
    data_dir: DataDir = None


@command(
    app,
    "polybound evaluate runs/* --attacks paper --protocol both --means",
    "polybound evaluate RUN --attacks pgd-0.1-20-0.01,autoattack-0.1 --limit 500",
    "polybound evaluate m.safetensors --dataset digits --attacks fgsm-0.1 --picture attack.png",
    panel=NETWORKS,
    stopped="runs keep what was measured of them; the same command goes on",
)
def evaluate(
    runs: list[Path] = argument("Run folders, models that model.save(path) wrote, or ONNX files.", "RUN"),
    *,
    attacks: str = option(
        "Separated by commas; fgsm-EPS, pgd-EPS-STEPS-STEP, apgdt-STEPS ...; paper: its six.", default="paper"
    ),
    options: EvaluateOptions,
    per_class: bool = option("Also the accuracy of each class.", "--per-class", default=False),
    means: bool = option("Mean and standard deviation over seeds.", "--means", default=False),
    count: str = option(
        "robust: right before and after; attacked: right after, as many papers count.", default="robust"
    ),
    save_examples: Path | None = option("An npz file for the adversarial examples."),
    picture: Path | None = option("A picture of some (needs matplotlib)."),
    as_json: AsJson = False,
    as_csv: bool = option("Print CSV, in the columns of every table of scores.", "--csv", default=False),
) -> None:
    """Measure the accuracy of runs, clean and under attack; scores stay in the run folders.

    Exit code 1 if some of the runs were skipped.
    """
    if as_json and as_csv:
        raise PolyboundError("--json and --csv exclude each other")
    check_choice("count", count, ("robust", "attacked"))
    check_choice("split", options.split, ("test", "train", "validation"))
    keep = 0
    if picture is not None:
        require("matplotlib", "plot", "--picture")
        pb.report.check_figure_file(picture)
        keep = 40 * PICTURED
    if save_examples is not None:
        writable_file(save_examples)
        keep = options.limit or sys.maxsize
    with progress("evaluating") as step:
        certify = tuple(options.certify or ())
        result = pb.evaluate_runs(runs, attacks, keep=keep, progress=step, **(vars(options) | {"certify": certify}))
    scores = result.counted(count)
    if as_csv:
        print(scores.to_csv(), end="")
    elif as_json:
        content: dict[str, Any] = {"means": mean_rows(scores)} if means else {"scores": []}
        for row in [] if means else labelled(scores):
            shown = {name: value for name, value in row.items() if name != "per_class"}
            shown |= {"address": row["run"], "run": result.paths.get(row["run"], row["run"])}
            if per_class:
                shown["per_class"] = pb.evaluation.score_of(row).classes
            content["scores"].append(shown | {"stored": result.is_stored(row)})
        skipped = [{"run": run, "why": why} for run, why in result.skipped.items()]
        print(json.dumps({**content, "notes": result.notes, "skipped": skipped}, indent=2))
    else:
        (show_means if means else show_scores)(result, scores)
        for row in labelled(scores) if per_class and not means else ():
            named = zip(result.class_names, pb.evaluation.score_of(row).classes, strict=False)
            shares = [f"{name} {100 * a / b:.1f}" if b else f"{name} -" for name, (a, b) in named]
            print_wrapped(f"{row['label']}, {row['attack']} {row['protocol']}, by class: {', '.join(shares)}")
        if count == "attacked":
            print_wrapped("note: attacked images alone are counted: also those that are misclassified as they are")
    if save_examples is not None and result.examples is not None:
        import numpy as np

        kept = result.examples
        arrays: dict[str, Any] = {"x": kept.x.numpy(), "y": kept.y.numpy(), "runs": np.array(kept.names)}
        arrays |= {f"{attack} {protocol}": images.numpy() for (attack, protocol), images in kept.adversarial.items()}
        with save_examples.open("wb") as stream:
            np.savez_compressed(stream, **arrays)
    if picture is not None:
        pb.report.draw_attacks(picture, result, PICTURED)
    for warning in result.warnings:
        note(f"warning: {warning}")
    for path, why in result.skipped.items():
        note(f"skipped {path}: {why}")
    if result.skipped:
        raise typer.Exit(1)
