"""Folders with hundreds of runs: what is in them, and what can go."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from polybound.errors import FileFormatError, PolyboundError
from polybound.runs.checkpoints import Checkpoint, checkpoints
from polybound.runs.folder import Run, find_runs

__all__ = ["RunSummary", "clean_runs", "list_runs"]

_TEMPORARY = re.compile(r"\..+\.(json|jsonl|csv|safetensors)\.[a-z0-9_]{8}")


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
    if not root.is_dir():
        raise PolyboundError(f"{root}: no such folder")
    return [_summary(run) for run in find_runs(root)]


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
    return RunSummary(run.path, label, state, why, scores, _size(run.path.iterdir()))


def clean_runs(root: Path, states: Iterable[str] = (), *, dry_run: bool = False) -> dict[Path, str]:
    """Remove what nobody needs; returns what, with the reason.

    That is half-written files of killed processes, checkpoints whose runs are all finished, and the runs that are in
    one of the `states`.

    Args:
        root: folder of the runs.
        states: of the runs to remove: "failed", "unfinished" or "damaged".
        dry_run: whether only to say what would be removed.
    """
    wanted = set(states)
    if unknown := wanted - {"failed", "unfinished", "damaged"}:
        raise PolyboundError(f"only failed, unfinished or damaged runs are removed, not {min(unknown)}")
    summaries = list_runs(root)
    found = {file: "half-written" for file in sorted(root.glob("**/.*.*")) if file.is_file() and _is_temporary(file)}
    found |= {one.path: one.state for one in summaries if one.state in wanted}
    finished = {one.path for one in summaries if one.state in ("finished", "failed")}
    for file in checkpoints(root):
        try:
            if all(Run.of(spec, root).path in finished for spec in Checkpoint.specs_in(file)):
                found[file] = "its runs are finished"
        except FileFormatError:
            found[file] = "damaged"
        except PolyboundError:  # of a method or a model that is not registered: its plugin may not be loaded
            continue
    for path in () if dry_run else found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return found


def _is_temporary(file: Path) -> bool:
    """Whether `write_atomically` began one of our files and did not end it: ".NAME" and eight random characters."""
    return _TEMPORARY.fullmatch(file.name) is not None


def _size(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files if file.is_file())
