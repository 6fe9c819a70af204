"""Tables as Markdown, LaTeX and CSV; figures as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Literal

from polybound.errors import PolyboundError, reason
from polybound.report.elements import Figure, Line, Panel, Table

__all__ = ["figure_to_csv", "read_figure", "to_csv", "to_latex", "to_markdown"]


_LATEX = {"✓": r"$\checkmark$", "✗": r"$\times$", "○": r"$\circ$", "±": r"$\pm$"}


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
    """A text that begins neither a tag nor a cell, and is as thick as it is."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", r"\|").replace("*", r"\*")
    return " ".join(text.split("\n"))


def to_latex(table: Table) -> str:
    r"""A LaTeX table for the packages booktabs and amssymb.

    >>> print(to_latex(Table("T", ["a", "b"], [["1 %", "2"]])).splitlines()[3])
    a & b \\
    """
    headings = dict(table.groups)
    lines = [r"\begin{table}", rf"\begin{{tabular}}{{{'l' * 2 + 'r' * (len(table.header) - 2)}}}", r"\toprule"]
    lines += [" & ".join(map(_escape, table.header)) + r" \\", r"\midrule"]
    for number, row in enumerate(table.texts):
        if number in headings:
            lines += [r"\midrule"] if number else []
            lines.append(rf"\multicolumn{{{len(table.header)}}}{{l}}{{\emph{{{_escape(headings[number])}}}}} \\")
        cells = [table.marked(number, place, _escape(cell), r"\textbf{", "}") for place, cell in enumerate(row)]
        lines.append(" & ".join(map(_signs, cells)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{_escape(table.title)}}}", r"\end{table}"]
    return "\n".join(map(_signs, lines))


def _signs(text: str) -> str:
    for sign, command in _LATEX.items():
        text = text.replace(sign, command)
    return text


def _escape(text: str) -> str:
    r"""A text in which LaTeX finds no command.

    >>> print(_escape("a_b \\x ^~"))
    a\_b \textbackslash{}x \^{}\~{}
    """
    words = {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"}
    return "".join(words.get(char, f"\\{char}" if char in "&%$#_{}" else char) for char in text)


def to_csv(table: Table) -> str:
    r"""A CSV file; the heading of a group is the first column, verdicts are columns of their own.

    >>> to_csv(Table("T", ["a"], [["1"]], [(0, "g")]))
    'group,a\ng,1\n'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    judged = sorted({column for _, column in table.verdicts})
    writer.writerow(["group", *table.header, *(f"{table.header[column]}: verdict" for column in judged)])
    headings, group = dict(table.groups), ""
    for number, row in enumerate(table.texts):
        group = headings.get(number, group)
        writer.writerow([group, *row, *(table.verdicts.get((number, column), "") for column in judged)])
    return out.getvalue()


# The data of a figure as a CSV file, from which the figure can be drawn again.


_COLUMNS = ("panel", "line", "kind", "x_name", "x", "y_name", "y", "std", "text")
_LOG = " (logarithmic)"
_KINDS: dict[str, Literal["line", "marks", "guide"]] = {"line": "line", "marks": "marks", "guide": "guide"}


def figure_to_csv(figure: Figure) -> str:
    r"""A row for each point. The kind of a line is "line", "marks", "guide" or, for the paper's values, "paper".

    >>> figure_to_csv(Figure("F", [Panel("P", "bound", "y", [Line("a", [1.0], [2.5])], log_x=True)])).splitlines()[1]
    'P,a,line,bound (logarithmic),1.0,y,2.5,,'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for panel in figure.panels:
        names = panel.x_label + _LOG * panel.log_x, panel.y_label + _LOG * panel.log_y
        lines = [*((line, line.kind) for line in panel.lines), *((line, "paper") for line in panel.published)]
        for line, kind in lines:
            spread: Sequence[float | str] = [float(std) for std in line.spread] or [""] * len(line.x)
            texts = line.texts or line.hints or [""] * len(line.x)
            for x, y, std, text in zip(line.x, line.y, spread, texts, strict=True):
                numbers = [names[0], float(x), names[1], float(y)]
                writer.writerow([panel.title, line.label, kind, *numbers, std, text])
    return out.getvalue()


def read_figure(file: Path, title: str) -> Figure:
    """The figure that `figure_to_csv` wrote.

    Raises:
        PolyboundError: the file is no such figure.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))
        panels = dict.fromkeys(row["panel"] for row in rows)
        return Figure(title, [_read_panel([row for row in rows if row["panel"] == name]) for name in panels])
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise PolyboundError(f"{file}: not the data of a figure ({reason(error)})") from None


def _read_panel(rows: list[dict[str, str]]) -> Panel:
    x_name, y_name = rows[0]["x_name"], rows[0]["y_name"]
    keys = dict.fromkeys((row["line"], row["kind"]) for row in rows)
    lines, published = [], []
    for label, kind in keys:
        mine = [row for row in rows if (row["line"], row["kind"]) == (label, kind)]
        known = [row["std"] for row in mine]
        spread = [float(std) for std in known] if all(known) else []
        texts = [row["text"] for row in mine] if any(row["text"] for row in mine) else []
        points = [float(row["x"]) for row in mine], [float(row["y"]) for row in mine]
        if kind == "paper":
            published.append(Line(label, *points, spread, texts, "marks"))
        else:
            lines.append(Line(label, *points, spread, texts, _KINDS[kind]))
    return Panel(
        rows[0]["panel"],
        x_name.removesuffix(_LOG),
        y_name.removesuffix(_LOG),
        lines,
        log_x=x_name.endswith(_LOG),
        log_y=y_name.endswith(_LOG),
        published=published,
    )
