"""Accuracies out of `polybound report --json`, each with what the report says about it."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """A number of a report.

    Attributes:
        value: in percent.
        images: every number of images that the report gives for it; exactly one if the report is clear.
        row: the text of its row and of the row's group.
        around: the text of its table and section, rows left out.
    """

    value: float
    images: frozenset[int]
    row: str
    around: str


def cells(report, attack="clean"):
    """All accuracies under an attack that a report shows."""
    return [
        cell
        for section in report["sections"]
        for table in section["tables"]
        for number, row in enumerate(table["rows"])
        for cell in _cells_of_row(section, table, number, [str(text) for text in row], attack)
    ]


def accuracy_tables(report):
    """The tables that show accuracies of clean images, each as one text with that of its section."""
    return [
        " \n ".join([*_around(section, table), *(str(title) for _, title in table["groups"]), *_rows(table)])
        for section in report["sections"]
        for table in section["tables"]
        if _columns(table["header"], "clean") or any("clean" in row for row in _rows(table))
    ]


def _cells_of_row(section, table, number, row, attack):
    group = next((str(title) for start, title in reversed(table["groups"]) if start <= number), "")
    columns = _columns(table["header"], attack)
    if not columns and any(attack in text.lower() for text in row):  # one row an attack
        columns = [i for i, name in enumerate(table["header"]) if re.search(r"accuracy|mean|%", name.lower())][:1]
    around = _around(section, table)
    for column in columns:
        found = re.search(r"\d+(\.\d+)?", row[column])
        if found:
            named = [text for name, text in zip(table["header"], row, strict=True) if "images" in name.lower()]
            words = [row[column], " ".join(row), group, table["header"][column], *around]
            images = _leading_numbers(named) or next(filter(None, map(_images, words)), frozenset())
            yield Cell(float(found[0]), images, f"{' | '.join(row)} | {group}", " \n ".join(around))


def _columns(header, attack):
    return [i for i, name in enumerate(header) if attack in name.lower()]


def _rows(table):
    return [" | ".join(map(str, row)) for row in table["rows"]]


def _around(section, table):
    return [table["title"], *table["notes"], *section["notes"], section["title"], " | ".join(table["header"])]


def _leading_numbers(texts):
    found = (re.search(r"\d[\d,]*", text) for text in texts)
    return frozenset(int(number[0].replace(",", "")) for number in found if number)


def _images(text):
    before = re.findall(r"(\d[\d,]*)(?: of (?:the |all )?\d[\d,]*)?(?: [a-z]+){0,3} images", text.lower())
    after = re.findall(r"images:? (\d[\d,]*)", text.lower())
    return frozenset(int(number.replace(",", "")) for number in before + after)
