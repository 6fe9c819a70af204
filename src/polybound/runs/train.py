"""Runs that train together, as one stack: what the runs of a seed have in common is trained once, and saved often."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from filelock import Timeout
from torch import Tensor

from polybound.constraints import Projection
from polybound.data import Dataset
from polybound.errors import FileFormatError, PolyboundError
from polybound.models import PolynomialNetwork, stack
from polybound.runs.folder import Checkpoint, Run, checkpoints, lock_file, lock_names, locked, path_for
from polybound.runs.spec import Spec
from polybound.training import (
    Callback,
    Plain,
    ProjectAfterStep,
    Projected,
    Recipe,
    Trainer,
    TrainingSet,
    epoch_facts,
    join_methods,
    training_set,
)

__all__ = ["DeferredSignals", "Session", "TrainingProgress", "common_recipe", "interrupted", "train_runs"]


# The state of runs that train together, from the first step to their files.


# How far above the weights' norms bounds must be, at the branch, to be taken for one.
_ROOM = 1.1

# More than the rounding of a sum of some thousand numbers in float32.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class TrainingProgress:
    """Where training is; handed to the callback after every epoch and about once a second.

    Attributes:
        epoch: epochs done.
        epochs: of all.
        step: steps done in the present epoch.
        steps: of an epoch.
        runs: how many there are.
        losses: means so far in this epoch, one for each network that is trained.
        lines: after an epoch, what each run's history says of it, by the run's address.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    runs: int
    losses: Tensor
    lines: Mapping[str, Mapping[str, Any]]


def common_recipe(specs: Sequence[Spec]) -> Recipe:
    """One recipe for all runs of a stack; they may differ in seed and bound, and some may have no bound at all."""
    first = specs[0]
    for spec in specs:
        same = replace(spec, seed=first.seed, recipe=replace(spec.recipe, method=first.recipe.method))
        if same != first:
            names = ", ".join(same.difference(first))
            raise PolyboundError(f"{spec.label} cannot train together with {first.label}: {names} differ")
    try:
        return replace(first.recipe, method=join_methods([spec.recipe.method for spec in specs]))
    except PolyboundError as error:
        raise PolyboundError(f"these runs cannot train together: {error}") from None


