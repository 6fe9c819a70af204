"""Tables as Markdown, LaTeX and CSV; figures as CSV; the content security policy of a page."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

from polybound.errors import PolyboundError, reason
from polybound.report.elements import Figure, Line, Panel, Table


def to_markdown(table: Table) -> str:
    """A Markdown table, a heading for every group of rows; no text in it is taken for HTML.

    >>> print(to_markdown(Table("T", ["a", "b"], [["<1>", "2"]], verdicts={(0, 1): "met"})))
    | a | b |
    | --- | --- |
    | &lt;1> | 2 ✓ |
    """
    header = [_markdown(name) for name in table.header]
    lines = [f"| {' | '.join(header)} |", f"| {' | '.join('---' for _ in header)} |"]
    headings = dict(table.groups)
    for number, row in enumerate(table.texts):
        if number in headings:
            lines.append(f"| **{_markdown(headings[number])}** |{' |' * (len(header) - 1)}")
        cells = [table.marked(number, place, _markdown(cell)) for place, cell in enumerate(row)]
        lines.append(f"| {' | '.join(cells)} |")
    notes = (fill(_markdown(note), 118, break_long_words=False, break_on_hyphens=False) for note in table.notes)
    return "\n".join([*lines, *(f"\n{note}" for note in notes)])


def _markdown(text: str) -> str:
    """Escape Markdown and HTML."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", r"\|").replace("*", r"\*")
    return " ".join(text.split("\n"))


def to_latex(table: Table) -> str:
    r"""A LaTeX table for the packages booktabs and amssymb; no text in it is taken for a command.

    >>> print(to_latex(Table("T", ["a", "b"], [["1 %", "a_b \\x ^~ ±"]])).splitlines()[5])
    1 \% & a\_b \textbackslash{}x \^{}\~{} $\pm$ \\
    """

    def escape(text: str) -> str:
        words = {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"}
        return "".join(words.get(char, f"\\{char}" if char in "&%$#_{}" else char) for char in text)

    headings = dict(table.groups)
    lines = [r"\begin{table}", rf"\begin{{tabular}}{{{'l' * 2 + 'r' * (len(table.header) - 2)}}}", r"\toprule"]
    lines += [" & ".join(map(escape, table.header)) + r" \\", r"\midrule"]
    for number, row in enumerate(table.texts):
        if number in headings:
            lines += [r"\midrule"] if number else []
            lines.append(rf"\multicolumn{{{len(table.header)}}}{{l}}{{\emph{{{escape(headings[number])}}}}} \\")
        cells = [table.marked(number, place, escape(cell), r"\textbf{", "}") for place, cell in enumerate(row)]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{escape(table.title)}}}", r"\end{table}"]
    found = "\n".join(lines)
    for sign, command in {"✓": r"$\checkmark$", "✗": r"$\times$", "○": r"$\circ$", "±": r"$\pm$"}.items():
        found = found.replace(sign, command)
    return found


def to_csv(table: Table) -> str:
    r"""A CSV file; the heading of a group is the first column, verdicts are columns of their own.

    >>> to_csv(Table("T", ["a"], [["1"]], [(0, "g")]))
    'group,a\ng,1\n'
    """
    judged = sorted({column for _, column in table.verdicts})
    rows = [["group", *table.header, *(f"{table.header[column]}: verdict" for column in judged)]]
    headings, group = dict(table.groups), ""
    for number, row in enumerate(table.texts):
        group = headings.get(number, group)
        rows.append([group, *row, *(table.verdicts.get((number, column), "") for column in judged)])
    return _written(rows)


def _written(rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


# The data of a figure as a CSV file, from which the figure can be drawn again.


_LOG = " (logarithmic)"
_KINDS: dict[str, Literal["line", "marks", "guide"]]
_KINDS = {"line": "line", "marks": "marks", "guide": "guide", "paper": "marks"}


def figure_to_csv(figure: Figure) -> str:
    r"""A row for each point. The kind of a line is "line", "marks", "guide" or, for the paper's values, "paper".

    >>> figure_to_csv(Figure("F", [Panel("P", "bound", "y", [Line("a", [1.0], [2.5])], log_x=True)])).splitlines()[1]
    'P,a,line,bound (logarithmic),1.0,y,2.5,,'
    """
    written: list[Sequence[Any]] = [("panel", "line", "kind", "x_name", "x", "y_name", "y", "std", "text")]
    for panel in figure.panels:
        names = panel.x_label + _LOG * panel.log_x, panel.y_label + _LOG * panel.log_y
        lines = [*((line, line.kind) for line in panel.lines), *((line, "paper") for line in panel.published)]
        for line, kind in lines:
            spread: Sequence[float | str] = [float(std) for std in line.spread] or [""] * len(line.x)
            texts = line.texts or line.hints or [""] * len(line.x)
            for x, y, std, text in zip(line.x, line.y, spread, texts, strict=True):
                written.append([panel.title, line.label, kind, names[0], float(x), names[1], float(y), std, text])
    return _written(written)


def read_figure(file: Path, title: str) -> Figure:
    """The figure that `figure_to_csv` wrote.

    Raises:
        PolyboundError: the file is no such figure.
    """
    try:
        panels: dict[str, dict[tuple[str, str], list[dict[str, str]]]] = {}
        for row in csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))):
            panels.setdefault(row["panel"], {}).setdefault((row["line"], row["kind"]), []).append(row)
        found = []
        for name, lines in panels.items():
            first = next(iter(lines.values()))[0]
            x_name, y_name = first["x_name"], first["y_name"]
            made: dict[bool, list[Line]] = {True: [], False: []}
            for (label, kind), rows in lines.items():
                points = [float(row["x"]) for row in rows], [float(row["y"]) for row in rows]
                spread = [float(row["std"]) for row in rows] if all(row["std"] for row in rows) else []
                texts = [row["text"] for row in rows] if any(row["text"] for row in rows) else []
                made[kind == "paper"].append(Line(label, *points, spread, texts, _KINDS[kind]))
            axes = x_name.removesuffix(_LOG), y_name.removesuffix(_LOG), made[False]
            log_x, log_y = x_name.endswith(_LOG), y_name.endswith(_LOG)
            found.append(Panel(name, *axes, log_x, log_y, published=made[True]))
        return Figure(title, found)
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise PolyboundError(f"{file}: not the data of a figure ({reason(error)})") from None


# What pages may do.


def content_policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """A content security policy: run these scripts, use these styles, show pictures inside the page, request nothing.

    Args:
        scripts: the text of each.
        styles: the text of each, or a keyword of the policy in quotes.
    """

    def allowed(texts: Sequence[str]) -> str:
        digests = {text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts}
        return " ".join(text if text.startswith("'") else f"'sha256-{digests[text]}'" for text in texts)

    rules = ["default-src 'none'", f"script-src {allowed(scripts)}", f"style-src {allowed(styles)}"]
    return "; ".join([*rules, "img-src data: blob:", "base-uri 'none'", "form-action 'none'"])
