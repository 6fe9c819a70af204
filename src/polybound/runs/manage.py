"""List the runs of a folder, and remove what is no longer needed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import Timeout

from polybound.errors import FileFormatError, PolyboundError, existing_folder
from polybound.runs import folder as stored
from polybound.runs.folder import Checkpoint, Run, find_runs, is_run

_TEMPORARY = re.compile(r"\.(.+\.(?:json|jsonl|csv|safetensors))\.[a-z0-9_]{8}")


@dataclass(frozen=True)
class RunSummary:
    """One run in a line.

    Attributes:
        path: its folder.
        label: what it is.
        state: "finished", "failed", "unfinished", "damaged", or "unknown" for a run of a method, a model or an attack
            that is not registered; its plugin may not be loaded, and nothing removes it.
        why: what is wrong with it, if anything.
        scores: how many accuracies were measured.
        size: bytes on disk.
    """

    path: Path
    label: str
    state: str
    why: str
    scores: int
    size: int


def list_runs(root: Path) -> list[RunSummary]:
    """All runs in a folder.

    Raises:
        PolyboundError: there is no such folder.
    """
    return [_summary(run) for run in find_runs(existing_folder(root))]


def _summary(run: Run) -> RunSummary:
    label, state, why, scores = run.path.name, "finished", "", 0
    try:
        label = run.spec().label
        if run.failure is not None:
            state, why = "failed", run.failure
        elif not run.finished():
            state, why = "unfinished", "not trained to the end"
        scores = len(run.table())
    except FileFormatError as error:
        state, why = "damaged", str(error)
    except PolyboundError as error:
        state, why = "unknown", str(error)
    size = sum(file.stat().st_size for file in run.path.iterdir() if file.is_file())
    return RunSummary(run.path, label, state, why, scores, size)


def clean_runs(root: Path, states: Iterable[str] = (), *, dry_run: bool = False) -> dict[Path, str]:
    """Remove what is no longer needed; returns the paths with the reasons.

    These are half-written files of killed processes, checkpoints whose runs are all finished, and the runs in one of
    the `states`. Locks are taken as in training: what a living process works on stays.

    Args:
        root: folder of the runs.
        states: of the runs to remove: "failed", "unfinished" or "damaged".
        dry_run: whether only to say what would be removed.
    """
    wanted = set(states)
    if unknown := wanted - {"failed", "unfinished", "damaged"}:
        raise PolyboundError(f"only failed, unfinished or damaged runs are removed, not {min(unknown)}")
    found: dict[Path, str] = {}

    def remove(path: Path, why: str, locks: Sequence[Path], still: Callable[[], bool] = lambda: True) -> None:
        """Remove what no other process has a lock of, if it is `still` of no use once the locks are held."""
        try:
            with stored.locked([file for file in locks if not dry_run or file.exists()], wait=False):
                if not path.exists() or not still():
                    return
                found[path] = why
                if not dry_run:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        except Timeout:
            return

    summaries = list_runs(root)
    for file in sorted(root.glob("**/.*.*")):
        # What `write_atomically` began and did not end: ".NAME." and eight random characters.
        if file.is_file() and (name := _TEMPORARY.fullmatch(file.name)):
            remove(file, "half-written", _locks_of(root, file.parent, name[1]))
    for one in summaries:
        if one.state in wanted:
            now = Run(one.path)
            remove(one.path, one.state, _locks_of(root, one.path), lambda: _summary(now).state == one.state)  # noqa: B023
    finished = {one.path for one in summaries if one.state in ("finished", "failed")}
    for file in stored.checkpoints(root):
        try:
            if all(Run.of(spec, root).path in finished for spec in Checkpoint.specs_in(file)):
                remove(file, "its runs are finished", [stored.lock_file(root, file.name)])
        except FileFormatError:
            remove(file, "damaged", [stored.lock_file(root, file.name)])
        except PolyboundError:  # of a method or a model that is not registered: its plugin may not be loaded
            continue
    return found


def _locks_of(root: Path, folder: Path, name: str = "") -> list[Path]:
    """The locks that are held by who writes a file, or without a name by who trains a run."""
    if not is_run(folder):
        return [stored.lock_file(root, name)]
    try:
        training = [stored.lock_file(root, one) for one in stored.lock_names([Run(folder).spec()])]
    except PolyboundError:  # a run whose spec cannot be read is not being trained
        training = []
    return [*training, folder / stored.LOCK] if name == stored.SCORES else training
