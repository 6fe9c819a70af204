"""Tables of experiments, with the paper's values, and of runs; and which of the paper's values are missing, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
from pathlib import Path

from polybound import evaluation, experiments
from polybound.evaluation import ATTACK_COLUMNS, CLEAN, SEED_COLUMNS, Cell, MixedError, Row, Table, value_label
from polybound.experiments import Comparison, Experiment, Published, paper_method, published
from polybound.models import CCP, NCP
from polybound.report import labels
from polybound.report.elements import Table as Shown
from polybound.report.elements import Value
from polybound.report.labels import BOUND, METHODS, attack_label, dataset_label, model_label, place_label
from polybound.runs import LoadedModel
from polybound.theory import gamma, lipschitz, theta


def seeds_text(table: Table) -> str:
    """The number of seeds of the numbers made of these rows, as ", 5 seeds" or ", 1 to 5 seeds".

    Of a method's bounds those with the most seeds count, as they alone compete for the best.
    """
    seeds: dict[tuple[str, str, str, str], set[int]] = {}
    for row in table:
        key = row["data"], row["model"], paper_method(row), value_label(row.get(BOUND))
        seeds.setdefault(key, set()).add(row["seed"])
    most: dict[tuple[str, str, str], int] = {}
    for key, mine in seeds.items():
        most[key[:3]] = max(most.get(key[:3], 0), len(mine))
    counts = sorted(set(most.values()))
    least = f"{counts[0]} to " if len(counts) > 1 else ""
    return f", {least}{counts[-1]} seed{'s' if counts[-1] > 1 else ''}" if counts else ""


# The paper's tables.


_MEANINGS = {
    "met": "✓ met: within max(3 points, 2 published standard deviations) of the paper's value.",
    "missed": "✗ missed: further from it.",
    "not published": "○ not published: the paper has no such value.",
    "not judged": "? not judged: a shorter schedule, fewer or other data, or another recipe than the paper's.",
    "not run": "Not run: there is no such network among these scores.",
}


def paper_table(experiment: Experiment, table: Table) -> Shown:
    """Published, reproduced and sound values of every method, below each other for each attack."""
    table = table.where(split="test")
    columns = _columns(experiment, table)
    # The paper's tables of adversarial training and of further attacks leave the clean accuracy out.
    ours = not experiment.published
    clean = ours or any(one.table == experiment.published and one.attack == CLEAN for one in published())
    every = list(product(experiment.datasets, experiment.models))
    cells: list[list[Value]] = []
    groups: list[tuple[int, str]] = []
    bold: set[tuple[int, int]] = set()
    verdicts: dict[tuple[int, int], str] = {}
    comparisons: list[Comparison] = []
    for dataset, model in [pair for pair in every if table.where(data=pair[0], model=pair[1]).rows] or every:
        seeds = seeds_text(table.where(data=dataset, model=model))
        names = dataset_label(dataset), model_label(model)
        groups.append((len(cells), f"{', '.join(names)}{seeds}"))
        for attack in [*([CLEAN] if clean else []), *experiment.attacks]:
            values = [experiments.published_value(*names, name, attack) for name, _, _ in columns]
            if any(values):
                cells.append([attack_label(attack), "paper", *values])
            for protocol in ("-",) if attack == CLEAN else ("published", "sound"):
                wanted = {"data": dataset, "model": model, "attack": attack, "protocol": protocol}
                parts = [rows.where(wanted) for _, _, rows in columns]
                found = [part.best_epoch().best(BOUND) for part in parts]  # as the paper takes both
                means = [None if cell is None else round(cell.mean, 2) for cell in found]  # the digits that are shown
                top = max((mean for mean in means if mean is not None), default=None)
                several = sum(mean is not None for mean in means) > 1
                bold |= {(len(cells), place) for place, mean in enumerate(means, 2) if several and mean == top}
                for place, (value, cell, part) in enumerate(zip(values, found, parts, strict=True), 2):
                    if cell is None:
                        verdict = "not run"
                    elif value is None or protocol == "sound":
                        verdict = "not published"
                    else:
                        comparisons.append(experiments.judge(value, cell, part, protocol))
                        verdict = {"within": "met", "off": "missed"}.get(comparisons[-1].verdict, "not judged")
                    verdicts[len(cells), place] = verdict
                label = "here" if protocol == "-" else labels.PROTOCOLS[protocol]
                cells.append([attack_label(attack), label, *found])
    notes = ["Bold: the highest mean of its line, among the methods that were run."] if bold else []
    if met := [name for name in _MEANINGS if name in verdicts.values()]:
        notes.append(" ".join(_MEANINGS[name] for name in met))
    shown = [cell for row in cells for cell in row if isinstance(cell, Cell)]
    if any(cell.chosen is not None for cell in shown):
        notes.append(
            "In brackets the bound, which is the best of all for each line on its own, as in the paper; honest-table "
            "has one bound for all lines."
        )
    if any(isinstance(cell.epoch, str) for cell in shown):
        notes.append("* The best of the epochs measured, for each seed on its own, as in the paper.")
    about = {"notes": notes, "verdicts": verdicts, "comparisons": comparisons}
    header = ["attack", "value", *(heading for _, heading, _ in columns)]
    return Shown(experiment.title, header, cells, groups, frozenset(bold), lead=2, **about)  # type: ignore[arg-type]


def _columns(experiment: Experiment, table: Table) -> list[tuple[str, str, Table]]:
    """The columns of a table: the paper's name of each, its heading, and its rows.

    Where a method has several options other than its bound, each has a column of its own.
    """
    suffix = "" if experiment.adversary is None else "+at"
    names = ["at" if suffix and name == "none" else f"{name}{suffix}" for name in experiment.methods]
    names += ["layerwise-projection"] if experiment.kind == "search" else []
    names += [f"{name}-denoising" for name in experiment.defences]
    found: list[tuple[str, str, Table]] = []
    for name in names:
        mine = table.only(lambda row: paper_method(row) == name)  # noqa: B023
        variants: dict[str, list[Row]] = {}
        for row in mine:
            fixed = {key: row[key] for key in row if key.startswith(("method.", "adversary")) and key != BOUND}
            variants.setdefault(str(sorted(fixed.items())), []).append(row)
        others = [key for row in mine for key in row if not key.startswith(("method.", "adversary"))]
        firsts = [rows[0] for rows in variants.values()]
        shown = evaluation.labels(firsts, others, method=False) if len(variants) > 1 else [""]
        for label, rows in zip(shown, list(variants.values()) or [[]], strict=True):
            heading = ", ".join(filter(None, (METHODS.get(name, name), label)))
            found.append((name, heading, Table(rows)))
    return found


def best_bound(rows: Table) -> tuple[Table, str] | None:
    """The rows of the best bound, and the bound; None without rows, or if they differ in more than bound and seed."""
    try:
        cell = rows.best(BOUND)
    except MixedError:
        return None
    if cell is None:
        return None
    bound = rows.rows[0].get(BOUND) if cell.chosen is None else cell.chosen[1]
    return rows.where({BOUND: bound}), "" if bound is None else value_label(bound)


def chosen_on_validation(table: Table, columns: Sequence[tuple[str, str]]) -> tuple[Table, str] | None:
    """The test rows of the alternative of a method that is best on validation, and its bound or weight.

    The mean over the columns, attacks and protocols, counts.
    """
    parts = table.configurations("split", *ATTACK_COLUMNS, "total", "available", "held_out")
    found = [part.where(split="validation") for part in parts]
    best = evaluation.best_place([[part.where(attack=a, protocol=p).cell() for a, p in columns] for part in found])
    if best is None:
        return None
    part = parts[best[0]]
    level = part.rows[0].get(BOUND, part.rows[0].get("method.weight"))
    return part.where(split="test"), "" if level is None else value_label(level)


def chosen_table(experiment: Experiment, table: Table) -> Shown:
    """One model a line, whose bound or weight has the best mean validation accuracy over clean and all attacks."""
    columns = [(CLEAN, "-"), *((attack, "sound") for attack in experiment.attacks)]
    cells: list[list[Value]] = []
    groups = []
    for dataset, model in product(experiment.datasets, experiment.models):
        part = table.where(data=dataset, model=model)
        if not part.rows:
            continue
        groups.append((len(cells), f"{place_label(dataset, model)}{seeds_text(part)}"))
        for method in experiment.methods:
            mine = part.only(lambda row: paper_method(row) == method)  # noqa: B023
            if found := chosen_on_validation(mine, columns):
                values = [found[0].where(attack=attack, protocol=protocol).cell() for attack, protocol in columns]
                cells.append([METHODS.get(method, method), found[1], *values])
    note = (
        f"One bound or weight a line, chosen on a validation split ({100 * experiment.validation:g} % of train): the "
        "best mean accuracy over clean images and all attacks. Sound protocol, last epoch, test split."
    )
    meaning = "○ not published: the paper chooses the best bound for each attack on its own, on the test split."
    header = ["method", "bound or weight", CLEAN, *map(attack_label, experiment.attacks)]
    places = product(range(len(cells)), range(len(header)))
    verdicts = {(row, n): "not published" for row, n in places if isinstance(cells[row][n], Cell)}
    return Shown(experiment.title, header, cells, groups, notes=[note, meaning], verdicts=verdicts)


def search_table(experiment: Experiment, root: Path, data_dir: Path | None) -> Shown | None:
    """The best points of a search; None if it was not run."""
    job = experiments.search_job(experiment, data_dir)
    if not job.done(root):
        return None
    result = job.result(root)
    measures = ("mean", "full", "short")  # the finalists, then what was trained to the end, then the rest

    def order(trial: dict[str, float | None]) -> list[float]:
        return [-1.0 if (share := trial[name]) is None else share for name in measures]

    trials = sorted(result["trials"], key=order)[::-1]
    names = list(result["bounds"])
    cells: list[list[Value]] = []
    for trial in trials[:10]:
        shares = [trial[name] for name in reversed(measures)]
        percents = ["" if share is None else f"{100 * share:.2f}" for share in shares]
        cells.append([*(f"{trial['bounds'][name]:g}" for name in names), *percents])
    pruned = sum(trial["full"] is None for trial in trials)
    note = (
        f"The ten best of {len(trials)} points, {pruned} of them pruned after a shorter schedule; accuracy in % under "
        f"{attack_label(experiment.search['attack'])} on a validation split, {experiment.search['protocol']} protocol."
    )
    header = [*names, "shorter schedule", "whole schedule", f"mean of {experiment.search['seeds']} seeds"]
    return Shown("The search", header, cells, notes=[note], aside=True, name="search")


# Tables of any runs: their scores, and the bounds of their weights.


def by_heading(table: Table) -> list[tuple[str, Table]]:
    """The rows by what they have in common: data set, model and its sizes, epochs, split and defence."""
    sizes = dict.fromkeys(name for row in table for name in row if name.startswith("model."))
    names = ("data", "data.digest", "model", *sizes, "schedule.epochs", "data.samples", "split", "defence")
    found = []
    for part in table.groups(*names).values():
        row = part.rows[0]
        heading = dataset_label(row["data"])
        if len(table.where(data=row["data"]).values("data.digest")) > 1:
            heading += f" ({row['data.digest']})"
        mine = [f"{name.removeprefix('model.')} {value_label(row[name])}" for name in sizes if name in row]
        heading += ", ".join([f", {model_label(row['model'])}", *mine, f"{row['schedule.epochs']} epochs"])
        heading += f", {row['data.samples']:,} training samples" if row["data.samples"] else ""
        heading += "" if row["split"] == "test" else f", {row['split']} split"
        heading += f", {row['defence']} denoising" if row["defence"] else ""
        found.append((heading, part))
    return found


def scores_table(table: Table) -> Shown:
    """A row for each configuration and set of images, named by what differs; a column for each attack."""
    columns = sorted(table.groups(*ATTACK_COLUMNS), key=lambda column: column[0] != CLEAN)
    cells: list[list[Value]] = []
    groups: list[tuple[int, str]] = []

    def order(part: Table) -> tuple[object, ...]:
        """Methods together, by bound, weight or radius, full measurements before limited ones."""
        row = part.rows[0]
        return str(row["method"]), labels.levels(row), -row["total"], str(row)

    for heading, part in by_heading(table):
        groups.append((len(cells), heading))
        configurations = sorted(part.configurations(*ATTACK_COLUMNS), key=order)
        free = (*SEED_COLUMNS, *ATTACK_COLUMNS, "total", "available")
        names = evaluation.labels([one.rows[0] for one in configurations], free)
        for name, one in zip(names, configurations, strict=True):
            images = evaluation.images_label(one.rows[0]["total"], one.rows[0]["available"])
            found = [one.where(dict(zip(ATTACK_COLUMNS, column, strict=True))).cell() for column in columns]
            for seeds in dict.fromkeys(cell.seeds for cell in found if cell is not None):
                values = [cell if cell is not None and cell.seeds == seeds else None for cell in found]
                cells.append([name, len(seeds), images, *values])
    counted = {
        "published": "also images that are misclassified as they are, as in the paper",
        "sound": "images that are right as they are and attacked",
    }
    known = [name for name in labels.PROTOCOLS if name in table.values("protocol")]
    notes = [f"{name}: {labels.PROTOCOLS[name]}, counting {counted[name]}." for name in known]
    header = ["method", "seeds", "images", *(labels.column_name(*column) for column in columns)]
    return Shown("Accuracy in %", header, cells, groups, notes=notes)


def bounds_table(loaded: Sequence[LoadedModel]) -> Shown:
    """The norms of the product of each run's weights, and Lipschitz constants, by bound.

    Convolutional networks, of which each would take minutes for images of 28 x 28, and deep ones are left out.
    """

    def order(pair: tuple[str, LoadedModel]) -> tuple[object, ...]:
        """Runs of one data set, model and method together, by bound and seed; files, which have none, first."""
        about = pair[1].about
        return (
            *(str(about.get(key, "")) for key in ("data", "model", "method")),
            labels.levels(about),
            int(about.get("seed") or 0),
            pair[0],
        )

    dense = [one for one in loaded if isinstance(one.model, CCP | NCP)]
    cells: list[list[Value]] = []
    for name, one in sorted(zip(labels.network_names(dense), dense, strict=True), key=order):
        constants = [lipschitz(one.model, method=method).value for method in ("paper", "rowwise")]
        cells.append([name, *map(float, (theta(one.model), gamma(one.model), *constants))])
    note = "In the l_inf norm, for inputs in [-1, 1]. theta: norm of the product of all factors; gamma: its relaxation."
    header = ["run", "theta", "gamma", "Lipschitz, paper", "Lipschitz, row-wise"]
    return Shown("Bounds", header, cells, notes=[note], name="bounds")


# What an experiment of the paper has and a report has not, with the reason.


NO_DATA = "the data set was not on the machine that made this report"
NOT_RUN = "no network was trained or measured for it with this schedule"


def missing_parts(experiment: Experiment, table: Table, data_dir: Path | None = None) -> list[tuple[str, str]]:
    """The data sets, models and methods without any score, as (what, why); with how many published values they have."""
    if experiment.kind not in ("accuracy", "search"):
        return []
    pairs = product(experiment.datasets, experiment.models)
    lacking = [(data, model) for data, model in pairs if not table.where(data=data, model=model).rows]
    absent = experiments.absent_data({data for data, _ in lacking} - set(table.values("data")), data_dir)
    found = []
    for dataset in dict.fromkeys(data for data, _ in lacking):
        models = [model_label(model) for data, model in lacking if data == dataset]
        key = experiment.published or None, dataset_label(dataset)
        count = sum((value.table, value.dataset) == key and value.model in models for value in published())
        why = NO_DATA if dataset in absent else NOT_RUN
        what = f"{dataset_label(dataset)}: {', '.join(models)}"
        found.append((what, f"{why}; {count} published values" if count else why))
    run = {row["method"] for row in table}
    others = [name for name in experiment.methods if run and name not in run and experiment.layout != "table"]
    return [*found, *((METHODS.get(name, name), NOT_RUN) for name in others)]


def missing_values(
    run: Collection[tuple[str, str, str, str]], shown: Sequence[Experiment], data_dir: Path | None = None
) -> list[list[Value]]:
    """Rows for all published values whose keys are not among those `run`, each counted once: what, how many, why."""
    names = {label: name for name, label in experiments.DATASETS.items()}
    absent = experiments.absent_data(set(names.values()) - {names[key[0]] for key in run}, data_dir)
    every = map(experiments.find_experiment, experiments.experiment_names())
    papers = {experiment.published: experiment.paper for experiment in every if experiment.published}
    tables = {experiment.published for experiment in shown}
    found: dict[tuple[str, str], list[Published]] = {}
    for value in {value.key: value for value in published() if value.key not in run}.values():
        inside = any(other.table in tables for other in published() if other.key == value.key)
        why = NO_DATA if names[value.dataset] in absent else NOT_RUN
        why = why if inside or why == NO_DATA else f"{papers[value.table]} is not part of this report"
        found.setdefault((value.dataset, why), []).append(value)
    rows: list[list[Value]] = []
    for (dataset, why), values in found.items():
        models = []
        for model in dict.fromkeys(value.model for value in values):
            # With its methods, unless these are all that the paper has for it.
            mine = {value.method for value in values if value.model == model}
            methods = dict.fromkeys(v.method for v in published() if (v.dataset, v.model) == (dataset, model))
            words = ", ".join(METHODS.get(name, name) for name in methods if name in mine)
            models.append(model if len(mine) == len(methods) else f"{model} ({words})")
        rows.append([f"{dataset}: {', '.join(models)}", len(values), why])
    return rows
