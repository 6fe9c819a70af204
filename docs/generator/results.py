"""The results: tables, figures and the comparison with the paper, all from scores.csv."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from polybound.evaluation import Cell, Table
from polybound.experiments import (
    DATASETS,
    MODELS,
    Comparison,
    compare,
    experiment_names,
    find_experiment,
    paper_method,
    read_scores,
)
from polybound.models import paper_rank

TABLES = ("table-1", "table-5", "table-9", "table-3", "table-6", "table-10", "table-11", "table-2", "table-7")
TABLES = (*TABLES, "table-8", "honest-table")
FIGURES = (
    *(f"figure-{number}" for number in (2, 3, 10, 12, 13, 4, 5, 6, 7, 14)),
    *("tradeoff", "certified-tradeoff"),
)
PGD = "pgd-(0.1, 20, 0.01)"
Key = tuple[str, str, str, str]
"""Data set, model, method and attack, by the paper's names."""
VERDICTS = {"within": "met", "off": "missed"}


def write_results(scores: Path, folder: Path) -> None:
    """Write what the scores say: summary into README.md, and the pages tables.md, figures.md and comparison.md."""
    make_report(scores, folder / "made.html")
    found = [each for each in compare(read_scores(scores)) if each.verdict in VERDICTS]
    page = folder / "README.md"
    text = page.read_text(encoding="utf-8")
    if "<!-- summary -->" not in text:
        raise ValueError(f"{page} has no place for the summary")
    page.write_text(text.replace("<!-- summary -->", f"{summary(found)}\n\n{misses(found)}"), encoding="utf-8")
    (folder / "comparison.md").write_text(comparison_page(found), encoding="utf-8")
    made = folder / "made"
    (folder / "tables.md").write_text(tables_page(made), encoding="utf-8")
    (folder / "figures.md").write_text(figures_page(made), encoding="utf-8")
    for file in [*sorted(folder.glob("table-*.md")), folder / "honest-table.md"]:
        fresh = made / file.name
        text = (fresh if fresh.is_file() else file).read_text(encoding="utf-8")
        file.write_text(f"# {file.stem.capitalize()}\n\n{text}", encoding="utf-8")
    for extra in [folder / "made.html", *(file for file in made.iterdir() if file.suffix != ".svg")]:
        extra.unlink()