class Session:
    """The state of a stack in training: a model, an epoch and a step, and the histories so far."""

    def __init__(
        self,
        specs: list[Spec],
        runs: list[Run],
        ends: Sequence[int | None],
        data: Dataset,
        root: Path,
        device: str,
    ) -> None:
        self.specs, self.runs, self.data = specs, runs, data
        self.recipe = common_recipe(specs)
        self.file = path_for(root, specs)
        epochs = self.recipe.epochs
        self.ends = {epochs if end is None else end: end for end in ends}
        missing = [at for at, end in self.ends.items() if not all(run.finished(end) for run in runs)]
        self.epochs = max(missing, default=0)
        self.trunk_epochs = min(spec.recipe.method.plain_until(epochs) for spec in specs)
        self.seeds = [spec.seed for spec in specs]
        # The run that each run is trained as: the first of its seed until they branch, then mostly itself.
        self.leader = [self.seeds.index(seed) for seed in self.seeds] if self.trunk_epochs else list(range(len(specs)))
        self.parted = len(set(self.leader)) == len(specs)
        self.histories: list[list[dict[str, Any]]] = [[] for _ in specs]
        self.peaks: dict[int, Tensor] = {}
        self.epoch = self.step = 0
        self.sums: Tensor | None = None
        self.memory: dict[str, Tensor] = {}
        self.model = specs[0].model.build(
            data, runs=len(self.members), seed=[self.seeds[i] for i in self.members], device=device
        )
        self._resume(device)

    @property
    def members(self) -> list[int]:
        """The runs that have a place in the stack to themselves, in the stack's order."""
        return sorted(set(self.leader))

    def place(self, run: int) -> int:
        """Where in the stack a run is trained."""
        return self.members.index(self.leader[run])

    def _branch(self, leader: list[int]) -> None:
        places = [self.place(run) for run in sorted(set(leader))]
        self.model = stack([self.model.run(place) for place in places])
        # Every run goes on with what the optimiser remembers of the run that it was trained as.
        self.memory = {name: tensor[places] if tensor.ndim else tensor for name, tensor in self.memory.items()}
        self.leader, self.parted = leader, True

    def runs_with_inactive_bounds(self) -> list[int]:
        """For each run, the run that it is trained as: of all bounds that change nothing, that of the smallest.

        As long as a projection changes nothing, larger bounds change nothing either, and the runs remain one. `_watch`
        checks that no projection changes anything.
        """
        leader = list(range(len(self.specs)))
        method, adversary = self.recipe.method, self.recipe.adversary
        if not isinstance(method, Projected) or method.kind != "single" or method.on != "weights":
            return leader
        if adversary is not None and getattr(adversary.attack, "random_start", False):
            return leader
        bounds = [_bound(spec) for spec in self.specs]
        for place in range(len(self.members)):
            norms = Projection(self.model.run(place)).norms().values()
            least = _ROOM * max(float(norm) for norm in norms)
            free = [(bound, i) for i, bound in enumerate(bounds) if self.place(i) == place and bound > least]
            for _, i in free:
                leader[i] = min(free)[1]
        return leader

    def _trainer(self, callbacks: Sequence[Callback]) -> Trainer:
        recipe = self.recipe.plain()
        if self.parted:
            recipe = common_recipe([self.specs[i] for i in self.members])
        trainer = Trainer(self.model, self.data, recipe, [self.seeds[i] for i in self.members], callbacks)
        trainer.epoch, trainer.step = self.epoch, self.step
        trainer.descent.load(self.memory)
        if self.sums is not None:
            trainer.sums = self.sums.to(trainer.sums.device)
        if isinstance(trainer.after_method, ProjectAfterStep):
            trainer.after_method.watch = self._watch
        return trainer

    def _watch(self, projection: Projection) -> None:
        """Remember how close the weights of runs that others are trained as ever came to their bounds."""
        for run in {lead for i, lead in enumerate(self.leader) if i != lead}:
            ratio = projection.ratio(self.place(run))
            self.peaks[run] = torch.maximum(self.peaks[run], ratio) if run in self.peaks else ratio

    def train(
        self,
        validation: Dataset | None,
        on_progress: Callable[[TrainingProgress], None] | None,
        save_every: float,
        stopping: Callable[[], bool],
    ) -> None:
        """Train what the runs of a seed have in common, once; then each run on its own."""
        measured_on = None
        if validation is not None:
            measured_on = training_set(self.model, validation, loss=self.recipe.loss).to(next(self.model.parameters()))
        keeper = _Keeper(self, measured_on, on_progress, save_every, stopping)
        while self.epoch < self.epochs:
            trainer = self._trainer([keeper])
            trainer.run(self.epochs if self.parted else min(self.trunk_epochs, self.epochs))
            if trainer.stopping:
                raise KeyboardInterrupt
            if not self.parted and self.epoch < self.epochs:
                self._branch(self.runs_with_inactive_bounds())
        self.file.unlink(missing_ok=True)

    def record(self, trainer: Trainer, losses: Tensor, validation: TrainingSet | None) -> None:
        """Add a line to every run's history: of the epoch, or of what went wrong in it."""
        failures = {
            place: trainer.diagnosis(place, losses) for place in (~torch.isfinite(losses)).nonzero().flatten().tolist()
        }
        facts = epoch_facts(trainer, losses, validation)
        failures = {
            place: f"its weights are no longer finite: {why}" for place, why in trainer.failures.items()
        } | failures
        rate, seconds = trainer.recipe.rate(trainer.epoch - 1), round(trainer.seconds / len(self.members), 4)
        for i, lines in enumerate(self.histories):
            place = self.place(i)
            if lines and "failure" in lines[-1]:
                continue
            if place in failures:
                lines.append({"epoch": trainer.epoch, "failure": failures[place]})
            else:
                found = {name: values[place].item() for name, values in facts.items()}
                lines.append({"epoch": trainer.epoch, **found, "rate": rate, "seconds": seconds})

    def save(self, trainer: Trainer) -> None:
        """Write the checkpoint."""
        self.epoch, self.step, self.sums = trainer.epoch, trainer.step, trainer.sums.cpu() if trainer.step else None
        self.memory = trainer.descent.tensors()
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.model.state_dict().items()}
        state = (self.specs, self.epoch, self.step, self.leader, self.parted, self.histories)
        Checkpoint(*state, tensors, self.sums, self.peaks, self.memory).write(self.file)

    def _resume(self, device: str) -> None:
        if not self.file.exists():
            return
        state = Checkpoint.read(self.file, device)
        if state.specs != self.specs:
            raise FileFormatError(f"{self.file}: the state of other runs; delete it to start over")
        self.epoch, self.step, self.histories = state.epoch, state.step, state.histories
        self.sums, self.peaks = state.sums, state.peaks
        if state.parted and not self.parted:
            self._branch(state.leader)
        self.model.load_state_dict(state.tensors)
        self.memory = state.memory

    def write_finished(self, epoch: int) -> None:
        """Write the history and then the model of each run that is kept after this epoch, unless they are there."""
        if epoch not in self.ends:
            return
        end = self.ends[epoch]
        for i, run in enumerate(self.runs):
            lines, lead = list(self.histories[i]), self.leader[i]
            if run.finished(end):
                continue
            if lead != i and self.parted:
                if lead in self.peaks and not self.peaks[lead] < 1.0 - _ROUNDING:
                    continue  # the leader was constrained: this run has to be trained on its own
                lines.append({"epoch": epoch, "note": f"never constrained, so one with {self.specs[lead].label}"})
            if "failure" in lines[-1]:
                run.write_history(lines)
            else:
                run.write_model(self._single(i, epoch), lines, end)

    def _single(self, run: int, epoch: int) -> PolynomialNetwork:
        """The model of a run, inside its bound: a run ends with a projection, and where it is left on the way too."""
        model, recipe = self.model.run(self.place(run)), self.specs[run].recipe
        if recipe.method.begins < epoch < recipe.epochs:
            recipe.method.settle(model)
        return model


