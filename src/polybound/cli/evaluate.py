"""`polybound evaluate`: run folders under attack."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from polybound.attacks import parse_attacks
from polybound.attacks.checks import check_choice
from polybound.cli.progress import progress_bar
from polybound.errors import PolyboundError
from polybound.evaluation import Evaluation, evaluate, evaluate_runs
from polybound.evaluation.stored import StackedRuns

__all__ = ["run_evaluation"]

PICTURED = 8
"""Images in a picture."""


def run_evaluation(
    runs: list[Path],
    attacks: str,
    options: dict[str, Any],
    examples: Path | None,
    picture: Path | None,
    as_json: bool,
    means: bool,
    count: str,
) -> None:
    """Evaluate the runs, show their scores, and save adversarial examples or a picture of some if asked."""
    for file in (examples, picture):
        if file is not None and not file.parent.is_dir():
            raise PolyboundError(f"{file.parent}: no such folder")
    if picture is not None and find_spec("matplotlib") is None:
        raise PolyboundError("--picture needs matplotlib: pip install 'polybound[plot]'")
    check_choice("count", count, ("robust", "attacked"))
    chosen = parse_attacks(attacks)
    with progress_bar() as bar:
        task = bar.add_task("evaluating", total=None)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        result = evaluate_runs(runs, chosen, progress=show, **options)
        if examples is not None or picture is not None:
            kept = _kept(runs, chosen, options, None if examples is not None else 40 * PICTURED, show)
    if examples is not None:
        _save(examples, kept, runs)
    if picture is not None:
        from polybound.report.attacks import draw_attacks

        draw_attacks(picture, kept, PICTURED)
    result = result if count == "robust" else result.attacked_only()
    if as_json:
        print(result.to_json())
    elif means:
        # A run folder's name ends in its seed and its address.
        print(result.means({row.run: row.run.rsplit("-s", 1)[0] for row in result.rows}))
    else:
        print(result.table())


def _kept(runs: list[Path], attacks: Any, options: dict[str, Any], limit: int | None, progress: Any) -> Evaluation:
    """The same evaluation once more, with its images."""
    groups = StackedRuns.of(runs, split=options["split"], data_dir=options["data_dir"], defence=options["defence"])
    if len(groups) > 1:
        raise PolyboundError("adversarial examples can be kept for runs of one architecture and data set only")
    (group,) = groups
    count = min(options["limit"] or len(group.data), limit or len(group.data))
    same = {name: options[name] for name in ("protocol", "seed", "batch_size")}
    (part, *rest) = group.parts(group.runs)
    if rest:
        raise PolyboundError("guided denoising is another one for each run: keep examples of one run at a time")
    members, guard = part
    names = [run.path.name for run in members]
    return evaluate(
        group.model(members),
        group.data,
        attacks,
        limit=count,
        keep=count,
        defence=guard,
        progress=progress,
        names=names,
        **same,
    )


def _save(file: Path, result: Evaluation, runs: list[Path]) -> None:
    """An npz file: images, labels, and for each attack and protocol the adversarial examples of each run."""
    kept = result.examples
    if kept is None:
        raise AssertionError("no examples were kept")
    arrays: dict[str, Any] = {"x": kept.x.numpy(), "y": kept.y.numpy(), "runs": np.array([run.name for run in runs])}
    for (attack, protocol), images in kept.adversarial.items():
        arrays[f"{attack} {protocol}"] = images.numpy()
    with file.open("wb") as stream:
        np.savez_compressed(stream, **arrays)
