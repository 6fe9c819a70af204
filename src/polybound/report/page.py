"""The report: one HTML file that needs nothing else, neither a network nor a server."""

from __future__ import annotations

import base64
import gzip
import html
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from polybound.errors import PolyboundError
from polybound.report.shapes import Figure, Panel, Section, Table
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
    template = (files("polybound.report") / "page.html").read_text(encoding="utf-8")
    links = "".join(f'<a href="#{s.name}">{html.escape(s.name)}</a>' for s in sections)
    body = ""
    drawings: list[dict[str, Any]] = []
    for section in sections:
        parts = ""
        for part in section.parts:
            if isinstance(part, Table):
                parts += _table(part)
            else:
                parts += _figure(part, drawings)
        notes = "".join(f"<p class='note'>{html.escape(note)}</p>" for note in section.notes)
        body += f"<section id='{section.name}'><h2>{html.escape(section.title)}</h2>{notes}{parts}</section>"
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in facts.items())
    settings = html.escape(json.dumps(list(configurations), indent=1, ensure_ascii=False))
    filled = {
        "TITLE": html.escape(title),
        "LINKS": links,
        "BODY": body,
        "FACTS": f"<div class='scroll'><table class='facts'>{rows}</table></div>",
        "CONFIGURATIONS": f"<details><summary>All configurations</summary><pre>{settings}</pre></details>",
        # "</" could end the script that the data is in.
        "DRAWINGS": json.dumps(drawings).replace("</", "<\\/"),
        "PLOTLY": base64.b64encode(gzip.compress(_plotly(), 9, mtime=0)).decode() if drawings else "",
    }
    for name, text in filled.items():
        template = template.replace(f"@@{name}@@", text)
    return template


def _plotly() -> bytes:
    try:
        return (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    except ModuleNotFoundError:
        raise PolyboundError("the report needs Plotly: pip install 'polybound[experiments]'") from None


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.header)
    headings = dict(table.groups)
    labelled = list(table.header[1:2]) == ["value"]  # several lines for each label, which is written once
    rows, before = "", ""
    for number, row in enumerate(table.rows):
        if number in headings:
            rows += f"<tr class='group'><th colspan='{len(table.header)}'>{html.escape(headings[number])}</th></tr>"
            before = ""
        cells = ""
        for place, cell in enumerate(row):
            text = html.escape(cell)
            if place == 0:
                cells += f"<th>{'' if labelled and cell == before else text}</th>"
            else:
                cells += f"<td>{f'<b>{text}</b>' if (number, place) in table.bold else text}</td>"
        kind = " class='paper'" if len(row) > 1 and row[1] == "paper" else ""
        rows += f"<tr{kind}>{cells}</tr>"
        before = row[0]
    notes = "".join(f"<p class='note'>{html.escape(note)}</p>" for note in table.notes)
    kind = " class='labelled'" if labelled else ""
    shown = f"<div class='scroll'><table{kind}><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{notes}"
    return f"<details><summary>{html.escape(table.title)}</summary>{shown}</details>" if table.aside else shown


def _figure(figure: Figure, drawings: list[dict[str, Any]]) -> str:
    parts = ""
    for panel in figure.panels:
        caption = f"<figcaption>{html.escape(panel.title)}</figcaption>"
        parts += f"<figure>{caption}<div class='plot' id='plot{len(drawings)}'></div></figure>"
        drawings.append(_drawing(panel))
    for row in figure.images:
        pictures = "".join(
            f"<span class='picture'><img alt='{text}' src='{_data_url(pixels)}'>{text}</span>"
            for text, pixels in ((html.escape(caption), pixels) for caption, pixels in row.pictures)
        )
        parts += f"<div class='pictures'><h3>{html.escape(row.title)}</h3>{pictures}</div>"
    notes = "".join(f"<p class='note'>{html.escape(note)}</p>" for note in figure.notes)
    return f"<div class='figures'>{parts}</div>{notes}"


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
