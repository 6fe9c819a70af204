"""Report of any run folders: their scores, and what is proven of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polybound.errors import PolyboundError
from polybound.experiments.compare import DATASETS
from polybound.experiments.results import Row, average, rows_of
from polybound.models import ConvCCP, load
from polybound.report.shapes import Section, Table
from polybound.report.words import METHODS, MODELS, SOURCES, attack_label
from polybound.runs import Run
from polybound.theory import gamma, lipschitz, theta

__all__ = ["bounds_table", "runs_section"]


def runs_section(folders: Sequence[Path]) -> Section:
    """Accuracies by data set, model, method and bound, averaged over seeds; the bounds of every model."""
    runs = [Run(folder) for folder in folders]
    for run in runs:
        if not run.model_file.exists():
            raise PolyboundError(f"{run.path}: no run folder, or not trained yet")
    rows = [row for run in runs for row in rows_of(run)]
    if not rows:
        raise PolyboundError("no scores in these runs: `polybound evaluate` makes them")
    bounds = bounds_table(runs)
    return Section("runs", f"{len(runs)} runs", [_scores(rows), *([bounds] if bounds.rows else [])])


def _scores(rows: Sequence[Row]) -> Table:
    columns = list(dict.fromkeys((row.attack, row.protocol) for row in rows))
    header = ["method", "bound", "seeds", *(attack_label(a) + ("" if p == "-" else f", {p}") for a, p in columns)]
    cells: list[list[str]] = []
    groups: list[tuple[int, str]] = []
    for dataset, model, rank, epochs in dict.fromkeys((r.dataset, r.model, r.rank, r.epochs) for r in rows):
        part = [r for r in rows if (r.dataset, r.model, r.rank, r.epochs) == (dataset, model, rank, epochs)]
        title = f"{DATASETS.get(dataset, dataset)}, {MODELS.get(model, model)}, rank {rank}, {epochs} epochs"
        groups.append((len(cells), title))
        kinds = dict.fromkeys((r.method, r.projection, r.bound, r.split, r.defence) for r in part)
        for method, projection, bound, split, defence in kinds:
            wanted = {"method": method, "projection": projection, "bound": bound, "split": split, "defence": defence}
            found = [average(part, attack=a, protocol=p, **wanted).get(bound) for a, p in columns]
            words = [METHODS.get(method, method), *([projection] if projection not in ("", "single") else [])]
            words += [f"behind {defence} denoising"] if defence else []
            words += [f"on {split}"] if split != "test" else []
            seeds = max(value.seeds for value in found if value is not None)
            label = "" if bound is None else f"{bound:g}"
            cells.append([", ".join(words), label, str(seeds), *("" if v is None else str(v) for v in found)])
    notes = [f"{name}: {text}." for name, text in SOURCES.items() if any(p == name for _, p in columns)]
    return Table("Accuracy in %", header, cells, groups, notes=notes)


def bounds_table(runs: Sequence[Run]) -> Table:
    """What follows from each run's weights: the norms of the product, and Lipschitz constants.

    Convolutional networks are left out: for images of 28 x 28 each would take minutes.
    """
    header = ["run", "theta", "gamma", "Lipschitz, paper", "Lipschitz, row-wise"]
    cells = []
    for run in runs:
        model = load(run.model_file)
        if isinstance(model, ConvCCP):
            continue
        values = (
            theta(model),
            gamma(model),
            lipschitz(model, method="paper").value,
            lipschitz(model, method="rowwise").value,
        )
        cells.append([run.path.name.rsplit("-", 1)[0], *(f"{float(value):.4g}" for value in values)])
    note = "In the l_inf norm, for inputs in [-1, 1]. theta: norm of the product of all factors; gamma: its relaxation."
    return Table("Bounds", header, cells, notes=[note])
