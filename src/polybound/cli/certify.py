"""`polybound certify`: certificates, or proven output intervals, of test images; and the check of a file of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

import polybound as pb
from polybound.cli.commands import app, command, progress, typed_options
from polybound.cli.options import NETWORKS, AsJson, DataDir, Dataset, Images, Network, Radii, option
from polybound.cli.tables import show_table
from polybound.errors import PolyboundError, writable_file


@dataclass(frozen=True)
class CertifyOptions:
    """The options of `polybound certify` that say what to prove, and of which images."""

    eps: Radii = None
    images: Images = 100
    dataset: Dataset = None
    norm: str = option("Norm of the ball: inf or 2.", default="inf")
    method: str = option("auto, second, first; crown, interval, lipschitz to compare.", default="auto")
    budget: float | None = option("Seconds of branch and bound for an image: 10, or 1 with --outputs.")
    outputs: bool = option("Prove intervals of the outputs, in the place of decisions.", "--outputs", default=False)
    save: Path | None = option("Write what is proven, with its proofs, to this file.")
    workers: int = option("Processes that the images are shared out to.", default=1, min=1)
    data_dir: DataDir = None


@command(
    app,
    "polybound certify runs/NAME --eps 0.01 --eps 0.02 --images 1000 --workers 4",
    "polybound certify m.safetensors --dataset digits --eps 0.1 --save proofs.json",
    "polybound certify m.safetensors --check proofs.json",
    "polybound certify m.safetensors --dataset digits --eps 0.1 --images 3 --outputs --save intervals.json",
    "polybound certify m.safetensors --dataset digits --eps 0.5 --norm 2",
    panel=NETWORKS,
    stopped="no proofs were written; the same command starts again",
)
def certify(
    context: typer.Context,
    run: Network,
    options: CertifyOptions,
    check: Path | None = option("Verify a file of --save; --eps and --norm must fit it. Chains need python-flint."),
    as_json: AsJson = False,
) -> None:
    """Prove for test images that no perturbation within eps changes the prediction, or show one that does."""
    if check is not None:
        _check(run, check, options, typed_options(context), as_json)
    elif not options.eps:
        raise PolyboundError("pass --eps or --check")
    elif options.outputs and options.workers > 1:
        raise PolyboundError("--workers is about certificates; --outputs has none yet")
    else:
        _prove(run, options, options.eps, as_json)


def _prove(run: str, options: CertifyOptions, eps: Sequence[float], as_json: bool) -> None:
    """Certify the first test images at every eps, or bound their outputs, and show what came out."""
    save = options.save
    if save is not None:
        if len(eps) != 1:
            raise PolyboundError("--save takes the certificates of one --eps")
        writable_file(save)
    model = pb.runs.load_model(run)
    data = model.data("test", options.dataset, options.data_dir)
    x, y = data.x[: options.images], data.y[: options.images]
    net, rows = pb.certificates.prepared(model.model), []
    for radius in eps:
        budget = options.budget if options.budget is not None else 1.0 if options.outputs else 10.0
        with progress(f"eps {radius:g}", len(x)) as step:
            shared: dict[str, Any] = {"domain": data.domain, "norm": options.norm, "method": options.method}
            shared |= {"budget": budget, "keep": save is not None, "on_progress": step}
            found: Any
            if options.outputs:
                found = pb.output_bounds(net, x, radius, **shared)
                rows += [{"eps": radius, "label": int(y[row["image"]])} | row for row in found.rows()]
            else:
                found = pb.certify(net, x, y, radius, workers=options.workers, **shared)
                rows.append({"eps": radius} | found.summary())
        if save is not None:
            pb.certificates.save_certificates(save, model.model, found, x, data.domain)
    if as_json:
        about = {"model": run, "dataset": data.name, "domain": list(data.domain), "norm": options.norm}
        print(json.dumps(about | {"rows": rows}, indent=2))
        return
    title = f"{run}: {len(x)} test images of {data.name}, inputs in {list(data.domain)}, l_{options.norm} balls"
    cells = []
    if options.outputs:
        lead, header = ["eps", "image", "label", "output"], ["proven from", "to", "attained from", "to"]
        for row in rows:
            ends = (row[name] for name in ("lower", "upper", "lowest", "highest"))
            cells.append([*(str(row[name]) for name in lead), *("none" if e is None else f"{e:.4f}" for e in ends)])
        show_table([*lead, *header], cells, lead=len(lead), title=title)
        return
    for row in rows:
        shares = (f"{100 * row[f'{name} accuracy']:.1f} %" for name in ("clean", "certified", "attacked"))
        stages = ", ".join(f"{stage} {count}" for stage, count in row["rungs"].items())
        cells.append([f"{row['eps']:g}", *shares, str(row["undecided"]), f"{row['mean milliseconds']:.1f}", stages])
    header = ["eps", "clean", "certified", "attacked", "undecided", "ms an image", "decided by"]
    show_table(header, cells, title=title)


def _check(run: str, file: Path, options: CertifyOptions, typed: Sequence[str], as_json: bool) -> None:
    """Verify a file of certificates.

    The file says what it is about; the options that were typed may not contradict it.
    """
    for one in typed:
        if one not in ("--check", "--eps", "--norm", "--json", "--quiet"):
            raise PolyboundError(f"--check takes no {one}: the file holds its inputs and its claims")
    model = pb.runs.load_model(run).model
    claims = pb.certificates.read_claims(file, model)
    if "--norm" in typed and options.norm != claims.norm:
        raise PolyboundError(f"--norm {options.norm}: {file} is about {claims.about()}")
    for radius in options.eps or ():
        if claims.radii != (radius, radius):
            raise PolyboundError(f"--eps {radius:g}: {file} is about {claims.about()}")
    with progress(f"checking {file.name}", len(claims.images)) as step:
        counts = pb.certificates.check_claims(claims, model, on_progress=step)
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
