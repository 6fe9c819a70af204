"""Certificates and intervals on disk, with their proofs; `polybound.certificates.proofs` describes the file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polybound.atomic import write_atomically
from polybound.certificates.certify import Certificates
from polybound.certificates.graphs import PreparedGraph, prepared
from polybound.certificates.input_sets import Domain, checked_domain
from polybound.certificates.network import PreparedNetwork
from polybound.certificates.outputs import OutputBounds
from polybound.certificates.proofs import FORMAT
from polybound.certificates.proofs.graphs import Cell, GraphChecker, down, prove_graph
from polybound.certificates.proofs.schema import Claims, RefusedError, content_digest, parse_claims, read_content
from polybound.errors import FileFormatError, PolyboundError, require
from polybound.models import DeepNetwork, Graph, PolynomialNetwork, Product, polynomial, weights_digest


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
        raise PolyboundError("no proofs to save; they come with method 'auto', 'second' or 'first' and keep=True")
    net = prepared(model, None if x is None else tuple(x.shape[1:]))
    if x is None:
        if found.box is None:
            raise PolyboundError("the inputs are needed, which eps is measured from")
        lower, upper = found.box
        x = lower + (upper - lower) / 2
    if len(x) != len(found):
        raise PolyboundError(f"{len(x)} inputs for certificates of {len(found)}")
    limits = checked_domain(net, domain)
    deep = isinstance(net, PreparedGraph)
    content: dict[str, Any] = {"format": FORMAT} | ({"kind": "graph"} if deep else {})
    content["model"] = _graph_of(model, net.shape).digest if deep else weights_digest(model)
    content["domain"] = limits and [side.tolist() for side in limits]
    if isinstance(net, PreparedNetwork):
        if not all(bool(mu.isfinite().all()) for mu in net.stretch):
            raise PolyboundError("the norms of these weights overflow float64: nothing is proven about them")
        content |= {"stretch": [mu.tolist() for mu in net.stretch], "norms": net.norms_S}
    if isinstance(found, OutputBounds):
        content["forms"] = {"weights": found.weights.tolist(), "constant": found.constant.tolist()}
    points = x.detach().double().reshape(len(x), -1).tolist()
    content["images"] = [_entry(found, i, point, net.classes) for i, point in enumerate(points)]
    if isinstance(net, PreparedGraph):
        _confirm(net.graph, content)
    elif found.norm == "2":
        content["tops"] = net.norms_A
    try:
        content["digest"] = content_digest(content)
        text = json.dumps(content)
    except RecursionError as error:
        raise PolyboundError("a proof has too many steps one within the other to be saved") from error
    write_atomically(path, (text + "\n").encode())


def _entry(found: Certificates | OutputBounds, i: int, point: list[float], classes: int) -> dict[str, Any]:
    """What is written about an image."""
    proofs = found.proofs or {}
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
        entry["proofs"] = [proofs.get((i, claim)) for claim in range(2 * rows)]
        return entry
    label, shown = int(found.label[i]), found.counterexample[i]
    entry |= {"status": found.status[i], "label": label}
    if shown is not None:
        entry |= {"counterexample": shown.reshape(-1).tolist(), "rival": int(found.rival[i])}
    elif found.status[i] == "verified":
        entry["proofs"] = {str(rival): proofs[i, rival] for rival in range(classes) if rival != label}
    return entry


def _graph_of(model: nn.Module, shape: Sequence[int] | None = None) -> Graph:
    """The graph of a deep network."""
    network: PolynomialNetwork = polynomial(model, shape)
    if not isinstance(network, DeepNetwork):
        raise PolyboundError("these certificates are about a deep network, and this is a chain of products")
    return network.graph()


def graph_claims(content: dict[str, Any], graph: Graph) -> Claims:
    """The claims of a file's content about a deep network."""
    products = [graph.sizes[number] for number, node in enumerate(graph.nodes) if isinstance(node, Product)]
    return parse_claims(content, graph.features, 0, graph.classes, products)


_ROOM = 2.0**-40
"""What is written is proven by more than this share of the margin at the input, whatever another machine rounds."""


def _confirm(graph: Graph, content: dict[str, Any]) -> None:
    """Check the images of a new file, and write down which of them its numbers do not prove.

    A verified image becomes an undecided one with the reason. Proven ends of intervals become those that are proven.
    """
    content["digest"] = ""
    images = content["images"]
    for number, entry in enumerate(images):
        content["images"] = [entry]
        try:
            if entry["status"] == "bounded":
                _confirm_ends(graph, content, entry)
            claims = graph_claims(content, graph)
            GraphChecker(graph, claims).check(claims.images[0], _ROOM)
        except (RefusedError, FileFormatError) as error:
            kept = {name: entry[name] for name in ("x", "eps", "box", "norm", "label") if name in entry}
            images[number] = kept | {"status": "undecided", "reason": str(error)}
    content["images"] = images
    del content["digest"]


def _confirm_ends(graph: Graph, content: dict[str, Any], entry: dict[str, Any]) -> None:
    """Write what an entry's proofs prove, and what its points attain, in the place of what was found."""
    claims = graph_claims(content, graph)
    claim, checker = claims.images[0], GraphChecker(graph, claims)
    cell = Cell.of(graph.double(), claim, claims.domain, claims.norm)
    for row, (given, constant) in enumerate(claims.forms or ()):
        for sign, proven, attained in ((1, "lower", "lowest"), (-1, "upper", "highest")):
            form, shift = torch.tensor([given], dtype=torch.float64) * sign, sign * Fraction(constant)
            if (end := getattr(claim, proven)[row]) is not None:
                try:
                    least = checker.least(end[1], cell, form) + shift
                    entry[proven][row] = sign * down(least - Fraction(_ROOM) * (abs(least) + abs(shift)))
                except RefusedError:
                    entry[proven][row] = None
            if (end := getattr(claim, attained)[row]) is not None:
                value = Fraction(float(checker.value(end[1], form).upper)) + shift
                entry[attained][row] = -sign * down(-value - Fraction(_ROOM) * (abs(value) + abs(shift)))


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
    deep = content.get("kind") == "graph"
    try:
        graph = _graph_of(model) if deep else None
    except PolyboundError as error:
        raise PolyboundError(f"{path}: {error}") from error
    if content.get("model") != (weights_digest(model) if graph is None else graph.digest):
        raise PolyboundError(f"{path}: these certificates are about other weights")
    try:
        if graph is None:
            factors = model.factors()
            claims = parse_claims(content, factors.features, factors.degree, factors.C.outputs)
        else:
            claims = graph_claims(content, graph)
        return replace(claims, file=str(path))
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error


def check_claims(
    claims: Claims, model: PolynomialNetwork, *, on_progress: Callable[[int, int, str], None] | None = None
) -> dict[str, int]:
    """Prove claims that `read_claims` returned; returns the counts of `check_file`."""
    statuses = ("verified", "falsified", "undecided") if claims.forms is None else ("bounded", "unbounded")
    try:
        if claims.deep:
            found = prove_graph(claims, _graph_of(model), on_progress)
        else:
            require("flint", "check", "the check of proofs (python-flint)")
            from polybound.certificates.proofs.check import prove

            found = prove(claims, model, on_progress)
    except PolyboundError as error:
        raise PolyboundError(f"{claims.file}: {error}") from error
    distinct = set(zip(found, (image.x for image in claims.images), strict=True))
    counts = {status: sum(status == other for other, _ in distinct) for status in statuses}
    return counts | {"repeated": len(found) - len(distinct)}
