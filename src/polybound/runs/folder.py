"""A run on disk: its spec, history, models and scores.

    ROOT/NAME-ADDRESS/spec.json               everything that determines the run, and its address
                      history.jsonl           one line an epoch; the last says how it ended
                      model.safetensors       the trained model, once it is finished
                      epoch-75.safetensors    the model after some earlier epoch, where that was asked for
                      scores.csv              what was measured, in the columns of every table of scores
                      .scores.lock            held by who adds to it
    ROOT/.checkpoints/ADDRESS.safetensors     the state of runs that train together, while they do
    ROOT/.locks/NAME.lock                     held by who trains, by name of the runs and of their checkpoint

The address is the SHA-256 of the spec: the same spec has the same folder on every machine, and a finished run need not
be trained again. The address is checked against the spec, the weights against the digest that training wrote down, and
every score against the check in its line: a file that was changed or swapped is refused. Every file is written
atomically.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from polybound.atomic import write_atomically
from polybound.errors import FileFormatError, PolyboundError, reason
from polybound.evaluation import Score, Table, read_table, score_of, short_digest
from polybound.models import PolynomialNetwork, weights_digest
from polybound.models import load as load_network
from polybound.runs.spec import Spec, address_of
from polybound.training import Plain, Projected

SPEC, HISTORY, MODEL, SCORES = "spec.json", "history.jsonl", "model.safetensors", "scores.csv"
LOCK = ".scores.lock"


def is_run(path: Path) -> bool:
    """Whether a path is a run's folder."""
    return (path / SPEC).is_file()


def find_runs(root: Path) -> list[Run]:
    """All runs in a folder."""
    return [Run(file.parent) for file in sorted(root.glob(f"*/{SPEC}"))]


