"""The report: one HTML file that needs nothing else, neither a network nor a server."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import struct
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from polybound.errors import PolyboundError
from polybound.report.axes import columns_of
from polybound.report.drawing import drawings_of, legend_of
from polybound.report.elements import SYMBOLS, Figure, Section, Table
from polybound.report.styles import COLOURS
from polybound.report.summary import Summary
from polybound.report.text import figure_to_csv

__all__ = ["page"]


def page(
    title: str,
    sections: Sequence[Section],
    facts: Mapping[str, str],
    configurations: Sequence[Mapping[str, Any]],
    summary: Summary | None = None,
) -> str:
    """The whole report as HTML: what was found, then the figures, then the tables, folded.

    The page's content security policy allows no request and no script but its own; all names are shown as text.

    Args:
        title: of the page.
        sections: one for each experiment.
        facts: versions, machine, commands: whatever a reader needs to repeat it.
        configurations: of the experiments.
        summary: what it opens with.

    Raises:
        PolyboundError: Plotly is not installed.
    """
    made = _Figures()
    headline = None if summary is None else summary.headline
    own = headline is None or any(part is headline for section in sections for part in section.parts)
    first = None if own or headline is None else made.add(headline, "headline")
    pairs = [pair for section in sections for pair in _figures(section, made)]
    first = next((shown for part, shown in pairs if part is headline), first)
    figures = [shown for part, shown in pairs if part is not headline]
    opening = None if summary is None else _opening(summary, first)
    tables = [_tables(section) for section in sections if any(isinstance(part, Table) for part in section.parts)]
    plotly = _plotly() if made.drawings else b""
    script = _file("page.js")
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_file("page.html"))
    return template.render(
        title=title,
        policy=_policy(script, plotly.decode()),
        style=_style(),
        script=script,
        opening=opening,
        figures=figures,
        tables=tables,
        unfolded=not figures or len(tables) == 1,
        protocols=any(section.protocols for section in sections),
        facts=facts,
        configurations=json.dumps(list(configurations), indent=1, ensure_ascii=False),
        drawings=made.drawings,
        plotly=base64.b64encode(gzip.compress(plotly, 9, mtime=0)).decode() if plotly else "",
        symbols=SYMBOLS,
        dict=dict,
    )


class _Figures:
    """The drawings of all figures so far, and the figures as the template takes them."""

    def __init__(self) -> None:
        self.drawings: list[dict[str, Any]] = []
        self.count = 0

    def add(self, figure: Figure, name: str, notes: Sequence[str] = ()) -> dict[str, Any]:
        self.count += 1
        first = len(self.drawings)
        self.drawings += drawings_of(figure, self.count)
        data = base64.b64encode(figure_to_csv(figure).encode()).decode()
        images = [
            {"title": row.title, "pictures": [(caption, _data_url(pixels)) for caption, pixels in row.pictures]}
            for row in figure.images
        ]
        return {
            "id": name,
            "number": self.count,
            "title": figure.title,
            "legend": legend_of(figure) if len(figure.labels) > 1 or _published(figure) else [],
            "plots": [(first + place, panel.title) for place, panel in enumerate(figure.panels)],
            "columns": columns_of(figure),
            "images": images,
            "notes": [*figure.notes, *notes],
            "file": f"{name}.csv",
            "csv": f"data:text/csv;base64,{data}",
        }


def _published(figure: Figure) -> bool:
    return any(panel.published for panel in figure.panels)


def _opening(summary: Summary, headline: dict[str, Any] | None) -> dict[str, Any]:
    judged = summary.met + summary.missed
    rest = summary.published - judged
    counts = (("met", summary.met), ("missed", summary.missed), ("rest", rest))
    words = {"met": "met", "missed": "missed", "rest": "not run, or not in full"}
    shares = [(name, f"{n} {words[name]}", f"{100 * n / summary.published:.2f}") for name, n in counts if n]
    return {
        "verdict": summary.verdict,
        "shares": shares if judged and not summary.lead else [],
        "compared": summary.compared,
        "differences": summary.differences,
        "headline": headline,
        "misses": summary.misses,
        "missing": summary.missing,
    }


def _figures(section: Section, made: _Figures) -> list[tuple[Figure, dict[str, Any]]]:
    """The figures of a section as the template takes them, each with what is said of the section."""
    parts = [part for part in section.parts if isinstance(part, Figure) and not part.empty]
    tables = any(isinstance(part, Table) for part in section.parts)
    found = []
    for number, part in enumerate(parts):
        name = f"{section.name}{'-figure' if tables else ''}{f'-{number + 1}' if number else ''}"
        made_of_it = made.add(part, name, [] if tables else [*section.notes, *_not_run(section)])
        title = part.title if tables or number else section.title
        found.append((part, made_of_it | {"title": title, "link": title if tables else section.name}))
    return found


def _not_run(section: Section) -> list[str]:
    shown = "; ".join(f"{what} ({why})" for what, why in section.missing)
    return [f"Not run: {shown}."] if shown else []


def _tables(section: Section) -> dict[str, Any]:
    parts = [part for part in section.parts if isinstance(part, Table)]
    counts = Counter(verdict for part in parts for verdict in part.verdicts.values())
    count = ", ".join(f"{counts[name]} {name}" for name in SYMBOLS if counts[name])
    notes = [*section.notes, *_not_run(section)]
    return {"name": section.name, "title": section.title, "parts": parts, "count": count, "notes": notes}


def _file(name: str) -> str:
    return (files("polybound.report") / "report_page" / name).read_text(encoding="utf-8")


def _style() -> str:
    style = _file("page.css")
    for place, name in enumerate(("light", "dark")):
        colours = " ".join(f"--c{number}: {pair[place]};" for number, pair in enumerate(COLOURS))
        style = style.replace(f"{{{{ {name} }}}}", colours)
    return style


def _policy(*scripts: str) -> str:
    """What the page may do: run these scripts, show pictures that are inside it, and ask for nothing.

    Styles may stand anywhere, as Plotly makes some; without requests they can do no harm.
    """
    allowed = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts
    )
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {allowed}",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _plotly() -> bytes:
    try:
        return (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    except ModuleNotFoundError:
        raise PolyboundError("the report needs Plotly: pip install 'polybound[experiments]'") from None


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
