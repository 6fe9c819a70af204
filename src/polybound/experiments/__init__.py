"""The paper's experiments by name: sweeps, folders of runs as tables, comparison with what was published."""

from polybound.experiments.compare import (
    ATTACKS,
    DATASETS,
    EPOCHS,
    MODELS,
    Comparison,
    Published,
    compare,
    judge,
    paper_method,
    published,
    published_value,
    row_kind,
)
from polybound.experiments.experiment import (
    BOUNDS,
    Experiment,
    experiment_names,
    find_experiment,
    register_experiment,
)
from polybound.experiments.results import (
    absent_data,
    experiment_scores,
    read_runs,
    read_scores,
    runs_of,
    skipped_runs,
)
from polybound.experiments.search import resolve, search_job
from polybound.experiments.studies import growth_studies, ratios, studies
from polybound.experiments.sweep import ENGINES, Estimate, estimate, sweep

__all__ = [
    "ATTACKS",
    "BOUNDS",
    "DATASETS",
    "ENGINES",
    "EPOCHS",
    "MODELS",
    "Comparison",
    "Estimate",
    "Experiment",
    "Published",
    "absent_data",
    "compare",
    "estimate",
    "experiment_names",
    "experiment_scores",
    "find_experiment",
    "growth_studies",
    "judge",
    "paper_method",
    "published",
    "published_value",
    "ratios",
    "read_runs",
    "read_scores",
    "register_experiment",
    "resolve",
    "row_kind",
    "runs_of",
    "search_job",
    "skipped_runs",
    "studies",
    "sweep",
]