def _bound(spec: Spec) -> float:
    method = spec.recipe.method
    if isinstance(method, Plain):
        return float("inf")
    if not isinstance(method, Projected) or not isinstance(method.bound, float):
        raise AssertionError(f"{method.label} has no single bound")
    return method.bound


class _Keeper(Callback):
    """Writes the session's files, and reports its progress."""

    def __init__(
        self,
        session: Session,
        validation: TrainingSet | None,
        on_progress: Callable[[TrainingProgress], None] | None,
        save_every: float,
        stopping: Callable[[], bool],
    ) -> None:
        self.session, self.validation, self.on_progress = session, validation, on_progress
        self.save_every, self.stopping = save_every, stopping
        self.shown, self.saved = 0.0, time.monotonic()

    def after_step(self, trainer: Trainer) -> None:
        asked = self.stopping()
        if trainer.step % 16 and not asked:
            return
        now = time.monotonic()
        if self.on_progress is not None and now - self.shown > 1.0:
            self.shown = now
            self._show(trainer, trainer.sums.cpu() / trainer.step, {})
        if trainer.step < trainer.steps and (asked or now - self.saved > self.save_every):
            self.saved = now
            self.session.save(trainer)
        if asked and trainer.step < trainer.steps:
            trainer.stop()

    def after_epoch(self, trainer: Trainer, losses: Tensor) -> None:
        session = self.session
        session.record(trainer, losses.cpu(), self.validation)
        session.write_finished(trainer.epoch)  # before the checkpoint: if killed in between, this epoch is done again
        session.save(trainer)
        self.saved = time.monotonic()
        last = {spec.address: lines[-1] for spec, lines in zip(session.specs, session.histories, strict=True)}
        self._show(trainer, losses.cpu(), last)
        if self.stopping():
            trainer.stop()

    def _show(self, trainer: Trainer, losses: Tensor, lines: Mapping[str, Mapping[str, Any]]) -> None:
        if self.on_progress is not None:
            state = (trainer.epoch, self.session.epochs, trainer.step, trainer.steps, len(self.session.specs))
            self.on_progress(TrainingProgress(*state, losses, lines))


# SIGINT and SIGTERM that wait until the state of the present step is saved.


class DeferredSignals:
    """SIGINT and SIGTERM ask to stop after the present step, once its state is saved."""

    def __enter__(self) -> Callable[[], bool]:
        self.asked = False
        self.before: dict[int, Any] = {}

        def ask(_signal: int, _frame: FrameType | None) -> None:
            self.asked = True

        for name in (signal.SIGINT, signal.SIGTERM):
            try:
                self.before[name] = signal.signal(name, ask)
            except ValueError:  # not in the main thread: signals do not reach us anyway
                break
        return lambda: self.asked

    def __exit__(self, *_: object) -> None:
        for name, handler in self.before.items():
            signal.signal(name, handler)


def train_runs(
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
                with locked([lock_file(root, path_for(root, some).name)]), DeferredSignals() as stopping:
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
