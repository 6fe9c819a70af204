"""What `polybound export` writes: a model, or a model with properties of test images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from polybound.cli.tables import note
from polybound.data import Dataset, load
from polybound.deploy import export_benchmark, to_onnx
from polybound.errors import PolyboundError
from polybound.models import PolynomialNetwork
from polybound.runs import LoadedModel, load_model

__all__ = ["Exported", "export_model", "export_properties"]


@dataclass(frozen=True)
class Exported:
    """What is exported: a run folder or a model's file, which run of a stack, and whose data."""

    path: Path
    run: int | None
    dataset: str | None
    data_dir: Path | None

    @cached_property
    def loaded(self) -> LoadedModel:
        """The network, with where it comes from."""
        return load_model(self.path)

    @property
    def model(self) -> PolynomialNetwork:
        """The network, or the run of it that is asked for."""
        return self.loaded.model if self.run is None else self.loaded.model.run(self.run)

    def data(self) -> Dataset | None:
        """The test images of the data set that is named, or that the run was trained on; None if there is none."""
        if self.dataset is not None:
            data = load(self.dataset, "test", data_dir=self.data_dir)
        elif self.loaded.run is not None:
            data = self.loaded.run.spec().data.load("test", self.data_dir)
        else:
            return None
        if data.x[:1].numel() != self.loaded.model.features or data.classes != self.loaded.model.classes:
            raise PolyboundError(f"{data.name} has inputs of shape {data.shape} and {data.classes} classes: no fit")
        return data


def export_model(about: Exported, target: Path, options: dict[str, Any]) -> list[Path]:
    """An ONNX file; with class names and domain if the data are there."""
    model = about.model
    try:
        data = about.data()
    except (PolyboundError, OSError) as error:
        if about.dataset is not None:
            raise
        note(f"without class names and domain, because the run's data cannot be loaded: {error}")
        data = None
    if data is not None:
        options = options | _described(data, options)
    return to_onnx(model, target, **options)


def _described(data: Dataset, options: dict[str, Any]) -> dict[str, Any]:
    """What the data say of a network's inputs and outputs."""
    scaling = data.scaling if options["scaling"] is None else options["scaling"]
    return {"class_names": data.class_names, "domain": data.domain, "scaling": scaling}


def export_properties(
    about: Exported,
    folder: Path,
    eps: list[float],
    images: int,
    correct: bool,
    timeout: float,
    options: dict[str, Any],
) -> list[Path]:
    """A benchmark of the first test images, or of the first that are classified correctly."""
    data = about.data()
    if data is None:
        raise PolyboundError(f"{about.path}: whose images? --dataset digits, or any that `polybound data list` shows")
    model = about.model
    if model.runs is not None:
        raise PolyboundError(f"{about.path} is a stack of {model.runs} runs; which? --run 0")
    x, y = data.x, data.y
    if correct:
        with torch.no_grad():
            inputs = DataLoader(TensorDataset(x.to(next(model.parameters()).dtype)), batch_size=256)
            right = torch.cat([model(part).argmax(1) for (part,) in inputs]) == y
        x, y = x[right], y[right]
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in _stem(about.path)) or "network"
    options = options | _described(data, options) | {"name": name, "timeout": timeout}
    return export_benchmark(model, folder, x[:images], y[:images], eps=eps, **options)


def _stem(path: Path) -> str:
    """A folder's name, which may have dots, or a file's without its ending."""
    return path.resolve().name if path.is_dir() else path.stem