def make_report(scores: Path, output: Path, **options: Any) -> None:
    """Let the command line make the report from the scores, as a reader would."""
    words = ["--seeds", "10", "--measure-every", "25", "--scores", str(scores), "--figures", str(scores.parent)]
    command = [sys.executable, "-m", "polybound", "report", *TABLES, *FIGURES, *words, "-o", str(output), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # noqa: S603
    if done.returncode:
        raise RuntimeError(done.stderr)


def summary(found: Sequence[Comparison]) -> str:
    """How many published values are met, by table and model; a value that stands in several tables counts in each."""
    titles = table_titles(found)
    models = [name for name in ("PN-4", "PN-10", "PN-Conv", "NCP-4") if any(e.paper.model == name for e in found)]
    rows = []
    for name, title in titles.items():
        counts = [share(each for each in found if (each.paper.table, each.paper.model) == (name, m)) for m in models]
        rows.append([title, *counts, share(each for each in found if each.paper.table == name)])
    rows.append(["all", *(share(each for each in found if each.paper.model == m) for m in models), share(found)])
    return markdown(["table of the paper", *models, "all"], rows)


def claim(scores: Table) -> str:
    """What a bound and what the Jacobian penalty do to accuracy under PGD and without attack, after all epochs.

    The methods of a line have the same seeds.
    """
    last = scores.only(lambda row: row["epoch"] == row["schedule.epochs"])
    rows = []
    for model, dataset in product(MODELS, DATASETS):
        mine = _same_seeds(last.where(model=model, data=dataset))
        published, sound = _cells(mine, "published"), _cells(mine, "sound")
        names = DATASETS[dataset], MODELS[model]
        plain, bounded, penalised = ((*names, method, PGD) for method in ("none", "projection", "jacobian"))
        if any(key not in cells for key in (plain, bounded) for cells in (published, sound)):
            continue
        cells = [published[plain], published[bounded], *_with_clean(mine, plain, sound)]
        cells += [*_with_clean(mine, bounded, sound), *_with_clean(mine, penalised, sound)]
        rows.append([f"{names[1]}, {names[0]}", *map(_with_bound, cells)])
    header = ["", "published: none", "published: bound"]
    for name in ("none", "bound", "Jacobian"):
        header += [f"sound: {name}", "clean"]
    return markdown(header, rows)


def _same_seeds(scores: Table) -> Table:
    """The scores of the seeds that all three methods have: none, projection and, where it was run, Jacobian."""
    tests = scores.where(split="test").only(
        lambda row: row["model.rank"] == paper_rank(row["model"]) and not row["data.held_out"]
    )
    seeds: dict[str, set[int]] = {}
    for row in tests.only(lambda row: paper_method(row) in ("none", "projection", "jacobian")):
        seeds.setdefault(paper_method(row), set()).add(row["seed"])
    common = set.intersection(*seeds.values()) if seeds else set()
    return tests.only(lambda row: row["seed"] in common)


def _with_clean(scores: Table, key: Key, cells: dict[Key, Cell]) -> list[Cell | None]:
    """The accuracy under an attack, and the clean one of the same networks; of projected ones with the best bound."""
    if key not in cells:
        return [None, None]
    chosen = cells[key].chosen
    if chosen is not None:
        scores = scores.only(lambda row: row.get(chosen[0]) == chosen[1])
    return [cells[key], _cells(scores, "sound")[*key[:3], "clean"]]


def _cells(scores: Table, protocol: str) -> dict[Key, Cell]:
    """Our numbers at the paper's schedule, by data set, model, method and attack."""
    return {each.paper.key: each.ours for each in compare(scores, protocol) if each.verdict in VERDICTS}


def _with_bound(cell: Cell | None) -> str:
    if cell is None:
        return "not run"
    return f"{cell.mean:.1f}" + (f" ({cell.chosen[1]:g})" if cell.chosen else "")


def table_titles(found: Sequence[Comparison]) -> dict[str, str]:
    """The paper's tables by their labels in its source: `Table 1` and so on, in the paper's order."""
    experiments = [find_experiment(name) for name in experiment_names()]
    titles = {each.published: each.paper for each in experiments if each.paper.startswith("Table ")}
    names = {each.paper.table for each in found}
    return {name: titles[name] for name in sorted(names, key=lambda name: int(titles[name].removeprefix("Table ")))}


def misses(found: Sequence[Comparison]) -> str:
    """The published values that are missed, each once."""
    off = {tuple(comparison_row(each)[:-1]) for each in found if each.verdict == "off"}
    rows = markdown(["data, model", "method", "attack", "paper", "here", "difference"], sorted(off))
    return f"The {len(off)} values that are missed:\n\n{rows}"


def share(found: Iterable[Comparison]) -> str:
    """`met of all`, or nothing."""
    counts = Counter(each.verdict for each in found)
    return f"{counts['within']} of {counts.total()}" if counts else ""


def comparison_page(found: Sequence[Comparison]) -> str:
    """Every published value next to ours."""
    lines = ["# Against the paper, value by value", ""]
    lines += ["Accuracy in %, published protocol. A value is met if it is within `max(3 points, 2 published standard"]
    lines += ["deviations)`. This page is made from `docs/results/scores.csv`, as `polybound compare` does it.", ""]
    for name, title in table_titles(found).items():
        rows = [comparison_row(each) for each in found if each.paper.table == name]
        lines += [f"## {title}", ""]
        lines += [markdown(["data, model", "method", "attack", "paper", "here", "difference", ""], rows), ""]
    return "\n".join(lines)


def comparison_row(each: Comparison) -> list[str]:
    """The cells of one published value."""
    method = f"{each.paper.method} ({each.variant})" if each.variant else each.paper.method
    verdict = VERDICTS[each.verdict] if each.verdict == "within" else f"**{VERDICTS[each.verdict]}**"
    paper = f"{each.paper.mean:.2f} ± {each.paper.std:.2f}"
    where = f"{each.paper.dataset}, {each.paper.model}"
    return [where, method, each.paper.attack, paper, str(each.ours), f"{each.difference:+.2f}", verdict]


def tables_page(report: Path) -> str:
    """The paper's tables, with ours in them."""
    lines = ["# Tables", "", "All accuracies are in %, mean and standard deviation over seeds. `polybound report`"]
    lines += ["makes these tables from `docs/results/scores.csv`.", ""]
    for name in TABLES:
        if not (report / f"{name}.md").is_file():  # not run
            continue
        lines += [f"## {find_experiment(name).title}: {name}", ""]
        for file in sorted(report.glob(f"{name}.md")) + sorted(report.glob(f"{name}-*.md")):
            lines += [file.read_text(encoding="utf-8").strip(), ""]
    return "\n".join(lines)


def figures_page(report: Path) -> str:
    """The paper's figures, drawn from our scores."""
    lines = ["# Figures", "", "`polybound report` draws these figures from `docs/results/scores.csv`.", ""]
    for name in FIGURES:
        title = find_experiment(name).title
        if (report / f"{name}.svg").is_file():
            lines += [f"## {title}: {name}", "", f"![{title}](made/{name}.svg)", ""]
    lines += ["[The whole report](report.html) is one file. It has all figures, and they can be zoomed.", ""]
    return "\n".join(lines)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
