"""The state of runs that train together, in one safetensors file, and the locks that are held meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from polybound.atomic import write_atomically
from polybound.errors import FileFormatError
from polybound.runs.spec import Spec, address_of
from polybound.training import Plain, Projected

__all__ = ["Checkpoint", "checkpoints", "lock_file", "lock_names", "locked", "path_for"]

_REFUSED = (SafetensorError, KeyError, TypeError, ValueError, RecursionError)

_MEMORY = "optimiser "  # no parameter's name has a blank in it


def path_for(root: Path, specs: Sequence[Spec]) -> Path:
    """Where runs that train together keep their state."""
    return root / ".checkpoints" / f"{address_of([spec.as_dict() for spec in specs])}.safetensors"


def checkpoints(root: Path) -> list[Path]:
    """All checkpoints in a folder of runs."""
    return sorted((root / ".checkpoints").glob("[!.]*.safetensors"))


def lock_names(specs: Iterable[Spec]) -> list[str]:
    """What is locked while runs are trained; the runs of a seed, with any bounds or none, have one lock."""
    found = set()
    for spec in specs:
        method = "bounds" if isinstance(spec.recipe.method, Plain | Projected) else spec.recipe.method.name
        found.add(address_of(spec.as_dict() | {"method": method}))
    return sorted(found)


def lock_file(root: Path, name: str) -> Path:
    """The file of a lock: ROOT/.locks/NAME.lock. What writes ROOT/.FOLDER/NAME holds the lock of that name."""
    return root.resolve() / ".locks" / f"{name}.lock"


@contextmanager
def locked(files: Iterable[Path], *, wait: bool = True) -> Iterator[None]:
    """Hold locks, which a process that is killed gives back; who holds them already may take them again.

    Args:
        files: of the locks; in one order everywhere, so that no two processes wait for each other.
        wait: whether to wait for other processes.

    Raises:
        filelock.Timeout: another process holds one, and `wait` is false.
    """
    with ExitStack() as held:
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(file, is_singleton=True).acquire(timeout=-1 if wait else 0))
        yield


@dataclass(frozen=True)
class Checkpoint:
    """The state after some step.

    Attributes:
        specs: of the runs.
        epoch: epochs done.
        step: steps done in the present epoch.
        leader: for each run, the run that it is trained as.
        parted: whether the runs of a seed have branched by now.
        histories: of the runs.
        tensors: the stack's parameters.
        sums: losses summed over the steps of the present epoch.
        peaks: by leader, the largest norm relative to its bound so far.
        memory: what the optimiser remembers of the stack's parameters.
    """

    specs: list[Spec]
    epoch: int
    step: int
    leader: list[int]
    parted: bool
    histories: list[list[dict[str, Any]]]
    tensors: dict[str, Tensor]
    sums: Tensor | None
    peaks: dict[int, Tensor]
    memory: dict[str, Tensor] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """Write it atomically."""
        names = ("epoch", "step", "leader", "parted", "histories")
        state = {name: getattr(self, name) for name in names}
        content = json.dumps(state | {"specs": [spec.as_dict() for spec in self.specs]})
        extra = {f"peak {run}": peak.cpu() for run, peak in self.peaks.items()}
        extra |= {f"{_MEMORY}{name}": tensor.cpu().contiguous() for name, tensor in self.memory.items()}
        if self.sums is not None:
            extra["sums"] = self.sums
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, to_bytes({**self.tensors, **extra}, metadata={"state": content}))

    @classmethod
    def read(cls, file: Path, device: str = "cpu") -> Checkpoint:
        """The inverse of `write`."""
        try:
            with safe_open(file, framework="pt", device=device) as opened:
                state = json.loads(opened.metadata()["state"])
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            specs = [Spec.from_dict(content) for content in state["specs"]]
            sums = tensors.pop("sums").cpu() if "sums" in tensors else None
            peaks = {i: tensors.pop(f"peak {i}") for i in range(len(specs)) if f"peak {i}" in tensors}
            memory = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_MEMORY)}
            return cls(
                specs=specs,
                epoch=state["epoch"],
                step=state["step"],
                leader=state["leader"],
                parted=state["parted"],
                histories=state["histories"],
                tensors=tensors,
                sums=sums,
                peaks=peaks,
                memory={name.removeprefix(_MEMORY): tensor for name, tensor in memory.items()},
            )
        except _REFUSED as error:
            raise FileFormatError(f"{file}: not a checkpoint ({error}); delete it to start over") from error

    @classmethod
    def specs_in(cls, file: Path) -> list[Spec]:
        """The specs of the runs whose state a file holds.

        Raises:
            FileFormatError: the file is not a checkpoint.
            PolyboundError: a spec names a method, a model or an attack that is not registered.
        """
        try:
            with safe_open(file, framework="pt") as opened:
                found = list(json.loads(opened.metadata()["state"])["specs"])
        except FileNotFoundError:
            raise
        except _REFUSED as error:
            raise FileFormatError(f"{file}: not a checkpoint ({error}); delete it to start over") from error
        return [Spec.from_dict(content) for content in found]
