"""The scores of an experiment's runs as one flat table, and averages over seeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from polybound.errors import PolyboundError
from polybound.evaluation.certified import certified_column
from polybound.evaluation.stored import keyed_scores
from polybound.experiments.experiment import Entry, Experiment
from polybound.experiments.jobs import run_of
from polybound.experiments.plan import Plan
from polybound.experiments.search import resolve
from polybound.runs import Run
from polybound.training.recipe import Recipe

__all__ = [
    "Average",
    "Row",
    "average",
    "best",
    "collect",
    "collect_folder",
    "contenders",
    "read_csv",
    "rows_of",
    "write_csv",
]


@dataclass(frozen=True)
class Row:
    """One accuracy of one run, with everything that a reader must know of it.

    Attributes:
        dataset: data set.
        model: model.
        rank: its hidden rank.
        method: training method.
        projection: kind of projection, "" for none.
        bound: the bound of the projection, None if there is none or one for each matrix; or the weight of a penalty or
            the radius of certified training, where an experiment has several.
        variant: what else tells runs of a method apart: the penalty's weight, the adversary, a bound for each matrix.
        seed: of the training.
        epochs: of the training; the paper's schedule has 100.
        epoch: after which it was measured.
        samples: training samples; 0 for all.
        validation: share of train held out.
        split: what was evaluated.
        attack: "clean", or the attack.
        protocol: "-", "published" or "sound".
        defence: denoiser in front of the model, if any.
        correct: images classified right; under the published protocol attacked, as the paper counts, under the sound
            one both as they are and attacked.
        total: images.
        limit: how many images were asked for, 0 for all.
        accuracy: their share in percent.
        run: the run's folder.
    """

    dataset: str
    model: str
    rank: int
    method: str
    projection: str
    bound: float | None
    variant: str
    seed: int
    epochs: int
    epoch: int
    samples: int
    validation: float
    split: str
    attack: str
    protocol: str
    defence: str
    correct: int
    total: int
    limit: int
    accuracy: float
    run: str


def collect(experiment: Experiment, root: Path, scores: Iterable[Row] = ()) -> list[Row]:
    """The scores of an experiment's runs, those that its search led to included.

    Other experiments share the runs, and may have left scores of other attacks and splits in their folders.

    Args:
        experiment: whose runs.
        root: folder of the run folders.
        scores: of runs whose folders are not there; where a folder has the same score, that counts.
    """
    attacks = {"clean", *experiment.attacks, *(certified_column(eps)[0] for eps in experiment.eps)}
    kept: dict[str, list[Row]] = {}
    for row in scores:
        kept.setdefault(row.run, []).append(row)
    rows: dict[tuple[object, ...], Row] = {}
    for entry in resolve(experiment, root).entries():
        for plan in (entry.plan, *experiment.earlier(entry.plan)):
            run = run_of(plan, root)
            for row in (*_rows(replace(entry, plan=plan), run), *kept.get(run.path.name, ())):
                asked = row.limit == experiment.limit and row.attack in attacks and row.split in experiment.splits
                if asked and (plan == entry.plan or row.protocol != "sound"):
                    place = {"projection": entry.projection, "bound": entry.level}
                    what = (*place.values(), row.run, row.split, row.attack, row.protocol, row.defence)
                    rows.setdefault(what, replace(row, epochs=entry.plan.recipe.epochs, **place))
    return list(rows.values())


def collect_folder(root: Path) -> list[Row]:
    """All scores of all run folders in a folder."""
    runs = [Run(file.parent) for file in sorted(root.glob("*/config.json"))]
    return [row for run in runs if run.model_file.exists() for row in rows_of(run)]


def rows_of(run: Run) -> list[Row]:
    """All scores of a run folder."""
    plan = Plan.of(run.config())
    bound = plan.recipe.bound
    projection = ""
    if plan.recipe.regulariser == "projection":
        projection = "layer-wise" if isinstance(bound, Mapping) else "single"
        projection = "spectral" if plan.recipe.norm == "2" else projection
        projection = plan.recipe.on if plan.recipe.on != "weights" else projection
    level = float(bound) if projection and isinstance(bound, int | float) else None
    return list(_rows(Entry(plan, projection, level), run))


def _rows(entry: Entry, run: Run) -> Iterator[Row]:
    plan = entry.plan
    for key, score in keyed_scores(run.path):
        # The paper's attack library leaves alone what is misclassified already in APGD, and only there.
        papers = score.protocol == "published" and not score.attack.startswith("apgd")
        correct = score.attacked if papers else score.correct
        yield Row(
            dataset=plan.dataset,
            model=plan.model,
            rank=plan.rank,
            method=plan.recipe.method,
            projection=entry.projection,
            bound=entry.level,
            variant=_variant(plan.recipe),
            seed=plan.seed,
            epochs=plan.recipe.epochs,
            epoch=plan.recipe.epochs,
            samples=plan.samples,
            validation=plan.validation,
            split=key["split"],
            attack=score.attack,
            protocol=score.protocol,
            defence=key["defence"] or "",
            correct=correct,
            total=score.total,
            limit=key["limit"] or 0,
            accuracy=100.0 * correct / score.total,
            run=run.path.name,
        )


def _variant(recipe: Recipe) -> str:
    parts = []
    if recipe.regulariser in ("jacobian", "l2"):
        parts.append(f"penalty {recipe.penalty:g}{' exact' if recipe.jacobian == 'exact' else ''}")
    if recipe.regulariser == "certified":
        parts.append(f"eps {recipe.eps:g}")
    if recipe.adversarial:
        steps = f"-{recipe.adversary_steps}-{recipe.adversary_step_size:g}" if recipe.adversary == "pgd" else ""
        start = " from a random start" if recipe.random_start else ""
        since = f" since epoch {recipe.adversary_from + 1}" if recipe.adversary_from != recipe.start else ""
        parts.append(f"{recipe.adversary}-{recipe.eps:g}{steps}{start}{since} ({recipe.protocol})")
    if recipe.regulariser == "projection" and isinstance(recipe.bound, Mapping):
        parts.append(", ".join(f"{name} {value:g}" for name, value in recipe.bound.items()))
    return "; ".join(parts)


def write_csv(rows: Sequence[Row]) -> str:
    """The rows as a CSV file.

    >>> write_csv([]).split(",")[:3]
    ['dataset', 'model', 'rank']
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            asdict(row) | {"accuracy": f"{row.accuracy:.4f}", "bound": "" if row.bound is None else f"{row.bound:g}"}
        )
    return out.getvalue()


