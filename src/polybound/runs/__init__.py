"""Runs: what determines one, its folder on disk, training many together, and what was measured on them.

spec      everything that determines a run, and its content address
folder    a run on disk: spec, history, models, scores; checkpoints and locks
train     runs trained as one stack, saved often, resumed to the same bits
evaluate  runs and model files measured; scores stay in the run's folder
manage    lists of runs, and the removal of what is no longer needed
"""

from polybound.runs.evaluate import LoadedModel as LoadedModel
from polybound.runs.evaluate import evaluate_run as evaluate_run
from polybound.runs.evaluate import evaluate_runs as evaluate_runs
from polybound.runs.evaluate import load_model as load_model
from polybound.runs.evaluate import load_models as load_models
from polybound.runs.folder import Checkpoint as Checkpoint
from polybound.runs.folder import Run as Run
from polybound.runs.folder import checkpoints as checkpoints
from polybound.runs.folder import find_runs as find_runs
from polybound.runs.folder import is_run as is_run
from polybound.runs.folder import lock_file as lock_file
from polybound.runs.folder import lock_names as lock_names
from polybound.runs.folder import locked as locked
from polybound.runs.manage import RunSummary as RunSummary
from polybound.runs.manage import clean_runs as clean_runs
from polybound.runs.manage import list_runs as list_runs
from polybound.runs.spec import DataSpec as DataSpec
from polybound.runs.spec import ModelSpec as ModelSpec
from polybound.runs.spec import Spec as Spec
from polybound.runs.spec import address_of as address_of
from polybound.runs.train import TrainingProgress as TrainingProgress
from polybound.runs.train import interrupted as interrupted
from polybound.runs.train import train_runs as train_runs