@dataclass(frozen=True, repr=False)
class Run:
    """One run's folder."""

    path: Path

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @classmethod
    def of(cls, spec: Spec, root: Path) -> Run:
        """The folder of a spec, which may not exist yet."""
        return cls(root / spec.folder_name)

    @classmethod
    def make(cls, spec: Spec, root: Path) -> Run:
        """The folder of a spec, made if it is new.

        Raises:
            FileFormatError: there is such a folder, but of another spec.
        """
        run = cls.of(spec, root)
        run.path.mkdir(parents=True, exist_ok=True)
        if is_run(run.path):
            if run.spec() != spec:
                raise FileFormatError(f"{run.path / SPEC}: another run's spec; this is the folder of {spec.address}")
        else:
            content = {"address": spec.address, "spec": spec.as_dict()}
            run._write(SPEC, json.dumps(content, indent=2, sort_keys=True) + "\n")
        return run

    def spec(self) -> Spec:
        """What was asked for.

        Raises:
            FileFormatError: the file is no spec, or is not the one that the run was made with.
            PolyboundError: it names a method, a model or an attack that is not registered.
        """
        return cached(self.path / SPEC, self._read_spec)

    def _read_spec(self, file: Path) -> Spec:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            address, stored = content["address"], content["spec"]
            intact = address == address_of(stored)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FileFormatError(f"{file}: not a run's spec ({reason(error)})") from error
        try:
            spec = Spec.from_dict(stored)
        except PolyboundError as error:
            # A whole file that speaks of something unknown: a plugin that is not loaded, not a damage.
            raise (PolyboundError if intact else FileFormatError)(f"{file}: {error}") from error
        if not intact or address != spec.address:
            raise FileFormatError(f"{file}: was changed after the run was made; its address is no longer {address}")
        return spec

    def history(self) -> list[dict[str, Any]]:
        """What was seen while training, one mapping an epoch."""
        file = self.path / HISTORY
        return list(cached(file, _read_lines)) if file.exists() else []

    def write_history(self, lines: Sequence[dict[str, Any]]) -> None:
        """Replace the history."""
        self._write(HISTORY, "".join(json.dumps(line) + "\n" for line in lines))

    @property
    def failure(self) -> str | None:
        """Why the run ended without a model; None if it has one, or has not ended."""
        return next((str(line["failure"]) for line in self.history() if "failure" in line), None)

    def model_file(self, epoch: int | None = None) -> Path:
        """The trained model, or that after an earlier epoch."""
        return self.path / (MODEL if epoch is None else f"epoch-{epoch}.safetensors")

    def digest(self, epoch: int | None = None) -> str | None:
        """The digest of the weights, as training wrote it down; None before that."""
        name = self.model_file(epoch).name
        return next((line["weights"][name] for line in self.history() if name in line.get("weights", {})), None)

    def write_model(self, model: PolynomialNetwork, lines: Sequence[dict[str, Any]], epoch: int | None = None) -> None:
        """Write a model, and with it the history that knows its digest; the model comes last.

        A history that goes further than `lines` stays: the model is then one that was missing from earlier on.
        """
        file = self.model_file(epoch)
        others = [line for line in self.history() if "weights" in line and file.name not in line["weights"]]
        seen = [line for line in self.history() if "weights" not in line]
        # The first of the longest: what is given, unless more was seen.
        longer = max(lines, seen, key=lambda some: max((line.get("epoch", 0) for line in some), default=0))
        about = {"weights": {file.name: weights_digest(model)}, "run": self.spec().address}
        self.write_history([*longer, *others, about])
        model.save(file)

    def model(self, epoch: int | None = None) -> PolynomialNetwork:
        """The trained model, or that after an earlier epoch.

        Raises:
            FileFormatError: the file is damaged, or is not the model that this run trained.
            PolyboundError: the run has no model.
        """
        return deepcopy(self._checked_model(epoch))  # the caller may train it further

    def _checked_model(self, epoch: int | None) -> PolynomialNetwork:
        file = self.model_file(epoch)
        if not is_run(self.path):
            raise PolyboundError(f"{self.path}: no run folder")
        # A spec may be whole, but another run's: training wrote down whose weights these are.
        address = self.spec().address
        if other := next((line["run"] for line in self.history() if line.get("run", address) != address), None):
            raise FileFormatError(f"{self.path / SPEC}: another run's spec; what is trained here is {other}")
        if self.failure is not None:
            raise PolyboundError(f"{self.path}: no model; it ended with: {self.failure}")
        if not file.exists():
            raise PolyboundError(f"{self.path}: not trained yet")
        model, digest = cached(file, _read_model)
        if digest != self.digest(epoch):
            raise FileFormatError(f"{file}: not the model that this run trained; its weights have another digest")
        return model

    def finished(self, epoch: int | None = None) -> bool:
        """Whether the run ended, well or badly; a model that cannot be read must be made again.

        Raises:
            FileFormatError: there is a whole model, but not the one that this run trained.
        """
        if not is_run(self.path):
            return False
        if self.failure is not None:
            return True
        file = self.model_file(epoch)
        if not file.exists() or self.digest(epoch) is None:
            return False
        try:
            self._checked_model(epoch)
        except FileFormatError:
            try:
                load_network(file)
            except FileFormatError:
                return False
            raise
        return True

    def scores(self) -> list[Score]:
        """All that was measured on this run's weights."""
        return [score_of(row) for row in self.table()]

    def table(self) -> Table:
        """All that was measured on this run's weights, with its spec; scores of other weights are left out."""
        file = self.path / SCORES
        if not file.exists() or not (stored := cached(file, _read_scores)).rows:
            return Table()
        address = self.spec().address
        return self._rows(dict.fromkeys(score_of(row) for row in stored if row.get("run") == address))

    def _rows(self, scores: Iterable[Score]) -> Table:
        """The scores of this run's weights with what the run is; the same weights may be those of several epochs."""
        spec, digests = self.spec(), self.digests()
        about = {**spec.columns(), "run": spec.address}
        return Table(
            {**about, "epoch": epoch, **score.as_dict()}
            for score in scores
            for epoch, digest in digests.items()
            if digest == score.weights
        )

    def digests(self) -> dict[int, str]:
        """The digests of all weights that there are, in short as scores have them, by the epoch that they are of."""
        found: dict[int, str] = {}
        for line in self.history():
            for name, digest in line.get("weights", {}).items():
                epoch = self.spec().recipe.epochs if name == MODEL else int(name[6:].partition(".")[0])
                found[epoch] = short_digest(digest)
        return found

    def add_scores(self, scores: Iterable[Score]) -> None:
        """Add to what was measured; what is known stays as it is. Processes that add at once wait for each other."""
        with FileLock(self.path / LOCK):
            known = self.table()
            found = {score.identity for score in map(score_of, known)}
            whole = known + self._rows({s.identity: s for s in scores if s.identity not in found}.values())
            self._write(SCORES, whole.to_csv(checked=True))
            cached(self.path / SCORES, lambda _: whole)  # what was just written need not be read

    def _write(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text.encode())


def _read_model(file: Path) -> tuple[PolynomialNetwork, str]:
    model = load_network(file)
    return model, weights_digest(model)


