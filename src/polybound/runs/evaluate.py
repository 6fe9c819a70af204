"""Evaluation straight from run folders, whose scores stay in them, and from model files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from polybound import deploy, evaluation
from polybound.attacks import PAPER_ATTACKS
from polybound.data import Dataset, digest_of, load
from polybound.defences import Defence, parse_defence
from polybound.errors import PolyboundError
from polybound.evaluation import EvaluatedModel, Evaluation, EvaluationSpec, Score
from polybound.models import EXAMPLES, PolynomialNetwork, example, example_origin, weights_digest
from polybound.models import load as load_network
from polybound.runs.folder import Run, find_runs, is_run
from polybound.runs.spec import Spec

Folder = str | PathLike[str]


def evaluate_run(path: Folder, attacks: Any = PAPER_ATTACKS, **options: Any) -> Evaluation:
    """Evaluate one run folder; `evaluate_runs` has the options."""
    return evaluate_runs([path], attacks, **options)


def evaluate_runs(
    paths: Sequence[Folder],
    attacks: Any = PAPER_ATTACKS,
    *,
    split: str = "test",
    epoch: int | None = None,
    dataset: str | None = None,
    data_dir: Folder | None = None,
    progress: evaluation.Progress | None = None,
    **options: Any,
) -> Evaluation:
    """Evaluate run folders and model files, those of one architecture and data set together; runs keep their scores.

    What a folder's scores already hold is not measured again; every attack's scores are written as soon as it is done.
    What cannot be evaluated is skipped, and named in the result's `skipped`.

    Args:
        paths: run folders, as `polybound train` makes them, or model files.
        attacks: as `evaluate` takes them, or a whole `EvaluationSpec`.
        split: "test", "train", or "validation" for runs that held a share back.
        epoch: take the models after this epoch, where runs kept them, instead of the last.
        dataset: the data set for model files; a run is measured on its own, and refuses another.
        data_dir: where the data lies.
        progress: called as `progress(done, total, what)`.
        **options: the other fields of `EvaluationSpec`: protocol, certify, limit, seed, defence, batch_size, keep,
            check. A defence that needs training, "guided", is trained for each run on its training split.

    Raises:
        PolyboundError: nothing could be evaluated.
    """
    spec = EvaluationSpec.of(attacks, options)
    loaded, skipped = load_models(paths, epoch)
    for one in loaded:
        if dataset is not None and one.spec is not None:
            own = one.spec.data
            if dataset != own.name and digest_of(dataset, data_dir) != own.digest:
                raise PolyboundError(
                    f"{one.path}: is a run on {own.name}, and is measured on that; --dataset {dataset} is for "
                    "model files: evaluate RUN/model.safetensors instead"
                )
    splits: dict[object, Dataset] = {}
    defences: dict[int, Defence] = {}
    found: list[tuple[LoadedModel, Dataset]] = []

    def data_of(one: LoadedModel, split: str) -> Dataset:
        """A split of the network's data set, loaded once for all networks of one shape."""
        key = dataset if one.spec is None else one.spec.data, split, one.model.shape, one.model.classes
        if key not in splits:
            splits[key] = one.data(split, dataset if one.spec is None else None, data_dir)
        return splits[key]

    for one in loaded:
        try:
            data = data_of(one, split)
        except PolyboundError as error:
            skipped[str(one.path)] = str(error)
            continue
        if isinstance(spec.defence, Defence):
            one.defence = spec.defence
        elif spec.defence is not None:
            if id(data) not in defences:
                defences[id(data)] = parse_defence(spec.defence, data.shape)
            one.defence = defences[id(data)]
            if one.defence.needs_training:
                # What the network was trained on, and nothing that was held out from it.
                one.train = data_of(one, "train")
        found.append((one, data))
    if not found:
        path, why = next(iter(skipped.items()), ("", ""))
        rest = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
        raise PolyboundError(f"{path}: {why}{rest}" if path else "no run to evaluate")
    return replace(
        evaluation.evaluate_models(found, spec, progress),
        skipped=skipped,
        paths={str(one.about["run"]): str(one.path) for one in loaded},
        warnings=[warning for one in loaded for warning in one.warnings],
    )


