"""Tables as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from textwrap import fill

from polybound.report.elements import Table

__all__ = ["to_csv", "to_latex", "to_markdown"]

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
