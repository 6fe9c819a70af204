"""Report of any run folders: their scores, and what is proven of their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polybound.errors import PolyboundError
from polybound.evaluation import CLEAN, Row, Score, Table, best_place, labels, paper_counts
from polybound.models import ConvCCP
from polybound.report.differences import Pair, pairs_table, questions_table
from polybound.report.elements import Figure, Section, Value
from polybound.report.elements import Table as Shown
from polybound.report.labels import (
    PROTOCOLS,
    column_name,
    dataset_label,
    images_text,
    level_of,
    model_label,
    network_names,
)
from polybound.report.run_figures import run_figures
from polybound.report.summary import Summary
from polybound.runs import Loaded
from polybound.theory import gamma, lipschitz, theta

__all__ = ["bounds_table", "by_heading", "highest_pairs", "runs_section", "scores_table"]

_COLUMN = ("attack", "protocol", "counted", "attack_seed")
_OF_THE_RUN = ("seed", "run", "weights", "correct", "per_class")
_HEADING = ("data", "data.digest", "model", "model.rank", "schedule.epochs", "data.samples", "split", "defence")


def runs_section(loaded: Sequence[Loaded], skipped: Mapping[str, str]) -> tuple[Section, Summary]:
    """Accuracies of runs, averaged over seeds and nothing else, figures, the bounds of every model; and a summary.

    What was skipped is named, with the reason.

    Raises:
        PolyboundError: there is nothing to show.
    """
    table = Table(row for one in loaded if one.run is not None for row in one.run.table())
    table = table.only(lambda row: row["counted"] == paper_counts(row["attack"], row["protocol"]))
    if not table.rows:
        why = "; ".join(f"{path}: {reason}" for path, reason in skipped.items())
        raise PolyboundError(why or "no scores in these runs: `polybound evaluate` makes them")
    bounds, scores = bounds_table(loaded), scores_table(table)
    full = table.fullest()
    headings = by_heading(full)
    figures = run_figures(full, headings, loaded)
    parts: list[Shown | Figure] = [scores, *([bounds] if bounds.rows else []), *figures]
    notes = [f"{path} was skipped: {why}" for path, why in skipped.items()]
    title = f"{len(loaded)} run{'s' if len(loaded) > 1 else ''}"
    protocols = [name for name in PROTOCOLS if name in table.values("protocol")]
    count = len(table.configurations("epoch", *Score.names()))
    lead = f"{title} of {count} configuration{'s' if count > 1 else ''}, averaged over seeds and nothing else."
    pairs = highest_pairs(headings)
    tables = {"compared": questions_table(pairs), "differences": pairs_table(pairs)}
    summary = Summary(0, 0, 0, 0, headline=next(iter(figures), None), lead=lead, **tables)
    return Section("runs", title, parts, notes, protocols=protocols), summary


def highest_pairs(headings: Sequence[tuple[str, Table]]) -> list[Pair]:
    """The configuration with the highest accuracy of a column against the next, for each heading and column.

    Only what was measured on the same images is compared, by the rule of `best_place`. Runs are not judged by the
    paper's values: those are of the best of all bounds, which `compare` looks for.
    """
    found = []
    for heading, table in headings:
        for column, rows in table.groups(*_COLUMN).items():
            rivals = rows.where(total=max(rows.values("total"))).configurations()
            left = list(zip(labels([one.rows[0] for one in rivals], _OF_THE_RUN), rivals, strict=True))
            ranked: list[tuple[str, Table]] = []
            while left and (best := best_place([[one.cell()] for _, one in left])) is not None:
                ranked.append(left.pop(best[0]))
            if len(ranked) > 1:
                (name, first), (other, second) = ranked[:2]
                under = column_name(*column)
                asked = "Which is the most accurate?" if under == CLEAN else f"Which keeps most under {under}?"
                sides = f"{name} with {other}, the next of {len(rivals)}"
                found.append(Pair.of(asked, sides, heading, first, second))
    return [pair for pair in found if pair is not None]


def by_heading(table: Table) -> list[tuple[str, Table]]:
    """The rows by what they have in common: data set, model, rank, epochs, split and defence."""
    found = []
    for part in table.groups(*_HEADING).values():
        others = table.where(data=part.rows[0]["data"]).values("data.digest")
        found.append((_heading(part.rows[0], several=len(others) > 1), part))
    return found


def scores_table(table: Table) -> Shown:
    """A row for each configuration and set of images, named by what differs; a column for each attack."""
    columns = list(table.groups(*_COLUMN))
    columns.sort(key=lambda column: column[0] != CLEAN)
    header = ["method", "seeds", "images", *(column_name(*column) for column in columns)]
    cells: list[list[Value]] = []
    groups: list[tuple[int, str]] = []
    for heading, part in by_heading(table):
        groups.append((len(cells), heading))
        configurations = sorted(part.configurations(*_COLUMN), key=_order)
        names = labels([one.rows[0] for one in configurations], (*_OF_THE_RUN, *_COLUMN, "total", "available"))
        for name, one in zip(names, configurations, strict=True):
            found = [one.where(dict(zip(_COLUMN, column, strict=True))).cell() for column in columns]
            for seeds in dict.fromkeys(cell.seeds for cell in found if cell is not None):
                values = [cell if cell is not None and cell.seeds == seeds else None for cell in found]
                cells.append([name, len(seeds), images_text(one.rows[0]), *values])
    notes = [_counting(name) for name in PROTOCOLS if name in table.values("protocol")]
    return Shown("Accuracy in %", header, cells, groups, notes=notes)


def _heading(row: Row, *, several: bool) -> str:
    """What the rows of a group have in common, unless it is usual; of several data sets of one name also the digest."""
    digest = f" ({row['data.digest']})" if several else ""
    samples = f", {row['data.samples']:,} training samples" if row["data.samples"] else ""
    measured = "" if row["split"] == "test" else f", {row['split']} split"
    measured += f", {row['defence']} denoising" if row["defence"] else ""
    names = f"{dataset_label(row['data'])}{digest}, {model_label(row['model'])}"
    return f"{names}, rank {row['model.rank']}, {row['schedule.epochs']} epochs{samples}{measured}"


def _order(table: Table) -> tuple[str, float, int, str]:
    """Methods together, their bounds and weights in numerical order, and full measurements before limited ones."""
    row = table.rows[0]
    return str(row["method"]), level_of(row)[0], -row["total"], str(row)


def _counting(protocol: str) -> str:
    counted = (
        "also images that are misclassified as they are, as in the paper"
        if protocol == "published"
        else ("images that are right as they are and attacked")
    )
    return f"{protocol}: {PROTOCOLS[protocol]}, counting {counted}."


def bounds_table(loaded: Sequence[Loaded]) -> Shown:
    """What follows from each run's weights: the norms of the product, and Lipschitz constants, by bound.

    Convolutional networks are left out: for images of 28 x 28 each would take minutes.
    """
    header = ["run", "theta", "gamma", "Lipschitz, paper", "Lipschitz, row-wise"]
    dense = [one for one in loaded if not isinstance(one.model, ConvCCP)]
    named = sorted(zip(network_names(dense), dense, strict=True), key=_bounds_order)
    cells: list[list[Value]] = []
    for name, one in named:
        values = (
            theta(one.model),
            gamma(one.model),
            lipschitz(one.model, method="paper").value,
            lipschitz(one.model, method="rowwise").value,
        )
        cells.append([name, *map(float, values)])
    note = "In the l_inf norm, for inputs in [-1, 1]. theta: norm of the product of all factors; gamma: its relaxation."
    return Shown("Bounds", header, cells, notes=[note], name="bounds")


def _bounds_order(pair: tuple[str, Loaded]) -> tuple[str, str, str, float, int, str]:
    """Runs of one data set, model and method together, by bound and seed; files, which have none, first."""
    name, one = pair
    about = one.about
    names = tuple(str(about.get(key, "")) for key in ("data", "model", "method"))
    return names[0], names[1], names[2], level_of(about)[0], int(about.get("seed") or 0), name
