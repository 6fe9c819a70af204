"""The pieces of work of an experiment. A job leaves files with content addresses, and does nothing if they exist."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from polybound.atomic import write_atomically
from polybound.data import digest_of, load, missing
from polybound.errors import FileFormatError, PolyboundError
from polybound.evaluation import EvaluationSpec, Row
from polybound.runs import Run, Spec, address_of, evaluate_runs, lock_names, train_runs


def covers(row: Row, limit: int | None) -> bool:
    """Whether a score was measured on the images of a limit; without a limit, on all."""
    return bool(row["total"] == (min(limit, row["available"]) if limit else row["available"]))


@dataclass(frozen=True)
class StackJob:
    """Train some runs together, then measure them, and under the published protocol after earlier epochs too.

    Attributes:
        specs: of the runs.
        measurements: what to measure, and on which split.
        earlier: epochs after which to make the first measurement as well.
    """

    specs: tuple[Spec, ...]
    measurements: tuple[tuple[EvaluationSpec, str], ...]
    earlier: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """Jobs with the same key are the same."""
        return address_of([spec.as_dict() for spec in self.specs]) + repr((self.measurements, self.earlier))

    @property
    def locks(self) -> list[str]:
        """Those of the training, which are held until all is measured."""
        return lock_names(self.specs)

    @property
    def name(self) -> str:
        """One line for progress bars and messages."""
        first = self.specs[0]
        seeds = {spec.seed for spec in self.specs}
        which = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {first.seed}"
        methods = " and ".join(dict.fromkeys(spec.recipe.method.name for spec in self.specs))
        count = sum(spec.recipe.method.name != "none" for spec in self.specs)
        bounds = f", {count} bounds" if len(seeds) < len(self.specs) else ""
        return f"{first.data.name} {first.model.name} {methods} {which}{bounds}"

    def done(self, root: Path) -> bool:
        """Whether everything is there."""
        runs = [Run.of(spec, root) for spec in self.specs]
        if not all(run.finished(epoch) for run in runs for epoch in (*self.earlier, None)):
            return False
        for spec, run in zip(self.specs, runs, strict=True):
            for epoch, wanted, split in self._measuring() if run.failure is None else ():
                after = spec.recipe.epochs if epoch is None else epoch
                found = {
                    (row["attack"], row["protocol"], row["counted"])
                    for row in run.table()
                    if row["split"] == split and row["epoch"] == after and row["attack_seed"] == 0
                    if row["defence"] == (wanted.defence or "") and covers(row, wanted.limit)
                }
                if not {(one.name, one.protocol, way) for one in wanted.metrics() for way in one.counted} <= found:
                    return False
        return True

    def _measuring(self) -> Iterator[tuple[int | None, EvaluationSpec, str]]:
        """Yield what to measure after which epoch, None for the last, and on which split."""
        for wanted, split in self.measurements:
            yield None, wanted, split
        for epoch in self.earlier:
            yield epoch, replace(self.measurements[0][0], protocol="published", certify=()), "test"

    def run(self, root: Path, data_dir: Path | None) -> None:
        """Do what is not done; runs that fail are not measured."""
        runs = train_runs(self.specs, root, data_dir=data_dir, epochs=self.earlier)
        paths = [run.path for run in runs if run.failure is None]
        for epoch, wanted, split in self._measuring() if paths else ():
            evaluate_runs(paths, wanted, split=split, data_dir=data_dir, epoch=epoch)


@dataclass(frozen=True)
class StudyJob:
    """A job that neither trains nor evaluates runs; it leaves one JSON file."""

    kind: str
    options: str
    work: Callable[[Mapping[str, Any], Path, Path | None], Any]

    @classmethod
    def of(cls, kind: str, work: Callable[[Mapping[str, Any], Path, Path | None], Any], **options: Any) -> StudyJob:
        """Options are kept as JSON, so that a job can be compared and sent to a worker."""
        return cls(kind, json.dumps(options, sort_keys=True), work)

    @property
    def key(self) -> str:
        """Jobs with the same key are the same."""
        return self.file(Path()).name

    @property
    def locks(self) -> list[str]:
        """The key alone."""
        return [self.key]

    @property
    def name(self) -> str:
        """One line for progress bars and messages."""
        return f"{self.kind} {', '.join(str(value) for value in json.loads(self.options).values())}"[:100]

    def file(self, root: Path) -> Path:
        """Where the result is."""
        return root / ".studies" / f"{self.kind}-{address_of({'kind': self.kind, **json.loads(self.options)})}.json"

    def done(self, root: Path) -> bool:
        """Whether the result is there."""
        return self.file(root).exists()

    def run(self, root: Path, data_dir: Path | None) -> None:
        """Do the work and write its result."""
        result = self.work(json.loads(self.options), root, data_dir)
        self.file(root).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.file(root), (json.dumps(result) + "\n").encode())

    def result(self, root: Path) -> Any:
        """The result of the work."""
        try:
            return json.loads(self.file(root).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{self.file(root)}: not JSON ({error})") from error


Job = StackJob | StudyJob


# Which data sets are on this machine, by their digests.


def digests(
    data_dir: Path | None = None, *, fetch: bool = False, problems: dict[str, str] | None = None
) -> Callable[[str], str]:
    """A function from names of data sets to digests, each looked up once; "" for one that is not on this machine.

    Args:
        data_dir: where the data lies.
        fetch: whether to download what is missing.
        problems: filled with the reason for each data set that could not be had.
    """

    @cache
    def digest(name: str) -> str:
        try:
            if fetch and missing(name, data_dir):
                load(name, "test", data_dir=data_dir)
            return digest_of(name, data_dir)
        except (PolyboundError, OSError) as error:
            if problems is not None:
                problems[name] = str(error)
            return ""

    return digest
