"""The paper's experiments by name: sweeps, folders of runs as tables, comparison with what was published.

experiment  what to train and to measure, from a TOML file in `named/`
jobs        the pieces of work of an experiment; each leaves files with content addresses
sweep       all jobs that are not done, on any number of workers; estimates of their time
results     an experiment's runs, chosen bounds, scores and studies
compare     what was measured against `published.csv`
"""

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
    growth_studies,
    ratios,
    read_runs,
    read_scores,
    resolve,
    runs_of,
    search_job,
    skipped_runs,
    studies,
)
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
