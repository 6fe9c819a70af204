"""Runs: what determines one, its folder on disk, training many together, and what was measured on them.

spec      everything that determines a run, and its content address
folder    a run on disk: spec, history, models, scores; checkpoints and locks
train     runs trained as one stack, saved often, resumed to the same bits
evaluate  runs and model files measured; scores stay in the run's folder
manage    lists of runs, and the removal of what is no longer needed
"""

from polybound.runs.evaluate import LoadedModel, evaluate_run, evaluate_runs, load_model, load_models
from polybound.runs.folder import Checkpoint, Run, checkpoints, find_runs, is_run, lock_file, lock_names, locked
from polybound.runs.manage import RunSummary, clean_runs, list_runs
from polybound.runs.spec import DataSpec, ModelSpec, Spec, address_of
from polybound.runs.train import TrainingProgress, common_recipe, interrupted, train_runs

__all__ = [
    "Checkpoint",
    "DataSpec",
    "LoadedModel",
    "ModelSpec",
    "Run",
    "RunSummary",
    "Spec",
    "TrainingProgress",
    "address_of",
    "checkpoints",
    "clean_runs",
    "common_recipe",
    "evaluate_run",
    "evaluate_runs",
    "find_runs",
    "interrupted",
    "is_run",
    "list_runs",
    "load_model",
    "load_models",
    "lock_file",
    "lock_names",
    "locked",
    "train_runs",
]
