"""The report: one HTML file that needs nothing else, neither a network nor a server; Plotly draws its figures."""

from __future__ import annotations

import base64
import gzip
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from math import isfinite, log10
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from PIL import Image

from polybound.errors import PolyboundError
from polybound.report import elements
from polybound.report.elements import Figure, Line, Panel, Range, Section, Table
from polybound.report.summary import Summary
from polybound.report.text import content_policy, figure_to_csv


def page(
    title: str,
    sections: Sequence[Section],
    facts: Mapping[str, str],
    configurations: Sequence[Mapping[str, Any]],
    summary: Summary | None = None,
) -> str:
    """Return the whole report as HTML: what was found, then the figures, then the tables, folded.

    The page's content security policy allows no request and no script but its own; all names are shown as text. The
    facts are versions, machine and command.
    """
    drawings: list[dict[str, Any]] = []
    listed = [pair for section in sections for pair in _figures(section)]
    headline = None if summary is None else summary.headline
    if headline is not None and all(part is not headline for part, _ in listed):
        listed.insert(0, (headline, {"id": "headline", "title": headline.title, "notes": headline.notes}))
    shown = [
        (part, about | _figure(part, number, about["id"], drawings)) for number, (part, about) in enumerate(listed)
    ]
    first = next((one for part, one in shown if part is headline), None)
    figures = [one for part, one in shown if part is not headline]
    tables = []
    for section in sections:
        parts = [part for part in section.parts if isinstance(part, Table)]
        verdicts = Counter(verdict for part in parts for verdict in part.verdicts.values())
        count = ", ".join(f"{verdicts[name]} {name}" for name in elements.SYMBOLS if verdicts[name])
        named = {"name": section.name, "title": section.title, "parts": parts, "count": count}
        tables += [named | {"notes": _notes(section)}] if parts else []
    plotly = ""
    if drawings:
        try:
            plotly = (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
        except ModuleNotFoundError:
            raise PolyboundError("the report needs Plotly: pip install 'polybound[experiments]'") from None
    css = _file("page.css")
    for place, name in enumerate(("light", "dark")):
        colours = " ".join(f"--c{number}: {pair[place]};" for number, pair in enumerate(elements.COLOURS))
        css = css.replace(f"{{{{ {name} }}}}", colours)
    script, shares = _file("page.js"), []
    if summary is not None and not summary.lead and (judged := summary.met + summary.missed):
        # The counts of the verdict as parts of a bar: class, text and percentage.
        rest = "rest", "not run, or not in full", summary.published - judged
        counts = [("met", "met", summary.met), ("missed", "missed", summary.missed), rest]
        shares = [(name, f"{n} {words}", f"{100 * n / summary.published:.2f}") for name, words, n in counts if n]
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_file("page.html"))
    return template.render(
        title=title,
        # Styles may stand anywhere, as Plotly makes some; without requests they can do no harm.
        policy=content_policy([script, plotly], ["'unsafe-inline'"]),
        style=css,
        script=script,
        summary=summary,
        shares=shares,
        headline=first,
        figures=figures,
        tables=tables,
        unfolded=not figures or len(tables) == 1,
        protocols=any(section.protocols for section in sections),
        facts=facts,
        configurations=json.dumps(list(configurations), indent=1, ensure_ascii=False),
        drawings=drawings,
        plotly=base64.b64encode(gzip.compress(plotly.encode(), 9, mtime=0)).decode() if plotly else "",
        symbols=elements.SYMBOLS,
        dict=dict,
    )


def _file(name: str) -> str:
    return (files("polybound.report") / "report_page" / name).read_text(encoding="utf-8")


def _notes(section: Section) -> list[str]:
    lacking = "; ".join(f"{what} ({why})" for what, why in section.missing)
    return [*section.notes, *([f"Not run: {lacking}."] if lacking else [])]


def _figures(section: Section) -> list[tuple[Figure, dict[str, Any]]]:
    """The figures of a section with their names; where it has no table, with what is noted of the section too."""
    tables = any(isinstance(part, Table) for part in section.parts)
    found = []
    for number, part in enumerate(part for part in section.parts if isinstance(part, Figure) and not part.empty):
        title = part.title if tables or number else section.title
        name = f"{section.name}{'-figure' if tables else ''}{f'-{number + 1}' if number else ''}"
        notes = [*part.notes, *([] if tables else _notes(section))]
        about = {"id": name, "title": title, "link": title if tables else section.name, "notes": notes}
        found.append((part, about))
    return found


# A figure as the template and Plotly take it. Colours, markers and dashes are numbers: how they look is theirs.


