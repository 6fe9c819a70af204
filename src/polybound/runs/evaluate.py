"""Evaluation straight from run folders, whose scores stay in them, and from model files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from polybound import deploy
from polybound.attacks import PAPER_ATTACKS, Attack, parse_attacks
from polybound.data import Dataset, digest_of, load
from polybound.defences import parse_defence
from polybound.errors import PolyboundError
from polybound.evaluation import EvaluatedModel, Evaluation, Progress, Row, Score, Table, evaluate_models, short_digest
from polybound.models import PolynomialNetwork, weights_digest
from polybound.models import load as load_network
from polybound.runs.folder import Run, find_runs, is_run
from polybound.runs.spec import Spec

__all__ = ["LoadedModel", "evaluate_run", "evaluate_runs", "load_model", "load_models"]


Folder = str | PathLike[str]
Attacks = str | Attack | Sequence[str | Attack]


@dataclass(eq=False)
class LoadedModel:
    """A network from disk, with where it comes from.

    Attributes:
        path: the run's folder, or the model's file.
        subject: the network and what is known of it.
        about: what a table says of it besides its scores.
        run: its run, unless it is a file.
        warnings: what went wrong when its scores were to be kept.
    """

    path: Path
    subject: EvaluatedModel
    about: dict[str, Any]
    run: Run | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def model(self) -> PolynomialNetwork:
        """The network."""
        model = self.subject.model
        if not isinstance(model, PolynomialNetwork):
            raise AssertionError("not from a file")
        return model

    def keep(self, scores: Sequence[Score]) -> None:
        """Keep new scores in the run's folder; if that cannot be, they are shown all the same."""
        if self.run is None:
            return
        try:
            self.run.add_scores(scores)
        except OSError as error:
            warning = f"{self.path}: the scores could not be kept there ({error.strerror or error})"
            if warning not in self.warnings:
                self.warnings.append(warning)


def load_model(path: Folder, epoch: int | None = None) -> LoadedModel:
    """The network of a run folder, also after an earlier epoch, or of a model file, also an ONNX file.

    Raises:
        PolyboundError: there is none, or it is not what the run trained; the message names it.
    """
    path = Path(path)
    if path.is_file():
        model = deploy.from_onnx(path) if path.suffix == ".onnx" else load_network(path)
        return LoadedModel(path, EvaluatedModel(model, short_digest(weights_digest(model))), {"run": str(path)})
    run = Run(path)
    model, spec = run.model(epoch), run.spec()
    digest = short_digest(run.digest(epoch) or "")
    at = spec.recipe.epochs if epoch is None else epoch
    loaded = LoadedModel(
        path, EvaluatedModel(model, digest, run.scores()), {**spec.columns(), "run": spec.address, "epoch": at}, run
    )
    loaded.subject.keep = loaded.keep
    if doubtful := len(run.unverified()):
        loaded.warnings.append(
            f"{path}: {doubtful} stored scores are unverified (no check in scores.csv); delete it to measure again"
        )
    return loaded


def load_models(paths: Sequence[Folder], epoch: int | None = None) -> tuple[list[LoadedModel], dict[str, str]]:
    """The networks of run folders, folders of these and model files; what could not be loaded, with the reason."""
    found, skipped = [], {}
    named: dict[Path, Path] = {}
    for path in (run for given in paths for run in _runs_at(Path(given))):
        named.setdefault(path.resolve(), path)
    for path in named.values():
        try:
            found.append(load_model(path, epoch))
        except (PolyboundError, OSError) as error:
            skipped[str(path)] = _reason(error, path)
    return found, skipped


def _runs_at(path: Path) -> list[Path]:
    """The runs in a folder of runs; otherwise the path itself, whatever it is."""
    inside = [run.path for run in find_runs(path)] if path.is_dir() and not is_run(path) else []
    return inside or [path]


