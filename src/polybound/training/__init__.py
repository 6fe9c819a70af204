"""Training: the paper's Algorithms 1 and 2 and its baselines, for one model or for a stack of runs."""

from polybound.training.adversary import Adversary
from polybound.training.fit import accuracy, fit
from polybound.training.history import History
from polybound.training.keeper import epoch_facts
from polybound.training.loop import Callback, Trainer
from polybound.training.losses import LOSSES, CrossEntropy, Loss, Squared, register_loss
from polybound.training.methods import (
    METHODS,
    AfterStep,
    Certified,
    CertifiedProjected,
    JacobianPenalty,
    Method,
    Moment,
    Plain,
    ProjectAfterStep,
    Projected,
    WeightDecay,
    cross_entropies,
    join_methods,
    projection_kind,
    register_method,
)
from polybound.training.optimisers import OPTIMISERS, SGD, AdamW, Momentum, Optimiser, register_optimiser
from polybound.training.recipe import Recipe
from polybound.training.schedules import SCHEDULES, Constant, Cosine, Schedule, Steps, register_schedule
from polybound.training.training_set import TrainingSet, training_set

__all__ = [
    "LOSSES",
    "METHODS",
    "OPTIMISERS",
    "SCHEDULES",
    "SGD",
    "AdamW",
    "Adversary",
    "AfterStep",
    "Callback",
    "Certified",
    "CertifiedProjected",
    "Constant",
    "Cosine",
    "CrossEntropy",
    "History",
    "JacobianPenalty",
    "Loss",
    "Method",
    "Moment",
    "Momentum",
    "Optimiser",
    "Plain",
    "ProjectAfterStep",
    "Projected",
    "Recipe",
    "Schedule",
    "Squared",
    "Steps",
    "Trainer",
    "TrainingSet",
    "WeightDecay",
    "accuracy",
    "cross_entropies",
    "epoch_facts",
    "fit",
    "join_methods",
    "projection_kind",
    "register_loss",
    "register_method",
    "register_optimiser",
    "register_schedule",
    "training_set",
]
