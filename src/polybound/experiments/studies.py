"""What the experiments need besides training and evaluating: norms while training, at initialisation, samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from polybound.data import load
from polybound.experiments.experiment import Experiment
from polybound.experiments.jobs import StudyJob, run_of, training_data
from polybound.experiments.plan import Plan
from polybound.models import CCP, paper_model
from polybound.models import load as load_model
from polybound.theory import gamma, theta
from polybound.training import fit

__all__ = ["ratios", "studies"]

RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DEGREES = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16)


def studies(experiment: Experiment) -> list[StudyJob]:
    """The studies of an experiment."""
    if experiment.kind == "growth":
        return [
            StudyJob.of(
                "growth",
                growth,
                config=Plan(name, model, experiment.recipe_for("none"), samples=experiment.samples).config(),
            )
            for name in experiment.datasets
            for model in experiment.models
        ]
    if experiment.kind == "initial":
        return [StudyJob.of("initial", initial, seeds=max(10, experiment.seeds))]
    if experiment.kind == "samples":
        return [StudyJob.of("samples", samples, dataset=name) for name in experiment.datasets]
    return []


def growth(options: Mapping[str, Any], _root: Path, data_dir: Path | None) -> dict[str, list[float]]:
    """Theta and gamma after every epoch of training without regularisation."""
    plan = Plan.of(options["config"])
    data = training_data(plan, data_dir)
    model = paper_model(plan.model, data.shape, data.classes, rank=plan.rank, seed=plan.seed)
    found: dict[str, list[float]] = {"theta": [theta(model).item()], "gamma": [gamma(model).item()]}

    def note(_epoch: int, _losses: torch.Tensor) -> None:
        found["theta"].append(theta(model).item())
        found["gamma"].append(gamma(model).item())

    fit(model, data, plan.recipe, seed=plan.seed, on_epoch=note)
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


def ratios(experiment: Experiment, root: Path) -> list[dict[str, Any]]:
    """gamma/theta of the trained runs."""
    rows = []
    for entry in experiment.entries():
        run = run_of(entry.plan, root)
        if run.model_file.exists():
            model = load_model(run.model_file)
            value = (gamma(model) / theta(model)).item()
            rows.append({"dataset": entry.plan.dataset, "bound": entry.level, "seed": entry.plan.seed, "ratio": value})
    return rows
