"""`polybound certify`: certificates, or proven output intervals, of test images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import MofNCompleteColumn

from polybound.certificates import PreparedNetwork, certify, check_claims, output_bounds, read_claims, save_certificates
from polybound.cli.commands import progress_bar
from polybound.cli.tables import show_table
from polybound.data import Dataset, load
from polybound.errors import PolyboundError, writable_file
from polybound.models import PolynomialNetwork
from polybound.runs import LoadedModel, load_model

__all__ = ["check_target", "model_and_images", "run_certify", "run_check", "run_outputs", "show_intervals"]


def run_certify(
    path: Path,
    eps: list[float],
    images: int,
    dataset: str | None,
    data_dir: Path | None,
    norm: str,
    method: str,
    budget: float,
    save: Path | None,
    as_json: bool,
    workers: int = 1,
) -> None:
    """Certify the first test images at every eps, and show the counts."""
    check_target(save, eps)
    model, data = model_and_images(path, dataset, data_dir)
    x, y = data.x[:images], data.y[:images]
    rows = []
    net = PreparedNetwork(model)
    with progress_bar(MofNCompleteColumn()) as bar:
        for radius in eps:
            task = bar.add_task(f"eps {radius:g}", total=len(x))
            options: dict[str, Any] = {"domain": data.domain, "norm": norm, "method": method, "budget": budget}
            options["on_progress"] = lambda done, task=task: bar.update(task, completed=done)
            found = certify(net, x, y, radius, keep=save is not None, workers=workers, **options)
            rows.append({"eps": radius} | found.summary())
            if save is not None:
                save_certificates(save, model, found, x, data.domain)
    if as_json:
        about = {"model": str(path), "dataset": data.name, "domain": list(data.domain), "norm": norm}
        print(json.dumps(about | {"rows": rows}, indent=2))
    else:
        _show(f"{path}: {len(x)} test images of {data.name}, inputs in {list(data.domain)}, l_{norm} balls", rows)


def check_target(save: Path | None, eps: list[float]) -> None:
    """Refuse a file that cannot be written, before anything is proven."""
    if save is None:
        return
    if len(eps) != 1:
        raise PolyboundError("--save takes the certificates of one --eps")
    writable_file(save)


def run_check(
    path: Path,
    file: Path,
    as_json: bool,
    typed: Sequence[str],
    eps: Sequence[float] | None,
    norm: str,
) -> None:
    """Verify a file of certificates in ball arithmetic.

    Args:
        path: the network.
        file: the certificates.
        as_json: whether to print JSON.
        typed: the options that were typed; the file itself says what it is about, and they may not contradict it.
        eps: radii, if they were typed.
        norm: the norm, if it was typed.
    """
    for option in typed:
        if option not in ("--check", "--eps", "--norm", "--json", "--quiet"):
            raise PolyboundError(f"--check takes no {option}: the file holds its inputs and its claims")
    model = load_model(path).model
    claims = read_claims(file, model)
    if "--norm" in typed and norm != claims.norm:
        raise PolyboundError(f"--norm {norm}: {file} is about {claims.about()}")
    for radius in eps or ():
        if claims.radii != (radius, radius):
            raise PolyboundError(f"--eps {radius:g}: {file} is about {claims.about()}")
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task(f"checking {file.name}", total=len(claims.images))
        counts = check_claims(claims, model, on_progress=lambda done, _: bar.update(task, completed=done))
    if as_json:
        about = {"norm": claims.norm, "eps": None if claims.radii is None else list(claims.radii)}
        print(json.dumps(counts | about, indent=2))
        return
    if claims.forms is None:
        confirmed = f"{counts['verified']} verified and {counts['falsified']} falsified inputs, {claims.about()}"
        open_ones = f"{counts['undecided']} undecided" if counts["undecided"] else ""
    else:
        confirmed = f"the intervals of {counts['bounded']} inputs, {claims.about()}"
        open_ones = f"{counts['unbounded']} without all ends" if counts["unbounded"] else ""
    again = f"{counts['repeated']} repeated and not counted" if counts["repeated"] else ""
    print("; ".join(part for part in (f"{file}: confirmed {confirmed}", open_ones, again) if part))


def model_and_images(path: Path, dataset: str | None, data_dir: Path | None) -> tuple[PolynomialNetwork, Dataset]:
    """A model, and test images that fit it: the run's own, or of the data set that is named."""
    loaded = load_model(path)
    return loaded.model, _fitting(_data(loaded, dataset, data_dir), loaded.model)


