"""The pieces of work of an experiment. A job leaves files with content addresses, and does nothing if they exist."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from polybound.atomic import write_atomically
from polybound.data import Dataset, load
from polybound.errors import FileFormatError
from polybound.evaluation import evaluate_runs
from polybound.evaluation.stored import has_scores
from polybound.experiments.experiment import Experiment
from polybound.experiments.plan import Plan
from polybound.experiments.stack import train_together
from polybound.runs import Run, address

__all__ = ["Job", "Measurement", "StackJob", "StudyJob", "carry_out", "measurements", "run_of", "training_data"]


def run_of(plan: Plan, root: Path) -> Run:
    """The folder of a plan, which may not exist yet."""
    return Run(root / f"{plan.name}-{address(plan.config())}")


def training_data(plan: Plan, data_dir: Path | None) -> Dataset:
    """The training split of a plan: all of it, or a fixed choice of so many samples."""
    data = load(plan.dataset, "train", data_dir=data_dir, validation=plan.validation)
    if not 0 < plan.samples < len(data):
        return data
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[: plan.samples]
    return replace(data, x=data.x[chosen], y=data.y[chosen])


@dataclass(frozen=True)
class Measurement:
    """What to measure on trained runs."""

    attacks: tuple[str, ...]
    splits: tuple[str, ...] = ("test",)
    protocol: str = "both"
    limit: int | None = None
    defence: str | None = None
    certify: tuple[float, ...] = ()

    def options(self, split: str) -> dict[str, Any]:
        """As `evaluate_runs` and `has_scores` take them."""
        return {
            "protocol": self.protocol,
            "split": split,
            "limit": self.limit,
            "defence": self.defence,
            "certify": self.certify,
        }


@dataclass(frozen=True)
class StackJob:
    """Train some plans together, then measure them, and their earlier epochs under the published protocol."""

    plans: tuple[Plan, ...]
    measurements: tuple[Measurement, ...]
    earlier: tuple[Plan, ...] = ()

    @property
    def key(self) -> str:
        """Jobs with the same key are the same."""
        return address([plan.config() for plan in self.trained]) + repr(self.measurements)

    @property
    def trained(self) -> tuple[Plan, ...]:
        """All plans that leave a folder."""
        return (*self.plans, *self.earlier)

    @property
    def name(self) -> str:
        """For people."""
        first = self.plans[0]
        seeds = {plan.seed for plan in self.plans}
        which = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {first.seed}"
        bounds = f", {len(self.plans)} bounds" if len(seeds) < len(self.plans) else ""
        return f"{first.dataset} {first.model} {first.recipe.method} {which}{bounds}"

    def done(self, root: Path) -> bool:
        """Whether everything is there."""
        return all(_measured(run_of(plan, root), wanted) for plans, wanted in self._measuring() for plan in plans)

    def _measuring(self) -> Iterator[tuple[tuple[Plan, ...], tuple[Measurement, ...]]]:
        """What is to be measured on which plans."""
        yield self.plans, self.measurements
        papers = replace(self.measurements[0], splits=("test",), protocol="published", certify=())
        for epochs in sorted({plan.recipe.epochs for plan in self.earlier}):
            yield tuple(plan for plan in self.earlier if plan.recipe.epochs == epochs), (papers,)

    def carry_out(self, root: Path, data_dir: Path | None) -> None:
        """Do what is not done."""
        if not all(run_of(plan, root).finished for plan in self.trained):
            first = self.plans[0]
            validation = None
            if first.validation:
                validation = load(first.dataset, "validation", data_dir=data_dir, validation=first.validation)
            test = load(first.dataset, "test", data_dir=data_dir)
            train = training_data(first, data_dir)
            train_together(self.trained, train, root, test=test, validation=validation)
        for plans, wanted in self._measuring():
            alive = [run.path for plan in plans if (run := run_of(plan, root)).failure is None]
            for m in wanted:
                for split in m.splits:
                    evaluate_runs(alive, m.attacks, data_dir=data_dir, **m.options(split))


def _measured(run: Run, wanted: Iterable[Measurement]) -> bool:
    if run.failure is not None:
        return True
    return run.model_file.exists() and all(
        has_scores(run.path, m.attacks, **m.options(split)) for m in wanted for split in m.splits
    )


@dataclass(frozen=True)
class StudyJob:
    """Something else than training and evaluating: it leaves one JSON file."""

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
    def name(self) -> str:
        """For people."""
        return f"{self.kind} {', '.join(str(value) for value in json.loads(self.options).values())}"[:100]

    def file(self, root: Path) -> Path:
        """Where the result is."""
        return root / ".studies" / f"{self.kind}-{address({'kind': self.kind, **json.loads(self.options)})}.json"

    def done(self, root: Path) -> bool:
        """Whether the result is there."""
        return self.file(root).exists()

    def carry_out(self, root: Path, data_dir: Path | None) -> None:
        """Do the work and write its result."""
        result = self.work(json.loads(self.options), root, data_dir)
        self.file(root).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.file(root), (json.dumps(result) + "\n").encode())

    def result(self, root: Path) -> Any:
        """What the work found."""
        try:
            return json.loads(self.file(root).read_text(encoding="utf-8"))
        except ValueError as error:
            raise FileFormatError(f"{self.file(root)}: not JSON ({error})") from error


Job = StackJob | StudyJob


def carry_out(job: Job, root: Path, data_dir: Path | None) -> None:
    """Do a job, unless it is done; two workers never do the same at once."""
    if job.done(root):
        return
    # Jobs that measure different things on the same runs must not train them at once either.
    key = address([plan.config() for plan in job.plans]) if isinstance(job, StackJob) else job.key
    folder = root / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{key}.lock"):
        if not job.done(root):
            job.carry_out(root, data_dir)


def measurements(experiment: Experiment, method: str) -> tuple[Measurement, ...]:
    """What an experiment measures on runs of a method."""
    limit = experiment.limit or None
    plain = Measurement(experiment.attacks, experiment.splits, "both", limit, certify=experiment.eps)
    if method != "none":
        return (plain,)
    return (plain, *(Measurement(experiment.attacks, ("test",), "both", limit, name) for name in experiment.defences))
