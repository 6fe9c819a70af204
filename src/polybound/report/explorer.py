"""The explorer: a network, or two side by side, in one HTML file that needs neither a server nor a network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from polybound._version import __version__
from polybound.atomic import write_atomically
from polybound.data import Dataset
from polybound.errors import ArgumentError, PolyboundError
from polybound.models import PolynomialNetwork
from polybound.report.explorer_data import Feature, describe_data, describe_network

__all__ = ["Feature", "build_explorer"]

IMAGES = 100
"""The most test images that a page holds."""

SCRIPTS = ("network.js", "attack.js", "certificate.js", "drawing.js", "inputs.js", "cards.js", "page.js")


def build_explorer(
    networks: Mapping[str, PolynomialNetwork],
    data: Dataset,
    path: str | PathLike[str],
    *,
    images: int = IMAGES,
    budget: float = 0.05,
    title: str = "A polynomial network to play with",
    notes: Sequence[str] = (),
    features: Sequence[Feature] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Path:
    """Write a page in which one or two networks classify, are attacked and are certified, live; returns its path.

    The page's content security policy allows no request and no script but its own; all names are shown as text.

    Args:
        networks: one or two CCPs or NCPs by the names that the page shows; small ConvCCPs, too.
        data: the test images that the page offers, the first `images` of them; a table has inputs of shape
            `(features,)`.
        path: the HTML file.
        images: at most 100.
        budget: seconds of branch and bound for each image and radius that are certified now, for the page to show.
        title: of the page.
        notes: what a reader should know, a paragraph each.
        features: of a table, their names and units.
        on_progress: called with the number of images that are through, of one network after the other.

    >>> import polybound as pb, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = pb.report.build_explorer(
    ...         {"plain": pb.example("digits")}, pb.data.load_digits("test"), f"{folder}/e.html", images=2, budget=0.0
    ...     )
    ...     page.stat().st_size < 200_000
    True
    """
    target = Path(path)
    if not 1 <= len(networks) <= 2:
        raise PolyboundError(f"a page shows one network or two, not {len(networks)}")
    if not 1 <= images <= IMAGES:
        raise ArgumentError("images", f"must be between 1 and {IMAGES}, got {images!r}")
    if not target.absolute().parent.is_dir():
        raise PolyboundError(f"{target.parent}: no such folder")
    if target.is_dir():
        raise PolyboundError(f"{target}: a folder, not a file")
    if not torch.isfinite(data.x[:images]).all() or not len(data):
        raise PolyboundError(f"{data.name}: needs inputs, all of them finite")
    some = replace(data, x=data.x[:images], y=data.y[:images])
    step = on_progress or (lambda _: None)
    content = {
        "title": title,
        "notes": [*notes, data.note] if data.note else list(notes),
        "data": describe_data(some, features),
        "networks": [describe_network(name, model, some, budget, step) for name, model in networks.items()],
        "version": __version__,
    }
    write_atomically(target, _page(title, content).encode(errors="replace"))
    return target


def _page(title: str, content: Mapping[str, Any]) -> str:
    """The page: its style and its script are the only ones that its policy allows, by their SHA-256."""
    folder = files("polybound.report") / "explorer_page"
    style = (folder / "page.css").read_text(encoding="utf-8")
    scripts = "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{scripts}\n}})();'
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    parts = {
        "policy": policy,
        "title": html.escape(title),
        "style": style,
        # No text in it can end the element that it stands in.
        "content": json.dumps(content, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e"),
        "script": script,
    }
    page = (folder / "page.html").read_text(encoding="utf-8")
    # Split first, so that nothing that is filled in is taken for a place to fill.
    pieces = page.split("@@")
    return "".join(piece if i % 2 == 0 else parts[piece] for i, piece in enumerate(pieces))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
