"""Tables as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io

from polybound.report.elements import Table

__all__ = ["to_csv", "to_latex", "to_markdown"]


def to_markdown(table: Table) -> str:
    """A Markdown table, a heading for every group of rows.

    >>> print(to_markdown(Table("T", ["a", "b"], [["1", "2"]])))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [f"| {' | '.join(table.header)} |", f"| {' | '.join('---' for _ in table.header)} |"]
    headings = dict(table.groups)
    for number, row in enumerate(table.rows):
        if number in headings:
            lines.append(f"| **{headings[number]}** |{' |' * (len(table.header) - 1)}")
        cells = [f"**{cell}**" if (number, place) in table.bold else cell for place, cell in enumerate(row)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *(f"\n{note}" for note in table.notes)])


def to_latex(table: Table) -> str:
    r"""A LaTeX table for the booktabs package.

    >>> print(to_latex(Table("T", ["a", "b"], [["1 %", "2"]])).splitlines()[3])
    a & b \\
    """
    headings = dict(table.groups)
    lines = [r"\begin{table}", rf"\begin{{tabular}}{{{'l' * 2 + 'r' * (len(table.header) - 2)}}}", r"\toprule"]
    lines += [" & ".join(map(_escape, table.header)) + r" \\", r"\midrule"]
    for number, row in enumerate(table.rows):
        if number in headings:
            lines += [r"\midrule"] if number else []
            lines.append(rf"\multicolumn{{{len(table.header)}}}{{l}}{{\emph{{{_escape(headings[number])}}}}} \\")
        cells = [_escape(cell) for cell in row]
        cells = [rf"\textbf{{{cell}}}" if (number, place) in table.bold else cell for place, cell in enumerate(cells)]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{_escape(table.title)}}}", r"\end{table}"]
    return "\n".join(lines)


def _escape(text: str) -> str:
    for char in ("\\", "&", "%", "$", "#", "_", "{", "}"):
        text = text.replace(char, r"\textbackslash " if char == "\\" else f"\\{char}")
    return text.replace("±", r"$\pm$")


def to_csv(table: Table) -> str:
    r"""A CSV file; the heading of a group is the first column.

    >>> to_csv(Table("T", ["a"], [["1"]], [(0, "g")]))
    'group,a\ng,1\n'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["group", *table.header])
    headings, group = dict(table.groups), ""
    for number, row in enumerate(table.rows):
        group = headings.get(number, group)
        writer.writerow([group, *row])
    return out.getvalue()