def _read_lines(file: Path) -> list[dict[str, Any]]:
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{file}: not JSON lines ({error})") from error
    if not all(isinstance(line, dict) and isinstance(line.get("weights", {}), dict) for line in lines):
        raise FileFormatError(f"{file}: not a run's history")
    return lines


def _read_scores(file: Path) -> Table:
    try:
        return read_table(file.read_text(encoding="utf-8"), checked=True)
    except (PolyboundError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{file}: {error}; delete it to measure again") from error


# Files that are read once: what was read stays known until the file changes.


T = TypeVar("T")
_MOST = 2**29
"""Bytes of files whose contents are kept."""

_known: OrderedDict[Path, tuple[tuple[int, int, int], Any]] = OrderedDict()


def cached(file: Path, read: Callable[[Path], T]) -> T:
    """What `read` makes of a file, read again only if the file was replaced.

    A report asks for the same runs in every table; without this, each of them takes seven times as long.
    """
    # Every file is written under a new name and renamed: another content is another inode, or another time.
    path, found = file.absolute(), file.stat()
    now = found.st_ino, found.st_mtime_ns, found.st_size
    if path not in _known or _known[path][0] != now:
        _known[path] = now, read(file)
    _known.move_to_end(path)
    value: T = _known[path][1]
    size = sum(kept[0][2] for kept in _known.values())
    while size > _MOST and len(_known) > 1:
        size -= _known.popitem(last=False)[1][0][2]
    return value


# The state of runs that train together, in one safetensors file, and the locks that are held meanwhile.


_STATE = ("epoch", "step", "leader", "parted", "histories")
_MEMORY = "optimiser "  # no parameter's name has a blank in it


def path_for(root: Path, specs: Sequence[Spec]) -> Path:
    """Where runs that train together keep their state."""
    return root / ".checkpoints" / f"{address_of([spec.as_dict() for spec in specs])}.safetensors"


def checkpoints(root: Path) -> list[Path]:
    """All checkpoints in a folder of runs."""
    return sorted((root / ".checkpoints").glob("[!.]*.safetensors"))


def lock_names(specs: Iterable[Spec]) -> list[str]:
    """The locks to hold while runs are trained; the runs of a seed, with any bounds or none, share one."""
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


@dataclass
class Checkpoint:
    """The state of runs that train together, after some step.

    Attributes:
        specs: of the runs.
        leader: for each run, the run that it is trained as.
        parted: whether the runs of a seed have branched.
        histories: of the runs.
        epoch: epochs done.
        step: steps done in the present epoch.
        tensors: the stack's parameters.
        sums: losses summed over the steps of the present epoch.
        peaks: by leader, the largest norm relative to its bound so far.
        memory: what the optimiser remembers of the stack's parameters.
    """

    specs: list[Spec]
    leader: list[int]
    parted: bool
    histories: list[list[dict[str, Any]]]
    epoch: int = 0
    step: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)
    sums: Tensor | None = None
    peaks: dict[int, Tensor] = field(default_factory=dict)
    memory: dict[str, Tensor] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """Write it atomically."""
        state = {name: getattr(self, name) for name in _STATE}
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
        with _opened(file, device) as (opened, state):
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            specs = [Spec.from_dict(content) for content in state["specs"]]
            sums = tensors.pop("sums").cpu() if "sums" in tensors else None
            peaks = {i: tensors.pop(f"peak {i}") for i in range(len(specs)) if f"peak {i}" in tensors}
            kept = [name for name in tensors if name.startswith(_MEMORY)]
            memory = {name.removeprefix(_MEMORY): tensors.pop(name) for name in kept}
            known = {name: state[name] for name in _STATE}
            return cls(specs=specs, tensors=tensors, sums=sums, peaks=peaks, memory=memory, **known)

    @classmethod
    def specs_in(cls, file: Path) -> list[Spec]:
        """The specs of the runs whose state a file holds.

        Raises:
            FileFormatError: the file is not a checkpoint.
            PolyboundError: a spec names a method, a model or an attack that is not registered.
        """
        with _opened(file) as (_, state):
            found = list(state["specs"])
        return [Spec.from_dict(content) for content in found]


@contextmanager
def _opened(file: Path, device: str = "cpu") -> Iterator[tuple[Any, dict[str, Any]]]:
    """A checkpoint's file, with what it says of the state."""
    try:
        with safe_open(file, framework="pt", device=device) as opened:
            yield opened, json.loads(opened.metadata()["state"])
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{file}: not a checkpoint ({error}); delete it to start over") from error