def _data(loaded: LoadedModel, dataset: str | None, data_dir: Path | None) -> Dataset:
    """The test images of a run, or of the data set that is named."""
    if dataset is not None:
        return load(dataset, "test", data_dir=data_dir)
    if loaded.run is None:
        raise PolyboundError(f"{loaded.path}: whose images? --dataset digits, or any that `polybound data list` shows")
    return loaded.run.spec().data.load("test", data_dir)


def _fitting(data: Dataset, model: PolynomialNetwork) -> Dataset:
    if data.x[0].numel() != model.features:
        raise PolyboundError(f"{data.name} has inputs of shape {data.shape}, the model takes {model.shape}")
    if data.classes > model.classes:
        raise PolyboundError(f"{data.name} has {data.classes} classes, the model {model.classes}: another data set")
    return data


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    cells = []
    for row in rows:
        shares = (f"{100 * row[f'{name} accuracy']:.1f} %" for name in ("clean", "certified", "attacked"))
        rungs = ", ".join(f"{rung} {count}" for rung, count in row["rungs"].items())
        cells.append([f"{row['eps']:g}", *shares, str(row["undecided"]), f"{row['mean milliseconds']:.1f}", rungs])
    header = ["eps", "clean", "certified", "attacked", "undecided", "ms an image", "decided by"]
    show_table(header, cells, title=title)


# `polybound certify --outputs`: intervals that a run's or a model's outputs provably stay in.


def run_outputs(
    path: Path,
    eps: list[float],
    images: int,
    dataset: str | None,
    data_dir: Path | None,
    norm: str,
    method: str,
    budget: float,
    save: Path | None,
    as_json: bool,
) -> None:
    """Bound the outputs of the first test images at every eps, and show them."""
    check_target(save, eps)
    model, data = model_and_images(path, dataset, data_dir)
    x, net = data.x[:images], PreparedNetwork(model)
    rows: list[dict[str, Any]] = []
    with progress_bar(MofNCompleteColumn()) as bar:
        for radius in eps:
            task = bar.add_task(f"eps {radius:g}", total=len(x))
            options: dict[str, Any] = {"domain": data.domain, "norm": norm, "method": method, "budget": budget}
            options["on_progress"] = lambda done, task=task: bar.update(task, completed=done)
            found = output_bounds(net, x, radius, keep=save is not None, **options)
            rows += [{"eps": radius, "label": int(data.y[row["image"]])} | row for row in found.rows()]
            if save is not None:
                save_certificates(save, model, found, x, data.domain)
    if as_json:
        about = {"model": str(path), "dataset": data.name, "domain": list(data.domain), "norm": norm}
        print(json.dumps(about | {"rows": rows}, indent=2))
    else:
        title = f"{path}: {len(x)} test images of {data.name}, inputs in {list(data.domain)}, l_{norm} balls"
        show_intervals(title, rows, ["eps"])


def show_intervals(title: str, rows: Sequence[Mapping[str, Any]], about: Sequence[str]) -> None:
    """A line for each interval, headed by what it is about, the columns `about` first."""
    lead = [*about, "image", "label", "output"]
    header = [*lead, "proven from", "to", "attained from", "to"]
    cells = [
        [*(str(row[name]) for name in lead), *(_number(row[name]) for name in ("lower", "upper", "lowest", "highest"))]
        for row in rows
    ]
    show_table(header, cells, lead=len(lead), title=title)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
