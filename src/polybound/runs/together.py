"""Runs that train together, as one stack: what the runs of a seed have in common is trained once, and saved often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path

import torch
from filelock import Timeout

from polybound.data import Dataset
from polybound.errors import PolyboundError
from polybound.runs.checkpoints import Checkpoint, checkpoints, lock_file, lock_names, locked, path_for
from polybound.runs.folder import Run
from polybound.runs.session import Session, TrainingProgress, common_recipe
from polybound.runs.signals import deferred_signals
from polybound.runs.spec import Spec

__all__ = ["interrupted", "train_together"]


def train_together(
    specs: Sequence[Spec],
    root: str | PathLike[str],
    *,
    data: Dataset | None = None,
    validation: Dataset | None = None,
    data_dir: str | PathLike[str] | None = None,
    epochs: Sequence[int] = (),
    on_progress: Callable[[TrainingProgress], None] | None = None,
    save_every: float = 60.0,
    device: str = "cpu",
) -> list[Run]:
    """Train runs of one architecture, data set and schedule as one stack; finished ones are not trained again.

    Runs of one seed are one and the same until the first of them is constrained: they are trained once until then and
    branched. Bounds that the weights are far below stay together even then, for as long as no projection has anything
    to do. While runs are trained their locks are held: another process that wants them waits, and finds them finished.
    State is saved after every epoch and every `save_every` seconds; a run that was killed goes on from there, to
    the same bits. A run whose loss is no longer finite ends with a line in its history; the others go on.

    Args:
        specs: what to train; all but seeds and bounds must agree.
        root: folder of the run folders.
        data: the training split, or the spec's subset of it; loaded by its name if it is not given. Other samples than
            the spec names are refused.
        validation: the spec's validation split, measured on after every epoch; loaded if a share of train is held out
            and it is not given.
        data_dir: where the data lies.
        epochs: also keep the models after these epochs. If only such a model is missing it is trained anew, and no
            further than that.
        on_progress: called now and then.
        save_every: seconds between checkpoints within an epoch.
        device: where to train.
    """
    if not specs:
        return []
    root = Path(root)
    common_recipe(specs)
    ends = (*sorted({epoch for epoch in epochs if epoch < specs[0].recipe.epochs}), None)
    runs = [Run.of(spec, root) for spec in specs]

    def left() -> list[int]:
        return [i for i, run in enumerate(runs) if not all(run.finished(epoch) for epoch in ends)]

    if left():
        wanted = specs[0].data
        data = wanted.load("train", data_dir) if data is None else wanted.checked(data, "train")
        if validation is not None:
            validation = wanted.checked(validation, "validation")
        elif wanted.held_out:
            validation = wanted.load("validation", data_dir)
        _check_device(device)
        model = specs[0].model.build(data)
        for spec in specs:
            spec.recipe.method.prepare(model)  # which raises if its options do not fit the model
        with locked(lock_file(root, name) for name in lock_names(specs)):
            while todo := left():
                # Neighbours share their batches.
                todo = _begun(root, specs, todo) or sorted(todo, key=lambda i: specs[i].seed)
                some = [specs[i] for i in todo]
                with locked([lock_file(root, path_for(root, some).name)]), deferred_signals() as stopping:
                    session = Session(some, [runs[i] for i in todo], ends, data, root, device)
                    for spec in some:  # not before it is known that they can be trained
                        Run.make(spec, root)
                    session.train(validation, on_progress, save_every, stopping)
    _remove_checkpoints(root, specs)
    return runs


def _check_device(name: str) -> None:
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch has all of these for it
        reason = str(error).partition("\n")[0]
        raise PolyboundError(f"device {name!r} cannot be used ({reason})") from error


def interrupted(root: Path) -> list[list[Spec]]:
    """What was being trained in a folder of runs and did not end: the specs of each checkpoint."""
    return [Checkpoint.specs_in(file) for file in checkpoints(root)]


def _begun(root: Path, specs: Sequence[Spec], todo: list[int]) -> list[int] | None:
    """Which of the runs were being trained together when they were interrupted, in their order.

    If that was while the folders were being written, some are finished: the rest must not start anew without them.
    """
    places = {spec.address: i for i, spec in enumerate(specs)}
    for file in checkpoints(root):
        try:
            found = [places.get(spec.address, -1) for spec in Checkpoint.specs_in(file)]
        except (PolyboundError, FileNotFoundError):  # of no concern here, or gone by now
            continue
        if -1 not in found and set(found) & set(todo):
            return found
    return None


def _remove_checkpoints(root: Path, finished: Sequence[Spec]) -> None:
    """Remove the state of finished runs, whose process was killed before it could."""
    ours = {spec.address for spec in finished}
    for file in checkpoints(root):
        with suppress(PolyboundError, FileNotFoundError, Timeout):  # of no concern here, gone by now, or in use
            if {spec.address for spec in Checkpoint.specs_in(file)} <= ours:
                with locked([lock_file(root, file.name)], wait=False):
                    file.unlink(missing_ok=True)
