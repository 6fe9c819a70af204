"""Report of any run folders: their scores, and what is proven of their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polybound.errors import PolyboundError
from polybound.evaluation import CLEAN, Cell, Row, Table, labels, network_labels, paper_counts
from polybound.models import ConvCCP
from polybound.report.elements import Section
from polybound.report.elements import Table as Shown
from polybound.report.labels import PROTOCOLS, attack_label, cell_text, dataset_label, images_text, model_label
from polybound.runs import Loaded
from polybound.theory import gamma, lipschitz, theta

__all__ = ["bounds_table", "runs_section", "scores_table"]

_COLUMN = ("attack", "protocol", "counted", "attack_seed")
_OF_THE_RUN = ("seed", "run", "weights", "correct", "per_class")
_HEADING = ("data", "data.digest", "model", "model.rank", "schedule.epochs", "data.samples", "split", "defence")


def runs_section(loaded: Sequence[Loaded], skipped: Mapping[str, str]) -> Section:
    """Accuracies of runs, averaged over seeds and nothing else, the bounds of every model, and what was skipped, why.

    Raises:
        PolyboundError: there is nothing to show.
    """
    table = Table(row for one in loaded if one.run is not None for row in one.run.table())
    table = table.only(lambda row: row["counted"] == paper_counts(row["attack"], row["protocol"]))
    if not table.rows:
        why = "; ".join(f"{path}: {reason}" for path, reason in skipped.items())
        raise PolyboundError(why or "no scores in these runs: `polybound evaluate` makes them")
    bounds = bounds_table(loaded)
    parts = [scores_table(table), *([bounds] if bounds.rows else [])]
    notes = [f"{path} was skipped: {why}" for path, why in skipped.items()]
    title = f"{len(loaded)} run{'s' if len(loaded) > 1 else ''}"
    return Section("runs", title, parts, notes)


def scores_table(table: Table) -> Shown:
    """A row for each configuration and set of images, named by what differs; a column for each attack."""
    columns = list(table.groups(*_COLUMN))
    columns.sort(key=lambda column: column[0] != CLEAN)
    header = ["method", "seeds", "images", *(_column_label(*column) for column in columns)]
    cells: list[list[str]] = []
    groups: list[tuple[int, str]] = []
    for part in table.groups(*_HEADING).values():
        others = table.where(data=part.rows[0]["data"]).values("data.digest")
        groups.append((len(cells), _heading(part.rows[0], several=len(others) > 1)))
        configurations = sorted(part.configurations(*_COLUMN), key=_order)
        names = labels([one.rows[0] for one in configurations], (*_OF_THE_RUN, *_COLUMN, "total", "available"))
        for name, one in zip(names, configurations, strict=True):
            found = [one.where(dict(zip(_COLUMN, column, strict=True))).cell() for column in columns]
            count = max(len(cell.seeds) for cell in found if cell is not None)
            cells.append([name, str(count), images_text(one.rows[0]), *(_with_seeds(cell, count) for cell in found)])
    notes = [_counting(name) for name in PROTOCOLS if name in table.values("protocol")]
    return Shown("Accuracy in %", header, cells, groups, notes=notes)


def _with_seeds(cell: Cell | None, seeds: int) -> str:
    """A cell, with its number of seeds if that is not the row's."""
    if cell is None or len(cell.seeds) == seeds:
        return cell_text(cell)
    return f"{cell_text(cell)} ({len(cell.seeds)} seed{'s' if len(cell.seeds) > 1 else ''})"


def _column_label(attack: str, protocol: str, counted: str, seed: int) -> str:
    del counted  # it follows from the protocol
    parts = [attack_label(attack), *([] if protocol == "-" else [protocol])]
    return ", ".join([*parts, *([f"attack seed {seed}"] if seed else [])])


def _heading(row: Row, *, several: bool) -> str:
    """What the rows of a group have in common, unless it is usual; of several data sets of one name also the digest."""
    digest = f" ({row['data.digest']})" if several else ""
    samples = f", {row['data.samples']:,} training samples" if row["data.samples"] else ""
    measured = "" if row["split"] == "test" else f", {row['split']} split"
    measured += f", {row['defence']} denoising" if row["defence"] else ""
    names = f"{dataset_label(row['data'])}{digest}, {model_label(row['model'])}"
    return f"{names}, rank {row['model.rank']}, {row['schedule.epochs']} epochs{samples}{measured}"


def _order(table: Table) -> tuple[str, bool, float, str]:
    """Methods together, their bounds and weights in numerical order."""
    row = table.rows[0]
    level = row.get("method.bound", row.get("method.weight", row.get("method.eps", 0.0)))
    number = isinstance(level, int | float)
    return str(row["method"]), not number, float(level) if number else 0.0, str(row)


def _counting(protocol: str) -> str:
    counted = (
        "also images that are misclassified as they are, as in the paper"
        if protocol == "published"
        else ("images that are right as they are and attacked")
    )
    return f"{protocol}: {PROTOCOLS[protocol]}, counting {counted}."


def bounds_table(loaded: Sequence[Loaded]) -> Shown:
    """What follows from each run's weights: the norms of the product, and Lipschitz constants.

    Convolutional networks are left out: for images of 28 x 28 each would take minutes.
    """
    header = ["run", "theta", "gamma", "Lipschitz, paper", "Lipschitz, row-wise"]
    dense = [one for one in loaded if not isinstance(one.model, ConvCCP)]
    names = network_labels([one.about for one in dense], ("run",))
    cells = []
    for name, one in sorted(zip(names, dense, strict=True), key=lambda pair: pair[0]):
        values = (
            theta(one.model),
            gamma(one.model),
            lipschitz(one.model, method="paper").value,
            lipschitz(one.model, method="rowwise").value,
        )
        cells.append([name, *(f"{float(value):.4g}" for value in values)])
    note = "In the l_inf norm, for inputs in [-1, 1]. theta: norm of the product of all factors; gamma: its relaxation."
    return Shown("Bounds", header, cells, notes=[note])
