"""Runs that train together: one stack, one trunk for each seed, one checkpoint, never a lost step that was saved."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from polybound.atomic import write_atomically
from polybound.constraints import Projection
from polybound.data import Dataset
from polybound.errors import PolyboundError
from polybound.experiments.plan import Plan, bounds_of, common_recipe
from polybound.experiments.signals import deferred_signals
from polybound.models import PolynomialNetwork, paper_model, stack
from polybound.runs import Run, address, checkpoint_path
from polybound.training.distributed import rank, workers
from polybound.training.trainer import Trainer, accuracy

__all__ = ["Progress", "interrupted", "train_together"]

# How far above the weights' norms bounds must be, at the branch, to be taken for one.
_ROOM = 1.1

# More than the rounding of a sum of some thousand numbers in float32.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class Progress:
    """Where training is; handed to the callback after every epoch and about once a second."""

    epoch: int
    epochs: int
    step: int
    steps: int
    runs: int
    losses: Tensor
    lines: Sequence[Mapping[str, Any]] = ()  # after an epoch: what each run's metrics say of it


def train_together(
    plans: Sequence[Plan],
    data: Dataset,
    root: Path,
    *,
    test: Dataset | None = None,
    validation: Dataset | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    save_every: float = 60.0,
    device: str = "cpu",
) -> list[Run]:
    """Train runs of one architecture, data set and schedule as one stack; finished ones are not trained again.

    Runs of one seed are one and the same until the first of them is constrained: they are trained once until then and
    branched. Bounds that the weights are far below stay together even then, for as long as no projection has anything
    to do (`_companions`). State is saved after every epoch and every `save_every` seconds; a run that was killed goes
    on from there, to the same bits. A run whose loss is no longer finite ends with a line in its metrics; the others
    go on. A plan that is another's beginning, the same with fewer epochs, is left on the way; if only that is missing,
    it is trained anew, and no further.

    Args:
        plans: what to train; all but seed, bound and number of epochs must agree.
        data: the training split.
        root: folder of the run folders.
        test: evaluated at the end of each run.
        validation: evaluated after every epoch.
        on_progress: called now and then.
        save_every: seconds between checkpoints within an epoch.
        device: where to train.
    """
    folders = {address(plan.config()): Run.at(root, plan.name, plan.config()) for plan in plans}
    whole, runs = _whole(plans, folders)
    while todo := [i for i, of in enumerate(runs) if not all(run.finished for run in of.values())]:
        todo = _begun(root, whole, todo) or sorted(todo, key=lambda i: whole[i].seed)  # neighbours share their batches
        session = _Session([whole[i] for i in todo], [runs[i] for i in todo], data, root, device)
        with deferred_signals() as stopping:
            session.train(test, validation, on_progress, save_every, stopping)
        if rank() != 0:
            break
    return [folders[address(plan.config())] for plan in plans]


def _whole(plans: Sequence[Plan], folders: Mapping[str, Run]) -> tuple[list[Plan], list[dict[int, Run]]]:
    """The plans that are no beginnings of others, and the folders of each and its beginnings by their epochs."""
    last = max(plan.recipe.epochs for plan in plans)
    found: dict[str, dict[int, Run]] = {}
    for plan in plans:
        same = address(replace(plan, recipe=replace(plan.recipe, epochs=last)).config())
        found.setdefault(same, {})[plan.recipe.epochs] = folders[address(plan.config())]
    whole = [plan for plan in plans if plan.recipe.epochs == last]
    if len(whole) < len(found):
        common_recipe(list(plans))  # which says what does not agree
    return whole, [found[address(plan.config())] for plan in whole]


def interrupted(root: Path) -> list[list[Plan]]:
    """What was being trained in a folder of runs and did not end: the plans of each checkpoint."""
    return [_plans_of(file) for file in sorted((root / ".checkpoints").glob("*.safetensors"))]


def _plans_of(checkpoint: Path) -> list[Plan]:
    try:
        with safe_open(checkpoint, framework="pt") as file:
            return [Plan.of(config) for config in json.loads(file.metadata()["state"])["configs"]]
    except (SafetensorError, KeyError, TypeError, ValueError, PolyboundError) as error:
        raise PolyboundError(f"{checkpoint}: not a checkpoint ({error}); delete it to start over") from error


def _begun(root: Path, plans: Sequence[Plan], todo: list[int]) -> list[int] | None:
    """Which of the plans were being trained together when they were interrupted, in their order.

    If that was while the folders were being written, some are finished: the rest must not start anew without them.
    """
    places = {address(plan.config()): i for i, plan in enumerate(plans)}
    for file in sorted((root / ".checkpoints").glob("*.safetensors")):
        try:
            found = [places.get(address(plan.config()), -1) for plan in _plans_of(file)]
        except (PolyboundError, FileNotFoundError):  # of no concern here, or gone by now
            continue
        if -1 not in found and set(found) & set(todo):
            return found
    return None


class _Session:
    """The state of a stack in training: a model, an epoch and a step, and the metrics so far."""

    def __init__(self, plans: list[Plan], runs: list[dict[int, Run]], data: Dataset, root: Path, device: str) -> None:
        self.plans, self.runs, self.data = plans, runs, data
        self.recipe = common_recipe(plans)
        self.file = checkpoint_path(root, [plan.config() for plan in plans])
        self.trunk_epochs = min(plan.recipe.shared_until() for plan in plans)
        self.epochs = max((epochs for of in runs for epochs, run in of.items() if not run.finished), default=0)
        self.epoch = self.step = 0
        self.sums: Tensor | None = None
        self.metrics: list[list[dict[str, Any]]] = [[] for _ in plans]
        self.seeds = [plan.seed for plan in plans]
        # The plan that each plan is trained as: the first of its seed until they branch, then mostly itself.
        self.leader = [self.seeds.index(seed) for seed in self.seeds] if self.trunk_epochs else list(range(len(plans)))
        self.branched = len(set(self.leader)) == len(plans)
        self.peaks: dict[int, Tensor] = {}
        first = plans[0]
        self.model = paper_model(
            first.model,
            data.shape,
            data.classes,
            rank=first.rank,
            runs=len(self.members),
            seed=[self.seeds[i] for i in self.members],
            device=device,
        )
        self._resume(device)

    @property
    def members(self) -> list[int]:
        """The plans that have a run of the stack to themselves, in the stack's order."""
        return sorted(set(self.leader))

    def _run(self, plan: int) -> int:
        """Where in the stack a plan is trained."""
        return self.members.index(self.leader[plan])

    def _branch(self, leader: list[int]) -> None:
        runs = [self._run(plan) for plan in sorted(set(leader))]
        self.model = stack([self.model.run(run) for run in runs])
        self.leader, self.branched = leader, True

    def _companions(self) -> list[int]:
        """Leaders for after the branch: all bounds that leave the weights of a seed alone follow the smallest of them.

        As long as a projection changes nothing, larger bounds change nothing either, and the runs remain one. `_watch`
        sees to it that this is not just hoped for.
        """
        leader = list(range(len(self.plans)))
        recipe = self.recipe
        if recipe.regulariser != "projection" or recipe.norm != "inf" or recipe.on != "weights" or recipe.random_start:
            return leader
        if workers() > 1 or any(isinstance(plan.recipe.bound, Mapping) for plan in self.plans):
            return leader
        for run in range(len(self.members)):
            norms = Projection(self.model.run(run)).norms().values()
            free = [
                (bound, i)
                for i, bound in enumerate(bounds_of(self.plans))
                if self._run(i) == run and bound > _ROOM * max(float(norm) for norm in norms)
            ]
            for _, i in free:
                leader[i] = min(free)[1]
        return leader

    def _trainer(self) -> Trainer:
        recipe = self.recipe
        if not self.branched:
            recipe = recipe.shared()
        elif recipe.regulariser == "projection":
            recipe = replace(recipe, bound=bounds_of([self.plans[i] for i in self.members]))
        trainer = Trainer(self.model, self.data, recipe, [self.seeds[i] for i in self.members])
        if self.branched:
            trainer.before_projection = self._watch
        return trainer

    def _watch(self, projection: Projection) -> None:
        """Remember how close the weights of runs with followers ever came to their bounds."""
        for plan in {lead for i, lead in enumerate(self.leader) if i != lead}:
            ratio = projection.ratio(self._run(plan))
            self.peaks[plan] = torch.maximum(self.peaks[plan], ratio) if plan in self.peaks else ratio

    def train(
        self,
        test: Dataset | None,
        validation: Dataset | None,
        on_progress: Callable[[Progress], None] | None,
        save_every: float,
        stopping: Callable[[], bool],
    ) -> None:
        trainer = self._trainer()
        for epoch in range(self.epoch, self.epochs):
            if not self.branched and epoch >= self.trunk_epochs:
                self._branch(self._companions())
                trainer = self._trainer()
            before = self.sums if self.sums is not None else torch.zeros(len(self.members))
            begun, shown, saved = time.monotonic(), 0.0, time.monotonic()

            def after_step(
                step: int, total: Tensor, epoch: int = epoch, trainer: Trainer = trainer, before: Tensor = before
            ) -> bool:
                nonlocal shown, saved
                if step % 16 and not stopping():
                    return False
                now = time.monotonic()
                if on_progress is not None and now - shown > 1.0:
                    shown = now
                    losses = (before + total.cpu()) / step
                    on_progress(Progress(epoch, self.epochs, step, trainer.steps, len(self.plans), losses))
                if (stopping() or now - saved > save_every) and step < trainer.steps:
                    saved = now
                    self.epoch, self.step, self.sums = epoch, step, before + total.cpu()
                    self._save()
                return stopping()

            total = before + trainer.epoch(epoch, self.step, after_step).cpu()
            if stopping() and self.step:
                raise KeyboardInterrupt
            losses = total / trainer.steps
            self._record(epoch, losses, validation, time.monotonic() - begun)
            self._bury(trainer, losses, epoch)
            self.epoch, self.step, self.sums = epoch + 1, 0, None
            self._leave(test)  # before the checkpoint: a run that was killed in between does this epoch again
            self._save()
            if on_progress is not None:
                lines = [metrics[-1] for metrics in self.metrics]
                on_progress(Progress(epoch + 1, self.epochs, 0, trainer.steps, len(self.plans), losses, lines))
            if stopping():
                raise KeyboardInterrupt
        if rank() == 0:
            self.file.unlink(missing_ok=True)

    def _record(self, epoch: int, losses: Tensor, validation: Dataset | None, seconds: float) -> None:
        measured = accuracy(self.model, validation) if validation is not None else None
        self.model.train()
        for i in range(len(self.plans)):
            member = self._run(i)
            line = {"epoch": epoch + 1, "loss": losses[member].item(), "rate": self.recipe.rate(epoch)}
            if measured is not None:
                line["validation accuracy"] = measured[member].item()
            line["seconds"] = round(seconds / len(self.members), 4)
            if "failure" not in (self.metrics[i][-1] if self.metrics[i] else {}):
                self.metrics[i].append(line)

    def _bury(self, trainer: Trainer, losses: Tensor, epoch: int) -> None:
        """Note which runs are no longer finite, and why; from then on their weights are zero."""
        dead = (~torch.isfinite(losses)).nonzero().flatten().tolist()
        for member in dead:
            reason = trainer.diagnosis(member, losses, epoch)
            for i in range(len(self.plans)):
                if self._run(i) == member:
                    self.metrics[i][-1] = {"epoch": epoch + 1, "failure": reason}

    def _save(self) -> None:
        if rank() != 0:
            return
        state = {"epoch": self.epoch, "step": self.step, "leader": self.leader, "metrics": self.metrics}
        state["configs"] = [plan.config() for plan in self.plans]
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.model.state_dict().items()}
        if self.sums is not None:
            tensors["sums"] = self.sums
        tensors |= {f"peak {plan}": peak.cpu() for plan, peak in self.peaks.items()}
        write_atomically(self.file, to_bytes(tensors, metadata={"state": json.dumps(state)}))

    def _resume(self, device: str) -> None:
        if not self.file.exists():
            return
        try:
            with safe_open(self.file, framework="pt", device=device) as file:
                state = json.loads(file.metadata()["state"])
                leader = state["leader"]
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise PolyboundError(f"{self.file}: not a checkpoint ({error}); delete it to start over") from error
        self.epoch, self.step, self.metrics = state["epoch"], state["step"], state["metrics"]
        self.sums = tensors.pop("sums").cpu() if "sums" in tensors else None
        self.peaks = {i: tensors.pop(f"peak {i}") for i in range(len(self.plans)) if f"peak {i}" in tensors}
        if leader != self.leader:
            self._branch(leader)
        self.model.load_state_dict(tensors)

    def _leave(self, test: Dataset | None) -> None:
        """Write the metrics and then the model of each run that ends after this epoch, unless they are there."""
        if rank() != 0:
            return
        for i, of in enumerate(self.runs):
            run, lines, lead = of.get(self.epoch), self.metrics[i], self.leader[i]
            if run is None or run.finished:
                continue
            if self.branched and lead != i:
                if not self.peaks[lead] < 1.0 - _ROUNDING:
                    continue  # the leader was constrained: this plan has to be trained on its own
                lines = [
                    *lines,
                    {"epoch": self.epoch, "note": f"never constrained, so one with {self.plans[lead].name}"},
                ]
            if lines and "failure" in lines[-1]:
                run.write_metrics(lines)
                continue
            model = self._single(i)
            if test is not None:
                share = accuracy(model, test).item()
                lines = [*lines, {"epoch": self.epoch, "evaluation": "clean", "test accuracy": share}]
            run.write_metrics(lines)
            model.save(run.model_file)

    def _single(self, plan: int) -> PolynomialNetwork:
        """The model of a plan, inside its bound: a run ends with a projection, and where it is left on the way too."""
        model, recipe = self.model.run(self._run(plan)), self.plans[plan].recipe
        if recipe.regulariser == "projection" and recipe.start < self.epoch < recipe.epochs:
            Projection(model, recipe.bound, norm=recipe.norm, on=recipe.on).apply_()
        return model
