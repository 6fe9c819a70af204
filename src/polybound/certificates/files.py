"""Certificates on disk: JSON with the boxes, the counterexamples and the proofs, tied to the weights by their SHA-256.

An image's box is given by `eps`, one radius or one for each feature, and the domain, or by its own sides, `box`. With
`norm` "2" it is about the l_2 ball of these radii in that box. A proof is a tree of steps about one rival over a box,
which begins as the whole of it:

    {"by": "first" | "slopes"}                       the bound of first order is positive over the box
    {"by": "second" | "absorbed", on, v, mu}         so is the one that mu and v prove, in the coordinates `on`
    {..., box, monotone, then}                       that bound excludes what is outside of `box`, [coordinate, lower,
                                                     upper] each, or, in the `monotone` ones, the margin is least there
    {..., split: [coordinate, at], low, high}        both halves have a proof
    {"by": "point"}                                  the box is a point
    {"by": "ball" | "ball slopes"}                   the bound of first order is positive over the whole ball
    {"by": "trust" | "trust absorbed", on, v, lam}   so is the one of the trust-region problem that lam and v prove
    {"by": "cap", on, v, lam, kappa, d, s, centre, radii, then}    that bound excludes all of the ball but a cap, which
                                                     lies in the ball of that centre and those radii
    {"by": "outside"}                                the box has no point of the ball

In parts of a ball, `nu` is the multiplier of the whole one.

Files of intervals have `forms`, weights and constants of the outputs, and for each image and form the proven ends,
`lower` and `upper`, the attained ones, `lowest` and `highest`, with their points, and two proofs, that the form less
`lower` and `upper` less the form are positive. Where an end is null, nothing is proven. The proven ends are a billionth
of the interval wider than those in memory, so that whatever the check rounds cannot matter.

Nothing in it has to be believed: `polybound.certificates.check` proves every step anew, in ball arithmetic.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from polybound.atomic import write_atomically
from polybound.certificates.boxes import Domain
from polybound.certificates.inputs import checked_domain
from polybound.certificates.network import Network
from polybound.certificates.outputs import OutputBounds
from polybound.certificates.result import Certificates
from polybound.errors import FileFormatError, PolyboundError
from polybound.models import PolynomialNetwork, weights_digest

__all__ = ["check_file", "save_certificates"]

_FORMAT = "polybound certificates 1"


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
    net = Network(model)
    points = _points(found, x)
    content: dict[str, Any] = {"format": _FORMAT, "model": weights_digest(model)}
    limits = checked_domain(net, domain)
    content["domain"] = limits and [side.tolist() for side in limits]
    content |= {"stretch": [mu.tolist() for mu in net.stretch], "norms": net.norms_S}
    if isinstance(found, OutputBounds):
        content["forms"] = {"weights": found.weights.tolist(), "constant": found.constant.tolist()}
    content["images"] = [
        {"x": points[i].tolist()}
        | _box(found, i)
        | (_interval(found, i) if isinstance(found, OutputBounds) else _decision(found, i, net.classes))
        for i in range(len(found))
    ]
    if found.norm == "2":
        content["tops"] = net.norms_A
    content["digest"] = _digest(content)
    write_atomically(path, (json.dumps(content) + "\n").encode())


def _points(found: Certificates | OutputBounds, x: Tensor | None) -> Tensor:
    """The inputs, (images, features); the boxes' centres, if none were given."""
    if x is None:
        if found.box is None:
            raise PolyboundError("the inputs are needed, which eps is measured from")
        lower, upper = found.box
        x = lower + (upper - lower) / 2
    if len(x) != len(found):
        raise PolyboundError(f"{len(x)} inputs for certificates of {len(found)}")
    return x.detach().double().reshape(len(x), -1)


def _decision(found: Certificates, i: int, classes: int) -> dict[str, Any]:
    """An image's status, with what proves it."""
    entry: dict[str, Any] = {"status": found.status[i], "label": int(found.label[i])}
    point, proofs = found.counterexample[i], found.proofs or {}
    if point is not None:
        entry |= {"counterexample": point.reshape(-1).tolist(), "rival": int(found.rival[i])}
    elif found.status[i] == "verified":
        entry["proofs"] = {str(rival): proofs[i, rival] for rival in range(classes) if rival != entry["label"]}
    return entry


def _interval(found: OutputBounds, i: int) -> dict[str, Any]:
    """An image's intervals, with what proves them."""
    proofs, rows = found.proofs or {}, found.lower.shape[1]
    wider = 2.0**-30 * (found.upper[i] - found.lower[i]) + 2.0**-40 * (found.upper[i].abs() + found.lower[i].abs())
    ends = {"lower": found.lower[i] - wider, "upper": found.upper[i] + wider}
    ends |= {"lowest": found.lowest[i], "highest": found.highest[i]}
    entry: dict[str, Any] = {"status": "bounded"}
    entry |= {name: [value if isfinite(value) else None for value in end.tolist()] for name, end in ends.items()}
    for name in ("lowest_at", "highest_at"):
        entry[name] = getattr(found, name)[i].reshape(rows, -1).tolist()
    entry["proofs"] = [proofs.get((i, claim)) for claim in range(2 * rows)]
    return entry


def _box(found: Certificates | OutputBounds, image: int) -> dict[str, Any]:
    """What an image's box is made from: one radius, one for each feature, or its sides; with the norm of a ball."""
    if found.eps is None:
        return {"box": [side[image].reshape(-1).tolist() for side in found.box or ()]}
    eps = found.eps[image]
    radii = {"eps": float(eps) if eps.ndim == 0 else eps.reshape(-1).tolist()}
    return radii | ({"norm": "2"} if found.norm == "2" else {})


def check_file(
    path: str | PathLike[str], model: PolynomialNetwork, *, on_progress: Callable[[int, int], None] | None = None
) -> dict[str, int]:
    """Prove every certificate of a file anew, in ball arithmetic; returns how many images there are of each status.

    The status is "bounded" in files of intervals.

    Args:
        path: what `save_certificates` wrote.
        model: the model they are about.
        on_progress: called with the number of images that are through, and of all.

    Raises:
        PolyboundError: a certificate is not proven by what the file holds, or is about another model; or python-flint
            is missing.
    """
    from polybound.certificates.check import Checker

    content = _read(Path(path))
    if content["model"] != weights_digest(model):
        raise PolyboundError(f"{path}: these certificates are about other weights")
    counts = {"bounded": 0} if "forms" in content else {"verified": 0, "falsified": 0, "undecided": 0}
    try:
        checker = Checker(model, content)
        for done, entry in enumerate(content["images"], 1):
            checker.check(entry)
            counts[entry["status"]] += 1
            if on_progress is not None:
                on_progress(done, len(content["images"]))
    except PolyboundError as error:
        raise PolyboundError(f"{path}: {error}") from error
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as error:
        raise FileFormatError(f"{path}: a certificate is damaged ({type(error).__name__}: {error})") from error
    return counts


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise FileFormatError(f"{path}: not a file of certificates")
    if content.get("digest") != _digest({key: value for key, value in content.items() if key != "digest"}):
        raise FileFormatError(f"{path}: its content was changed after it was written")
    return content


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
