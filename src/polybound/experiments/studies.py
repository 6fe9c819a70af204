"""What the experiments need besides training and evaluating: norms while training, at initialisation, samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from polybound.data import load
from polybound.experiments.digests import digests
from polybound.experiments.experiment import Experiment
from polybound.experiments.jobs import StudyJob
from polybound.experiments.results import runs_of
from polybound.models import CCP
from polybound.runs import DataSpec, ModelSpec, Spec, subjects_of
from polybound.theory import gamma, theta
from polybound.training import Plain, fit

__all__ = ["growth_studies", "ratios", "studies"]

RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DEGREES = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16)


def studies(experiment: Experiment, data_dir: Path | None = None) -> list[StudyJob]:
    """The studies of an experiment, of the data sets that are known on this machine."""
    if experiment.kind == "growth":
        return [job for _, job in growth_studies(experiment, data_dir)]
    if experiment.kind == "initial":
        return [StudyJob.of("initial", initial, seeds=max(10, experiment.seeds))]
    if experiment.kind == "samples":
        known = digests(data_dir)
        return [StudyJob.of("samples", samples, dataset=name, digest=known(name)) for name in experiment.datasets]
    return []


def growth_studies(experiment: Experiment, data_dir: Path | None = None) -> list[tuple[Spec, StudyJob]]:
    """The studies of training without regularisation, each with what is trained; of data sets that are here."""
    known, recipe = digests(data_dir), experiment.recipe_for(Plain())
    specs = [
        Spec(DataSpec(name, known(name), experiment.samples), ModelSpec(model), recipe)
        for name in experiment.datasets
        for model in experiment.models
    ]
    return [(spec, StudyJob.of("growth", growth, spec=spec.as_dict())) for spec in specs if spec.data.digest]


def growth(options: Mapping[str, Any], _root: Path, data_dir: Path | None) -> dict[str, list[float]]:
    """Theta and gamma after every epoch of training without regularisation."""
    spec = Spec.from_dict(options["spec"])
    data = spec.data.load("train", data_dir)
    model = spec.model.build(data, seed=spec.seed)
    found: dict[str, list[float]] = {"theta": [theta(model).item()], "gamma": [gamma(model).item()]}

    def note(_epoch: int, _losses: torch.Tensor) -> None:
        found["theta"].append(theta(model).item())
        found["gamma"].append(gamma(model).item())

    fit(model, data, spec.recipe, seed=spec.seed, on_epoch=note)
    return found


def initial(options: Mapping[str, Any], _root: Path, _data_dir: Path | None) -> dict[str, Any]:
    """gamma/theta of networks with standard normal matrices: over the rank at degree 10, over the degree at rank 16."""

    def ratio(rank: int, degree: int) -> list[float]:
        found = []
        for seed in range(options["seeds"]):
            model = CCP(784, rank, 10, degree, form="product", seed=seed)
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                model.U.normal_(generator=generator)
            found.append((gamma(model) / theta(model)).item())
        return found

    return {
        "rank": {str(rank): ratio(rank, 10) for rank in RANKS},
        "degree": {str(degree): ratio(16, degree) for degree in DEGREES},
    }


def samples(options: Mapping[str, Any], _root: Path, data_dir: Path | None) -> dict[str, Any]:
    """The first image of each of the first ten classes, as bytes."""
    data = load(options["dataset"], "test", data_dir=data_dir)
    found = []
    for label in range(min(10, data.classes)):
        places = (data.y == label).nonzero().flatten()
        if len(places):
            low, high = data.domain
            pixels = ((data.x[places[0]] - low) * (255 / (high - low))).round().to(torch.uint8)
            found.append({"label": label, "name": data.class_names[label], "pixels": pixels.tolist()})
    return {"shape": list(data.shape), "samples": found}


def ratios(experiment: Experiment, root: Path, data_dir: Path | None = None) -> list[dict[str, Any]]:
    """gamma/theta of the trained runs, with the columns of their specs."""
    loaded, _ = subjects_of([run.path for _, run in runs_of(experiment, root, data_dir)])
    return [{**one.about, "ratio": (gamma(one.model) / theta(one.model)).item()} for one in loaded]