def _reason(error: Exception, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ")


def evaluate_run(path: Folder, attacks: Attacks = PAPER_ATTACKS, **options: Any) -> Evaluation:
    """Evaluate one run folder; `evaluate_runs` has the options."""
    return evaluate_runs([path], attacks, **options)


def evaluate_runs(
    paths: Sequence[Folder],
    attacks: Attacks = PAPER_ATTACKS,
    *,
    protocol: str = "sound",
    split: str = "test",
    limit: int | None = None,
    seed: int = 0,
    defence: str | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
    data_dir: Folder | None = None,
    keep: int = 0,
    check: int = 0,
    certify: Sequence[float | str] = (),
    intervals: int = 0,
    dataset: str | None = None,
    epoch: int | None = None,
) -> Evaluation:
    """Evaluate run folders and model files, those of one architecture and data set together; runs keep their scores.

    What a folder's scores already hold is not measured again; every attack's scores are written as soon as it is done.
    What cannot be evaluated is skipped, and named in the result's `skipped`.

    Args:
        paths: run folders, as `polybound train` makes them, or model files.
        attacks: as `evaluate` takes them.
        protocol: "sound", "published" or "both".
        split: "test", "train", or "validation" for runs that held a share back.
        limit: the number of images, from the first on; all by default.
        seed: of the attacks.
        defence: "gaussian", "median:size=5", or "guided", which is trained for each run on its training split.
        batch_size: images at a time; by default by memory.
        progress: called as `progress(done, total, what)`.
        data_dir: where the data lies.
        keep: how many of the first images and their adversarial examples to return; the networks then must be of one
            architecture and data set.
        check: on how many images to look for gradient masking.
        certify: radii for which to give the certified accuracy as well, as `evaluate` takes them.
        intervals: for how many images to give the intervals of the outputs, as `evaluate` takes it.
        dataset: the data set for model files; a run is measured on its own, and refuses another.
        epoch: take the models after this epoch, where runs kept them, instead of the last.

    Raises:
        PolyboundError: nothing could be evaluated.
    """
    chosen = parse_attacks(attacks)
    options: dict[str, Any] = {"limit": limit, "seed": seed, "batch_size": batch_size, "progress": progress}
    options |= {"keep": keep, "check": check, "certify": certify, "intervals": intervals}
    loaded, skipped = load_models(paths, epoch)
    if dataset is not None:
        for one in loaded:
            _check_dataset(one, dataset, data_dir)
    groups = list(_with_data(_grouped(loaded, dataset), split, data_dir, skipped))
    if not groups:
        raise PolyboundError(_nothing(skipped))
    if keep and len(groups) > 1:
        raise PolyboundError("adversarial examples can be kept for runs of one architecture and data set only")
    if defence is not None:
        for group, about, data in groups:
            _defend(group, defence, about, data, data_dir)
    parts: list[Evaluation] = []
    rows: dict[Path, list[Row]] = {}
    for group, _, data in groups:
        networks = [one.subject for one in group], [one.about for one in group], [one.path.name for one in group]
        found = evaluate_models(*networks, data, chosen, protocol, **options)
        each = len(found.scores) // len(group)
        rows |= {one.path: found.scores.rows[n * each : (n + 1) * each] for n, one in enumerate(group)}
        parts.append(found)
    return Evaluation(
        Table(row for one in loaded for row in rows.get(one.path, ())),
        list(dict.fromkeys(note for part in parts for note in part.notes)),
        parts[0].class_names,
        parts[0].examples,
        skipped=skipped,
        paths={str(one.about["run"]): str(one.path) for one in loaded},
        warnings=[warning for one in loaded for warning in one.warnings],
        intervals=[row for part in parts for row in part.intervals],
        stored=frozenset().union(*(part.stored for part in parts)),
    )


def _check_dataset(one: LoadedModel, dataset: str, data_dir: Folder | None) -> None:
    """Refuse a data set that is named for a run, unless it is the run's own."""
    own = None if one.run is None else one.run.spec().data
    if own is not None and dataset != own.name and digest_of(dataset, data_dir) != own.digest:
        raise PolyboundError(
            f"{one.path}: is a run on {own.name}, and is measured on that; --dataset {dataset} is for "
            "model files: evaluate RUN/model.safetensors instead"
        )


def _nothing(skipped: Mapping[str, str]) -> str:
    if not skipped:
        return "no run to evaluate"
    path, why = next(iter(skipped.items()))
    rest = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
    return f"{path}: {why}{rest}"


def _grouped(loaded: Sequence[LoadedModel], dataset: str | None) -> list[tuple[list[LoadedModel], Spec | str | None]]:
    """Networks of one architecture and data set, with what says which data that is."""
    groups: dict[str, tuple[list[LoadedModel], Spec | str | None]] = {}
    for one in loaded:
        spec = None if one.run is None else one.run.spec()
        about = dataset if spec is None else [spec.data.name, spec.data.digest, spec.data.held_out, spec.data.samples]
        key = json.dumps([about, type(one.model).__name__, one.model.config()])
        groups.setdefault(key, ([], spec or dataset))[0].append(one)
    return list(groups.values())


def _with_data(
    groups: Sequence[tuple[list[LoadedModel], Spec | str | None]],
    split: str,
    data_dir: Folder | None,
    skipped: dict[str, str],
) -> Iterator[tuple[list[LoadedModel], Spec | str, Dataset]]:
    """Each group with what says which data that is, and its data; a group whose data cannot be had is skipped."""
    for group, about in groups:
        try:
            if about is None:
                raise PolyboundError("whose images? --dataset digits, or any that `polybound data list` shows")
            data = load(about, split, data_dir=data_dir) if isinstance(about, str) else about.data.load(split, data_dir)
            _check_fit(group[0].model, data)
        except PolyboundError as error:
            skipped |= {str(one.path): str(error) for one in group}
            continue
        yield group, about, data


def _check_fit(model: PolynomialNetwork, data: Dataset) -> None:
    if data.x[0].numel() != model.features:
        raise PolyboundError(f"{data.name} has inputs of shape {data.shape}, the model takes {model.shape}")


def _defend(
    group: Sequence[LoadedModel], defence: str, about: Spec | str, data: Dataset, data_dir: Folder | None
) -> None:
    """Put a denoiser in front of networks; one that needs training is trained for each, when it is needed."""
    made = parse_defence(defence, data.shape)
    train = None
    if made.needs_training:
        # What the network was trained on, and nothing that was held out from it.
        if isinstance(about, str):
            train = load(about, "train", data_dir=data_dir)
        else:
            train = about.data.load("train", data_dir)
    for one in group:
        one.subject.defence, one.subject.train = made, train
