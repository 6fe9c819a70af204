"""Evaluation straight from run folders, whose scores stay in them: `evaluation.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from polybound.atomic import write_atomically
from polybound.attacks import PAPER_ATTACKS, Attack, parse_attacks, protocols
from polybound.data import Dataset, load
from polybound.defences import Defence, GuidedDenoiser, find_defence
from polybound.errors import FileFormatError, PolyboundError
from polybound.evaluation.certified import certified_column, certified_scores
from polybound.evaluation.evaluate import Progress, evaluate, reader_notes
from polybound.evaluation.score import Evaluation, Score
from polybound.models import PolynomialNetwork, stack, weights_digest
from polybound.models import load as load_model
from polybound.runs import Run

__all__ = ["StackedRuns", "evaluate_run", "evaluate_runs", "has_scores", "keyed_scores", "read_scores"]

_FILE = "evaluation.json"

Folder = str | PathLike[str]
Attacks = str | Attack | Iterable[str | Attack]
Key = dict[str, Any]


def evaluate_run(path: Folder, attacks: Attacks = PAPER_ATTACKS, **options: Any) -> Evaluation:
    """Evaluate one run folder; see `evaluate_runs` for the options."""
    return evaluate_runs([path], attacks, **options)


def evaluate_runs(
    paths: Sequence[Folder],
    attacks: Attacks = PAPER_ATTACKS,
    *,
    protocol: str = "sound",
    split: str = "test",
    limit: int | None = None,
    seed: int = 0,
    per_class: bool = False,
    defence: str | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
    data_dir: Folder | None = None,
    check: int = 0,
    certify: Sequence[float] = (),
) -> Evaluation:
    """Evaluate run folders, those of one architecture and data set together, and keep the scores in them.

    What a folder's `evaluation.json` already holds is not measured again; every attack's scores are written as soon as
    it is done. See `evaluate` for the options.

    Args:
        paths: run folders, as `polybound train` makes them.
        attacks: see `evaluate`.
        protocol: see there.
        split: "test", or "validation" for runs that held a share back.
        limit: see `evaluate`.
        seed: see there.
        per_class: see there.
        defence: "gaussian", "median" or "guided", which is trained for each run on its training split.
        batch_size: see `evaluate`.
        progress: see there.
        data_dir: where the data lies.
        check: see `evaluate`.
        certify: see there.
    """
    chosen, wanted = parse_attacks(attacks), protocols(protocol)
    key: Key = {"split": split, "seed": seed, "limit": limit, "defence": defence}
    columns = [(a, p) for a in chosen for p in wanted if not (a.only_sound and p != "sound")]
    scores: dict[Path, list[Score]] = {}
    notes: list[str] = []
    for group in StackedRuns.of(paths, split=split, data_dir=data_dir, defence=defence):
        notes += [note for note in reader_notes(chosen, wanted, group.data) if note not in notes]
        for attack, name in [(None, "-"), *columns]:
            called = "clean" if attack is None else attack.name
            lacking = [run for run in group.runs if not _has(run, called, name, key)]
            for runs, guard in group.parts(group.distinct(lacking)):
                result = evaluate(
                    group.model(runs),
                    group.data,
                    [] if attack is None else [attack],
                    protocol=wanted[0] if attack is None else name,
                    limit=limit,
                    seed=seed,
                    per_class=True,
                    defence=guard,
                    batch_size=batch_size,
                    progress=progress,
                    names=[run.path.name for run in runs],
                )
                for run in runs:
                    mine = [row for row in result.rows if row.protocol == name and row.run == run.path.name]
                    _keep(group.twins(run, lacking), mine, key)
        for eps in certify:
            if defence is not None:
                raise PolyboundError("a network behind a denoiser has no certificates")
            lacking = [run for run in group.runs if not _has(run, *certified_column(eps), key)]
            total = min(limit or len(group.data), len(group.data))
            for run in group.distinct(lacking):  # one by one, so that each is kept as soon as it is done
                found = certified_scores(
                    group.model([run]), group.data, eps, total=total, names=[run.path.name], seed=seed
                )
                _keep(group.twins(run, lacking), found, key)
        if check:
            for runs, guard in group.parts(group.runs):
                names = [run.path.name for run in runs]
                options: Any = {"protocol": protocol, "limit": check, "seed": seed, "defence": guard, "names": names}
                result = evaluate(group.model(runs), group.data, chosen, check=check, **options)
                notes += [note for note in result.notes if note not in notes]
        shown = [("clean", "-"), *((a.name, p) for a, p in columns), *map(certified_column, certify)]
        for run in group.runs:
            stored = {(s.attack, s.protocol): s for s in read_scores(run.path, key)}
            scores[run.path] = [stored[column] for column in shown]
    rows = [score for path in paths for score in scores[Path(path)]]
    if not per_class:
        rows = [Score.from_dict(row.as_dict() | {"per_class": None}) for row in rows]
    return Evaluation(rows, group.data.name, split, notes, group.data.class_names)


class StackedRuns:
    """Runs of one architecture and data set, with that data."""

    def __init__(self, runs: list[Run], data: Dataset, defence: str | None, data_dir: Folder | None) -> None:
        self.runs, self.data, self.defence, self.data_dir = runs, data, defence, data_dir
        self._models = {run.path: load_model(run.model_file) for run in runs}
        self._weights = {path: weights_digest(model) for path, model in self._models.items()}
        self._guards: dict[Path, Defence] = {}
        self._stacks: dict[tuple[Path, ...], PolynomialNetwork] = {}

    @classmethod
    def of(
        cls, paths: Sequence[Folder], *, split: str = "test", data_dir: Folder | None = None, defence: str | None = None
    ) -> list[StackedRuns]:
        """Run folders, put together where they fit."""
        groups: dict[str, list[Run]] = {}
        for path in dict.fromkeys(Path(path) for path in paths):
            run = Run(path)
            if not run.model_file.exists():
                why = f"it ended with: {run.failure}" if run.failure else "it is no run folder, or not trained yet"
                raise PolyboundError(f"{path}: no model to evaluate; {why}")
            config = run.config()
            about = [config.get(name) for name in ("dataset", "validation")]
            groups.setdefault(json.dumps([*about, load_model(run.model_file).config()]), []).append(run)
        if not groups:
            raise PolyboundError("no run to evaluate")
        return [cls(runs, _data(runs[0], split, data_dir), defence, data_dir) for runs in groups.values()]

    def model(self, runs: list[Run]) -> PolynomialNetwork:
        """Some of the runs as one stack."""
        names = tuple(run.path for run in runs)
        if names not in self._stacks:
            self._stacks = {names: stack([self._models[name] for name in names])}
        return self._stacks[names]

    def distinct(self, runs: list[Run]) -> list[Run]:
        """One of each kind: large bounds never bind, and their runs have the same weights to the bit."""
        found: dict[str, Run] = {}
        for run in runs:
            found.setdefault(self._weights[run.path], run)
        return list(found.values())

    def twins(self, run: Run, runs: list[Run]) -> list[Run]:
        """Those of some runs that have the same weights as one."""
        return [other for other in runs if self._weights[other.path] == self._weights[run.path]]

    def parts(self, runs: list[Run]) -> list[tuple[list[Run], Defence | None]]:
        """The runs that can be attacked together, with the defence in front of them."""
        if not runs:
            return []
        if self.defence != "guided":
            return [(runs, None if self.defence is None else find_defence(self.defence, self.data.shape))]
        return [([run], self._guided(run)) for run in runs]

    def _guided(self, run: Run) -> Defence:
        """The denoiser of a run, trained once for all attacks."""
        if run.path not in self._guards:
            train = _data(run, "train", self.data_dir)
            model = self._models[run.path]
            self._guards[run.path] = GuidedDenoiser(train.shape).fit(model, train.x, train.y, domain=train.domain)
        return self._guards[run.path]


def read_scores(path: Folder, key: Key | None = None) -> list[Score]:
    """The scores in a run folder: all, or those of a split, seed, limit and defence."""
    return [score for found, score in keyed_scores(path) if key is None or found == key]


def keyed_scores(path: Folder) -> list[tuple[Key, Score]]:
    """All scores in a run folder, each with its split, seed, limit and defence."""
    names, file = ("split", "seed", "limit", "defence"), Path(path) / _FILE
    try:
        return [({name: entry.get(name) for name in names}, Score.from_dict(entry)) for entry in _read(file)]
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{file}: not an evaluation ({error}); delete it to measure again") from error


def has_scores(
    path: Folder,
    attacks: Attacks,
    *,
    protocol: str = "sound",
    split: str = "test",
    limit: int | None = None,
    seed: int = 0,
    defence: str | None = None,
    certify: Sequence[float] = (),
) -> bool:
    """Whether `evaluate_run` with the same options would have nothing to measure."""
    key: Key = {"split": split, "seed": seed, "limit": limit, "defence": defence}
    found = {(score.attack, score.protocol) for score in read_scores(path, key)}
    wanted = [
        (a.name, p) for a in parse_attacks(attacks) for p in protocols(protocol) if p == "sound" or not a.only_sound
    ]
    return found.issuperset([("clean", "-"), *wanted, *map(certified_column, certify)])


def _data(run: Run, split: str, data_dir: Folder | None) -> Dataset:
    config = run.config()
    try:
        name, share = config["dataset"], config.get("validation", 0.0)
    except KeyError as error:
        raise FileFormatError(f"{run.path / 'config.json'}: no {error} in it") from error
    return load(name, split, data_dir=data_dir, validation=share)


def _has(run: Run, attack: str, protocol: str, key: Key) -> bool:
    return any(s.attack == attack and s.protocol == protocol for s in read_scores(run.path, key))


def _keep(runs: list[Run], rows: list[Score], key: Key) -> None:
    """Write scores into run folders that all have them."""
    for run in runs:
        file = run.path / _FILE
        entries = _read(file) + [row.as_dict() | {"run": run.path.name} | key for row in rows]
        lines = ",\n".join(json.dumps(entry) for entry in entries)
        write_atomically(file, f"[\n{lines}\n]\n".encode())


def _read(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, list) or not all(isinstance(e, dict) and "attack" in e for e in content):
            raise ValueError("not a list of scores")
    except ValueError as error:
        raise FileFormatError(f"{file}: not an evaluation ({error}); delete it to measure again") from error
    return content
