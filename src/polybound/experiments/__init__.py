"""The paper's experiments by name: sweeps, folders of runs as tables, comparison with what was published.

experiment  what to train and to measure, from a TOML file in `named/`
jobs        the pieces of work of an experiment; each leaves files with content addresses
sweep       all jobs that are not done, on any number of workers
results     an experiment's runs, chosen bounds, scores and studies
compare     what was measured against `published.csv`
"""

from polybound.experiments.compare import DATASETS as DATASETS
from polybound.experiments.compare import EPOCHS as EPOCHS
from polybound.experiments.compare import MODELS as MODELS
from polybound.experiments.compare import Comparison as Comparison
from polybound.experiments.compare import Published as Published
from polybound.experiments.compare import compare as compare
from polybound.experiments.compare import judge as judge
from polybound.experiments.compare import paper_method as paper_method
from polybound.experiments.compare import published as published
from polybound.experiments.compare import published_value as published_value
from polybound.experiments.compare import row_kind as row_kind
from polybound.experiments.experiment import BOUNDS as BOUNDS
from polybound.experiments.experiment import Experiment as Experiment
from polybound.experiments.experiment import experiment_names as experiment_names
from polybound.experiments.experiment import find_experiment as find_experiment
from polybound.experiments.experiment import register_experiment as register_experiment
from polybound.experiments.results import absent_data as absent_data
from polybound.experiments.results import experiment_scores as experiment_scores
from polybound.experiments.results import growth_studies as growth_studies
from polybound.experiments.results import ratios as ratios
from polybound.experiments.results import read_runs as read_runs
from polybound.experiments.results import read_scores as read_scores
from polybound.experiments.results import resolve as resolve
from polybound.experiments.results import runs_of as runs_of
from polybound.experiments.results import search_job as search_job
from polybound.experiments.results import skipped_runs as skipped_runs
from polybound.experiments.results import studies as studies
from polybound.experiments.sweep import ENGINES as ENGINES
from polybound.experiments.sweep import preview as preview
from polybound.experiments.sweep import sweep as sweep
