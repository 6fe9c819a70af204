"""The report: one HTML file that needs nothing else, neither a network nor a server."""

from __future__ import annotations

import base64
import gzip
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from polybound.errors import PolyboundError
from polybound.report.elements import Figure, Panel, Section, Table
from polybound.report.static import STYLES

__all__ = ["page"]

_SYMBOLS = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross"}
_DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}


def page(
    title: str, sections: Sequence[Section], facts: Mapping[str, str], configurations: Sequence[Mapping[str, Any]]
) -> str:
    """The whole report as HTML.

    Args:
        title: of the page.
        sections: one for each experiment.
        facts: versions, machine, commands: whatever a reader needs to repeat it.
        configurations: of the experiments.

    Raises:
        PolyboundError: Plotly is not installed.
    """
    drawings: list[dict[str, Any]] = []
    shown = [replace(section, parts=[_part(part, drawings) for part in section.parts]) for section in sections]
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(
        (files("polybound.report") / "page.html").read_text(encoding="utf-8")
    )
    return template.render(
        title=title,
        sections=shown,
        facts=facts,
        configurations=json.dumps(list(configurations), indent=1, ensure_ascii=False),
        drawings=drawings,
        plotly=base64.b64encode(gzip.compress(_plotly(), 9, mtime=0)).decode() if drawings else "",
        dict=dict,
    )


def _part(part: Table | Figure, drawings: list[dict[str, Any]]) -> Any:
    """A part as the template takes it; the panels of figures are added to the drawings."""
    if isinstance(part, Table):
        return {"kind": "table", **{name: getattr(part, name) for name in part.__dataclass_fields__}}
    plots = []
    for panel in part.panels:
        plots.append((len(drawings), panel))
        drawings.append(_drawing(panel))
    images = [
        {"title": row.title, "pictures": [(caption, _data_url(pixels)) for caption, pixels in row.pictures]}
        for row in part.images
    ]
    return {"kind": "figure", "plots": plots, "images": images, "notes": part.notes}


def _plotly() -> bytes:
    try:
        return (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    except ModuleNotFoundError:
        raise PolyboundError("the report needs Plotly: pip install 'polybound[experiments]'") from None


def _drawing(panel: Panel) -> dict[str, Any]:
    """A figure as Plotly takes it; colours of paper and text are set by the page."""
    traces = []
    for line, (colour, marker, dash) in zip(panel.lines, STYLES * 3, strict=False):
        few = len(line.x) <= 30
        trace = {
            "name": line.label,
            "x": [float(x) for x in line.x],
            "y": [round(float(y), 4) for y in line.y],
            "mode": "lines+markers" if few else "lines",
            "line": {"color": colour, "dash": _DASHES[dash], "width": 2},
            "marker": {"symbol": _SYMBOLS[marker], "size": 7},
        }
        if line.spread and any(line.spread):
            spread = [round(float(s), 4) for s in line.spread]
            trace["error_y"] = {"type": "data", "array": spread, "thickness": 1, "width": 2}
        traces.append(trace)
    axes = {
        "xaxis": {"title": {"text": panel.x_label}, "type": "log" if panel.log_x else "linear", "automargin": True},
        "yaxis": {"title": {"text": panel.y_label}, "type": "log" if panel.log_y else "linear", "automargin": True},
    }
    if "accuracy in %" in panel.y_label and panel.x_label in ("bound", "adversarial steps"):
        axes["yaxis"]["rangemode"] = "tozero"
    return {"data": traces, "layout": axes}


def _data_url(pixels: list[list[list[int]]]) -> str:
    """A small picture as a PNG file inside the page."""
    channels, height, width = len(pixels), len(pixels[0]), len(pixels[0][0])
    lines = b""
    for y in range(height):
        line = b"".join(bytes(pixels[c][y][x] for c in range(channels)) for x in range(width))
        lines += b"\0" + line

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()