@dataclass(eq=False, kw_only=True)
class LoadedModel(EvaluatedModel):
    """A network from disk, with where it comes from.

    Attributes:
        path: the run's folder, or the model's file; of a bundled network its name.
        run: its run, unless it is a file or a bundled network.
        origin: of a bundled network, how it is made again, as `example_origin` has it.
        warnings: what went wrong when its scores were to be kept.
    """

    model: PolynomialNetwork
    path: Path
    run: Run | None = None
    origin: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)

    @cached_property
    def spec(self) -> Spec | None:
        """Everything that determined its training; None if that is not known."""
        if self.origin is not None:
            return Spec.from_dict(self.origin["spec"])
        return None if self.run is None else self.run.spec()

    def data(
        self, split: str = "test", dataset: str | None = None, data_dir: str | PathLike[str] | None = None
    ) -> Dataset:
        """A split of the data set that is named, or of its own.

        Raises:
            PolyboundError: there is no such data set, or it does not fit the network.
        """
        if dataset is not None:
            data = load(dataset, split, data_dir=data_dir)
        elif self.spec is not None:
            data = self.spec.data.load(split, data_dir)
        else:
            raise PolyboundError(f"{self.name}: no data set: pass --dataset NAME, one that `polybound data list` shows")
        if data.x[0].numel() != self.model.features:
            raise PolyboundError(f"{data.name} has inputs of shape {data.shape}, the model takes {self.model.shape}")
        if data.classes > self.model.classes:
            classes = f"{data.classes} classes, the model {self.model.classes}"
            raise PolyboundError(f"{data.name} has {classes}: another data set")
        return data

    def add(self, scores: Sequence[Score]) -> None:
        """Keep new scores in the run's folder; if that cannot be, they are shown all the same."""
        super().add(scores)
        try:
            if self.run is not None:
                self.run.add_scores(scores)
        except OSError as error:
            warning = f"{self.path}: the scores could not be kept there ({error.strerror or error})"
            if warning not in self.warnings:
                self.warnings.append(warning)


def load_model(path: Folder, epoch: int | None = None) -> LoadedModel:
    """The network of a run folder, also after an earlier epoch, of a model or ONNX file, or a bundled one by its name.

    Raises:
        PolyboundError: there is no model, or another one than the run trained; the message names the file.
    """
    path, origin, name = Path(path), None, Path(path).stem
    if path.is_file() or (str(path) in EXAMPLES and not path.exists()):
        if not path.is_file():
            model, origin, name = example(str(path)), example_origin(str(path)), str(path)
        else:
            model = deploy.from_onnx(path) if path.suffix == ".onnx" else load_network(path)
        weights = evaluation.short_digest(weights_digest(model))
        return LoadedModel(model=model, weights=weights, name=name, about={"run": str(path)}, path=path, origin=origin)
    run = Run(path)
    model, spec = run.model(epoch), run.spec()
    about = {**spec.columns(), "run": spec.address, "epoch": spec.recipe.epochs if epoch is None else epoch}
    digest = evaluation.short_digest(run.digest(epoch) or "")
    known: dict[str, Any] = {"about": about, "scores": run.scores(), "path": path, "run": run}
    return LoadedModel(model=model, weights=digest, name=path.resolve().name, **known)


def load_models(paths: Sequence[Folder], epoch: int | None = None) -> tuple[list[LoadedModel], dict[str, str]]:
    """The networks of run folders, folders of these and model files; what could not be loaded, with the reason."""
    named: dict[Path, Path] = {}
    for path in map(Path, paths):
        runs = find_runs(path) if path.is_dir() and not is_run(path) else []
        for one in [run.path for run in runs] or [path]:
            named.setdefault(one.resolve(), one)
    found, skipped = [], {}
    for path in named.values():
        try:
            found.append(load_model(path, epoch))
        except (PolyboundError, OSError) as error:
            skipped[str(path)] = str(error).removeprefix(f"{path}: ")
    return found, skipped
