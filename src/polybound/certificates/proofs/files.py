"""Certificates and intervals on disk, with their proofs; `polybound.certificates.proofs` describes the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from polybound.atomic import write_atomically
from polybound.certificates.certify import Certificates
from polybound.certificates.input_sets import Domain, checked_domain
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.outputs import OutputBounds
from polybound.certificates.proofs import FORMAT
from polybound.certificates.proofs.schema import Claims, content_digest, parse_claims, read_content
from polybound.errors import FileFormatError, PolyboundError, require
from polybound.models import PolynomialNetwork, weights_digest


def save_certificates(
    path: str | PathLike[str],
    model: PolynomialNetwork,
    found: Certificates | OutputBounds,
    x: Tensor | None,
    domain: Domain | None,
) -> None:
    """Write certificates, or intervals of outputs, with their proofs.

    `certify(..., keep=True)` or `output_bounds(..., keep=True)` made them of these inputs in this domain.
    """
    if found.proofs is None:
        raise PolyboundError(
            "there are no proofs to save; they come with method 'auto', 'second' or 'first' and keep=True"
        )
    net = PreparedNetwork(model)
    if not all(bool(mu.isfinite().all()) for mu in net.stretch):
        raise PolyboundError("the norms of these weights overflow float64: nothing is proven about them")
    if x is None:
        if found.box is None:
            raise PolyboundError("the inputs are needed, which eps is measured from")
        lower, upper = found.box
        x = lower + (upper - lower) / 2
    if len(x) != len(found):
        raise PolyboundError(f"{len(x)} inputs for certificates of {len(found)}")
    points = x.detach().double().reshape(len(x), -1)
    content: dict[str, Any] = {"format": FORMAT, "model": weights_digest(model)}
    limits = checked_domain(net, domain)
    content["domain"] = limits and [side.tolist() for side in limits]
    content |= {"stretch": [mu.tolist() for mu in net.stretch], "norms": net.norms_S}
    if isinstance(found, OutputBounds):
        content["forms"] = {"weights": found.weights.tolist(), "constant": found.constant.tolist()}
    content["images"] = []
    for i, point in enumerate(points.tolist()):
        entry: dict[str, Any] = {"x": point}
        if found.eps is None:
            entry["box"] = [side[i].reshape(-1).tolist() for side in found.box or ()]
        else:
            eps = found.eps[i]
            entry["eps"] = float(eps) if eps.ndim == 0 else eps.reshape(-1).tolist()
            entry |= {"norm": "2"} if found.norm == "2" else {}
        if isinstance(found, OutputBounds):
            lower, upper, rows = found.lower[i], found.upper[i], found.lower.shape[1]
            wider = 2.0**-30 * (upper - lower) + 2.0**-40 * (upper.abs() + lower.abs())
            ends = {"lower": lower - wider, "upper": upper + wider}
            ends |= {"lowest": found.lowest[i], "highest": found.highest[i]}
            entry["status"] = "bounded"
            entry |= {name: [v if isfinite(v) else None for v in end.tolist()] for name, end in ends.items()}
            for name in ("lowest_at", "highest_at"):
                entry[name] = getattr(found, name)[i].reshape(rows, -1).tolist()
            entry["proofs"] = [found.proofs.get((i, claim)) for claim in range(2 * rows)]
        else:
            label, shown = int(found.label[i]), found.counterexample[i]
            entry |= {"status": found.status[i], "label": label}
            if shown is not None:
                entry |= {"counterexample": shown.reshape(-1).tolist(), "rival": int(found.rival[i])}
            elif found.status[i] == "verified":
                rivals = [rival for rival in range(net.classes) if rival != label]
                entry["proofs"] = {str(rival): found.proofs[i, rival] for rival in rivals}
        content["images"].append(entry)
    if found.norm == "2":
        content["tops"] = net.norms_A
    try:
        content["digest"] = content_digest(content)
        text = json.dumps(content)
    except RecursionError as error:
        raise PolyboundError("a proof has too many steps one within the other to be saved") from error
    write_atomically(path, (text + "\n").encode())


def check_file(
    path: str | PathLike[str], model: PolynomialNetwork, *, on_progress: Callable[[int, int, str], None] | None = None
) -> dict[str, int]:
    """Prove every certificate of a file again, in ball arithmetic; returns how many inputs there are of each status.

    An input that occurs several times counts once for each status; "repeated" is how many entries that leaves out. In
    files of intervals the status is "bounded", or "unbounded" if a proven end is missing.

    Args:
        path: what `save_certificates` wrote.
        model: the model they are about.
        on_progress: called as `on_progress(done, total, text)`, with numbers of images.

    Raises:
        PolyboundError: a certificate is not proven by what the file holds, or is about another model; or python-flint
            is missing.
    """
    return check_claims(read_claims(path, model), model, on_progress=on_progress)


def read_claims(path: str | PathLike[str], model: PolynomialNetwork) -> Claims:
    """Read the claims of a file about a model, without proving them."""
    content = read_content(Path(path))
    if content.get("model") != weights_digest(model):
        raise PolyboundError(f"{path}: these certificates are about other weights")
    factors = model.factors()
    try:
        claims = parse_claims(content, factors.features, factors.degree, factors.C.outputs)
        return replace(claims, file=str(path))
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error


def check_claims(
    claims: Claims, model: PolynomialNetwork, *, on_progress: Callable[[int, int, str], None] | None = None
) -> dict[str, int]:
    """Prove claims that `read_claims` returned; returns the counts of `check_file`."""
    require("flint", "check", "the check of proofs (python-flint)")
    from polybound.certificates.proofs.check import prove

    statuses = ("verified", "falsified", "undecided") if claims.forms is None else ("bounded", "unbounded")
    try:
        found = prove(claims, model, on_progress)
    except PolyboundError as error:
        raise PolyboundError(f"{claims.file}: {error}") from error
    distinct = set(zip(found, (image.x for image in claims.images), strict=True))
    counts = {status: sum(status == other for other, _ in distinct) for status in statuses}
    return counts | {"repeated": len(found) - len(distinct)}
