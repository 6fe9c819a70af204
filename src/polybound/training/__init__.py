"""Training: the paper's Algorithms 1 and 2 and its baselines, for one model or for a stack of runs."""

from polybound.training.adversary import Adversary
from polybound.training.distributed import start_workers, stop_workers, worker_number, workers
from polybound.training.fit import accuracy, fit
from polybound.training.history import History
from polybound.training.loop import Callback, Trainer
from polybound.training.methods import (
    METHODS,
    AfterStep,
    Certified,
    JacobianPenalty,
    Method,
    Plain,
    ProjectAfterStep,
    Projected,
    WeightDecay,
    cross_entropies,
    join_methods,
    projection_kind,
    register_method,
)
from polybound.training.optimisers import OPTIMISERS, SGD, Optimiser
from polybound.training.recipe import Recipe
from polybound.training.schedules import SCHEDULES, Schedule, Steps

__all__ = [
    "METHODS",
    "OPTIMISERS",
    "SCHEDULES",
    "SGD",
    "Adversary",
    "AfterStep",
    "Callback",
    "Certified",
    "History",
    "JacobianPenalty",
    "Method",
    "Optimiser",
    "Plain",
    "ProjectAfterStep",
    "Projected",
    "Recipe",
    "Schedule",
    "Steps",
    "Trainer",
    "WeightDecay",
    "accuracy",
    "cross_entropies",
    "fit",
    "join_methods",
    "projection_kind",
    "register_method",
    "start_workers",
    "stop_workers",
    "worker_number",
    "workers",
]
