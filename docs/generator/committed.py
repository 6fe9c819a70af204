"""The files of docs/results that stand in the repository, made anew from scores.csv: `make results`."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from textwrap import fill

from generator.results import claim, make_report
from polybound.experiments import read_scores

ROOT = Path(__file__).parents[2]
RESULTS, BUILD = Path("docs/results"), Path("build/results")
KEPT = ("*table*.md", "*.png", "figure-*.csv", "*tradeoff.csv", "headline.csv")
"""Tables as Markdown, figures as PNG and as data; the report has the rest."""


def main() -> None:
    """Make the report in build/results, and copy of it what is kept.

    What is made from weights, which the repository has not, is drawn from the data of figures that it has.
    """
    shutil.rmtree(ROOT / BUILD, ignore_errors=True)
    (ROOT / BUILD).mkdir(parents=True)
    make_report(RESULTS / "scores.csv", BUILD / "report.html", cwd=ROOT)
    made = ROOT / BUILD / "report"
    files = {file for pattern in KEPT for file in made.glob(pattern) if not file.name.endswith("-scores.csv")}
    for file in [ROOT / BUILD / "report.html", *sorted(files)]:
        shutil.copyfile(file, ROOT / RESULTS / file.name)
        print(RESULTS / file.name)
    page = ROOT / RESULTS / "README.md"
    write_between(page, "claim", f"{claim(read_scores(ROOT / RESULTS / 'scores.csv'))}\n")
    write_between(page, "found", found_and_missing(made))


def found_and_missing(made: Path) -> str:
    """What was found, and what is missing."""
    found = (made / "found.md").read_text(encoding="utf-8")
    if (made / "missing.csv").is_file():
        found += f"\nWhat is missing, and why:\n\n{missing(made / 'missing.csv')}\n"
    return found


def write_between(page: Path, name: str, words: str) -> None:
    """Write between the marks of a name in a page."""
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, mark, rest = text.partition(begin)
    _, last, after = rest.partition(end)
    if not mark or not last:
        raise ValueError(f"{page} has no place for {name!r}")
    page.write_text(f"{before}{begin}\n{words}\n{end}{after}", encoding="utf-8")


def missing(table: Path) -> str:
    """The table of what is missing as a list, in lines that fit."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    counts = [f" ({row['published values']} values)" if row["published values"] else "" for row in rows]
    lines = [f"- {row['not run']}{count}: {row['why']}." for row, count in zip(rows, counts, strict=True)]
    return "\n".join(fill(line, 118, subsequent_indent="  ") for line in lines)


if __name__ == "__main__":
    main()