def _figure(figure: Figure, number: int, name: str, drawings: list[dict[str, Any]]) -> dict[str, Any]:
    """A figure with its legend and its data as CSV; its panels are added to `drawings`."""
    first, numbers = len(drawings), {label: place for label, (place, _) in figure.styles.items()}
    drawings += [_panel(panel, *figure.limits(panel), numbers) | {"figure": str(number)} for panel in figure.panels]
    legend = []
    for label, (place, joined) in figure.styles.items():
        colour, marker, dash = elements.style(place)
        legend.append({"label": label, "colour": colour, "marker": marker, "dash": dash if joined else None})
    paper = any(panel.published for panel in figure.panels)
    pictures = [(row.title, [(caption, _picture(pixels)) for caption, pixels in row.pictures]) for row in figure.images]
    return {
        "number": number,
        "legend": legend if paper or len(legend) > 1 else [],
        "paper": paper,
        "plots": [(first + place, panel.title) for place, panel in enumerate(figure.panels)],
        "columns": figure.per_row,
        "images": [{"title": title, "pictures": row} for title, row in pictures],
        "file": f"{name}.csv",
        "csv": f"data:text/csv;base64,{base64.b64encode(figure_to_csv(figure).encode()).decode()}",
    }


def _panel(panel: Panel, x_range: Range, y_range: Range, numbers: Mapping[str, int]) -> dict[str, Any]:
    """A panel as the page's script takes it; of the stars that are the paper's values each says so."""
    texts = zip(panel.lines, elements.place_texts(panel, x_range, y_range), strict=True)
    lines = [_line(line, numbers.get(line.label), places) for line, places in texts]
    for line in panel.published:
        star = {"mode": "markers", "star": True, "hints": ["the paper"] * len(line.x)}
        lines.append(_line(line, numbers[line.label], []) | star)
    closest = any(line.kind == "marks" or line.texts for line in panel.lines)
    points = sorted({x for line in panel.lines for x in line.x})
    x, y = _axis(panel.x_label, x_range, panel.log_x, points), _axis(panel.y_label, y_range, panel.log_y)
    return {"lines": lines, "x": x, "y": y, "hover": "closest" if closest else "x unified"}


def _line(line: Line, number: int | None, places: Sequence[str]) -> dict[str, Any]:
    colour, marker, dash = elements.style(number or 0)
    guide, marks = line.kind == "guide", line.kind == "marks"
    shapes = [*([] if marks else ["lines"]), *([] if guide else ["markers"]), *(["text"] if any(places) else [])]
    first, step = elements.markers_every(len(line.x), number or 0)
    made: dict[str, Any] = {
        "name": line.label,
        "x": _numbers(line.x),
        "y": _numbers(line.y),
        "mode": "+".join(shapes),
        "dash": 0 if guide else dash,
        "marker": marker,
        "size": 6 if marks else 7 if step == 1 else [7 if n % step == first else 0 for n in range(len(line.x))],
        "colour": None if guide else colour,
        "guide": guide,
    }
    if any(places):
        made["texts"] = [text if place else "" for text, place in zip(line.texts, places, strict=True)]
        made["places"] = [place or "top center" for place in places]
    if line.texts or line.hints:
        made["hints"] = list(line.hints or line.texts)
    return made | ({"spread": _numbers(line.spread)} if any(line.spread) else {})


def _axis(title: str, ends: Range, log: bool, points: Sequence[float] = ()) -> dict[str, Any]:
    """An axis; Plotly chooses the ticks of a linear one.

    The ticks of a logarithmic axis are its points, if they are few and near, or 1, 2 and 5 times powers of ten.
    """
    if not log:
        return {"title": title, "log": False, "range": list(ends)}
    low, high = map(log10, ends)
    near = high - low < 2.3
    powers = range(int(low) - 1, int(high) + 2, 1 if near else 1 + int(high - low) // 8)
    ticks = [digit * 10.0**power for power in powers for digit in ((1, 2, 5) if near else (1,))]
    ticks = list(points) if near and 1 < len(points) <= 8 else [tick for tick in ticks if ends[0] <= tick <= ends[1]]
    return {"title": title, "log": True, "range": [low, high], "ticks": ticks, "texts": [f"{tick:g}" for tick in ticks]}


def _numbers(values: Sequence[float]) -> list[float | None]:
    """Numbers as JSON has them; what is not finite is left out of the line."""
    return [round(float(value), 6) if isfinite(value) else None for value in values]


def _picture(pixels: list[list[list[int]]]) -> str:
    """A small picture as a PNG file inside the page."""
    array, stream = np.array(pixels, np.uint8), io.BytesIO()
    Image.fromarray(array[0] if len(array) == 1 else array.transpose(1, 2, 0)).save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