def read_csv(text: str) -> list[Row]:
    """The inverse of `write_csv`."""
    kinds: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}
    rows = []
    reader = csv.DictReader(io.StringIO(text))
    if missing := {field.name for field in fields(Row)} - set(reader.fieldnames or ()):
        raise PolyboundError(f"not a file of scores: it has no column {', '.join(sorted(missing))}")
    for line in reader:
        values: dict[str, Any] = {}
        for field in fields(Row):
            text_of = line[field.name]
            optional = field.type == "float | None"
            values[field.name] = (
                None if optional and not text_of else kinds["float" if optional else str(field.type)](text_of)
            )
        rows.append(Row(**values))
    return rows


@dataclass(frozen=True)
class Average:
    """Mean and standard deviation over seeds, in percent."""

    mean: float
    std: float
    seeds: int
    bound: float | None = None

    def __str__(self) -> str:
        spread = f" ± {self.std:.2f}" if self.seeds > 1 else ""
        return f"{self.mean:.2f}{spread}"


def average(rows: Iterable[Row], **wanted: Any) -> dict[float | None, Average]:
    """Averages over the seeds of the rows that have the wanted values, by bound.

    Of runs that were measured after several epochs the best counts, as in the paper.
    """
    found: dict[float | None, dict[int, float]] = {}
    for row in rows:
        if all(getattr(row, name) == value for name, value in wanted.items()):
            by_seed = found.setdefault(row.bound, {})
            by_seed[row.seed] = max(row.accuracy, by_seed.get(row.seed, 0.0))
    result = {}
    for bound, by_seed in found.items():
        values = list(by_seed.values())
        result[bound] = Average(fmean(values), stdev(values) if len(values) > 1 else 0.0, len(values), bound)
    return result


def contenders(averages: Iterable[Average]) -> list[Average]:
    """Those over the most seeds: one that fewer have, and may have by luck, does not compete for the best."""
    found = list(averages)
    most = max((one.seeds for one in found), default=0)
    return [one for one in found if one.seeds == most]


def best(rows: Iterable[Row], **wanted: Any) -> Average | None:
    """The highest of the averages by bound, as the paper takes it; None if there is no such row."""
    return max(contenders(average(rows, **wanted).values()), key=lambda one: one.mean, default=None)
