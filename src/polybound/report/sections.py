"""From scores to a report's sections: experiments in the paper's layout, and single runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from polybound.errors import PolyboundError
from polybound.evaluation import (
    ATTACK_COLUMNS,
    CLEAN,
    SEED_COLUMNS,
    Cell,
    Row,
    Score,
    Table,
    best_place,
    difference,
    labels,
    paper_counts,
)
from polybound.experiments import EPOCHS, Experiment, paper_method, resolve, row_kind, runs_of, search_job
from polybound.models import ConvCCP
from polybound.report.differences import Pair, best_bound, chosen_on_validation, pairs_table, questions_table
from polybound.report.elements import Figure, Section, Value
from polybound.report.elements import Table as Shown
from polybound.report.figures import curves, growth, initial, run_figures, samples, tradeoff
from polybound.report.labels import (
    METHODS,
    PROTOCOLS,
    attack_label,
    column_name,
    dataset_label,
    images_text,
    level_of,
    model_label,
    network_names,
)
from polybound.report.summary import Summary
from polybound.report.tables import missing_parts, paper_table, seeds_text
from polybound.report.text import read_figure
from polybound.runs import LoadedModel, load_models
from polybound.theory import gamma, lipschitz, theta

__all__ = ["bounds_table", "by_heading", "highest_pairs", "runs_section", "scores_table", "section"]


# Report of any run folders: their scores, and what is proven of their weights.


_HEADING = ("data", "data.digest", "model", "model.rank", "schedule.epochs", "data.samples", "split", "defence")


def runs_section(loaded: Sequence[LoadedModel], skipped: Mapping[str, str]) -> tuple[Section, Summary]:
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
        for column, rows in table.groups(*ATTACK_COLUMNS).items():
            rivals = rows.where(total=max(rows.values("total"))).configurations()
            left = list(zip(labels([one.rows[0] for one in rivals], SEED_COLUMNS), rivals, strict=True))
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
    columns = list(table.groups(*ATTACK_COLUMNS))
    columns.sort(key=lambda column: column[0] != CLEAN)
    header = ["method", "seeds", "images", *(column_name(*column) for column in columns)]
    cells: list[list[Value]] = []
    groups: list[tuple[int, str]] = []
    for heading, part in by_heading(table):
        groups.append((len(cells), heading))
        configurations = sorted(part.configurations(*ATTACK_COLUMNS), key=_order)
        names = labels([one.rows[0] for one in configurations], (*SEED_COLUMNS, *ATTACK_COLUMNS, "total", "available"))
        for name, one in zip(names, configurations, strict=True):
            found = [one.where(dict(zip(ATTACK_COLUMNS, column, strict=True))).cell() for column in columns]
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


def bounds_table(loaded: Sequence[LoadedModel]) -> Shown:
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


def _bounds_order(pair: tuple[str, LoadedModel]) -> tuple[str, str, str, float, int, str]:
    """Runs of one data set, model and method together, by bound and seed; files, which have none, first."""
    name, one = pair
    about = one.about
    names = tuple(str(about.get(key, "")) for key in ("data", "model", "method"))
    return names[0], names[1], names[2], level_of(about)[0], int(about.get("seed") or 0), name


def section(
    experiment: Experiment, table: Table, root: Path, data_dir: Path | None = None, figures: Path | None = None
) -> Section:
    """Tables and figures of an experiment, from its scores and what else its folder holds.

    What is drawn from weights or studies that are not there is drawn from `figures`, a folder with the data of figures,
    if it has them.
    """
    experiment = resolve(experiment, root, data_dir, report=True)
    parts: list[Shown | Figure] = []
    if experiment.kind in ("accuracy", "search"):
        parts.append(_LAYOUTS[experiment.layout](experiment, table))
    if experiment.kind == "search":
        parts += _search(experiment, root, data_dir)
    elif experiment.kind in _STUDIES:
        made = _STUDIES[experiment.kind](experiment, root, data_dir)
        file = figures / f"{experiment.name}.csv" if figures is not None else None
        if file is not None and file.is_file() and made.empty:
            made = replace(read_figure(file, experiment.title), notes=made.notes)
        parts.append(made)
    if experiment.layout == "table":
        parts += [*_significances(experiment, table), *_bounds(experiment, root, data_dir)]
    title = f"{experiment.paper}: {experiment.title}" if experiment.paper else experiment.title
    lacking = missing_parts(experiment, table, data_dir)
    notes = _warnings(table) + ([] if experiment.kind == "growth" else _averaging(table))
    protocols = [name for name in PROTOCOLS if name in table.values("protocol")]
    return Section(experiment.name, title, parts, notes, lacking, protocols)


def _bounds(experiment: Experiment, root: Path, data_dir: Path | None) -> list[Shown]:
    loaded, _ = load_models([run.path for spec, run in runs_of(experiment, root, data_dir) if spec.seed == 0])
    bounds = bounds_table(loaded)
    return [replace(bounds, title="Bounds of the runs with seed 0", aside=True, name="bounds")] if bounds.rows else []


def _warnings(table: Table) -> list[str]:
    """What must be said of every number: a cut schedule, few data, few images."""
    notes = []
    if epochs := sorted(epochs for epochs in table.values("schedule.epochs") if epochs < EPOCHS):
        notes.append(f"Reduced schedule: {', '.join(map(str, epochs))} of {EPOCHS} epochs.")
    if samples := sorted(filter(None, table.values("data.samples"))):
        notes.append(f"Reduced data: {', '.join(map(str, samples))} training samples.")
    if limits := sorted({(row["total"], row["available"]) for row in table if row["total"] < row["available"]}):
        notes.append(f"Measured on the first {', '.join(f'{n:,} of {all_:,}' for n, all_ in limits)} images only.")
    return notes


def _averaging(table: Table) -> list[str]:
    """Of how many seeds and images the numbers are means, and after which epoch."""
    if not table.rows:
        return []
    images = ", ".join(f"{n:,}" for n in sorted({row["total"] for row in table}))
    return [f"Mean and standard deviation over seeds{seeds_text(table)}, {images} images, {_epochs(table)}."]


def _epochs(table: Table) -> str:
    after = sorted(table.values("epoch"))
    if all(row["epoch"] == row["schedule.epochs"] for row in table):
        return "last epoch"
    listed = ", ".join(map(str, after))
    return f"clean and under the published protocol after the best epoch measured (of {listed}), else after the last"


def _significances(experiment: Experiment, table: Table) -> list[Shown]:
    """Projection against none, paired by seed."""
    cells: list[list[Value]] = []
    for dataset, model, attack in product(experiment.datasets, experiment.models, experiment.attacks):
        part = table.where(data=dataset, model=model, attack=attack, protocol="sound", defence="", split="test")
        top = best_bound(part.only(lambda row: row_kind(row) == "single"))
        found = None if top is None else difference(top[0], part.where(method="none"))
        if top is not None and found is not None and found.p == found.p:
            names = (dataset_label(dataset), model_label(model), attack_label(attack))
            cells.append([*names, top[1], found, len(found.seeds), f"{found.p:.2g}"])
    if not cells:
        return []
    header = ["data set", "model", "attack", "bound", "difference", "seeds", "p"]
    note = (
        "Points by which the projection, at the bound that is the best of its line, is ahead of no projection: mean "
        "over the seeds that both have, its 95 % interval, and the p-value of a paired t-test. As the bound was chosen "
        "on the same images, p is smaller than for one chosen beforehand."
    )
    return [
        Shown("Projection against none, sound protocol", header, cells, notes=[note], aside=True, name="significance")
    ]


def _chosen(experiment: Experiment, table: Table) -> Shown:
    """One model a line, whose bound or weight has the best mean validation accuracy over clean and all attacks."""
    header = ["method", "bound or weight", "clean", *map(attack_label, experiment.attacks)]
    columns = [("clean", "-"), *((attack, "sound") for attack in experiment.attacks)]
    cells: list[list[Value]] = []
    groups = []
    for dataset, model in product(experiment.datasets, experiment.models):
        part = table.where(data=dataset, model=model)
        if not part.rows:
            continue
        groups.append((len(cells), f"{dataset_label(dataset)}, {model_label(model)}{seeds_text(part)}"))
        for method in experiment.methods:
            mine = part.only(lambda row, name=method: paper_method(row) == name)  # type: ignore[misc]
            if found := chosen_on_validation(mine, columns):
                values = [found[0].where(attack=attack, protocol=protocol).cell() for attack, protocol in columns]
                cells.append([METHODS.get(method, method), found[1], *values])
    note = (
        f"One bound or weight a line, chosen on a validation split ({100 * experiment.validation:g} % of train): the "
        "best mean accuracy over clean images and all attacks. Sound protocol, last epoch, test split."
    )
    verdicts = {
        (row, column): "not published"
        for row, line in enumerate(cells)
        for column, value in enumerate(line)
        if isinstance(value, Cell)
    }
    meaning = "○ not published: the paper chooses the best bound for each attack on its own, on the test split."
    return Shown(experiment.title, header, cells, groups, notes=[note, meaning], verdicts=verdicts)


def _search(experiment: Experiment, root: Path, data_dir: Path | None) -> list[Shown | Figure]:
    job = search_job(experiment, data_dir)
    if not job.done(root):
        return []
    result = job.result(root)
    measures = ("mean", "full", "short")  # the finalists, then what was trained to the end, then the rest
    trials = sorted(
        result["trials"], key=lambda trial: [-1.0 if trial[name] is None else trial[name] for name in measures]
    )[::-1]
    names = list(result["bounds"])

    def percent(share: float | None) -> str:
        return "" if share is None else f"{100 * share:.2f}"

    cells = [
        [*(f"{trial['bounds'][name]:g}" for name in names), *(percent(trial[name]) for name in reversed(measures))]
        for trial in trials[:10]
    ]
    pruned = sum(trial["full"] is None for trial in trials)
    note = (
        f"The ten best of {len(trials)} points, {pruned} of them pruned after a shorter schedule; accuracy in % under "
        f"{attack_label(experiment.search['attack'])} on a validation split, {experiment.search['protocol']} protocol."
    )
    header = [*names, "shorter schedule", "whole schedule", f"mean of {experiment.search['seeds']} seeds"]
    return [Shown("The search", header, cells, notes=[note], aside=True, name="search")]


_STUDIES: dict[str, Callable[[Experiment, Path, Path | None], Figure]] = {
    "growth": growth,
    "initial": initial,
    "samples": samples,
}
_LAYOUTS: dict[str, Callable[[Experiment, Table], Shown | Figure]] = {
    "table": paper_table,
    "chosen": _chosen,
    "tradeoff": tradeoff,
    "curves": curves,
}
