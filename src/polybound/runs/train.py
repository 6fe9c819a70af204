"""Runs that train together, as one stack: what the runs of a seed have in common is trained once, and saved often."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from filelock import Timeout
from torch import Tensor

from polybound import training
from polybound.constraints import Projection
from polybound.data import Dataset
from polybound.errors import FileFormatError, PolyboundError
from polybound.models import stack
from polybound.runs.folder import Checkpoint, Run, checkpoints, lock_file, lock_names, locked, path_for
from polybound.runs.spec import Spec
from polybound.training import Callback, ProjectAfterStep, Projected, Recipe, Trainer


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

    Deep networks have no stacks: they are trained one after the other.

    Runs of one seed are one and the same until the first of them is constrained: they are trained once until then and
    branched. Bounds far above the norms of the weights stay one even then, for as long as no projection changes
    anything. While runs are trained their locks are held: another process that wants them waits, and then finds them
    finished.
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
        epochs: also keep the models after these epochs. If only such a model is missing it is trained again, up
            to that epoch.
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
        try:
            torch.zeros(1, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch has all of these for it
            why = str(error).partition("\n")[0]
            raise PolyboundError(f"device {device!r} cannot be used ({why})") from error
        model = specs[0].model.build(data)
        for spec in specs:
            spec.recipe.method.prepare(model)  # which raises if its options do not fit the model
        with locked(lock_file(root, name) for name in lock_names(specs)):
            while todo := left():
                # Neighbours share their batches.
                todo = _begun(root, specs, todo) or sorted(todo, key=lambda i: specs[i].seed)
                todo = todo if model.has_stacks else todo[:1]
                some = [specs[i] for i in todo]
                with locked([lock_file(root, path_for(root, some).name)]), _deferred_signals() as stopping:
                    session = Session(some, [runs[i] for i in todo], ends, data, root, device, model.has_stacks)
                    for spec in some:  # not before it is known that they can be trained
                        Run.make(spec, root)
                    session.train(validation, on_progress, save_every, stopping)
    # The state of finished runs whose process was killed before it could remove it.
    ours = {spec.address for spec in specs}
    for file in checkpoints(root):
        with suppress(PolyboundError, FileNotFoundError, Timeout):  # unreadable, gone already, or in use
            if {spec.address for spec in Checkpoint.specs_in(file)} <= ours:
                with locked([lock_file(root, file.name)], wait=False):
                    file.unlink(missing_ok=True)
    return runs


def _begun(root: Path, specs: Sequence[Spec], todo: list[int]) -> list[int] | None:
    """Which of the runs were being trained together when they were interrupted, in their order.

    If that was while the folders were being written, some are finished: the rest must not start again without them.
    """
    places = {spec.address: i for i, spec in enumerate(specs)}
    for file in checkpoints(root):
        try:
            found = [places.get(spec.address, -1) for spec in Checkpoint.specs_in(file)]
        except (PolyboundError, FileNotFoundError):  # unreadable, or gone already
            continue
        if -1 not in found and set(found) & set(todo):
            return found
    return None


def interrupted(root: Path) -> list[list[Spec]]:
    """What was being trained in a folder of runs and did not end: the specs of each checkpoint."""
    return [Checkpoint.specs_in(file) for file in checkpoints(root)]


def common_recipe(specs: Sequence[Spec]) -> Recipe:
    """One recipe for all runs of a stack; they may differ in seed and bound, and some may have no bound at all."""
    first = specs[0]
    if len(specs) == 1:
        return first.recipe
    for spec in specs:
        same = replace(spec, seed=first.seed, recipe=replace(spec.recipe, method=first.recipe.method))
        if same != first:
            names = ", ".join(same.difference(first))
            raise PolyboundError(f"{spec.label} cannot train together with {first.label}: {names} differ")
    try:
        return replace(first.recipe, method=training.join_methods([spec.recipe.method for spec in specs]))
    except PolyboundError as error:
        raise PolyboundError(f"these runs cannot train together: {error}") from None


# How far above the weights' norms bounds must be, at the branch, to be taken for one.
_ROOM = 1.1

# More than the rounding of a sum of some thousand numbers in float32.
_ROUNDING = 1e-3


class Session(Callback):
    """A stack in training: the runs of a seed are one member of it until the first of them is constrained.

    A run of a network that has no stacks is trained by itself: it is the only one.

    Attributes:
        state: what a checkpoint holds: the epoch, the step, who is trained as whom, and the histories so far.
        model: the stack.
        members: the runs that have a place in the stack to themselves, in the stack's order.
    """

    def __init__(
        self,
        specs: list[Spec],
        runs: list[Run],
        ends: Sequence[int | None],
        data: Dataset,
        root: Path,
        device: str,
        stacked: bool = True,
    ) -> None:
        self.specs, self.runs, self.data = specs, runs, data
        self.recipe, self.file = common_recipe(specs), path_for(root, specs)
        last = self.recipe.epochs
        self.ends = {last if end is None else end: end for end in ends}
        missing = [at for at, end in self.ends.items() if not all(run.finished(end) for run in runs)]
        self.epochs = max(missing, default=0)
        self.trunk_epochs = min(spec.recipe.method.plain_until(last) for spec in specs)
        self.seeds = [spec.seed for spec in specs]
        leader = [self.seeds.index(seed) for seed in self.seeds] if self.trunk_epochs else list(range(len(specs)))
        self.state = Checkpoint(specs, leader, len(set(leader)) == len(specs), [[] for _ in specs])
        if self.file.exists():
            self.state = Checkpoint.read(self.file, device)
            if self.state.specs != specs:
                raise FileFormatError(f"{self.file}: the state of other runs; delete it to start over")
        seeds = [self.seeds[run] for run in self.members]
        of: dict[str, Any] = {"runs": len(seeds), "seed": seeds} if stacked else {"seed": seeds[0]}
        self.model = specs[0].model.build(data, device=device, **of)
        if self.state.tensors:
            self.model.load_state_dict(self.state.tensors)

    @property
    def members(self) -> list[int]:
        return sorted(set(self.state.leader))

    def place(self, run: int) -> int:
        """Where in the stack a run is trained."""
        return self.members.index(self.state.leader[run])

    def train(
        self,
        validation: Dataset | None,
        on_progress: Callable[[TrainingProgress], None] | None,
        save_every: float,
        stopping: Callable[[], bool],
    ) -> None:
        """Train what the runs of a seed have in common, once; then each run on its own."""
        self.validation, self.on_progress, self.save_every, self.stopping = None, on_progress, save_every, stopping
        self.shown, self.saved = 0.0, time.monotonic()
        if validation is not None:
            like = next(self.model.parameters())
            self.validation = training.training_set(self.model, validation, loss=self.recipe.loss).to(like)
        state = self.state
        while state.epoch < self.epochs:
            recipe = common_recipe([self.specs[i] for i in self.members]) if state.parted else self.recipe.plain()
            trainer = Trainer(self.model, self.data, recipe, [self.seeds[i] for i in self.members], [self])
            trainer.epoch, trainer.step = state.epoch, state.step
            trainer.descent.load(state.memory)
            if state.sums is not None:
                trainer.sums = state.sums.to(trainer.sums.device)
            if isinstance(trainer.after_method, ProjectAfterStep):
                trainer.after_method.watch = self._watch
            trainer.run(self.epochs if state.parted else min(self.trunk_epochs, self.epochs))
            if trainer.stopping:
                raise KeyboardInterrupt
            if not state.parted and state.epoch < self.epochs:
                leader = self.runs_with_inactive_bounds()
                places = [self.place(run) for run in sorted(set(leader))]
                self.model = stack([self.model.run(place) for place in places])
                # Every run goes on with what the optimiser remembers of the run that it was trained as.
                state.memory = {name: t[places] if t.ndim else t for name, t in state.memory.items()}
                state.leader, state.parted = leader, True
        self.file.unlink(missing_ok=True)

    def runs_with_inactive_bounds(self) -> list[int]:
        """Map runs with inactive bounds to one trained run: of all bounds that change nothing, that of the smallest.

        As long as a projection changes nothing, larger bounds change nothing either, and the runs remain one. `_watch`
        checks that no projection changes anything.
        """
        leader = list(range(len(self.specs)))
        method, adversary = self.recipe.method, self.recipe.adversary
        if not isinstance(method, Projected) or method.kind != "single" or method.on != "weights":
            return leader
        if adversary is not None and getattr(adversary.attack, "random_start", False):
            return leader
        bounds = [getattr(spec.recipe.method, "bound", inf) for spec in self.specs]  # plain training has none
        for place in range(len(self.members)):
            norms = Projection(self.model.run(place)).norms().values()
            least = _ROOM * max(float(norm) for norm in norms)
            free = [(bound, i) for i, bound in enumerate(bounds) if self.place(i) == place and bound > least]
            for _, i in free:
                leader[i] = min(free)[1]
        return leader

    def _watch(self, projection: Projection) -> None:
        """Remember how close the weights of runs that others are trained as ever came to their bounds."""
        peaks = self.state.peaks
        for run in {lead for i, lead in enumerate(self.state.leader) if i != lead}:
            ratio = projection.ratio(self.place(run))
            peaks[run] = torch.maximum(peaks[run], ratio) if run in peaks else ratio

    def after_step(self, trainer: Trainer) -> None:
        stopping = self.stopping()
        if trainer.step % 16 and not stopping:
            return
        now = time.monotonic()
        if now - self.shown > 1.0:
            self.shown = now
            self._report(trainer, trainer.sums.cpu() / trainer.step, {})
        if trainer.step < trainer.steps and (stopping or now - self.saved > self.save_every):
            self._save(trainer)
        if stopping and trainer.step < trainer.steps:
            trainer.stop()

    def after_epoch(self, trainer: Trainer, losses: Tensor) -> None:
        histories = self.state.histories
        self._record(trainer, losses.cpu())
        if trainer.epoch in self.ends:
            self._write_models(trainer.epoch)  # before the checkpoint: if killed in between, this epoch is done again
        self._save(trainer)
        last = {spec.address: lines[-1] for spec, lines in zip(self.specs, histories, strict=True)}
        self._report(trainer, losses.cpu(), last)
        if self.stopping():
            trainer.stop()

    def _record(self, trainer: Trainer, losses: Tensor) -> None:
        """Add a line to every run's history: of the epoch, or of what went wrong in it."""
        places = (~torch.isfinite(losses)).nonzero().flatten().tolist()
        diagnosed = {place: trainer.diagnosis(place, losses) for place in places}
        facts = training.epoch_facts(trainer, losses, self.validation)
        failures = {place: f"its weights are no longer finite: {why}" for place, why in trainer.failures.items()}
        failures |= diagnosed
        rate, seconds = trainer.recipe.rate(trainer.epoch - 1), round(trainer.seconds / len(self.members), 4)
        for i, lines in enumerate(self.state.histories):
            place = self.place(i)
            if lines and "failure" in lines[-1]:
                continue
            if place in failures:
                lines.append({"epoch": trainer.epoch, "failure": failures[place]})
            else:
                found = {name: values[place].item() for name, values in facts.items()}
                lines.append({"epoch": trainer.epoch, **found, "rate": rate, "seconds": seconds})

    def _write_models(self, epoch: int) -> None:
        """Write the history and then the model of each run that is kept after this epoch, unless they are there."""
        state, end = self.state, self.ends[epoch]
        for i, run in enumerate(self.runs):
            lines, lead, recipe = list(state.histories[i]), state.leader[i], self.specs[i].recipe
            constrained = lead in state.peaks and not state.peaks[lead] < 1.0 - _ROUNDING
            if run.finished(end) or (lead != i and state.parted and constrained):
                continue  # it is there, or its leader was constrained: it has to be trained on its own
            if lead != i and state.parted:
                lines.append({"epoch": epoch, "note": f"never constrained, so one with {self.specs[lead].label}"})
            if "failure" in lines[-1]:
                run.write_history(lines)
                continue
            model = deepcopy(self.model) if self.model.runs is None else self.model.run(self.place(i))
            if recipe.method.begins < epoch < recipe.epochs:
                recipe.method.settle(model)  # a run ends inside its bound, and so does what is left on the way
            run.write_model(model, lines, end)

    def _save(self, trainer: Trainer) -> None:
        """Write the checkpoint."""
        state, self.saved = self.state, time.monotonic()
        state.epoch, state.step, state.sums = trainer.epoch, trainer.step, trainer.sums.cpu() if trainer.step else None
        state.memory = trainer.descent.tensors()
        state.tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.model.state_dict().items()}
        state.write(self.file)

    def _report(self, trainer: Trainer, losses: Tensor, lines: Mapping[str, Mapping[str, Any]]) -> None:
        if self.on_progress is not None:
            state = (trainer.epoch, self.epochs, trainer.step, trainer.steps, len(self.specs))
            self.on_progress(TrainingProgress(*state, losses, lines))


@contextmanager
def _deferred_signals() -> Iterator[Callable[[], bool]]:
    """SIGINT and SIGTERM ask to stop after the present step, once its state is saved; yields whether one did."""
    asked: list[int] = []
    before: dict[int, Any] = {}
    with suppress(ValueError):  # not in the main thread: signals do not reach us anyway
        for one in (signal.SIGINT, signal.SIGTERM):
            before[one] = signal.signal(one, lambda number, _frame: asked.append(number))
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
